//! How much memory can be had. The kernel promises more than there is, and kills a program when it is touched: not always the one that
//! asked.

use std::path::Path;

/// Bytes that plain pages may take: what the kernel could find without swapping, and no more than any of our control groups may have.
/// Nothing where neither is told.
pub fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let of_machine = read(Path::new("/proc/meminfo")).and_then(|text| of_meminfo(&text));
    let groups = read(Path::new("/proc/self/cgroup")).and_then(|text| group_of(&text).map(str::to_owned));
    let of_groups = groups.iter().flat_map(|group| Path::new(group).ancestors()).filter_map(|group| {
        let below = group.strip_prefix("/").unwrap_or(group);
        // `max` is no number: none.
        read(&Path::new("/sys/fs/cgroup").join(below).join("memory.max"))?.trim().parse().ok()
    });
    of_groups.chain(of_machine).min()
}

/// What `/proc/meminfo` says is available, in bytes.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The path of our group in the one hierarchy of cgroup v2.
fn group_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let meminfo = "MemTotal:       24105060 kB\nMemFree:  1 kB\nMemAvailable:   22285000 kB\n";
        assert_eq!(of_meminfo(meminfo), Some(22_285_000 << 10));
        assert_eq!((of_meminfo("MemTotal: 1 kB\n"), of_meminfo("MemAvailable: many kB")), (None, None));
        assert_eq!(group_of("1:memory:/old\n0::/user.slice/one.scope\n"), Some("/user.slice/one.scope"));
        assert_eq!(group_of("1:memory:/old\n"), None);
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
