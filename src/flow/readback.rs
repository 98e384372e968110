//! Reads back what flow 1 has stored, without the program that stored it: every record's header is checked, every stream's
//! sequence followed, and the datagrams can be exported for tools that read pcapng.
//!
//! Needs no directory: records begin at block boundaries, say what they are and carry a checksum, so a scan finds them all.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Result, limits};
use crate::device::block::{Disk, DiskConfig};
use crate::flow::log;
use crate::flow::options::Options;
use crate::flow::server::Say;
use crate::mem::{Region, RegionConfig, Slab};
use crate::reactor::Core;
use crate::wire::native::record;
use crate::wire::{Malformed, ipv4, ipv6, pcapng, udp};

/// What was found of one stream.
#[derive(Default)]
struct Stream {
    records: u64,
    bytes: u64,
    first: u64,
    last: u64,
    epochs: (u32, u32),
}

/// Reads the whole disk, says what streams are on it, and exports them if `export` names a file.
///
/// # Errors
/// The disk cannot be read, a record is damaged, or the export cannot be written.
pub async fn check(core: &Core, options: &Options, export: Option<&Path>, say: Say) -> Result<()> {
    let disk = Disk::open(core.uring(), core.ops(), &DiskConfig { read_only: true, ..DiskConfig::new(&options.block) })?;
    if let Some(queue) = disk.queue() {
        core.attach(queue);
    }
    let region = Region::map(&RegionConfig::new(8 << 20))?;
    let slab = Slab::new(&region, region.chunks())?;
    let mut export = export.map(Export::create).transpose()?;
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    let damaged = each_record(&disk, &slab, |header, payload| {
        let stream = streams.entry(header.stream).or_insert_with(|| Stream { first: u64::MAX, epochs: (u32::MAX, 0), ..Stream::default() });
        stream.records += 1;
        stream.bytes += payload.len() as u64;
        stream.first = stream.first.min(header.sequence);
        stream.last = stream.last.max(header.sequence);
        stream.epochs = (stream.epochs.0.min(header.epoch), stream.epochs.1.max(header.epoch));
        // The address it came to is not stored.
        export.as_mut().map_or(Ok(()), |export| export.packet(header, None, payload))
    })
    .await?;
    if let Some(export) = export {
        say(format!("exported {} packets", export.finish()?));
    }
    for (number, stream) in &streams {
        let Stream { records, bytes, first, last, epochs } = stream;
        let span = last - first + 1;
        let whole = if *records == span { "nothing missing".into() } else { format!("{} missing", span.saturating_sub(*records)) };
        let epochs = if epochs.0 == epochs.1 { format!("epoch {}", epochs.0) } else { format!("epochs {} to {}", epochs.0, epochs.1) };
        println!("stream {number:#010x}: {records} datagrams, {bytes} bytes, sequence {first} to {last}, {whole}, {epochs}");
    }
    if streams.is_empty() {
        println!("{}: no stored datagrams", options.block.display());
    }
    if let Some((at, error)) = damaged.first() {
        let what = format!("{}: {} damaged records; the first at byte {at}: {error}", options.block.display(), damaged.len());
        return Err(Error::new(ErrorKind::Failed, what));
    }
    Ok(())
}

/// Reads the whole disk and gives every record on it to `each`, in the order they lie there. Returns the damaged places: where,
/// in bytes, and what is wrong.
///
/// # Errors
/// The disk cannot be read, or the first error of `each`.
pub async fn each_record(
    disk: &Disk,
    slab: &Slab,
    mut each: impl FnMut(&record::Repr, &[u8]) -> Result<()>,
) -> Result<Vec<(u64, Malformed)>> {
    let mut damaged = Vec::new();
    let block = u64::from(disk.info().block_bytes);
    let (mut at, end) = (0u64, disk.info().capacity_bytes);
    while at < end {
        // A record that goes on behind a read is read again from its beginning, which in a pack is inside a block.
        let (lba, from) = (Lba(at / block), at % block);
        let base = at - from;
        let len = (end - base).min(u64::from(limits::IO_MAX_BYTES)) as u32;
        let run = disk.read(lba, slab.run(len)?).await.map_err(|failed| disk.explain("reading", lba, failed))?;
        let (next, bad) = scan(run.as_slice(), from as usize, base, base + u64::from(len) == end, &mut each)?;
        damaged.extend(bad);
        at = base + next;
    }
    Ok(damaged)
}

/// Walks every record in `bytes` from `from` on, block by block. Returns how far it came, and the damaged places.
fn scan(
    bytes: &[u8],
    from: usize,
    base: u64,
    is_last: bool,
    mut each: impl FnMut(&record::Repr, &[u8]) -> Result<()>,
) -> Result<(u64, Vec<(u64, Malformed)>)> {
    let block = log::BLOCK as usize;
    let (mut at, mut damaged, mut outcome) = (from, Vec::new(), Ok(()));
    while at < bytes.len() && outcome.is_ok() {
        let walked = log::walk(bytes, at, |header, payload| {
            if outcome.is_ok() {
                outcome = each(header, payload);
            }
        });
        at = match walked {
            Ok(end) if end == at => at + block,
            Ok(end) => end,
            // It goes on in what is read next.
            Err((place, Malformed::Truncated)) if !is_last && place > from => return Ok((place as u64, damaged)),
            Err((place, error)) => {
                damaged.push((base + place as u64, error));
                (place + 1).next_multiple_of(block)
            }
        };
    }
    outcome.map(|()| (bytes.len() as u64, damaged))
}

/// A capture in pcapng, for tshark and its like.
pub struct Export {
    out: BufWriter<File>,
    packets: u64,
}

impl Export {
    /// Begins the capture in a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> Result<Export> {
        let explain = |error: &std::io::Error| Error::io(format!("writing {}", path.display()), error);
        let mut out = BufWriter::new(File::create(path).map_err(|error| explain(&error))?);
        pcapng::section_header(&mut out, concat!("basin ", env!("CARGO_PKG_VERSION"))).map_err(|error| explain(&error))?;
        pcapng::interface(&mut out, pcapng::LINKTYPE_RAW, "basin").map_err(|error| explain(&error))?;
        Ok(Export { out, packets: 0 })
    }

    /// One datagram with the IP and UDP headers it had, as far as they are known: an unknown destination shows as unspecified.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn packet(&mut self, header: &record::Repr, destination: Option<IpAddr>, payload: &[u8]) -> Result<()> {
        let mut headers = [0u8; ipv6::HEADER_LEN + udp::HEADER_LEN];
        let udp_len = (udp::HEADER_LEN + payload.len()) as u16;
        let ip_len = match header.src {
            SocketAddr::V4(src) => {
                let repr = ipv4::Repr {
                    src: *src.ip(),
                    dst: if let Some(IpAddr::V4(known)) = destination { known } else { Ipv4Addr::UNSPECIFIED },
                    protocol: ipv4::PROTOCOL_UDP,
                    payload_len: udp_len,
                    ident: 0,
                    dont_fragment: true,
                    ttl: 64,
                    tos: 0,
                };
                repr.emit(&mut headers);
                ipv4::HEADER_LEN
            }
            SocketAddr::V6(src) => {
                let repr = ipv6::Repr {
                    src: *src.ip(),
                    dst: if let Some(IpAddr::V6(known)) = destination { known } else { Ipv6Addr::UNSPECIFIED },
                    next_header: ipv4::PROTOCOL_UDP,
                    payload_len: udp_len,
                    hop_limit: 64,
                    traffic_class: 0,
                    flow_label: 0,
                };
                repr.emit(&mut headers);
                ipv6::HEADER_LEN
            }
        };
        let repr = udp::Repr { src_port: header.src.port(), dst_port: header.dst_port, payload_len: payload.len() as u16 };
        repr.emit(&mut headers[ip_len..]);
        let headers = &headers[..ip_len + udp::HEADER_LEN];
        self.packets += 1;
        pcapng::packet(&mut self.out, 0, header.received_ns, &[headers, payload]).map_err(|error| Error::io("writing the export", &error))
    }

    /// Ends the capture; how many packets are in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<u64> {
        self.out.flush().map_err(|error| Error::io("writing the export", &error))?;
        Ok(self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a reader that shares no code with this one: a pack across the end of a read lost a record or gave it twice.
    #[test]
    fn a_pack_across_two_reads_is_read_once() {
        let header = |sequence| record::Repr {
            payload_len: 200,
            stream: 1,
            sequence,
            received_ns: 1,
            hardware_time: false,
            src: "10.0.0.1:99".parse().unwrap(),
            dst_port: 9999,
            epoch: 1,
            payload_crc: None,
        };
        let mut log = vec![0; 4 << 10];
        // 264 bytes each, at multiples of 64: most begin inside a block.
        for (sequence, place) in (0..12).zip(log.chunks_mut(320)) {
            place[..record::LEN].copy_from_slice(&header(sequence).encode());
        }
        for cut in (512..log.len()).step_by(512) {
            let mut found = Vec::new();
            let mut note = |header: &record::Repr, _: &[u8]| {
                found.push(header.sequence);
                Ok(())
            };
            let (next, damaged) = scan(&log[..cut], 0, 0, false, &mut note).unwrap();
            assert!(damaged.is_empty(), "{damaged:?}");
            let base = next as usize / 512 * 512;
            let (_, damaged) = scan(&log[base..], next as usize - base, base as u64, true, &mut note).unwrap();
            assert!(damaged.is_empty(), "{damaged:?}");
            assert_eq!(found, (0..12).collect::<Vec<u64>>(), "cut at {cut}");
        }
    }
}
