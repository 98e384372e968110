//! Rust source as tokens: enough of a lexer that a check sees code and never a comment, a string or a lifetime.
//!
//! The checks built on it look for names and paths, so literals carry no value here and multi-character operators other than `::`
//! come as single characters.

/// What one token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or keyword, without `r#`.
    Ident(String),
    /// `::`
    PathSep,
    /// Any other single character of punctuation.
    Punct(char),
    /// A string, character or number.
    Literal,
}

/// A token and the line it starts on, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

impl Token {
    /// Whether this is the identifier or keyword `name`.
    pub fn is(&self, name: &str) -> bool {
        matches!(&self.kind, Kind::Ident(ident) if ident == name)
    }

    /// Whether this is the punctuation `c`.
    pub fn is_punct(&self, c: char) -> bool {
        self.kind == Kind::Punct(c)
    }
}

/// One line of a comment's text, with its line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    pub text: String,
    pub line: usize,
}

/// A file taken apart.
#[derive(Debug, Default)]
pub struct Source {
    pub tokens: Vec<Token>,
    pub comments: Vec<Comment>,
}

/// Takes `text` apart. Source that does not compile gives some tokens too: the compiler is there to complain.
pub fn lex(text: &str) -> Source {
    Lexer { chars: text.chars().collect(), at: 0, line: 1, out: Source::default() }.run()
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    out: Source,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn bump(&mut self) -> char {
        let c = self.peek(0);
        self.at += 1;
        if c == '\n' {
            self.line += 1;
        }
        c
    }

    fn push(&mut self, kind: Kind, line: usize) {
        self.out.tokens.push(Token { kind, line });
    }

    fn run(mut self) -> Source {
        while self.at < self.chars.len() {
            let line = self.line;
            match self.peek(0) {
                '/' if self.peek(1) == '/' => self.line_comment(),
                '/' if self.peek(1) == '*' => self.block_comment(),
                '"' => self.string(line),
                '\'' => self.quote(line),
                c if c.is_alphabetic() || c == '_' => self.word(line),
                c if c.is_ascii_digit() => {
                    while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
                        self.bump();
                    }
                    self.push(Kind::Literal, line);
                }
                ':' if self.peek(1) == ':' => {
                    self.at += 2;
                    self.push(Kind::PathSep, line);
                }
                c => {
                    self.bump();
                    if !c.is_whitespace() {
                        self.push(Kind::Punct(c), line);
                    }
                }
            }
        }
        self.out
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let mut text = String::new();
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            text.push(self.bump());
        }
        self.out.comments.push(Comment { text, line });
    }

    fn block_comment(&mut self) {
        let (mut line, mut text, mut depth) = (self.line, String::new(), 0);
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                ('\n', _) => {
                    self.out.comments.push(Comment { text: std::mem::take(&mut text), line });
                    self.bump();
                    line = self.line;
                    continue;
                }
                _ => {
                    text.push(self.bump());
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                break;
            }
        }
        self.out.comments.push(Comment { text, line });
    }

    /// A string with escapes; the opening quote is next.
    fn string(&mut self, line: usize) {
        self.bump();
        while self.at < self.chars.len() {
            match self.bump() {
                '\\' => {
                    self.bump();
                }
                '"' => break,
                _ => {}
            }
        }
        self.push(Kind::Literal, line);
    }

    /// A raw string; the `#`s or the quote are next.
    fn raw_string(&mut self, line: usize) {
        let mut hashes = 0;
        while self.peek(0) == '#' {
            hashes += 1;
            self.bump();
        }
        self.bump();
        while self.at < self.chars.len() {
            if self.bump() == '"' && (0..hashes).all(|i| self.peek(i) == '#') {
                self.at += hashes;
                break;
            }
        }
        self.push(Kind::Literal, line);
    }

    /// A character or a lifetime: `'a'`, `'\n'`, `'a`.
    fn quote(&mut self, line: usize) {
        if self.peek(1) == '\\' {
            self.at += 2;
            self.bump();
            while self.at < self.chars.len() && self.bump() != '\'' {}
            self.push(Kind::Literal, line);
        } else if self.peek(2) == '\'' {
            self.at += 1;
            self.bump();
            self.bump();
            self.push(Kind::Literal, line);
        } else {
            self.bump();
            while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
                self.bump();
            }
        }
    }

    fn word(&mut self, line: usize) {
        let mut word = String::new();
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            word.push(self.bump());
        }
        let raw_quote = {
            let mut ahead = 0;
            while self.peek(ahead) == '#' {
                ahead += 1;
            }
            self.peek(ahead) == '"'
        };
        match (word.as_str(), self.peek(0)) {
            ("r" | "br" | "cr", '"' | '#') if raw_quote => self.raw_string(line),
            ("b" | "c", '"') => self.string(line),
            ("b", '\'') => self.quote(line),
            ("r", '#') => {
                self.bump();
                self.word(line);
            }
            _ => self.push(Kind::Ident(word), line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(text: &str) -> Vec<String> {
        lex(text)
            .tokens
            .into_iter()
            .filter_map(|token| match token.kind {
                Kind::Ident(name) => Some(name),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn only_code_is_seen() {
        assert_eq!(idents("a /* b /* c */ d */ e // f\ng \"h\\\"i\" j"), ["a", "e", "g", "j"]);
        assert_eq!(idents("r#\"x \" y\"# z r\"q\" br##\"\"# \"## w"), ["z", "w"]);
        assert_eq!(idents("'a' 'b d b'\\'' b'x' c"), ["d", "c"]);
        assert_eq!(idents("r#type 0x1f_u8 1.5"), ["type"]);
    }

    #[test]
    fn lines_are_counted() {
        let source = lex("a\n\"\n\n\"\nb /* x\ny */ c");
        assert_eq!(source.tokens.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 2, 5, 6]);
        assert_eq!(source.comments.iter().map(|comment| comment.line).collect::<Vec<_>>(), [5, 6]);
    }
}
