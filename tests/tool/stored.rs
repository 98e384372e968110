//! Flow 1 held against programs that share no code with it: a sender and a reader in Python, and tshark.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::packet_net::{FAR, NEAR, skip};
use crate::world::{PROGRAM, Process, in_world};

const SENDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tool/send_datagrams.py");
const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tool/read_log.py");
const COUNT: usize = 3000;
const STREAM: &str = "3735928559";

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// What the sender wrote down: every UDP payload, as hexadecimal digits.
fn sent(record: &str) -> Vec<String> {
    let mut rest = &std::fs::read(record).unwrap()[..];
    let mut sent = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (payload, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        sent.push(payload.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        }));
        rest = behind;
    }
    sent
}

#[test]
fn what_an_independent_sender_sent_is_on_the_disk() {
    if !is_there("python3") {
        skip("python3 is not installed");
        return;
    }
    in_world(|world| {
        let server = world.server("near", "soft", &["--disk-size", "256M"]);
        let (disk, record) = (world.path("disk.img"), world.path("sent"));
        let arguments = ["python3", SENDER, NEAR, "9999", STREAM, &COUNT.to_string(), "1", &record].map(str::to_owned);
        let sender = world.far.run(move || Process::start(&arguments[0], &arguments[1..])).ended();
        assert_eq!((sender.code, sender.out.as_str()), (Some(0), format!("durable {COUNT} lost 0\n").as_str()), "{sender:?}");

        // Acknowledged means durable: nothing that the server still had to do can be needed.
        server.signal(Signal::SIGKILL);
        let _ = server.ended();
        let read = Process::start("python3", &[READER, &disk, STREAM, &record, FAR, "9999"]).ended();
        assert_eq!((read.code, read.out.as_str()), (Some(0), format!("identical {COUNT}\n").as_str()), "{read:?}");

        let exported = world.path("out.pcapng");
        let check = Process::start(PROGRAM, &["lo", "soft", &disk, "check", "--export", &exported]).ended();
        assert_eq!(check.code, Some(0), "{check:?}");
        assert!(check.out.contains(&format!("stream 0xdeadbeef: {COUNT} datagrams")), "{check:?}");
        assert!(check.out.contains("nothing missing, epoch 1"), "{check:?}");
        assert!(check.err.contains(&format!("exported {COUNT} packets")), "{check:?}");

        if !is_there("tshark") {
            skip("tshark is not installed: the export was not read by another program");
            return;
        }
        let fields = ["-T", "fields", "-e", "ip.src", "-e", "udp.dstport", "-e", "udp.payload"];
        let shown = Process::start("tshark", &[&["-n", "-r", &exported][..], &fields].concat()).ended();
        let expected: BTreeSet<String> = sent(&record).into_iter().map(|payload| format!("{FAR}\t9999\t{payload}")).collect();
        let packets: Vec<&str> = shown.out.lines().collect();
        assert_eq!(packets.len(), COUNT, "{}", shown.err);
        let wrong = packets.iter().find(|packet| !expected.contains(**packet));
        assert_eq!((wrong, packets.iter().collect::<BTreeSet<_>>().len()), (None, COUNT));
    });
}
