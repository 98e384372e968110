//! What a run left: QEMU's record of a namespace, and the kernel's trace with the driver's commands and the journal in one order.
//!
//! The record has the data of every write, in the order in which the disk had done them; the trace has when each began, when the guest was
//! told that it had ended, and whether it was to be stable by then (force unit access, of which QEMU's controller tells its disk nothing).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::model::Line;

/// Of the record (`drivers/md/dm-log-writes.c`: `WRITE_LOG_MAGIC`, version, entries), and bytes of its sectors, as the lab asks for.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const SECTOR: u64 = 512;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
/// Force unit access, in the control word of an NVMe write (NVM command set, "Write", bit 30 of command dword 12).
const FUA: u32 = 1 << 14;

/// A write or a flush.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    Write(Write),
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The first byte on the disk.
    pub at: u64,
    pub bytes: u64,
    /// Where the data is in the record.
    pub data_at: u64,
    /// Of the writes, in the order in which the disk had done them.
    pub place: usize,
    /// It is stable when the guest is told that it has ended.
    pub is_durable: bool,
}

/// What happened, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// The driver gives the controller a command, by its number.
    Begun(usize),
    /// And is told that it has ended.
    Ended(usize),
    Journal(Line),
}

pub struct Record {
    log: File,
    pub commands: Vec<Command>,
    pub events: Vec<Event>,
}

impl Record {
    /// Reads what there is of the controller with serial number `serial`, with blocks of `block_bytes`.
    pub fn read(log: &Path, trace: &str, serial: &str, block_bytes: u64) -> Record {
        let log = File::open(log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let mut writes = writes(&log);
        let (mut commands, mut events) = (Vec::new(), Vec::new());
        let mut under_way: HashMap<(&str, &str), usize> = HashMap::new();
        assert_whole(trace);
        let journal = |line: &str| -> Option<Line> {
            let text = line.split_once(": journal ")?.1.strip_prefix(serial)?;
            Some(serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
        };
        let made = trace.lines().filter_map(journal).find_map(|line| if let Line::Made(device) = line { Some(device) } else { None });
        let device = made.expect("a store was made");
        for line in trace.lines() {
            let field = |name: &str| {
                let at = line.find(name).unwrap_or_else(|| panic!("no {name} in '{line}'")) + name.len();
                line[at..].split([',', ' ', ')']).next().unwrap()
            };
            if let Some(line) = journal(line) {
                events.push(Event::Journal(line));
            } else if line.contains(" nvme_setup_cmd: ") && field("qid=") != "0" && field("disk=") == device {
                let number = |name: &str| field(name).parse::<u64>().unwrap();
                let command = match field("cmd=(") {
                    "nvme_cmd_write" => {
                        let (at, bytes) = (number("slba=") * block_bytes, (number(", len=") + 1) * block_bytes);
                        let control = u32::from_str_radix(field("ctrl=0x"), 16).unwrap();
                        let found = writes.get_mut(&(at, bytes)).and_then(VecDeque::pop_front);
                        let (place, data_at) = found.unwrap_or_else(|| panic!("the record has no write of {bytes} bytes at {at}"));
                        Command::Write(Write { at, bytes, data_at, place, is_durable: control & FUA != 0 })
                    }
                    "nvme_cmd_flush" => Command::Flush,
                    "nvme_cmd_read" => continue,
                    other => panic!("the store sends no {other}"),
                };
                under_way.insert((field("qid="), field("cmdid=")), commands.len());
                events.push(Event::Begun(commands.len()));
                commands.push(command);
            } else if line.contains(" nvme_complete_rq: ")
                && field("qid=") != "0"
                && field("disk=") == device
                && let Some(command) = under_way.remove(&(field("qid="), field("cmdid=")))
            {
                assert_eq!(field("status=0x"), "0", "{line}");
                events.push(Event::Ended(command));
            }
        }
        assert!(under_way.is_empty(), "every command has ended");
        let left: usize = writes.values().map(VecDeque::len).sum();
        assert_eq!(left, 0, "every write of the record is in the trace");
        let record = Record { log, commands, events };
        record.assert_in_order();
        record
    }

    /// The disk had done a command before one that began after its end.
    fn assert_in_order(&self) {
        let mut done = None;
        for event in &self.events {
            match *event {
                Event::Begun(command) => {
                    if let Command::Write(write) = self.commands[command] {
                        assert!(Some(write.place) > done, "{write:?} is recorded before what had ended when it began");
                    }
                }
                Event::Ended(command) => {
                    if let Command::Write(write) = self.commands[command] {
                        done = done.max(Some(write.place));
                    }
                }
                Event::Journal(_) => {}
            }
        }
    }

    /// The bytes of a write.
    pub fn data(&self, write: &Write) -> Vec<u8> {
        let mut data = vec![0; write.bytes as usize];
        self.log.read_exact_at(&mut data, write.data_at).unwrap();
        data
    }
}

/// The kernel's buffer held it all: the header says how many entries there were, and how many there are.
fn assert_whole(trace: &str) {
    let counts = trace.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written: "));
    let (held, rest) = counts.and_then(|counts| counts.split_once('/')).expect("a trace says how long it is");
    assert_eq!(Some(held), rest.split_whitespace().next(), "entries of the trace were overwritten");
}

/// The writes of a record by place and length, each with its number and where its data is.
fn writes(log: &File) -> HashMap<(u64, u64), VecDeque<(usize, u64)>> {
    let words = |at: u64| {
        let mut bytes = [0; 32];
        log.read_exact_at(&mut bytes, at).unwrap();
        let mut words = [0; 4];
        bytes.chunks_exact(8).zip(&mut words).for_each(|(bytes, word)| *word = u64::from_le_bytes(bytes.try_into().unwrap()));
        words
    };
    let [magic, version, entries, sector_bytes] = words(0);
    assert_eq!((magic, version, sector_bytes as u32), (MAGIC, VERSION, SECTOR as u32));
    let (mut at, mut found, mut places) = (SECTOR, HashMap::<_, VecDeque<_>>::new(), 0..);
    for _ in 0..entries {
        let [sector, sectors, flags, _] = words(at);
        at += SECTOR;
        assert_eq!(flags & DISCARD, 0, "the store discards nothing");
        if sectors == 0 {
            assert_eq!(flags, FLUSH);
            continue;
        }
        let place = places.next().expect("there is no end");
        found.entry((sector * SECTOR, sectors * SECTOR)).or_default().push_back((place, at));
        at += sectors * SECTOR;
    }
    found
}
