//! The last message of a session of the native mode: why its server ends it.

use std::rc::Rc;

use super::session::Session;
use crate::base::Nanos;
use crate::mem::{Run, Slab};
use crate::reactor::Core;
use crate::wire::s3::frame::{self, Answer, Body};

/// How long the last messages of sessions may take: who has no receive left holds nobody up for longer.
const FAREWELL: Nanos = Nanos::from_millis(200);

/// Why a server ends a session.
#[derive(Clone, Copy, Debug)]
pub enum Farewell<'a> {
    /// What the client sent is against the protocol.
    Violation(&'a str),
    /// It was not used for too long, it is too old, or its client takes no answers.
    Over(&'a str),
    /// The server stops.
    Stop,
}

impl Farewell<'_> {
    /// The status and the text of the message.
    fn told(&self) -> (u16, &str) {
        match self {
            Farewell::Violation(what) => (400, what),
            Farewell::Over(what) => (frame::OVER, what),
            Farewell::Stop => (503, "the server stops"),
        }
    }

    fn message(&self, slab: &Slab) -> Option<Run> {
        let (status, why) = self.told();
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, why.as_bytes());
        let body = Body::Inline(why.as_bytes());
        let answer = Answer { id: frame::LAST, status, bytes: why.len() as u64, crc, fields: &[], body };
        let mut run = slab.run(answer.frame_bytes() as u32).ok()?;
        run.set_len(answer.frame_bytes() as u32);
        answer.emit(run.as_mut_slice());
        Some(run)
    }

    /// Tells the clients of sessions of the native mode, as far as they listen.
    pub async fn bid(&self, core: &Core, slab: &Slab, sessions: &[Rc<Session>]) {
        let tell = |session: &Rc<Session>| session.qp.submit_send(self.message(slab)?, None).ok();
        let told: Vec<_> = sessions.iter().filter(|session| session.is_native).filter_map(tell).collect();
        let all = async {
            for one in told {
                drop(one.await);
            }
        };
        let _ = core.timeout(FAREWELL, all).await;
    }
}
