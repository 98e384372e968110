//! Kernel options: what kconfig/basin.config asks for, and what a kernel's configuration says.

use super::{Area, Check};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The fragment this binary was built with.
const FRAGMENT: &str = include_str!("../../kconfig/basin.config");

/// Options that belong to one feature.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    required: bool,
    purpose: String,
    /// Option and whether a module will do.
    options: Vec<(String, bool)>,
}

/// Where a configuration was found, and its options: `y`, `m`, or another value. Options that are off are not in it.
pub(super) struct Options {
    source: String,
    /// Why there are none.
    values: std::result::Result<HashMap<String, String>, String>,
}

/// Reads the configuration in `file`, or the running kernel's.
///
/// # Errors
/// `file` cannot be read or holds no option. The running kernel's being nowhere to find is not an error.
pub(super) fn read(file: Option<&Path>) -> Result<Options> {
    if let Some(path) = file {
        let text = text_of(path).map_err(|error| Error::new(ErrorKind::Usage, format!("cannot read the kernel configuration: {error}")))?;
        let values = parse(&text);
        if values.is_empty() {
            let what = format!("{} holds no kernel option", path.display());
            return Err(Error::new(ErrorKind::Usage, what).remedy("name a .config, /boot/config-VERSION or /proc/config.gz"));
        }
        return Ok(Options { source: path.display().to_string(), values: Ok(values) });
    }
    let release = super::read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let places = [
        PathBuf::from("/proc/config.gz"),
        PathBuf::from(format!("/boot/config-{release}")),
        PathBuf::from(format!("/lib/modules/{release}/config")),
    ];
    let Some(path) = places.iter().find(|path| path.exists()) else {
        let shown: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        return Ok(Options {
            source: "the running kernel".into(),
            values: Err(format!("its configuration is at none of {}", shown.join(", "))),
        });
    };
    Ok(Options { source: path.display().to_string(), values: text_of(path).map(|text| parse(&text)) })
}

/// The text of a plain or compressed file. Decompressing is left to gzip, which every distribution has.
fn text_of(path: &Path) -> std::result::Result<String, String> {
    let file = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "gz") {
        return std::io::read_to_string(file).map_err(|error| format!("{}: {error}", path.display()));
    }
    let output = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::from(file))
        .output()
        .map_err(|error| format!("gzip, to read {}: {error}", path.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} cannot be decompressed", path.display())),
    }
}

/// `CONFIG_X=value` lines; comments and `# CONFIG_X is not set` are left out.
fn parse(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.trim().split_once('='))
        .filter(|(name, _)| name.starts_with("CONFIG_"))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The groups of a fragment; the form is told at its head.
fn groups(fragment: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in fragment.lines() {
        let header = line.strip_prefix("# == ").and_then(|rest| {
            let (title, purpose) = rest.split_once(": ")?;
            let (name, need) = title.strip_suffix(')')?.rsplit_once(" (")?;
            Some(Group { name: name.to_owned(), required: need == "required", purpose: purpose.to_owned(), options: Vec::new() })
        });
        if let Some(group) = header {
            groups.push(group);
        } else if let (Some(group), Some((name, value))) = (groups.last_mut(), line.split_once('=').filter(|_| line.starts_with("CONFIG_")))
        {
            group.options.push((name.to_owned(), value == "m"));
        }
    }
    groups
}

/// One check for each group.
pub(super) fn checks(options: &Options) -> Vec<Check> {
    let values = match &options.values {
        Ok(values) => values,
        Err(why) => {
            let remedy = "name its configuration with --kconfig FILE, or: sudo modprobe configs";
            return vec![Check::unknown(Area::Kernel, "options", why, remedy)];
        }
    };
    groups(FRAGMENT).iter().map(|group| check(group, values, &options.source)).collect()
}

/// The options of a group that are off, or modules where they must not be.
fn missing(group: &Group, values: &HashMap<String, String>) -> Vec<String> {
    let state = |(name, module_will_do): &(String, bool)| match values.get(name).map(String::as_str) {
        Some("y") => None,
        Some("m") if *module_will_do => None,
        Some("m") => Some(format!("{name} (only as a module)")),
        _ => Some(name.clone()),
    };
    group.options.iter().filter_map(state).collect()
}

fn check(group: &Group, values: &HashMap<String, String>, source: &str) -> Check {
    let lacks = missing(group, values);
    let found = format!("{} of {} options", group.options.len() - lacks.len(), group.options.len());
    if lacks.is_empty() {
        return Check::ok(Area::Kernel, &group.name, found);
    }
    let cause = format!("{source} lacks {} (for {})", lacks.join(", "), group.purpose);
    let remedy =
        "build the kernel with kconfig/basin.config (scripts/kconfig/merge_config.sh .config basin.config), or use a distribution's kernel";
    match group.required {
        true => Check::missing(Area::Kernel, &group.name, found, cause, remedy),
        false => Check::warning(Area::Kernel, &group.name, found, cause, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn our_own_fragment_is_read_whole() {
        let groups = groups(FRAGMENT);
        let lines = FRAGMENT.lines().filter(|line| line.starts_with("CONFIG_")).count();
        assert_eq!(groups.iter().map(|group| group.options.len()).sum::<usize>(), lines);
        assert_eq!(groups.len(), FRAGMENT.lines().filter(|line| line.starts_with("# == ")).count());
        assert!(groups.iter().any(|group| group.required && group.name == "io_uring"));
        assert!(FRAGMENT.lines().all(|line| line.is_empty()
            || line.starts_with("# ")
            || line == "#"
            || line.ends_with("=y")
            || line.ends_with("=m")));
    }

    /// The lab's kernels are Debian's own: what they lack of the fragments is known, and nothing else.
    #[test]
    fn the_kernels_of_the_lab_have_what_the_fragments_ask_for() {
        const GUEST: &str = include_str!("../../kconfig/guest.config");
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap_or_default();
        // Zero-copy receive came with Linux 6.15.
        for (kernel, lacking) in [("6.12", &["CONFIG_IO_URING_ZCRX"][..]), ("6.18", &[]), ("7.2", &[])] {
            let path = cache.join(format!("basin/linux-{kernel}/config"));
            let Ok(options) = text_of(&path) else {
                eprintln!("SKIPPED: kernel {kernel} is not in the cache: cargo xtask vm run --kernel {kernel} -- true");
                continue;
            };
            let values = parse(&options);
            let lacks = |fragment: &str| {
                let groups = groups(fragment);
                assert!(!groups.is_empty() && groups.iter().all(|group| !group.options.is_empty()));
                groups.iter().flat_map(|group| missing(group, &values)).collect::<Vec<_>>()
            };
            assert_eq!(lacks(FRAGMENT), lacking, "basin.config and Debian's {kernel}");
            assert_eq!(lacks(GUEST), [""; 0], "guest.config and Debian's {kernel}");
        }
    }

    #[test]
    fn options_that_are_off_or_modules_are_named() {
        let group = &groups("# == A (optional): things\nCONFIG_ONE=y\nCONFIG_TWO=m\nCONFIG_THREE=y\n")[0];
        let values = parse("CONFIG_ONE=m\nCONFIG_TWO=m\n# CONFIG_THREE is not set\n");
        let check = check(group, &values, "x.config");
        assert_eq!((check.status, check.found.as_str()), (Status::Warning, "1 of 3 options"));
        let cause = check.cause.expect("one");
        assert!(cause.contains("CONFIG_ONE (only as a module), CONFIG_THREE") && !cause.contains("CONFIG_TWO"), "{cause}");
    }
}
