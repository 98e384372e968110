//! A tidy tree: what a reader may count on in every file, and the walk that all source checks share.

use crate::source::{Source, lex};
use std::path::{Component, Path, PathBuf};
use std::{fmt, fs};

/// Characters in the longest line.
const LINE_MAX: usize = 140;
/// Lines in the longest file; past 500 it is time to look for the second idea in it.
const FILE_LINES_MAX: usize = 800;
/// Macros that mark unfinished work.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];
/// The comment word that marks it, in two halves so that this line may stand.
const MARKER: &str = concat!("FIX", "ME");
/// Directories at the root of every Linux machine: a path that starts with one of them tells nothing about ours.
const COMMON_ROOTS: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr",
    "/var",
];

/// One thing to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Relative to the workspace root.
    pub file: String,
    /// From 1.
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A text file of the tree.
pub struct File {
    /// Relative to the workspace root, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    /// The path relative to src/ when this is a Rust file of the library or its binaries.
    pub fn in_src(&self) -> Option<&str> {
        self.path.strip_prefix("src/").filter(|path| path.ends_with(".rs"))
    }
}

/// The files git tracks or would track, or without git everything but build output and hidden directories. Files that are no text are
/// left out.
pub fn files(root: &Path) -> Vec<File> {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success());
    let mut paths: Vec<String> = match listed {
        Some(output) => String::from_utf8_lossy(&output.stdout).split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect(),
        None => walk(root, root),
    };
    paths.sort();
    paths.dedup();
    paths.into_iter().filter_map(|path| Some(File { text: fs::read_to_string(root.join(&path)).ok()?, path })).collect()
}

fn walk(root: &Path, directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && name != "target" && !hidden => found.extend(walk(root, &path)),
            Ok(kind) if kind.is_file() => found.extend(path.strip_prefix(root).ok().map(|path| path.to_string_lossy().into_owned())),
            _ => {}
        }
    }
    found
}

/// Checks the whole tree but for layers and `unsafe`.
pub fn check(root: &Path, files: &[File]) -> Vec<Finding> {
    let ours = machine_paths(root);
    let mut findings = Vec::new();
    for file in files {
        if file.path.ends_with(".rs") {
            findings.extend(rust(file, &lex(&file.text)));
        }
        if file.path.ends_with(".md") {
            findings.extend(links(file, |target| root.join(target).exists()));
        }
        findings.extend(paths(file, &ours));
    }
    findings
}

fn rust(file: &File, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line, what: String| findings.push(Finding { file: file.path.clone(), line, what });
    if file.in_src().is_some() && !file.text.starts_with("//!") {
        add(1, "open the module with `//!`: what it is, who owns the memory, what it waits for".into());
    }
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        add(FILE_LINES_MAX + 1, format!("{lines} lines, at most {FILE_LINES_MAX}: look for the second idea in it"));
    }
    for (at, line) in file.text.lines().enumerate() {
        let width = line.chars().count();
        if width > LINE_MAX {
            add(at + 1, format!("{width} characters, at most {LINE_MAX}"));
        }
    }
    for pair in source.tokens.windows(2) {
        if let Some(name) = UNFINISHED.iter().find(|name| pair[0].is(name) && pair[1].is_punct('!')) {
            add(pair[0].line, format!("`{name}!` may not be committed: finish it or take it out"));
        }
    }
    for comment in source.comments.iter().filter(|comment| comment.text.contains(MARKER)) {
        add(comment.line, format!("{MARKER}: mend it or open an issue"));
    }
    findings
}

/// Relative links of a Markdown file whose target `exists` denies.
fn links(file: &File, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let directory = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    let mut fenced = false;
    for (at, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // `code` never holds a link.
        let prose: String = line.split('`').step_by(2).collect();
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let target = target.split('#').next().unwrap_or("");
            let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !exists(&normalize(&directory.join(target))) {
                findings.push(Finding { file: file.path.clone(), line: at + 1, what: format!("the link to '{target}' leads nowhere") });
            }
        }
    }
    findings
}

/// Takes `..` out of a path without looking at the disk.
fn normalize(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// Paths that exist on this machine only: the checkout, the directories above it, the home directory.
fn machine_paths(root: &Path) -> Vec<String> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    root.ancestors()
        .map(Path::to_path_buf)
        .chain(home)
        .filter_map(|path| path.to_str().map(str::to_owned))
        .filter(|path| path.len() > 1 && !COMMON_ROOTS.contains(&path.as_str()))
        .collect()
}

fn paths(file: &File, ours: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let hit = ours.iter().find(|path| {
            line.match_indices(path.as_str()).any(|(start, _)| {
                // A whole component at the start of a path, not the tail of a longer one or of a URL.
                let before = line[..start].chars().next_back();
                let after = line[start + path.len()..].chars().next();
                let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-' || c == '.';
                !before.is_some_and(|c| part(c) || c == '/') && !after.is_some_and(part)
            })
        });
        if let Some(path) = hit {
            findings.push(Finding { file: file.path.clone(), line: at + 1, what: format!("'{path}' exists on this machine only") });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn rust_says(path: &str, text: &str) -> Vec<String> {
        rust(&file(path, text), &lex(text)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn modules_open_with_what_they_are() {
        assert!(rust_says("src/mem/mod.rs", "//! Memory.\n").is_empty());
        assert_eq!(rust_says("src/mem/mod.rs", "use x;\n").len(), 1);
        assert!(rust_says("build.rs", "fn main() {}\n").is_empty());
    }

    #[test]
    fn unfinished_work_and_long_lines_are_found() {
        for name in UNFINISHED {
            assert_eq!(rust_says("tests/a.rs", &format!("fn f() {{ {name}!() }}")).len(), 1, "{name}");
            assert!(rust_says("tests/a.rs", &format!("// {name}!()\nconst A: &str = \"{name}!()\";")).is_empty());
        }
        assert_eq!(rust_says("tests/a.rs", &format!("// {MARKER} later")).len(), 1);
        assert_eq!(rust_says("tests/a.rs", &format!("// {}", "é".repeat(138))).len(), 1);
        assert!(rust_says("tests/a.rs", &format!("// {}", "é".repeat(137))).is_empty());
        assert_eq!(rust_says("tests/a.rs", &"\n".repeat(801)).len(), 1);
    }

    #[test]
    fn links_resolve() {
        let says = |text: &str| -> Vec<usize> {
            let known = ["README.md", "docs/adr/0001.md"];
            links(&file("docs/A.md", text), |path| known.contains(&path.to_str().expect("text"))).iter().map(|f| f.line).collect()
        };
        assert!(says("[a](../README.md#top) [b](adr/0001.md) [c](https://example.org/x) [d](#here)").is_empty());
        assert_eq!(says("\n[a](missing.md) and ![b](adr/0002.png \"title\")"), [2, 2]);
        assert!(says("```\n[a](missing.md)\n```\n`x[0](missing.md)`").is_empty());
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let ours = machine_paths(Path::new("/build/area/basin"));
        let says = |text: &str| paths(&file("docs/a.md", text), &ours).len();
        assert_eq!(says("see /build/area/basin/src and"), 1);
        assert_eq!(says("`/build/area`"), 1);
        assert_eq!(says("/build/areas /other/build/area https://example.org/build/area"), 1, "the first only: /build is ours as well");
        assert_eq!(says("/tmp/disk.img and /dev/nvme0n1"), 0);
    }
}
