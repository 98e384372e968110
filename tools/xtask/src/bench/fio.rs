//! fio as it is fastest: io_uring with fixed buffers and registered files, whole batches submitted and reaped together.

use super::measure::{self, number};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One job on one core.
pub struct Job<'a> {
    pub file: &'a Path,
    /// The file is an NVMe namespace's passthrough device.
    pub is_passthrough: bool,
    /// fio's `rw`.
    pub direction: &'static str,
    /// Bytes of an I/O.
    pub bytes: u64,
    /// Bytes that random offsets are multiples of.
    pub align: u64,
    /// Each write is stable before it is answered (O_DSYNC).
    pub is_stable: bool,
    pub depth: u32,
    /// Of the file, from its start.
    pub span: u64,
    pub seconds: u32,
}

impl Job<'_> {
    pub fn command(&self) -> Command {
        let mut command = measure::pinned(Path::new("fio"));
        command.args(["--name=basin", "--output-format=json", "--thread"]);
        // The engine first: the options after it are its own.
        match self.is_passthrough {
            true => command.args(["--ioengine=io_uring_cmd", "--cmd_type=nvme"]),
            false => command.args(["--ioengine=io_uring", "--direct=1"]),
        };
        command.args(["--fixedbufs=1", "--registerfiles=1"]);
        if self.is_stable {
            command.arg("--sync=dsync");
        }
        let depth = self.depth;
        command.args(["--norandommap", "--randrepeat=0", "--time_based", "--group_reporting"]);
        command.args([
            format!("--rw={}", self.direction),
            format!("--bs={}", self.bytes),
            format!("--blockalign={}", self.align),
            format!("--iodepth={depth}"),
            format!("--iodepth_batch_submit={depth}"),
            "--iodepth_batch_complete_min=1".into(),
            format!("--iodepth_batch_complete_max={depth}"),
            format!("--runtime={}", self.seconds),
            format!("--size={}", self.span),
            format!("--filename={}", self.file.display()),
        ]);
        command
    }
}

/// An error that says how to get it, where there is none.
pub fn require() -> Result<(), String> {
    match Command::new("fio").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err("fio is not installed: run `apt-get install -y fio`".into()),
    }
}

/// The job, and the half of it that did something.
fn side(report: &Value) -> Result<(&Value, &Value), String> {
    let job = &report["jobs"][0];
    ["read", "write"]
        .iter()
        .map(|side| &job[*side])
        .find(|side| side["total_ios"].as_u64().is_some_and(|ios| ios > 0))
        .map(|side| (job, side))
        .ok_or_else(|| format!("fio reports no I/O: {job}"))
}

/// I/Os it did.
pub fn ios(report: &Value) -> Result<f64, String> {
    number(side(report)?.1, "/total_ios")
}

/// I/Os a second; processor time of each in ns, by the kernel's account of the whole process and by fio's own; median and 99th
/// percentile of their latency in µs.
pub fn figures(run: &measure::Run) -> Result<Vec<f64>, String> {
    let report = measure::json(run)?;
    let (job, side) = side(&report)?;
    let ios = number(side, "/total_ios")?;
    // Percentages of the job's run time in milliseconds.
    let own_ns = (number(job, "/usr_cpu")? + number(job, "/sys_cpu")?) / 100.0 * number(side, "/runtime")? * 1e6;
    Ok(vec![
        number(side, "/iops")?,
        run.cpu_ns / ios,
        own_ns / ios,
        number(side, "/clat_ns/percentile/50.000000")? / 1e3,
        number(side, "/clat_ns/percentile/99.000000")? / 1e3,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_read() {
        let report = r#"fio: a note
{"jobs": [{"usr_cpu": 5.0, "sys_cpu": 45.0, "read": {"total_ios": 0}, "write": {"total_ios": 1000, "runtime": 2000, "iops": 500,
 "clat_ns": {"percentile": {"50.000000": 80000, "99.000000": 120000}}}}]}"#;
        let run = |stdout: &str| measure::Run { stdout: stdout.into(), cpu_ns: 4e6 };
        assert_eq!(figures(&run(report)), Ok(vec![500.0, 4000.0, 1e6, 80.0, 120.0]));
        assert!(figures(&run(r#"{"jobs": [{}]}"#)).unwrap_err().contains("no I/O"));
        assert!(figures(&run("nothing")).unwrap_err().contains("no JSON"));
    }

    #[test]
    fn writes_are_stable_where_they_must_be() {
        let job = |is_stable| Job {
            file: Path::new("f"),
            is_passthrough: false,
            direction: "randwrite",
            bytes: 4096,
            align: 4096,
            is_stable,
            depth: 16,
            span: 1 << 20,
            seconds: 1,
        };
        let said = |is_stable| job(is_stable).command().get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
        assert!(said(true).contains(&"--sync=dsync".into()) && !said(false).contains(&"--sync=dsync".into()));
        assert!(said(true).contains(&"--iodepth=16".into()), "{:?}", said(true));
    }
}
