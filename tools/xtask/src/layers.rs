//! The arrows between layers, and who may read a clock.
//!
//! Every path that names the crate's own modules (`crate::…`, `super::…`, `use` groups, `$crate::…`) is resolved to the top module it
//! reaches. Test code counts too: a layer that needs a later one to be tested is not below it.

use crate::source::{Kind, Source, Token};
use crate::tidy::Finding;

/// Each top module and those it may import. One line per layer; a module that is not here may not exist.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("mem", &["base"]),
    ("wire", &["base"]),
    ("proto", &["base", "wire"]),
    ("device", &["base", "mem", "wire", "proto"]),
    ("reactor", &["base", "mem", "device"]),
    ("flow", &["base", "mem", "wire", "proto", "device", "reactor"]),
    ("store", &["base", "mem", "wire", "proto", "device", "reactor"]),
    ("s3", &["base", "mem", "wire", "proto", "device", "reactor", "store"]),
    ("client", &["base", "mem", "wire", "device", "reactor", "s3"]),
    ("bench", &["base", "mem", "wire", "proto", "device", "reactor", "flow", "store", "s3"]),
    ("peer", &["base", "mem", "wire", "proto", "device", "reactor", "flow"]),
    ("selftest", &["base", "mem", "wire", "proto", "device", "reactor", "flow"]),
    ("doctor", &["base", "mem", "wire", "proto", "device", "reactor", "flow", "store", "s3"]),
];

/// The top modules that may read a clock; everyone else takes `now`.
const CLOCK_READERS: &[&str] = &["base", "reactor", "doctor"];

/// Checks one file of src/. `path` is relative to src, such as `mem/slab.rs`.
pub fn check(path: &str, source: &Source) -> Vec<Finding> {
    let module = module_of(path);
    let Some(top) = module.first().cloned() else { return Vec::new() };
    let finding = |line, what: String| Finding { file: format!("src/{path}"), line, what };
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == top) else {
        return vec![finding(1, format!("'{top}' is not a layer: give it a line in LAYERS (tools/xtask/src/layers.rs)"))];
    };
    let mut findings = Vec::new();
    for (line, target) in reached(&module, &source.tokens) {
        if target == top || allowed.contains(&target.as_str()) {
            continue;
        }
        findings.push(finding(
            line,
            match LAYERS.iter().any(|(name, _)| *name == target) {
                true if allowed.is_empty() => format!("{top} may not import {target}: it imports no other layer"),
                true => format!("{top} may not import {target}: it may import {}", allowed.join(", ")),
                false => format!("'crate::{target}' names no layer: write the path from its layer on, such as crate::base::Nanos"),
            },
        ));
    }
    if !CLOCK_READERS.contains(&top.as_str()) {
        for window in source.tokens.windows(3) {
            let [clock, sep, now] = window else { unreachable!("windows of three") };
            if (clock.is("Instant") || clock.is("SystemTime")) && sep.kind == Kind::PathSep && now.is("now") {
                findings.push(finding(now.line, "only base and reactor read a clock: take `now: Nanos` as a parameter".into()));
            }
        }
    }
    findings
}

/// `mem/slab.rs` is `[mem, slab]`, `mem/mod.rs` is `[mem]`; the roots (lib.rs, bin/) sit on everything and are `[]`.
fn module_of(path: &str) -> Vec<String> {
    if path == "lib.rs" || path.starts_with("bin/") {
        return Vec::new();
    }
    let mut parts: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The top modules that paths in `tokens` reach, with their lines. Paths that stay inside an inline module are not reported.
fn reached(module: &[String], tokens: &[Token]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut here = module.to_vec();
    // For every open brace: whether it opened an inline module.
    let mut braces: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        match &token.kind {
            Kind::Ident(word) if word == "mod" && tokens.get(at + 2).is_some_and(|t| t.is_punct('{')) => {
                if let Kind::Ident(name) = &tokens[at + 1].kind {
                    here.push(name.clone());
                    braces.push(true);
                    at += 3;
                    continue;
                }
            }
            Kind::Ident(word) if word == "use" => {
                at = use_tree(&here, tokens, at + 1, None, &mut found);
                continue;
            }
            // `a::crate` and `a::super` do not exist, so a path can only start here.
            Kind::Ident(word) if (word == "crate" || word == "super") && is_sep(tokens, at + 1) => {
                at = use_tree(&here, tokens, at, None, &mut found);
                continue;
            }
            Kind::Punct('{') => braces.push(false),
            Kind::Punct('}') if braces.pop() == Some(true) => {
                here.pop();
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn is_sep(tokens: &[Token], at: usize) -> bool {
    tokens.get(at).is_some_and(|token| token.kind == Kind::PathSep)
}

/// Follows one path or `use` tree from `at`. `position` is the absolute module path so far, or `None` at its start. Returns where the
/// tree ends.
fn use_tree(
    here: &[String],
    tokens: &[Token],
    mut at: usize,
    mut position: Option<Vec<String>>,
    found: &mut Vec<(usize, String)>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        match &token.kind {
            Kind::Ident(word) => {
                position = match (word.as_str(), position) {
                    ("crate", None) => Some(Vec::new()),
                    ("self", None) => Some(here.to_vec()),
                    ("super", None) => Some(parent(here)),
                    ("super", Some(so_far)) => Some(parent(&so_far)),
                    // An outer crate, or a name already in scope: no business of ours.
                    (_, None) => return skip_tree(tokens, at),
                    (name, Some(so_far)) => {
                        if so_far.is_empty() {
                            found.push((token.line, name.to_owned()));
                        }
                        let mut next = so_far;
                        next.push(name.to_owned());
                        Some(next)
                    }
                };
            }
            Kind::Punct('{') => {
                at += 1;
                while let Some(token) = tokens.get(at) {
                    match token.kind {
                        Kind::Punct('}') => return at + 1,
                        Kind::Punct(',') => at += 1,
                        _ => at = use_tree(here, tokens, at, position.clone(), found).max(at + 1),
                    }
                }
                return at;
            }
            Kind::Punct('*') => {
                if position.as_ref().is_some_and(Vec::is_empty) {
                    found.push((token.line, "*".into()));
                }
                return at + 1;
            }
            _ => return at,
        }
        // Go on only over a separator; `as name` and whatever else follows ends the path.
        if !is_sep(tokens, at + 1) {
            at += 1;
            if tokens.get(at).is_some_and(|token| token.is("as")) {
                at += 2;
            }
            return at;
        }
        at += 2;
    }
    at
}

/// Steps over a tree that starts with an outer name, groups included.
fn skip_tree(tokens: &[Token], mut at: usize) -> usize {
    while is_sep(tokens, at + 1) {
        at += 2;
        if tokens.get(at).is_some_and(|token| token.is_punct('{')) {
            let mut depth = 0;
            while let Some(token) = tokens.get(at) {
                depth += i32::from(token.is_punct('{')) - i32::from(token.is_punct('}'));
                at += 1;
                if depth == 0 {
                    return at;
                }
            }
        }
    }
    at + 1
}

fn parent(module: &[String]) -> Vec<String> {
    module[..module.len().saturating_sub(1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::lex;

    /// What `check` says of `code` in `path`, one string per finding.
    fn says(path: &str, code: &str) -> Vec<String> {
        check(path, &lex(code)).into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn allowed_arrows_pass() {
        assert!(says("device/packet/umem.rs", "use crate::{base::Error, mem::{Region, Slab}}; use super::rings; use std::io;").is_empty());
        assert!(says("flow/mod.rs", "fn f() { crate::reactor::Core::new(crate::wire::udp::PORT) }").is_empty());
        assert!(says("doctor/mod.rs", "use crate::s3; fn f() { Instant::now() }").is_empty());
        assert!(says("bin/basin.rs", "use basin::doctor; fn f() { SystemTime::now() }").is_empty());
        assert!(says("mem/slab.rs", "pub(crate) fn a() {} pub(in crate::mem) fn b() {} use self::c; use crate::mem::d as e;").is_empty());
        assert!(says("mem/slab.rs", "// crate::flow\n/// [`crate::flow`]\nfn f() { \"crate::flow\"; }").is_empty());
    }

    #[test]
    fn wrong_arrows_are_refused() {
        assert_eq!(says("base/clock.rs", "\nuse crate::mem::Region;"), ["2: base may not import mem: it imports no other layer"]);
        assert!(says("mem/mod.rs", "use crate::wire;")[0].contains("mem may not import wire"));
        assert!(says("proto/rc.rs", "fn f(x: &crate::device::Caps) {}")[0].contains("may import base, wire"));
        assert_eq!(says("reactor/mod.rs", "use crate::{base, flow::{self, x}, device as d, store};").len(), 2);
    }

    #[test]
    fn super_is_followed_out_of_files_and_inline_modules() {
        assert!(says("mem/slab.rs", "use super::super::flow;")[0].contains("mem may not import flow"));
        assert!(says("mem/slab.rs", "fn f() { super::super::flow::go() }")[0].contains("may not import flow"));
        assert!(says("mem/slab.rs", "mod tests { use super::super::run; use super::x; fn f() { {} } } use super::y;").is_empty());
        assert_eq!(says("mem/slab.rs", "mod tests { mod a {} use super::super::super::flow; }").len(), 1);
        assert_eq!(says("mem/slab.rs", "mod tests {} use super::super::device;").len(), 1);
        assert_eq!(says("mem/mod.rs", "use super::{base, flow};").len(), 1);
    }

    #[test]
    fn test_code_and_macros_count() {
        assert_eq!(says("wire/udp.rs", "#[cfg(test)] mod tests { use crate::proto; }").len(), 1);
        assert_eq!(says("wire/udp.rs", "macro_rules! m { () => { $crate::device::x() } }").len(), 1);
    }

    #[test]
    fn names_that_are_no_layer_are_refused() {
        assert!(says("helpers/mod.rs", "")[0].contains("'helpers' is not a layer"));
        assert!(says("mem/mod.rs", "use crate::*;")[0].contains("names no layer"));
        assert!(says("mem/mod.rs", "use crate::Region;")[0].contains("names no layer"));
    }

    #[test]
    fn clocks_are_read_in_base_and_reactor_only() {
        assert!(says("proto/rc.rs", "fn f() { std::time::Instant::now(); }")[0].contains("take `now: Nanos`"));
        assert_eq!(says("device/mod.rs", "fn f() { SystemTime::now() }").len(), 1);
        assert!(says("reactor/mod.rs", "fn f() { Instant::now() }").is_empty());
        assert!(says("base/clock.rs", "fn f() { Instant::now() }").is_empty());
    }
}
