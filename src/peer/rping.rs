//! `rping`: connected by `rdma_cm`, the client lends a buffer with a line of text, the server READs it, the client lends another, the
//! server WRITEs the line back.
//!
//! Each step is a SEND of 16 bytes: address, key and length of what is lent, big-endian; the server's say only that it is done.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::station::Station;
use super::{Options, Summary};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::Op;
use crate::device::rdma::cm::{Connection, Listener};
use crate::device::rdma::{Access, Qp, Remote};
use crate::flow::crew::{Either, either};
use crate::mem::{Run, Window};

/// Bytes of a step's message.
const STEP: u32 = 16;
/// Receives posted: the stock program has one outstanding, and its next may come before our acknowledgement.
const RECEIVES: usize = 2;
/// What every line begins with; the number of the ping follows.
const PREFIX: &str = "rdma-ping-";

/// Serves one client of `listener` to its end.
pub async fn serve(station: &Station, listener: &Listener, options: &Options) -> Result<(SocketAddr, Summary)> {
    let incoming = listener.request().await?;
    let peer = incoming.peer();
    let qp = station.hca.create_qp(&station.qp_config(options))?;
    let mut steps = Steps::post(station, &qp)?;
    let connection = station.patiently("the client", incoming.accept(&qp, &[])).await?;
    let began = station.core.now();
    let (mut pings, mut bytes) = (0, 0);
    loop {
        // The client leaves between two pings, when it has had enough.
        let lent = match either(steps.next(), connection.ended()).await {
            Either::Left(lent) => lent?,
            Either::Right(()) => break,
        };
        if lent.len == 0 {
            return Err(Error::new(ErrorKind::Protocol, format!("ping {pings} lends no bytes")));
        }
        let sink = station.filled(lent.len, 0)?;
        let read = qp.read(sink, lent);
        let line =
            station.patiently("the client's memory", async { read.await.map_err(|failed| failed.into_error("reading a ping")) }).await?;
        let text = judge(line.as_slice(), pings)?;
        steps.say(&qp, Remote { address: 0, rkey: 0, len: 0 }).await?;
        let lent = station.patiently("the client's next step", steps.next()).await?;
        let mut back = station.slab.run(text.len() as u32 + 1)?;
        back.as_mut_slice()[..text.len()].copy_from_slice(text.as_bytes());
        back.as_mut_slice()[text.len()] = 0;
        bytes += u64::from(lent.len) + u64::from(back.len());
        let write = qp.write(back, lent, None);
        station
            .patiently("the client's memory", async { write.await.map(drop).map_err(|failed| failed.into_error("writing a ping back")) })
            .await?;
        steps.say(&qp, Remote { address: 0, rkey: 0, len: 0 }).await?;
        pings += 1;
    }
    if pings != options.iterations {
        let what = format!("the client left after {pings} pings, not {}", options.iterations);
        return Err(Error::new(ErrorKind::Protocol, what).remedy("give both programs the same count"));
    }
    let span = station.core.now().since(began);
    Ok((peer, Summary::new(format!("rping over {}, every line as expected", qp.route()), u64::from(pings), bytes, span)))
}

/// Pings the server at `to`.
pub async fn call(station: &Station, to: SocketAddr, options: &Options) -> Result<Summary> {
    let size = options.size_bytes;
    // The text in front of the letters, and the NUL behind it all.
    let least = format!("{PREFIX}{}: ", options.iterations.saturating_sub(1)).len() as u32 + 1;
    if size < least {
        let what = format!("{} pings of {size} bytes: the last one's text takes {least}", options.iterations);
        return Err(Error::new(ErrorKind::Usage, what).remedy(format!("--size {least} or more")));
    }
    let qp = station.hca.create_qp(&station.qp_config(options))?;
    let mut steps = Steps::post(station, &qp)?;
    let connection = station.patiently("the server", qp.connect_to(to, &[])).await?;
    let began = station.core.now();
    for number in 0..options.iterations {
        let line = line(number, size);
        let mut source = station.filled(size, 0)?;
        source.as_mut_slice()[..line.len()].copy_from_slice(line.as_bytes());
        let source = lend(&qp, source, Access::READ).await?;
        let sink = lend(&qp, station.filled(size, 0)?, Access::WRITE).await?;
        for window in [&source, &sink] {
            steps.say(&qp, Remote::of(window)).await?;
            station.patiently("the server's next step", steps.next()).await?;
        }
        drop(station.hca.revoke(source).await);
        let sink = station.hca.revoke(sink).await;
        if sink.as_slice()[..line.len() + 1] != *format!("{line}\0").as_bytes() {
            return Err(Error::new(ErrorKind::Protocol, format!("ping {number} came back with other bytes")));
        }
    }
    let span = station.core.now().since(began);
    station.patiently("the server", leave(connection)).await?;
    let (pings, bytes) = (u64::from(options.iterations), 2 * u64::from(size) * u64::from(options.iterations));
    Ok(Summary::new(format!("rping over {}, every line as expected", qp.route()), pings, bytes, span))
}

async fn leave(connection: Connection) -> Result<()> {
    connection.disconnect().await;
    Ok(())
}

async fn lend(qp: &Qp, run: Run, access: Access) -> Result<Window> {
    qp.grant(run, access).await.map_err(|_| Error::new(ErrorKind::Failed, "lending memory: the device has no room for a grant"))
}

/// The text of ping `number` in a buffer of `size` bytes, its NUL aside: letters that begin one further in each ping.
fn line(number: u32, size: u32) -> String {
    let mut text = format!("{PREFIX}{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number as usize % 58);
    text.extend(letters.take((size as usize - 1).saturating_sub(text.len())).map(char::from));
    text
}

/// The text a client lent, which must be that of ping `number`.
fn judge(bytes: &[u8], number: u32) -> Result<&str> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).unwrap_or("");
    if text == line(number, bytes.len() as u32) {
        return Ok(text);
    }
    let shown = String::from_utf8_lossy(&bytes[..end.min(80)]).into_owned();
    Err(Error::new(ErrorKind::Protocol, format!("ping {number} says '{shown}'")))
}

/// The messages between the two.
struct Steps<'a> {
    station: &'a Station,
    qp: &'a Qp,
    receives: VecDeque<Op<Run>>,
}

impl<'a> Steps<'a> {
    fn post(station: &'a Station, qp: &'a Qp) -> Result<Steps<'a>> {
        let mut steps = Steps { station, qp, receives: VecDeque::with_capacity(RECEIVES) };
        for _ in 0..RECEIVES {
            steps.again(station.filled(STEP, 0)?)?;
        }
        Ok(steps)
    }

    fn again(&mut self, mut run: Run) -> Result<()> {
        run.set_view(0, STEP);
        let posted = self.qp.submit_recv(run).map_err(|_| Error::new(ErrorKind::Failed, "posting a receive: the queue is full"))?;
        self.receives.push_back(posted);
        Ok(())
    }

    /// What the other end says next.
    async fn next(&mut self) -> Result<Remote> {
        let oldest = self.receives.front_mut().expect("as many as are posted again");
        let run = std::pin::Pin::new(oldest).await.into_result().map_err(|failed| failed.into_error("receiving a step"))?;
        self.receives.pop_front();
        let Ok(step) = <[u8; STEP as usize]>::try_from(run.as_slice()) else {
            return Err(Error::new(ErrorKind::Protocol, format!("a step of {} bytes instead of {STEP}", run.len())));
        };
        self.again(run)?;
        let number = |at: usize| u32::from_be_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        let address = u64::from(number(0)) << 32 | u64::from(number(4));
        Ok(Remote { address, rkey: number(8), len: number(12) })
    }

    async fn say(&self, qp: &Qp, step: Remote) -> Result<()> {
        let mut run = self.station.filled(STEP, 0)?;
        let bytes = run.as_mut_slice();
        bytes[..8].copy_from_slice(&step.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&step.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&step.len.to_be_bytes());
        let sent = qp.send(run, None);
        self.station.patiently("the other end", async { sent.await.map(drop).map_err(|failed| failed.into_error("sending a step")) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_stock_program_writes_them() {
        assert_eq!(line(0, 64), "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr");
        assert_eq!(line(1, 64), "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs");
        assert_eq!(line(59, 20), "rdma-ping-59: BCDEF");
        assert!(judge(b"rdma-ping-7: H\0", 7).is_ok());
        assert!(judge(b"rdma-ping-7: I\0", 7).is_err() && judge(b"rdma-ping-8: I\0", 7).is_err() && judge(b"\xff\0", 7).is_err());
    }
}
