//! Where `unsafe` may stand, and that each block says why it is sound.
//!
//! `unsafe` lives in src/mem and src/device only. Each unsafe block and impl there has a `// SAFETY:` comment directly above it or
//! above the statement it is in. Clippy asks for the comment too; the place is checked only here.

use crate::source::{Kind, Source};
use crate::tidy::Finding;

/// Directories of src/ in which `unsafe` may stand.
const PLACES: &[&str] = &["mem/", "device/"];

/// Checks one file of src/. `path` is relative to src; `text` is what `source` was lexed from.
pub fn check(path: &str, text: &str, source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let allowed = PLACES.iter().any(|place| path.starts_with(place));
    let mut findings = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if !token.is("unsafe") {
            continue;
        }
        let mut refuse = |what: &str| findings.push(Finding { file: format!("src/{path}"), line: token.line, what: what.into() });
        if !allowed {
            refuse("unsafe stands in src/mem and src/device only: use or add a safe function there");
            continue;
        }
        let Some(next) = source.tokens.get(at + 1) else { continue };
        let needs_reason = next.is("impl") || next.kind == Kind::Punct('{');
        if needs_reason && !has_reason(&lines, token.line) {
            refuse("no `// SAFETY:` comment directly above: name the invariant and who upholds it");
        }
    }
    findings
}

/// Whether the comment above line `line` (from 1), or above the statement it belongs to, says SAFETY.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let mut above = line - 1;
    // Up to the start of the statement: the line before it ends one, opens or closes a block, or is blank or a comment.
    while above > 0 {
        let text = lines[above - 1].trim();
        let ends = text.is_empty() || is_comment(text) || text.ends_with([';', '{', '}', ',']);
        if ends {
            break;
        }
        above -= 1;
    }
    while above > 0 {
        let text = lines[above - 1].trim();
        if text.starts_with("// SAFETY:") {
            return true;
        }
        if !is_comment(text) && !text.starts_with("#[") {
            return false;
        }
        above -= 1;
    }
    false
}

fn is_comment(text: &str) -> bool {
    text.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::lex;

    fn says(path: &str, code: &str) -> Vec<(usize, String)> {
        check(path, code, &lex(code)).into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    #[test]
    fn unsafe_has_its_places() {
        let code = "fn f() {\n    // SAFETY: it is.\n    unsafe { g() }\n}";
        assert!(says("mem/region.rs", code).is_empty());
        assert!(says("device/packet/rings.rs", code).is_empty());
        assert!(says("flow/mod.rs", code)[0].1.contains("src/mem and src/device only"));
        assert_eq!(says("memory.rs", code).len(), 1);
        assert!(says("base/mod.rs", "// unsafe {}\nconst A: &str = \"unsafe {}\";").is_empty());
    }

    #[test]
    fn blocks_and_impls_say_why() {
        assert_eq!(says("mem/a.rs", "fn f() {\n    unsafe { g() }\n}")[0].0, 2);
        assert_eq!(says("mem/a.rs", "// SAFETY: one.\nunsafe impl Send for A {}\nunsafe impl Sync for A {}").len(), 1);
        assert!(says("mem/a.rs", "// SAFETY: ours\n// alone.\n#[inline]\nunsafe impl Send for A {}").is_empty());
        assert!(says("mem/a.rs", "// SAFETY: whole statement.\nlet a =\n    unsafe { g() };").is_empty());
        assert_eq!(says("mem/a.rs", "// SAFETY: another.\nh();\nunsafe { g() };").len(), 1);
        assert_eq!(says("mem/a.rs", "match x {\n// SAFETY: first arm.\n1 => unsafe { g() },\n2 => unsafe { g() },\n}").len(), 1);
        assert_eq!(says("mem/a.rs", "// SAFETY: gone.\n\nunsafe { g() }").len(), 1);
    }

    #[test]
    fn declarations_need_no_reason_here() {
        // `# Safety` in their docs is clippy's to ask for.
        assert!(says("mem/a.rs", "pub unsafe fn f() {}\nunsafe extern \"C\" {}\nunsafe trait T {}").is_empty());
    }
}
