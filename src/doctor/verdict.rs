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

/// What a part needs: checks of an area, by name; no name stands for any one check of the area that is not in `besides`.
struct Need {
    area: Area,
    names: &'static [&'static str],
}

/// Each part and its needs.
const PARTS: [(&str, &[Need]); 4] = [
    ("flows 2, 4 and 5 over soft RDMA (soft:shm, soft:udp)", &[RING]),
    ("flows 1 and 3, and soft RDMA over AF_XDP (soft:xdp)", &[RING, SOCKET, PROGRAM]),
    ("RDMA devices by verbs", &[RING, VERBS, RDMA_DEVICE]),
    ("NVMe passthrough", &[RING, WIDE, NVME]),
];

const RING: Need = Need { area: Area::IoUring, names: &["ring", "single issuer, deferred work", "operations"] };
const WIDE: Need = Need { area: Area::IoUring, names: &["128-byte SQEs, 32-byte CQEs", "URING_CMD"] };
const SOCKET: Need = Need { area: Area::AfXdp, names: &["socket", "interfaces"] };
const PROGRAM: Need = Need { area: Area::Bpf, names: &["load and attach"] };
const VERBS: Need = Need { area: Area::Rdma, names: &["libibverbs.so.1"] };
const RDMA_DEVICE: Need = Need { area: Area::Rdma, names: &["devices"] };
const NVME: Need = Need { area: Area::Storage, names: &["NVMe passthrough"] };

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
}
