//! How much memory can be had. The kernel promises more than there is, and kills a program when it is touched: not always the one that
//! asked.

use std::path::Path;

/// Bytes of main memory of this machine. Nothing where the kernel does not tell.
pub fn total() -> Option<u64> {
    of_meminfo(&read("/proc/meminfo")?, "MemTotal:")
}

/// Bytes that plain pages may take: what the kernel could find without swapping, and no more than any of our control groups may have.
/// Nothing where neither is told.
pub fn available() -> Option<u64> {
    let of_machine = read("/proc/meminfo").and_then(|text| of_meminfo(&text, "MemAvailable:"));
    of_machine.into_iter().chain(memory_limit()).min()
}

/// Bytes of plain pages that our control groups may have. Nothing where there is no limit.
pub fn memory_limit() -> Option<u64> {
    // The old hierarchy writes a number near 2⁶³ for no limit.
    group_limit("memory.max", ("memory", "memory.limit_in_bytes")).filter(|bytes| *bytes < 1 << 62)
}

/// The first number in a file of our control group, the least of those on the way up to the root. `old` is the controller, and its file
/// where the hierarchy is that of cgroup v1. Nothing where no group has such a limit.
pub fn group_limit(file: &str, old: (&str, &str)) -> Option<u64> {
    // `max` is no number: no limit.
    of_groups(file, old, |file| first_number(&read(file)?)).into_iter().min()
}

/// How many processors' time our control group may have, where it has a quota.
pub fn processor_quota() -> Option<f64> {
    let quotas = of_groups("cpu.max", ("cpu", "cpu.cfs_quota_us"), |file| {
        let period = || Some(first_number(&read(file.with_file_name("cpu.cfs_period_us"))?)? as f64);
        quota_of(&read(file)?, period)
    });
    quotas.into_iter().min_by(f64::total_cmp)
}

/// `50000 100000`: microseconds of each period. Of cgroup v1 the period is in another file, and -1 is no quota.
fn quota_of(text: &str, period: impl FnOnce() -> Option<f64>) -> Option<f64> {
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    let quota = numbers.next().filter(|quota| *quota > 0.0)?;
    let period = numbers.next().or_else(period).filter(|period| *period > 0.0)?;
    Some(quota / period)
}

/// What `value` gives of a file of our control group, and of those above it.
fn of_groups<T>(file: &str, old: (&str, &str), value: impl Fn(&Path) -> Option<T>) -> Vec<T> {
    let mounted = Path::new("/sys/fs/cgroup");
    let mut found = Vec::new();
    for (controllers, group) in read("/proc/self/cgroup").unwrap_or_default().lines().filter_map(group_of) {
        let (root, file) = match controllers {
            "" => (mounted.to_path_buf(), file),
            _ if controllers.split(',').any(|name| name == old.0) => (mounted.join(old.0), old.1),
            _ => continue,
        };
        found.extend(Path::new(group).ancestors().filter_map(|part| value(&root.join(part).join(file))));
    }
    found
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// What `/proc/meminfo` says under a name, in bytes.
fn of_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Of a line of `/proc/self/cgroup` the controllers, none in cgroup v2, and the group's path below where they are mounted.
fn group_of(line: &str) -> Option<(&str, &str)> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    Some((controllers, path.trim_start_matches('/')))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_have_their_periods() {
        let of_old = || Some(50_000.0);
        let quotas = ["50000 100000\n", "50000 50000", "max 100000", "-1", "25000"].map(|text| quota_of(text, of_old));
        assert_eq!(quotas, [Some(0.5), Some(1.0), None, None, Some(0.5)]);
        assert_eq!(quota_of("25000", || None), None);
    }

    #[test]
    fn what_the_kernel_tells_is_read() {
        let meminfo = "MemTotal:       24105060 kB\nMemFree:  1 kB\nMemAvailable:   22285000 kB\n";
        assert_eq!(of_meminfo(meminfo, "MemAvailable:"), Some(22_285_000 << 10));
        assert_eq!(of_meminfo(meminfo, "MemTotal:"), Some(24_105_060 << 10));
        assert_eq!((of_meminfo("MemTotal: 1 kB\n", "MemAvailable:"), of_meminfo("MemTotal: many kB", "MemTotal:")), (None, None));
        assert_eq!(group_of("0::/user.slice/one.scope"), Some(("", "user.slice/one.scope")));
        assert_eq!(group_of("3:cpu,cpuacct:/"), Some(("cpu,cpuacct", "")));
        assert_eq!(group_of("0:/no third"), None);
        assert_eq!((first_number("150000 100000\n"), first_number("max 100000\n"), first_number("")), (Some(150_000), None, None));
        assert!(available().is_some_and(|bytes| bytes > 0 && bytes < total().expect("a kernel tells it")));
    }

    #[test]
    fn a_file_that_is_not_there_is_no_limit() {
        assert_eq!(group_limit("no.such.file", ("no such controller", "no.such.file")), None);
    }
}
