//! What follows from the checks: which parts of Basin run on this machine.

use super::{Area, Check, Status, memlock};
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

/// What a part needs of an area: checks that nothing may be wrong with, bounds that are high enough for what is usual, and one of several
/// devices, if there are any.
struct Need {
    area: Area,
    names: &'static [&'static str],
    /// Checks that say how much there may be: where it is little the part may run.
    bounds: &'static [&'static str],
    /// Whether a check is of such a device.
    one_of: fn(&str) -> bool,
}

/// Each part and its needs.
const PARTS: [(&str, &[Need]); 4] = [
    ("flows 2, 4 and 5 over soft RDMA (soft:shm, soft:udp)", &[RING]),
    ("flows 1 and 3, and soft RDMA over AF_XDP (soft:xdp)", &[RING, SOCKET, PROGRAM, LOCKED]),
    ("RDMA devices by verbs", &[RING, VERBS, RDMA_DEVICE, LOCKED_BY_DEVICE]),
    ("NVMe passthrough", &[RING, WIDE, NVME]),
];

const NOTHING: Need = Need { area: Area::Kernel, names: &[], bounds: &[], one_of: none };
const RING: Need = Need { area: Area::IoUring, names: &["ring", "single issuer, deferred work", "operations"], ..NOTHING };
const WIDE: Need = Need { area: Area::IoUring, names: &["128-byte SQEs, 32-byte CQEs", "URING_CMD"], ..NOTHING };
const SOCKET: Need = Need { area: Area::AfXdp, names: &["socket", "interfaces"], one_of: is_interface, ..NOTHING };
const PROGRAM: Need = Need { area: Area::Bpf, names: &["load and attach"], ..NOTHING };
const LOCKED: Need = Need { area: Area::Memory, bounds: &[memlock::OF_USER], ..NOTHING };
const LOCKED_BY_DEVICE: Need = Need { area: Area::Memory, bounds: &[memlock::OF_DEVICE], ..NOTHING };
const VERBS: Need = Need { area: Area::Rdma, names: &["libibverbs.so.1"], ..NOTHING };
const RDMA_DEVICE: Need = Need { area: Area::Rdma, names: &["devices"], one_of: is_port, ..NOTHING };
const NVME: Need = Need { area: Area::Storage, names: &["NVMe passthrough"], one_of: is_namespace, ..NOTHING };

fn none(_: &str) -> bool {
    false
}

/// `eth0`: all of the area that is not about sockets, or about all interfaces.
fn is_interface(name: &str) -> bool {
    !["socket", "interfaces", "not looked at"].contains(&name)
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
            let mut unknown = in_the_way(Status::Unknown);
            for need in *needs {
                let of_area = || checks.iter().filter(|check| check.area == need.area);
                let is_low = |check: &&Check| check.status == Status::Warning && need.bounds.contains(&check.name.as_str());
                unknown.extend(of_area().filter(is_low).map(|check| check.name.clone()));
                // A port is of a device, whose check has its name.
                let device = |check: &Check| {
                    let (device, _) = check.name.split_once(" port ")?;
                    of_area().find(|other| other.name == device)
                };
                let with = |check, status| -> Vec<String> {
                    let parts = device(check).into_iter().chain([check]);
                    parts.filter(|part: &&Check| part.status == status).map(|part| part.name.clone()).collect()
                };
                let candidates: Vec<&Check> = of_area().filter(|check| (need.one_of)(&check.name)).collect();
                // One that runs is enough; what runs slower, or with less, runs.
                let possible: Vec<&Check> = candidates.iter().copied().filter(|check| with(check, Status::Missing).is_empty()).collect();
                if possible.is_empty() {
                    no.extend(candidates.iter().flat_map(|check| with(check, Status::Missing)));
                } else if possible.iter().all(|check| !with(check, Status::Unknown).is_empty()) {
                    unknown.extend(possible.iter().flat_map(|check| with(check, Status::Unknown)));
                }
            }
            no.dedup();
            unknown.dedup();
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
            let (opened, down) = (Check::ok(Area::Rdma, "mlx5_0", ""), Check::missing(Area::Rdma, "mlx5_0 port 1", "", "", ""));
            let (closed, up) = (Check::missing(Area::Rdma, "mlx5_1", "", "", ""), Check::ok(Area::Rdma, "mlx5_1 port 1", ""));
            let verdicts = verdicts(&[of("ng0n1", first), of("ng1n1", second), opened, down, closed, up]);
            assert_eq!((verdicts[2].runs, &verdicts[2].because.join(", ")[..]), (Answer::No, "mlx5_0 port 1, mlx5_1"));
            (verdicts[3].runs, verdicts[3].because.len())
        };
        assert_eq!([runs([true, false]), runs([false, false])], [(Answer::Yes, 0), (Answer::No, 2)]);
    }

    #[test]
    fn an_interface_must_be_there_to_run_anything() {
        let told = |statuses: &[Status]| {
            let mut checks = vec![Check::ok(Area::AfXdp, "socket", ""), Check::ok(Area::AfXdp, "not looked at", "")];
            let of = |(at, &status): (usize, &Status)| Check { status, ..Check::ok(Area::AfXdp, format!("eth{at}"), "") };
            checks.extend(statuses.iter().enumerate().map(of));
            let verdict = &verdicts(&checks)[1];
            (verdict.runs, verdict.because.join(", "))
        };
        assert_eq!(told(&[Status::Missing]), (Answer::No, "eth0".into()));
        assert_eq!(told(&[Status::Missing, Status::Warning]), (Answer::Yes, String::new()), "SKB mode runs");
        assert_eq!(told(&[Status::Missing, Status::Unknown]), (Answer::Unknown, "eth1".into()));
        assert_eq!(told(&[Status::Unknown, Status::Ok]), (Answer::Yes, String::new()), "one that runs is enough");
        assert_eq!(told(&[]).0, Answer::Yes, "what has no interfaces at all has a check that says so");
    }

    #[test]
    fn little_locked_memory_makes_it_a_perhaps() {
        let locked = |name| {
            let verdicts = verdicts(&[Check::warning(Area::Memory, name, "", "", "")]);
            [verdicts[0].runs, verdicts[1].runs, verdicts[2].runs]
        };
        assert_eq!(locked(memlock::OF_USER), [Answer::Yes, Answer::Unknown, Answer::Yes]);
        assert_eq!(locked(memlock::OF_DEVICE), [Answer::Yes, Answer::Yes, Answer::Unknown]);
    }
}
