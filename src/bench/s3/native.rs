//! A client of the native mode.

use std::rc::Rc;

use super::sessions::Sessions;
use super::{CHUNK_BYTES, Load, shown_error};
use crate::base::error::ErrorKind;
use crate::base::limits::RUN_MAX_CHUNKS;
use crate::base::{Error, Result};
use crate::mem::{Run, Slab};
use crate::s3::client::native::{Answered, Ask, Came};
use crate::wire::s3::frame::Method;

/// What of a message is for its head: what is longer goes to a window.
const HEAD_BYTES: u64 = 1024;
/// The longest run: objects that are longer lie in several.
const RUN_BYTES: usize = (RUN_MAX_CHUNKS * CHUNK_BYTES) as usize;

/// A client with sessions of its own or others'.
pub struct Client {
    load: Rc<Load>,
    sessions: Rc<Sessions>,
    slab: Slab,
    /// Where an object that is got goes.
    room: Vec<Run>,
    /// What holds the bytes of all objects, each from another place on: what is put lies there already, as for HTTP.
    pattern: Vec<Run>,
}

impl Client {
    /// One that has them.
    ///
    /// # Errors
    /// No server.
    pub async fn connect(load: &Rc<Load>, sessions: &Rc<Sessions>, slab: &Slab) -> Result<Client> {
        sessions.of(None).await?;
        let (load, sessions, slab) = (load.clone(), sessions.clone(), slab.clone());
        Ok(Client { load, sessions, slab, room: vec![], pattern: vec![] })
    }

    /// Connects anew, where nobody else has.
    pub async fn again(&mut self) -> Result<()> {
        self.sessions.of(None).await.map(drop)
    }

    async fn ask(&self, number: Option<u64>, ask: Ask<'_>) -> Result<Answered> {
        let session = self.sessions.of(number).await?;
        let answered = session.ask(ask).await?;
        self.sessions.heed(&session, &answered);
        Ok(answered)
    }

    /// Makes the bucket; one that is there is as good.
    pub async fn make_bucket(&mut self) -> Result<()> {
        let fields = self.load.options.etag.as_ref().map_or_else(String::new, |etag| format!("x-basin-etag: {etag}\r\n"));
        let target = format!("/{}", self.load.options.bucket);
        let answered =
            self.ask(None, Ask { method: Method::Put, target: &target, fields: &fields, body: vec![], crc: None, into: vec![] }).await?;
        if matches!(answered.status, 200 | 409) { Ok(()) } else { Err(self.refused(&answered)) }
    }

    /// Puts an object.
    pub async fn put(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        let mut body = std::mem::take(&mut self.pattern);
        if body.is_empty() {
            body = self.memory(load.pattern.len())?;
            for (run, bytes) in body.iter_mut().zip(load.pattern.chunks(RUN_BYTES)) {
                run.as_mut_slice().copy_from_slice(bytes);
            }
        }
        let mut behind = view(&mut body, load.shift(number), load.options.size_bytes as usize);
        let ask = Ask { method: Method::Put, target: load.path(number), fields: "", body, crc: None, into: vec![] };
        let answered = self.ask(Some(number), ask).await?;
        if answered.status != 200 {
            return Err(self.refused(&answered));
        }
        self.pattern = answered.sent;
        self.pattern.append(&mut behind);
        Ok(())
    }

    /// Gets an object, which must be as it was put. Its checksum is compared in any case.
    pub async fn get(&mut self, number: u64) -> Result<()> {
        let load = self.load.clone();
        let wanted = load.bytes(number);
        let target = load.path(number);
        let is_short = load.options.size_bytes + HEAD_BYTES <= u64::from(self.sessions.receive());
        let into = if is_short { vec![] } else { self.room_for(wanted.len())? };
        let answered = self.ask(Some(number), Ask { method: Method::Get, target, fields: "", body: vec![], crc: None, into }).await?;
        if answered.status != 200 {
            return Err(self.refused(&answered));
        }
        if answered.bytes != wanted.len() as u64 {
            return Err(self.wrong(format!("{} bytes instead of {}", answered.bytes, wanted.len())));
        }
        if load.options.check && !is_same(&answered, wanted) {
            return Err(self.wrong("other bytes than were put"));
        }
        let (Came::Runs(runs) | Came::None(runs) | Came::Message(runs)) = answered.body;
        if !runs.is_empty() {
            self.room = runs;
        }
        Ok(())
    }

    /// Memory for so many bytes: where a request failed, others than before.
    fn room_for(&mut self, bytes: usize) -> Result<Vec<Run>> {
        let mut room = std::mem::take(&mut self.room);
        if room.is_empty() {
            room = self.memory(bytes)?;
        }
        view(&mut room, 0, bytes);
        Ok(room)
    }

    /// Memory for so many bytes, in as few runs as there may be.
    fn memory(&self, bytes: usize) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for at in (0..bytes.max(1)).step_by(RUN_BYTES) {
            runs.push(self.slab.run((bytes.max(1) - at).min(RUN_BYTES) as u32)?);
        }
        Ok(runs)
    }

    fn refused(&self, answered: &Answered) -> Error {
        let document = String::from_utf8_lossy(answered.bytes());
        self.wrong(format!("status {}: {}", answered.status, shown_error(&document)))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Protocol, format!("the S3 server {} sent {what}", self.load.address))
    }
}

/// Views so many bytes from there on, in the first run at the latest; the runs behind them are apart.
fn view(runs: &mut Vec<Run>, from: usize, bytes: usize) -> Vec<Run> {
    let end = from + bytes;
    let behind = runs.split_off(end.div_ceil(RUN_BYTES).max(1));
    for (at, run) in runs.iter_mut().enumerate() {
        let (start, stop) = (from.saturating_sub(at * RUN_BYTES), (end - at * RUN_BYTES).min(RUN_BYTES));
        run.set_view(start as u32, (stop - start) as u32);
    }
    behind
}

/// Whether an answer has these bytes.
fn is_same(answered: &Answered, mut wanted: &[u8]) -> bool {
    let Came::Runs(runs) = &answered.body else { return answered.bytes() == wanted };
    runs.iter().all(|run| wanted.split_off(..run.as_slice().len()).is_some_and(|these| these == run.as_slice())) && wanted.is_empty()
}
