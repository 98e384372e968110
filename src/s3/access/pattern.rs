//! Texts with wildcards and policy variables, and what they match. Nothing is allocated to match one.

use super::key::{Key, Scope};

/// A text of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pieces: Box<[Piece]>,
    ignores_case: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    /// `?`: one character.
    One,
    /// `*`: any characters, also none, slashes too.
    Any,
    /// `${key}` or `${key, 'default'}`: what a key has in the request, its wildcards taken as they are.
    Variable(Key, Option<Box<[u8]>>),
}

/// What in a text has a meaning beyond itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syntax {
    /// `*` and `?`.
    pub wildcards: bool,
    /// `${..}`: in policies of version 2012-10-17.
    pub variables: bool,
    /// Whether ASCII letters match those of the other case.
    pub ignores_case: bool,
}

/// A variable that does not end or is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadVariable;

impl Pattern {
    pub(super) fn parse(text: &str, syntax: Syntax) -> Result<Pattern, BadVariable> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (head, tail) = rest.split_at(first.len_utf8());
            rest = tail;
            match first {
                '*' if syntax.wildcards => {
                    if pieces.last() != Some(&Piece::Any) {
                        pieces.push(Piece::Any);
                    }
                }
                '?' if syntax.wildcards => pieces.push(Piece::One),
                '$' if syntax.variables && tail.starts_with('{') => {
                    let (name, tail) = tail[1..].split_once('}').ok_or(BadVariable)?;
                    rest = tail;
                    match name {
                        "*" | "?" | "$" => push_text(&mut pieces, name),
                        _ => pieces.push(variable(name)?),
                    }
                }
                _ => push_text(&mut pieces, head),
            }
        }
        Ok(Pattern { pieces: pieces.into(), ignores_case: syntax.ignores_case })
    }

    /// Whether it is one text and no other.
    pub(super) fn is_fixed(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    pub(super) fn matches(&self, subject: Subject<'_>, scope: &Scope<'_>) -> bool {
        let (mut piece, mut at) = (0, 0);
        // Behind the last star: the piece, and where in the subject it was tried.
        let mut star = None;
        loop {
            let compared = if let Some(Piece::Text(text)) = self.pieces.get(piece) { text.len() } else { 0 };
            if !scope.work.step(compared) {
                return false;
            }
            let advanced = match self.pieces.get(piece) {
                None if at == subject.len() => return true,
                None => None,
                Some(Piece::Any) if piece + 1 == self.pieces.len() => return true,
                Some(Piece::Any) => {
                    star = Some((piece + 1, at));
                    Some(at)
                }
                Some(Piece::One) => (at < subject.len()).then(|| subject.behind_character(at)),
                Some(Piece::Text(text)) => subject.behind(at, text, self.ignores_case),
                Some(Piece::Variable(key, default)) => match scope.text(key) {
                    Some(value) => subject.behind(at, value.as_str().as_bytes(), self.ignores_case),
                    None => match default {
                        Some(default) => subject.behind(at, default, self.ignores_case),
                        None => return false,
                    },
                },
            };
            match (advanced, &mut star) {
                (Some(next), _) => (piece, at) = (piece + 1, next),
                (None, Some((behind, tried))) if *tried < subject.len() => {
                    *tried = subject.behind_character(*tried);
                    (piece, at) = (*behind, *tried);
                }
                (None, _) => return false,
            }
        }
    }

    /// Whether it may match `start`, and whether it may match what begins with `start` and is longer. A variable may have any value.
    pub(super) fn reaches(&self, start: &str) -> (bool, bool) {
        let steps: Vec<Step> = self.pieces.iter().flat_map(Piece::steps).collect();
        // Where in the steps it may be; behind the last the pattern is over.
        let mut live = vec![false; steps.len() + 1];
        live[0] = true;
        let settle = |live: &mut [bool]| (0..steps.len()).for_each(|at| live[at + 1] |= live[at] && steps[at] == Step::Any);
        settle(&mut live);
        for character in start.chars() {
            let mut next = vec![false; live.len()];
            for at in (0..steps.len()).filter(|&at| live[at]) {
                match steps[at] {
                    Step::Any => next[at] = true,
                    Step::One => next[at + 1] = true,
                    Step::Character(own) => next[at + 1] |= own == character,
                }
            }
            settle(&mut next);
            live = next;
        }
        (live[steps.len()], live[..steps.len()].contains(&true))
    }
}

/// What a pattern takes, a character at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Character(char),
    One,
    Any,
}

impl Piece {
    fn steps(&self) -> Vec<Step> {
        match self {
            Piece::Text(text) => String::from_utf8_lossy(text).chars().map(Step::Character).collect(),
            Piece::One => vec![Step::One],
            Piece::Any | Piece::Variable(..) => vec![Step::Any],
        }
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if let Some(Piece::Text(last)) = pieces.last_mut() {
        last.extend_from_slice(text.as_bytes());
    } else {
        pieces.push(Piece::Text(text.as_bytes().into()));
    }
}

/// The variable `key`, or `key, 'default'`.
fn variable(text: &str) -> Result<Piece, BadVariable> {
    let (name, default) = match text.split_once(',') {
        None => (text, None),
        Some((name, default)) => {
            let default = default.trim().strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).ok_or(BadVariable)?;
            (name, Some(default.as_bytes().into()))
        }
    };
    Ok(Piece::Variable(Key::parse(name.trim()).ok_or(BadVariable)?, default))
}

/// What a pattern is held against: texts one behind the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a>(pub [&'a [u8]; 3]);

impl<'a> Subject<'a> {
    pub(super) fn of(text: &'a str) -> Subject<'a> {
        Subject([text.as_bytes(), b"", b""])
    }

    fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    fn byte(&self, mut at: usize) -> Option<u8> {
        for part in self.0 {
            match part.get(at) {
                Some(&byte) => return Some(byte),
                None => at -= part.len(),
            }
        }
        None
    }

    /// Where `text` ends if it is at `at`.
    fn behind(&self, at: usize, text: &[u8], ignores_case: bool) -> Option<usize> {
        let end = at + text.len();
        if end > self.len() {
            return None;
        }
        let (mut skipped, mut rest) = (at, text);
        for part in self.0 {
            let Some(part) = part.get(skipped..) else {
                skipped -= part.len();
                continue;
            };
            skipped = 0;
            let (wanted, behind) = rest.split_at(part.len().min(rest.len()));
            let own = &part[..wanted.len()];
            let is_same = if ignores_case { own.eq_ignore_ascii_case(wanted) } else { own == wanted };
            if !is_same {
                return None;
            }
            rest = behind;
        }
        Some(end)
    }

    /// Where the character at `at` ends.
    fn behind_character(&self, at: usize) -> usize {
        let bytes = match self.byte(at) {
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xff) => 4,
            _ => 1,
        };
        (at + bytes).min(self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::{Context, Requester, Work};
    use super::*;
    use proptest::prelude::*;

    const ALL: Syntax = Syntax { wildcards: true, variables: true, ignores_case: false };

    fn matches(pattern: &str, subject: &str, context: &Context<'_>) -> bool {
        let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: None, context };
        Pattern::parse(pattern, ALL).unwrap().matches(Subject::of(subject), &scope)
    }

    #[test]
    fn wildcards() {
        for (pattern, subject, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("*", "", true),
            ("*", "a/b/c", true),
            ("?", "", false),
            ("?", "a", true),
            ("?", "ab", false),
            ("?", "ä", true),
            ("?", "💧", true),
            ("??", "ä", false),
            ("*??", "€", false),
            ("a*c", "a/b/c", true),
            ("a?c", "a/c", true),
            ("a*c", "acb", false),
            ("a*c", "acbc", true),
            ("*.jpg", "photos/a.jpg", true),
            ("*.jpg", "photos/a.jpg.txt", false),
            ("photos/*", "photos/", true),
            ("photos/*", "photos", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("**", "x", true),
            ("*?", "", false),
            ("*?", "ä", true),
            ("a**b", "ab", true),
            ("ab*?", "ab", false),
            ("A", "a", false),
            ("*ab", "aab", true),
            ("a.c", "abc", false),
            ("[a]", "a", false),
            ("\\*", "\\x", true),
        ] {
            assert_eq!(matches(pattern, subject, &Context::default()), expected, "{pattern} {subject}");
        }
        // What is compared in slices over the ends of parts.
        let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: None, context: &Context::default() };
        let pattern = Pattern::parse("*bc/de?g", ALL).unwrap();
        assert!(pattern.matches(Subject([b"abc", b"/", b"defg"]), &scope) && pattern.matches(Subject([b"", b"abc/d", b"efg"]), &scope));
        assert!(!pattern.matches(Subject([b"abc", b"/", b"dxfg"]), &scope) && !pattern.matches(Subject([b"abc", b"-", b"defg"]), &scope));
        let alike = Syntax { wildcards: false, ignores_case: true, ..ALL };
        let pattern = Pattern::parse("Pre*Fix?", alike).unwrap();
        assert!(pattern.matches(Subject::of("prE*fIX?"), &scope) && !pattern.matches(Subject::of("preXfix?"), &scope));
        assert!(pattern.is_fixed());
    }

    #[test]
    fn variables() {
        let context = Context { prefix: Some("a*b"), ..Context::default() };
        for (pattern, subject, expected) in [
            ("home/${s3:prefix}/*", "home/a*b/x", true),
            ("home/${s3:prefix}/*", "home/axb/x", false),
            ("${S3:Prefix}", "a*b", true),
            ("${s3:delimiter}", "", false),
            ("*${s3:delimiter}*", "abc", false),
            ("${s3:delimiter, 'none'}", "none", true),
            ("${s3:prefix, 'none'}", "none", false),
            ("${*}", "*", true),
            ("${*}", "a", false),
            ("${?}${$}", "?$", true),
            ("$", "$", true),
            ("$*", "$a", true),
            ("{}", "{}", true),
        ] {
            assert_eq!(matches(pattern, subject, &context), expected, "{pattern} {subject}");
        }
        for bad in ["${", "${s3:prefix", "${nothing}", "${}", "${s3:prefix, x}", "${s3:prefix, 'x}"] {
            assert_eq!(Pattern::parse(bad, ALL), Err(BadVariable), "{bad}");
        }
        let old = Syntax { variables: false, ..ALL };
        let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: None, context: &context };
        assert!(Pattern::parse("${s3:prefix}", old).unwrap().matches(Subject::of("${s3:prefix}"), &scope));
        assert!(!Pattern::parse("${s3:prefix}", ALL).unwrap().is_fixed());
    }

    #[test]
    fn what_a_pattern_reaches() {
        for (pattern, expected) in [
            ("bucket", (true, false)),
            ("bucket/*", (false, true)),
            ("bucket*", (true, true)),
            ("bucket/a/b", (false, true)),
            ("bucket?", (false, true)),
            ("*", (true, true)),
            ("*/*", (false, true)),
            ("b?cket", (true, false)),
            ("buck", (false, false)),
            ("other/*", (false, false)),
            ("${aws:username}", (true, true)),
            ("${aws:username}/x", (false, true)),
            ("*bucket", (true, true)),
            ("*t", (true, true)),
            ("*x", (false, true)),
        ] {
            assert_eq!(Pattern::parse(pattern, ALL).unwrap().reaches("bucket"), expected, "{pattern}");
        }
    }

    /// What the definition says, step by step.
    fn naive(pattern: &[char], subject: &[char]) -> bool {
        match pattern.split_first() {
            None => subject.is_empty(),
            Some(('*', rest)) => (0..=subject.len()).any(|skipped| naive(rest, &subject[skipped..])),
            Some((first, rest)) => subject.split_first().is_some_and(|(own, tail)| (*first == '?' || first == own) && naive(rest, tail)),
        }
    }

    proptest! {
        #[test]
        fn as_the_definition_says(pattern in "[ab/ä*?]{0,9}", subject in "[ab/ä]{0,9}", cuts in (0_usize..20, 0_usize..20)) {
            let expected = naive(&pattern.chars().collect::<Vec<_>>(), &subject.chars().collect::<Vec<_>>());
            let pattern = Pattern::parse(&pattern, ALL).unwrap();
            let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: None, context: &Context::default() };
            prop_assert_eq!(pattern.matches(Subject::of(&subject), &scope), expected);
            // In parts, wherever it is cut.
            let bytes = subject.as_bytes();
            let (low, high) = (cuts.0.min(cuts.1).min(bytes.len()), cuts.0.max(cuts.1).min(bytes.len()));
            let parts = Subject([&bytes[..low], &bytes[low..high], &bytes[high..]]);
            prop_assert_eq!(pattern.matches(parts, &scope), expected);
            // What it matches it reaches.
            if expected {
                prop_assert!(pattern.reaches(&subject).0);
                let starts = (0..subject.len()).filter(|&at| subject.is_char_boundary(at));
                prop_assert!(starts.into_iter().all(|at| pattern.reaches(&subject[..at]).1));
            }
        }

        #[test]
        fn any_bytes_are_matched_or_not(pattern in ".{0,20}", subject in prop::collection::vec(any::<u8>(), 0..30)) {
            let syntax = Syntax { variables: false, ..ALL };
            let scope = Scope { work: &Work::default(), requester: Requester::Anonymous, account: None, context: &Context::default() };
            Pattern::parse(&pattern, syntax).unwrap().matches(Subject([&subject, b"/", &subject]), &scope);
            let _ = Pattern::parse(&pattern, ALL);
        }
    }
}
