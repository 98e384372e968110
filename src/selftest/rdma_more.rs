//! An RDMA device: what is beyond reliable SEND, WRITE and READ.

use std::future::Future;
use std::net::SocketAddr;

use super::rdma::{BYTES, grant, pair, pair_of, same};
use super::stand::Stand;
use super::{Devices, Ended, Found, check, skip};
use crate::base::{Error, Nanos};
use crate::device::packet::Link;
use crate::device::rdma::{Access, Change, Features, Hca, Qp, QpConfig, QpState, RawConfig, Remote, Transport};
use crate::device::{Status, WcStatus};
use crate::flow::pattern::Pattern;
use crate::mem::{Ledger, PageKind, Run};
use crate::wire::ethernet::Mac;
use crate::wire::frame::Encapsulation;

/// How long a message may be under way where no one says that it was lost.
const ARRIVAL: Nanos = Nanos::from_secs(20);

/// The UDP port of the frame: discard.
const RAW_PORT: u16 = 9;

/// Runs `work` with the device, on a region of 8 MiB.
fn with_device<W>(devices: &Devices, work: impl FnOnce(Stand, Hca) -> W + 'static) -> Found
where
    W: Future<Output = Found> + 'static,
{
    let devices = devices.clone();
    Stand::run(8 << 20, &[PageKind::Huge2M, PageKind::Plain], move |stand| async move {
        let hca = stand.hca(&devices)?;
        work(stand, hca).await
    })
}

fn run(stand: &Stand, len: u32) -> Result<Run, Ended> {
    Ok(stand.slab.run(len).map_err(Error::from)?)
}

fn filled(stand: &Stand, len: u32, pattern: Pattern) -> Result<Run, Ended> {
    let mut run = run(stand, len)?;
    pattern.fill(run.as_mut_slice());
    Ok(run)
}

/// Waits for what may have been lost.
async fn arrives<T>(stand: &Stand, what: &str, arriving: impl Future<Output = T>) -> Result<T, Ended> {
    let late = |_| Ended::Failed(format!("{what} did not arrive in {} s", ARRIVAL.0 / 1_000_000_000));
    stand.core.timeout(ARRIVAL, arriving).await.map_err(late)
}

/// Sends `len` bytes with an immediate value and compares what arrives.
async fn round(stand: &Stand, one: &Qp, two: &Qp, len: u32) -> Result<(), Ended> {
    let pattern = Pattern::new(7, u64::from(len));
    // Posted first: without a receive the message would be lost.
    let receive = two.recv(run(stand, len)?);
    let sent = one.send(filled(stand, len, pattern)?, Some(len)).await.map_err(|failed| failed.into_error("sending"))?;
    let received = arrives(stand, "a message", receive).await?.map_err(|failed| failed.into_error("receiving"))?;
    check(received.immediate == Some(len), || format!("the immediate is {:?}", received.immediate))?;
    check(received.run.len() == len, || format!("{} bytes arrived of {len}", received.run.len()))?;
    same(pattern, received.run.as_slice(), "SEND")?;
    drop(sent);
    Ok(())
}

pub fn unreliable_connection(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        let (one, two) = pair_of(&hca, &QpConfig { transport: Transport::Uc, ..QpConfig::default() })?;
        round(&stand, &one, &two, BYTES).await?;
        let window = grant(&stand, &two, Access::WRITE).await?;
        let pattern = Pattern::new(7, 3);
        let told = two.recv(run(&stand, 1)?);
        let written = one.write(filled(&stand, BYTES, pattern)?, Remote::of(&window), Some(1)).await;
        drop(written.map_err(|failed| failed.into_error("writing"))?);
        drop(arrives(&stand, "a WRITE", told).await?.map_err(|failed| failed.into_error("receiving"))?);
        let landed = hca.revoke(window).await;
        same(pattern, landed.as_slice(), "WRITE")?;
        let read = one.read(landed, Remote { address: 0, rkey: 0, len: BYTES }).await.map(drop).map_err(|failed| failed.outcome.status);
        check(read == Err(Status::Rdma(WcStatus::LocalQpOperation)), || format!("a READ, which UC has not, ends with {read:?}"))?;
        Ok(format!("{}: SEND with immediate, WRITE with immediate", one.route()))
    })
}

pub fn datagrams(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        let config = QpConfig { transport: Transport::Ud, ..QpConfig::default() };
        let (one, two) = pair_of(&hca, &config)?;
        let mtu = one.local().mtu;
        for len in [0, 1, mtu] {
            round(&stand, &one, &two, len).await?;
        }
        let long = one.send(run(&stand, mtu + 1)?, None).await.map(drop).map_err(|failed| failed.outcome.status);
        check(long == Err(Status::Rdma(WcStatus::LocalLength)), || format!("a datagram longer than the MTU ends with {long:?}"))?;
        // A second peer of the same queue pair.
        let other = hca.create_qp(&config)?;
        other.connect(&one.local())?;
        let to_other = one.address(&other.local())?;
        let receive = other.recv(run(&stand, 100)?);
        let pattern = Pattern::new(7, 4);
        let sent = one.submit_send_to(filled(&stand, 100, pattern)?, &to_other, None);
        let sent = sent.map_err(|_| Ended::Failed("the send queue is full".into()))?;
        drop(sent.await.into_result().map_err(|failed| failed.into_error("sending"))?);
        let received = arrives(&stand, "a datagram", receive).await?.map_err(|failed| failed.into_error("receiving"))?;
        same(pattern, received.run.as_slice(), "SEND")?;
        Ok(format!("{}: up to {mtu} bytes, to two peers", one.route()))
    })
}

pub fn atomics(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        hca.require(Features::ATOMICS)?;
        let (one, two) = pair(&hca)?;
        let mut numbers = run(&stand, 64)?;
        numbers.as_mut_slice().fill(0);
        let window = two.grant(numbers, Access::ATOMIC).await;
        let window = window.map_err(|_| Ended::Failed("the device has no room for a window".into()))?;
        let remote = Remote::of(&window).part(8, 8).expect("it is in the window");
        let steps = [
            (Change::Add(5), 0),
            (Change::Add(u64::MAX), 5),
            (Change::Swap { compare: 7, swap: 9 }, 4),
            (Change::Swap { compare: 4, swap: 0x0102_0304_0506_0708 }, 4),
        ];
        for (change, expected) in steps {
            let was = one.atomic(run(&stand, 8)?, remote, change).await.map_err(|failed| failed.into_error(format!("{change:?}")))?;
            let was = number(was.as_slice());
            check(was == expected, || format!("{change:?} found {was}, not {expected}"))?;
        }
        let numbers = hca.revoke(window).await;
        let left = number(&numbers.as_slice()[8..]);
        check(left == 0x0102_0304_0506_0708, || format!("{left:#x} is left"))?;
        Ok(format!("{}: fetch and add, compare and swap", one.route()))
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

pub fn send_with_invalidate(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        hca.require(Features::INVALIDATE)?;
        let (one, two) = pair(&hca)?;
        let window = grant(&stand, &two, Access::WRITE).await?;
        let remote = Remote::of(&window);
        let receive = two.recv(run(&stand, 100)?);
        let sent = one.submit_send_invalidate(run(&stand, 100)?, remote.rkey);
        let sent = sent.map_err(|_| Ended::Failed("the send queue is full".into()))?;
        drop(sent.await.into_result().map_err(|failed| failed.into_error("sending"))?);
        drop(receive.await.map_err(|failed| failed.into_error("receiving"))?);
        // Its owner has done nothing yet.
        let after = one.write(run(&stand, BYTES)?, remote, None).await.map(drop).map_err(|failed| failed.outcome.status);
        check(after == Err(Status::Rdma(WcStatus::RemoteAccess)), || format!("a WRITE into the closed window ends with {after:?}"))?;
        drop(hca.revoke(window).await);
        Ok(format!("{}: the peer closes a window", one.route()))
    })
}

/// A frame to the interface itself by a raw packet queue pair, steered back to it. A NIC may keep a frame to its own address from coming
/// back; then the line says so.
pub fn raw_packets(devices: &Devices) -> Found {
    let interface = devices.interface.clone();
    with_device(devices, |stand, hca| async move {
        let config = RawConfig { send_depth: 4, recv_depth: 4, udp_ports: vec![RAW_PORT], ledger: Ledger::new() };
        let qp = hca.create_raw_qp(&config)?;
        let Some(interface) = interface else { return skip("no network interface was given: --interface") };
        let link = Link::find(&interface)?;
        let Some(&(address, _)) = link.addresses.first() else { return skip(format!("{interface} has no IP address")) };
        let own = SocketAddr::new(address, RAW_PORT);
        let mac = Mac(link.mac);
        let headers = Encapsulation { src_mac: mac, dst_mac: mac, vlan: None, src: own, dst: own, traffic_class: 0, hop_limit: 1 };
        let pattern = Pattern::new(7, 5);
        let mut frame = run(&stand, headers.header_len() as u32 + 100)?;
        headers.emit(100, 0, frame.as_mut_slice());
        pattern.fill(&mut frame.as_mut_slice()[headers.header_len()..]);
        let receive = qp.recv(run(&stand, 2048)?);
        drop(qp.send(frame).await.map_err(|failed| failed.into_error("sending a frame"))?);
        match arrives(&stand, "a frame", receive).await {
            Ok(received) => {
                let received = received.map_err(|failed| failed.into_error("receiving a frame"))?;
                same(pattern, &received.run.as_slice()[headers.header_len()..], "the frame")?;
                Ok(format!("{}: a frame sent, and steered back by its UDP port", hca.caps().name))
            }
            Err(_) => Ok(format!("{}: a frame sent; one to its own address does not come back", hca.caps().name)),
        }
    })
}

pub fn shared_receives(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        let srq = hca.create_srq(8)?;
        let config = QpConfig { srq: Some(srq.clone()), ..QpConfig::default() };
        let (one, two) = pair_of(&hca, &config)?;
        // Each sends one to the other; both receives are in one queue.
        let receives = [srq.recv(run(&stand, 5000)?), srq.recv(run(&stand, 5000)?)];
        for (qp, value) in [(&one, 1), (&two, 2)] {
            let pattern = Pattern::new(7, u64::from(value));
            drop(qp.send(filled(&stand, 5000, pattern)?, Some(value)).await.map_err(|failed| failed.into_error("sending"))?);
        }
        for receive in receives {
            let received = receive.await.map_err(|failed| failed.into_error("receiving"))?;
            let (value, by) = (received.immediate.unwrap_or_default(), received.qpn);
            let expected = if value == 1 { two.qpn() } else { one.qpn() };
            check(by == Some(expected), || format!("message {value} came by queue pair {by:?}, not {expected}"))?;
            same(Pattern::new(7, u64::from(value)), received.run.as_slice(), "SEND")?;
        }
        Ok(format!("{}: two queue pairs, one queue of receives", one.route()))
    })
}

pub fn forced_to_error(devices: &Devices) -> Found {
    with_device(devices, |stand, hca| async move {
        let (one, two) = pair(&hca)?;
        let window = grant(&stand, &two, Access::READ | Access::WRITE).await?;
        let mut posted = Vec::new();
        for _ in 0..8 {
            posted.push(one.submit_recv(run(&stand, 100)?));
            posted.push(one.submit_write(run(&stand, BYTES)?, Remote::of(&window), None));
            // The peer has no receive for it.
            posted.push(one.submit_send(run(&stand, BYTES)?, None));
        }
        // They are with the device.
        stand.core.sleep(Nanos::from_millis(5)).await;
        one.force_error();
        let (mut flushed, mut ended) = (0, 0);
        for request in posted {
            let request = request.map_err(|_| Ended::Failed("a queue is full".into()))?;
            match request.await.outcome.status {
                Status::Rdma(WcStatus::Flushed) => flushed += 1,
                Status::Ok => ended += 1,
                status => return Err(Ended::Failed(format!("a request of a queue pair forced to error ends with {status}"))),
            }
        }
        check(flushed >= 16, || format!("{flushed} requests were flushed, {ended} ended well"))?;
        check(one.state() == QpState::Error, || "the queue pair is not in the error state".into())?;
        drop((one, two));
        drop(hca.revoke(window).await);
        let (one, two) = pair(&hca)?;
        round(&stand, &one, &two, BYTES).await?;
        Ok(format!("{}: {flushed} requests came back flushed, {ended} had ended; a new queue pair works", one.route()))
    })
}
