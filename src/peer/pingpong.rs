//! `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`: the client sends a message, the server sends one back, and so on.
//!
//! Both programs fill their memory with 0x7b; with `-c` the client puts the number of each page, modulo 1, at its start, and the
//! server looks for it. A client here does so always. A server here sends back what it received, as the stock one does, whose receives
//! and sends share one buffer.

use std::collections::VecDeque;

use super::station::Station;
use super::{Options, Role, Summary};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Result};
use crate::device::Op;
use crate::device::rdma::{Qp, QpConfig, QpEndpoint, Transport};
use crate::device::socket::TcpStream;
use crate::mem::Run;
use crate::wire::native::pingpong::{DONE, LEN, Line, QKEY};

/// What the programs fill their memory with.
const FILL: u8 = 0x7b;
/// The page of the machine whose program checks its buffer.
const PAGE: usize = 4096;
/// Receives posted: the other end sends one message at a time, and its next may come before the acknowledgement of ours.
const RECEIVES: usize = 4;
/// How long a reliable queue pair stays after its last message. The stock program says nothing at its end, and if its last message's
/// acknowledgement was lost it asks again after 67 ms; rxe does so for ever, because it takes the program's seven retries for no limit.
const STAYS: Nanos = Nanos::from_millis(600);

pub async fn run(station: &Station, stream: &mut TcpStream, role: Role, transport: Transport, options: &Options) -> Result<Summary> {
    let most = station.path_mtu(options);
    if transport == Transport::Ud && options.size_bytes > most {
        let what = format!("datagrams of {} bytes on a path MTU of {most}", options.size_bytes);
        return Err(Error::new(ErrorKind::Usage, what).remedy(format!("give both programs a size of at most {most}")));
    }
    let qp = station.hca.create_qp(&QpConfig { transport, qkey: Some(QKEY), ..station.qp_config(options) })?;
    let mut receives = VecDeque::with_capacity(RECEIVES);
    for _ in 0..RECEIVES {
        receives.push_back(post(&qp, station.filled(options.size_bytes, 0)?)?);
    }
    station.patiently("the other program's exchange", meet(station, stream, role, transport, &qp, options)).await?;
    let began = station.core.now();
    let mut turn = match role {
        Role::Server => None,
        Role::Client => {
            let mut run = station.filled(options.size_bytes, FILL)?;
            run.as_mut_slice().iter_mut().step_by(PAGE).for_each(|first| *first = 0);
            Some(run)
        }
    };
    let mut unanswered = false;
    for number in 0..options.iterations {
        let is_last = number + 1 == options.iterations;
        let sent = match turn.take() {
            Some(run) => Some(station.patiently("the other program's queue pair", send(&qp, run)).await),
            None => None,
        };
        let oldest = receives.pop_front().expect("as many as are posted again");
        let received = station.patiently("the other program's next message", receive(oldest, number, options.size_bytes)).await;
        turn = match sent.transpose() {
            Ok(run) => run,
            // The other program ends with its last message. If its acknowledgement of ours was lost, that message says as much.
            Err(_) if received.is_ok() && is_last => None,
            Err(error) => return Err(error),
        };
        let received = received?;
        let back = match role {
            Role::Server => match station.patiently("the other program's queue pair", send(&qp, received)).await {
                Ok(run) => run,
                // The other program ends with this message, and does not wait until its acknowledgement has arrived.
                Err(_) if is_last => {
                    unanswered = true;
                    break;
                }
                Err(error) => return Err(error),
            },
            Role::Client => received,
        };
        receives.push_back(post(&qp, back)?);
    }
    let messages = 2 * u64::from(options.iterations) - u64::from(unanswered);
    let span = station.core.now().since(began);
    if transport == Transport::Rc && !unanswered {
        station.core.sleep(STAYS).await;
    }
    let last = if unanswered { "; the last message was not acknowledged: the other program had ended" } else { "" };
    Ok(Summary::new(
        format!("{transport:?} pingpong over {}, every byte as expected{last}", qp.route()),
        messages,
        messages * u64::from(options.size_bytes),
        span,
    ))
}

/// The exchange of lines, and the connection.
async fn meet(station: &Station, stream: &mut TcpStream, role: Role, transport: Transport, qp: &Qp, options: &Options) -> Result<()> {
    let ours = qp.local().to_pingpong().expect("the device has an address").encode();
    let mut theirs = [0; LEN];
    if role == Role::Client {
        stream.write_all(&ours).await?;
    }
    stream.read_exact(&mut theirs).await?;
    let line = Line::parse(&theirs).map_err(|why| {
        let text = String::from_utf8_lossy(&theirs).into_owned();
        Error::new(ErrorKind::Protocol, format!("{} sent '{text}', which is no line of a pingpong: {why}", stream.peer_addr()))
    })?;
    qp.connect(&QpEndpoint::from_pingpong(&line, transport, station.path_mtu(options)))?;
    match role {
        Role::Client => stream.write_all(&DONE).await,
        Role::Server => {
            stream.write_all(&ours).await?;
            let mut done = DONE;
            stream.read_exact(&mut done).await
        }
    }
}

fn post(qp: &Qp, mut run: Run) -> Result<Op<Run>> {
    // A shorter message has narrowed the view.
    run.set_view(0, run.capacity());
    qp.submit_recv(run).map_err(|_| Error::new(ErrorKind::Failed, "posting a receive: the queue is full"))
}

async fn send(qp: &Qp, run: Run) -> Result<Run> {
    qp.send(run, None).await.map_err(|failed| failed.into_error("sending a message"))
}

async fn receive(posted: Op<Run>, number: u32, size: u32) -> Result<Run> {
    let run = posted.await.into_result().map_err(|failed| failed.into_error(format!("receiving message {number}")))?;
    if run.len() != size {
        return Err(Error::new(ErrorKind::Protocol, format!("message {number} has {} bytes instead of {size}", run.len()))
            .remedy("give both programs the same size"));
    }
    let wrong = run.as_slice().iter().enumerate().find(|&(at, &byte)| byte != FILL && !(at % PAGE == 0 && byte == 0));
    match wrong {
        None => Ok(run),
        Some((at, byte)) => {
            Err(Error::new(ErrorKind::Protocol, format!("message {number} has {byte:#04x} instead of {FILL:#04x} at byte {at}")))
        }
    }
}
