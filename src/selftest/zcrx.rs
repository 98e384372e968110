//! Zero-copy receive of io_uring: into a share of the region, from a NIC's queue, or without a NIC where the kernel does that.

use std::fs;
use std::io::{ErrorKind as IoKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;

use super::{Devices, Ended, Found, check, skip};
use crate::base::units::human_bytes;
use crate::base::{Error, Nanos};
use crate::device::zcrx::{ReceiveQueue, Received, Source, is_supported};
use crate::flow::pattern::Pattern;
use crate::mem::{PageKind, Region, RegionConfig, Slab};

/// Room for what the driver fills its queue with, and for the stream besides.
const AREA_BYTES: u64 = 16 << 20;
const STREAM_BYTES: usize = 512 << 10;
const PATIENCE: Nanos = Nanos::from_millis(100);
/// Waits without a byte, one after the other, after which nothing more is expected.
const WAITS_MAX: u32 = 100;

/// On the interface's last receive queue. The stream goes over the loopback, since there is no peer: what a NIC places itself this
/// does not show.
pub fn interface(devices: &Devices) -> Found {
    supported()?;
    let Some(name) = &devices.interface else { return skip("no network interface was given: --interface") };
    let read = |file: &str| fs::read_to_string(Path::new("/sys/class/net").join(name).join(file)).unwrap_or_default();
    let Ok(index) = read("ifindex").trim().parse() else { return Err(Ended::Failed(format!("there is no interface {name}"))) };
    let queues = fs::read_dir(Path::new("/sys/class/net").join(name).join("queues"));
    let receive = queues.into_iter().flatten().flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"));
    let queue = (receive.count() as u32).saturating_sub(1);
    let driver = fs::read_link(Path::new("/sys/class/net").join(name).join("device/driver")).unwrap_or_default();
    let driver = driver.file_name().map_or("no driver".into(), |driver| driver.to_string_lossy().into_owned());
    let found = stream(Source::Interface { index, queue });
    let told = |text: String| format!("{name} ({driver}): {text}");
    match found {
        Ok(text) => Ok(told(text)),
        Err(Ended::Skipped(why)) => Err(Ended::Skipped(told(why))),
        Err(Ended::Failed(why)) => Err(Ended::Failed(told(why))),
    }
}

pub fn without_a_device(_: &Devices) -> Found {
    supported()?;
    stream(Source::Copied)
}

fn supported() -> Result<(), Ended> {
    if is_supported() { Ok(()) } else { skip("this kernel has none: Linux 6.15 or later with CONFIG_IO_URING_ZCRX") }
}

/// Sends a stream to itself and compares what comes out of the area.
fn stream(source: Source) -> Found {
    let region = Region::map(&RegionConfig { pages: vec![PageKind::Huge2M, PageKind::Plain], ..RegionConfig::new(AREA_BYTES) })?;
    let area = Slab::new(&region, region.chunks())?;
    let mut queue = ReceiveQueue::open(area, source)?;
    let io = |what: &'static str| move |error: std::io::Error| Ended::from(Error::io(what, &error));
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io("listening on the loopback"))?;
    let address = listener.local_addr().map_err(io("listening on the loopback"))?;
    let mut sender = TcpStream::connect(address).map_err(io("connecting over the loopback"))?;
    let (receiver, _) = listener.accept().map_err(io("accepting over the loopback"))?;
    sender.set_nonblocking(true).map_err(io("sending"))?;
    let mut sent = vec![0; STREAM_BYTES];
    let pattern = Pattern::new(7, 9);
    pattern.fill(&mut sent);
    let (mut at, mut waits, mut pieces) = (0, 0, 0);
    let mut received = Vec::with_capacity(STREAM_BYTES);
    loop {
        while at < sent.len() {
            match sender.write(&sent[at..]) {
                Ok(bytes) => at += bytes,
                Err(error) if error.kind() == IoKind::WouldBlock => break,
                Err(error) => return Err(io("sending")(error)),
            }
        }
        if at == sent.len() {
            // More than once does no harm.
            let _ = sender.shutdown(std::net::Shutdown::Write);
        }
        let found = queue.receive(receiver.as_raw_fd(), PATIENCE, |piece| {
            pieces += 1;
            received.extend_from_slice(piece);
        })?;
        match found {
            Received::End => break,
            Received::Bytes(_) => waits = 0,
            Received::Nothing => {
                waits += 1;
                check(waits < WAITS_MAX, || format!("{} of {STREAM_BYTES} bytes came, then no more", received.len()))?;
            }
        }
    }
    check(received.len() == STREAM_BYTES, || format!("{} of {STREAM_BYTES} bytes came", received.len()))?;
    pattern.check(&received).map_err(|wrong| Ended::Failed(format!("what was received is not what was sent: {wrong}")))?;
    Ok(format!("{} over the loopback in {pieces} pieces, placed in the region by the kernel's copy", human_bytes(STREAM_BYTES as u64)))
}
