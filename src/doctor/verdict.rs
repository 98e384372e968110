//! What follows from the checks: which parts of Basin run on this machine.

use super::{Area, Check, Status};
use serde::Serialize;

/// Whether a part runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It runs.
    Yes,
    /// It does not.
    No,
    /// It may.
    Unknown,
}

/// One part of Basin and whether it runs here.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The part.
    pub what: &'static str,
    /// Whether it runs.
    pub runs: Answer,
    /// The checks that stand in the way, by name.
    pub because: Vec<String>,
}

/// What a part needs of an area: checks that nothing may be wrong with, and one of several devices, if there are any.
struct Need {
    area: Area,
    names: &'static [&'static str],
    /// Whether a check is of such a device.
    one_of: fn(&str) -> bool,
}

/// Each part and its needs.
const PARTS: [(&str, &[Need]); 4] = [
    ("flows 2, 4 and 5 over soft RDMA (soft:shm, soft:udp)", &[RING]),
    ("flows 1 and 3, and soft RDMA over AF_XDP (soft:xdp)", &[RING, SOCKET, PROGRAM]),
    ("RDMA devices by verbs", &[RING, VERBS, RDMA_DEVICE]),
    ("NVMe passthrough", &[RING, WIDE, NVME]),
];

const RING: Need = Need { area: Area::IoUring, names: &["ring", "single issuer, deferred work", "operations"], one_of: none };
const WIDE: Need = Need { area: Area::IoUring, names: &["128-byte SQEs, 32-byte CQEs", "URING_CMD"], one_of: none };
const SOCKET: Need = Need { area: Area::AfXdp, names: &["socket", "interfaces"], one_of: none };
const PROGRAM: Need = Need { area: Area::Bpf, names: &["load and attach"], one_of: none };
const VERBS: Need = Need { area: Area::Rdma, names: &["libibverbs.so.1"], one_of: none };
const RDMA_DEVICE: Need = Need { area: Area::Rdma, names: &["devices"], one_of: is_port };
const NVME: Need = Need { area: Area::Storage, names: &["NVMe passthrough"], one_of: is_namespace };

fn none(_: &str) -> bool {
    false
}

/// `mlx5_0 port 1`
fn is_port(name: &str) -> bool {
    name.contains(" port ")
}

/// `ng0n1`
fn is_namespace(name: &str) -> bool {
    name.strip_prefix("ng").is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}

/// The verdict on every part.
pub(super) fn verdicts(checks: &[Check]) -> Vec<Verdict> {
    PARTS
        .iter()
        .map(|(what, needs)| {
            let in_the_way = |status: Status| -> Vec<String> {
                checks
                    .iter()
                    .filter(|check| check.status == status)
                    .filter(|check| needs.iter().any(|need| need.area == check.area && need.names.contains(&check.name.as_str())))
                    .map(|check| check.name.clone())
                    .collect()
            };
            // A need that is only a warning elsewhere (no URING_CMD) is one too many here.
            let mut no = in_the_way(Status::Missing);
            no.extend(in_the_way(Status::Warning));
            let unknown = in_the_way(Status::Unknown);
            for need in *needs {
                // A port is of a device, whose check has its name.
                let device = |check: &Check| {
                    let (device, _) = check.name.split_once(" port ")?;
                    checks.iter().find(|other| other.area == check.area && other.name == device)
                };
                let whole = |check| device(check).into_iter().chain([check]).filter(|part: &&Check| part.status != Status::Ok);
                let candidates = || checks.iter().filter(|check| check.area == need.area && (need.one_of)(&check.name));
                if candidates().all(|check| whole(check).next().is_some()) {
                    no.extend(candidates().flat_map(whole).map(|part| part.name.clone()));
                }
            }
            no.dedup();
            match (no.is_empty(), unknown.is_empty()) {
                (false, _) => Verdict { what, runs: Answer::No, because: no },
                (true, false) => Verdict { what, runs: Answer::Unknown, because: unknown },
                (true, true) => Verdict { what, runs: Answer::Yes, because: Vec::new() },
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_run_or_say_what_is_in_the_way() {
        let ring = Check::ok(Area::IoUring, "ring", "");
        let socket = Check::missing(Area::AfXdp, "socket", "", "", "");
        let unrelated = Check::missing(Area::Memory, "hugepages of 1 GiB", "", "", "");
        let verdicts = verdicts(&[ring, socket, unrelated]);
        assert_eq!((verdicts[0].runs, verdicts[1].runs), (Answer::Yes, Answer::No));
        assert_eq!(verdicts[1].because, ["socket"]);
    }

    #[test]
    fn one_device_that_can_be_used_is_enough() {
        let runs = |statuses: [bool; 2]| {
            let of = |name: &str, is_ok| match is_ok {
                true => Check::ok(Area::Storage, name, ""),
                false => Check::missing(Area::Storage, name, "", "", ""),
            };
            let [first, second] = statuses;
            // One has a port that is down, the other cannot be opened.
            let (opened, down) = (Check::ok(Area::Rdma, "mlx5_0", ""), Check::warning(Area::Rdma, "mlx5_0 port 1", "", "", ""));
            let (closed, up) = (Check::missing(Area::Rdma, "mlx5_1", "", "", ""), Check::ok(Area::Rdma, "mlx5_1 port 1", ""));
            let verdicts = verdicts(&[of("ng0n1", first), of("ng1n1", second), opened, down, closed, up]);
            assert_eq!((verdicts[2].runs, &verdicts[2].because.join(", ")[..]), (Answer::No, "mlx5_0 port 1, mlx5_1"));
            (verdicts[3].runs, verdicts[3].because.len())
        };
        assert_eq!([runs([true, false]), runs([false, false])], [(Answer::Yes, 0), (Answer::No, 2)]);
    }
}
