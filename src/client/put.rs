//! An object whose bytes come one after the other: in one request where it is short, in parts where it is long.
//!
//! Bytes are written into registered memory ([`Upload::room`]) and sent from there, by RDMA where that is up: in one request up to a part,
//! and in several parts at once beyond. The server compares each part, and then the whole, with the CRC64NVME that was computed here.

use std::cell::Cell;
use std::collections::VecDeque;

use crc_fast::CrcAlgorithm::Crc64Nvme;

use super::budget::Granted;
use super::call::{CRC64NVME, Call, Load, shown_crc};
use super::object::{Put, PutOptions, There};
use super::{Check, Client, Failure, RUN_BYTES, Way};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos};
use crate::mem::Run;
use crate::reactor::Task;
use crate::s3::checksum::Algorithm;
use crate::s3::client::native::{bytes_of, crc_of};
use crate::s3::xml::checksums::Checksums;
use crate::s3::xml::failure::ErrorDocument;
use crate::s3::xml::multipart::{CompleteMultipartUpload, CompleteMultipartUploadResult, CompletedPart, InitiateMultipartUploadResult};
use crate::wire::http::uri::encode_query;
use crate::wire::joined;
use crate::wire::s3::frame::Method;

/// Bytes of a part, where the object is not so long that they must be more.
const PART: u64 = 8 << 20;
/// The most parts of an object.
pub(super) const PARTS_MAX: u64 = 10_000;
/// Parts under way at a time.
const AT_ONCE: usize = 2;
/// How long the end of what is under way is waited for when an upload is given up, and then the answer to that.
const ABORT_PATIENCE: Nanos = Nanos::from_secs(5);

/// A part that was put or was not, and its memory.
type Sent = (Result<(CompletedPart, Way), Failure>, Vec<Run>);

/// An object that is being put.
pub struct Upload {
    client: Client,
    bucket: String,
    key: String,
    options: PutOptions,
    /// Runs of a part.
    part_runs: usize,
    runs: Vec<Run>,
    /// Bytes in the last of them.
    filled: u32,
    /// What the part that is filled may have.
    granted: Option<Granted>,
    /// How many bytes it will have, as somebody has said.
    hint: Option<u64>,
    /// The upload in parts, once it has begun.
    id: Option<String>,
    /// It may have begun, and nobody has told its name.
    is_unnamed: bool,
    under_way: VecDeque<Task<Sent>>,
    parts: Vec<CompletedPart>,
    /// The memory of parts that were sent, where somebody wants it back.
    back: Option<Vec<Run>>,
    /// By which way parts went that did not go by RDMA.
    other_way: Option<Way>,
    begun: u16,
    bytes: u64,
    crc: u64,
}

impl Client {
    /// Begins an object. `size_hint` is how long it will be, if that is known.
    ///
    /// # Errors
    /// It is longer than the client's memory allows parts for.
    pub fn upload(&self, bucket: &str, key: &str, size_hint: Option<u64>, options: PutOptions) -> Result<Upload, Failure> {
        let part = size_hint.unwrap_or(0).div_ceil(PARTS_MAX).next_multiple_of(u64::from(RUN_BYTES)).max(PART);
        let memory = self.inner.options.memory_bytes;
        // The parts under way, the one that is filled, and as much again for everybody else; with little memory, smaller parts.
        let most = (memory / 2 / (AT_ONCE as u64 + 1)) / u64::from(RUN_BYTES) * u64::from(RUN_BYTES);
        let least = part;
        let part = if part == PART { part.min(most.max(5 << 20)) } else { part };
        if part > most.max(5 << 20) || part.saturating_mul(PARTS_MAX) < size_hint.unwrap_or(0) {
            let what = format!("PUT s3://{bucket}/{key}: parts of {least} bytes, and the client has {memory} bytes of memory");
            return Err(Error::new(ErrorKind::Usage, what).remedy("give the client more: Options::memory_bytes, or --memory").into());
        }
        let mut upload = self.upload_in((part / u64::from(RUN_BYTES)) as usize, bucket, key, options);
        upload.hint = size_hint;
        Ok(upload)
    }

    /// Puts what is in these runs in parts of so many of them. They come back, though not in order.
    pub(super) async fn put_parts(
        &self,
        part_runs: usize,
        (bucket, key): (&str, &str),
        runs: &mut Vec<Run>,
        options: &PutOptions,
    ) -> Result<Put, Failure> {
        let mut upload = self.upload_in(part_runs, bucket, key, options.clone());
        upload.back = Some(Vec::new());
        let mut outcome = Ok(());
        while !runs.is_empty() && outcome.is_ok() {
            let part = runs.drain(..part_runs.min(runs.len())).collect();
            outcome = upload.put_part(part).await;
        }
        let done = match outcome {
            Ok(()) => upload.complete_parts().await,
            Err(failure) => Err(failure),
        };
        if done.is_err() {
            // Their memory goes back to the caller, whatever becomes of them.
            upload.reap_all().await;
            upload.abort().await;
        }
        upload.id = None;
        runs.extend(upload.back.take().unwrap_or_default());
        done
    }

    fn upload_in(&self, part_runs: usize, bucket: &str, key: &str, options: PutOptions) -> Upload {
        Upload {
            client: self.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            options,
            part_runs,
            runs: Vec::new(),
            filled: 0,
            granted: None,
            hint: None,
            id: None,
            is_unnamed: false,
            under_way: VecDeque::new(),
            parts: Vec::new(),
            back: None,
            other_way: None,
            begun: 0,
            bytes: 0,
            crc: crc_fast::checksum(Crc64Nvme, b""),
        }
    }
}

impl Upload {
    /// Memory for the next bytes: one at least. How many were written there [`Upload::advance`] is told.
    ///
    /// # Errors
    /// A part could not be put, or there is no memory.
    pub async fn room(&mut self) -> Result<&mut [u8], Failure> {
        if self.runs.is_empty() || self.filled == RUN_BYTES {
            if self.runs.len() == self.part_runs {
                self.send_part().await?;
            }
            let what = |error| Failure::lost(&format!("PUT s3://{}/{}", self.bucket, self.key), &error);
            if self.granted.is_none() {
                let part = self.part_runs as u64 * u64::from(RUN_BYTES);
                let left = self.hint.map_or(part, |hint| hint.saturating_sub(self.bytes).next_multiple_of(RUN_BYTES.into()));
                self.granted = Some(self.client.grant(part.min(left.max(RUN_BYTES.into()))).await.map_err(what)?);
            }
            self.runs.push(self.client.lease(|slab| slab.run(RUN_BYTES)).await.map_err(what)?);
            self.filled = 0;
        }
        let last = self.runs.last_mut().expect("a run was added");
        last.set_len(RUN_BYTES);
        Ok(&mut last.as_mut_slice()[self.filled as usize..])
    }

    /// So many bytes were written to what [`Upload::room`] gave.
    ///
    /// # Panics
    /// With more than there was room for.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= (RUN_BYTES - self.filled) as usize, "more bytes than there was room for");
        self.filled += count as u32;
    }

    /// Adds bytes, which are copied.
    ///
    /// # Errors
    /// As for [`Upload::room`].
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        let ledger = self.client.inner.ledger.clone();
        while !bytes.is_empty() {
            let room = self.room().await?;
            let count = room.len().min(bytes.len());
            ledger.copy(&mut room[..count], &bytes[..count]);
            bytes = &bytes[count..];
            self.advance(count);
        }
        Ok(())
    }

    /// Bytes that were added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.runs.len().saturating_sub(1) as u64 * u64::from(RUN_BYTES) + u64::from(self.filled)
    }

    /// Puts what is not put yet, and the whole. Before that there is no object.
    ///
    /// # Errors
    /// It was not stored; what was put of it is removed.
    pub async fn finish(mut self) -> Result<Put, Failure> {
        let done = self.finish_or_stay().await;
        if done.is_err() {
            self.abort().await;
        }
        done
    }

    /// The same but for the removal. It may be given up half-way: then [`Upload::abort`] is to come.
    pub(super) async fn finish_or_stay(&mut self) -> Result<Put, Failure> {
        let done = self.complete().await;
        if done.is_ok() {
            self.id = None;
        }
        done
    }

    async fn complete(&mut self) -> Result<Put, Failure> {
        if self.id.is_none() {
            self.trim();
            if self.runs.is_empty() {
                self.runs.push(self.client.lease(|slab| slab.run(0)).await?);
            }
            let mut runs = std::mem::take(&mut self.runs);
            self.granted.iter_mut().for_each(Granted::leave);
            let put = self.client.put_runs(&self.bucket, &self.key, &mut runs, &self.options).await;
            self.granted = None;
            return put;
        }
        self.send_part().await?;
        self.complete_parts().await
    }

    /// Makes an object of the parts, once all of them are there.
    async fn complete_parts(&mut self) -> Result<Put, Failure> {
        while !self.under_way.is_empty() {
            self.reap().await?;
        }
        let id = self.id.clone().expect("it has begun");
        let document = CompleteMultipartUpload { parts: std::mem::take(&mut self.parts) }.to_xml();
        let mut call = Call::new(Method::Post, &self.bucket, &self.key)
            .field(CRC64NVME, shown_crc(self.crc))
            .field("x-amz-checksum-type", "FULL_OBJECT")
            .field("x-amz-mp-object-size", self.bytes.to_string());
        self.options.conditions(&mut call);
        call.is_once = true;
        call.query = format!("uploadId={}", encode_query(id.as_bytes()));
        let mut lost = None;
        for _ in 0..self.client.inner.options.tries {
            let failure = match self.client.call(&call, Load::Document(document.as_bytes())).await {
                Ok(reply) => match CompleteMultipartUploadResult::parse(&reply.document) {
                    Ok(told) => {
                        let check = if told.checksums.get(Algorithm::Crc64Nvme) == Some(&shown_crc(self.crc)) {
                            Check::Verified
                        } else {
                            Check::NotTold
                        };
                        let way = self.other_way.take().unwrap_or(reply.way);
                        return Ok(Put { etag: format!("\"{}\"", told.etag), check, way });
                    }
                    // The head of the answer comes before it is done.
                    Err(_) if ErrorDocument::parse(&reply.document).is_ok() => {
                        return Err(Failure::answered(&call.shown(), "the server", (500, None), &reply.document));
                    }
                    Err(_) => Failure::lost(&call.shown(), &Error::new(ErrorKind::Protocol, "an answer that says nothing")),
                },
                Err(failure) => failure,
            };
            // Nobody said whether it was done: one that was is no upload any more, and may be why a condition does not hold the next time.
            let is_over = match failure.is_unknown() {
                true => match self.is_under_way(&id).await {
                    Ok(is_under_way) => !is_under_way,
                    // Who may not list parts may look at the object.
                    Err(denied) if denied.is_denied() => true,
                    Err(_) => return Err(failure),
                },
                false if failure.code() == Some("NoSuchUpload") || lost.is_some() && failure.is_precondition() => true,
                false => return Err(failure),
            };
            let first = lost.get_or_insert_with(|| failure.clone());
            if is_over {
                return match self.client.was_put((&self.bucket, &self.key), &self.options.wanted(self.bytes, self.crc)).await {
                    There::Wanted(put) => Ok(put),
                    There::Other if failure.is_precondition() => Err(failure),
                    _ => Err(first.clone()),
                };
            }
        }
        let what = format!("{}: nobody says whether it was done", call.shown());
        Err(Failure::lost(&what, &Error::new(ErrorKind::Failed, "no answer").remedy("look whether it is there, and put it again")))
    }

    /// Whether an upload is neither completed nor aborted.
    async fn is_under_way(&self, id: &str) -> Result<bool, Failure> {
        let mut call = Call::new(Method::Get, &self.bucket, &self.key);
        call.query = format!("max-parts=1&uploadId={}", encode_query(id.as_bytes()));
        match self.client.call(&call, Load::None).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_not_found() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The last run ends where its bytes do.
    fn trim(&mut self) {
        if let Some(last) = self.runs.last_mut() {
            last.set_len(self.filled);
        }
        if self.runs.len() > 1 && self.filled == 0 {
            self.runs.pop();
        }
    }

    /// Begins to put what was filled as a part.
    async fn send_part(&mut self) -> Result<(), Failure> {
        self.trim();
        let runs = std::mem::take(&mut self.runs);
        self.filled = 0;
        if bytes_of(&runs) == 0 && self.begun > 0 {
            return Ok(());
        }
        self.put_part(runs).await
    }

    /// Begins to put a part.
    async fn put_part(&mut self, mut runs: Vec<Run>) -> Result<(), Failure> {
        let bytes = bytes_of(&runs);
        let id = match self.ready(bytes).await {
            Ok(id) => id,
            Err(failure) => {
                self.keep(runs);
                return Err(failure);
            }
        };
        let crc = crc_of(&runs);
        self.crc = joined::crc64nvme(self.crc, crc, bytes);
        self.bytes += bytes;
        self.begun += 1;
        let (client, bucket, key, number) = (self.client.clone(), self.bucket.clone(), self.key.clone(), self.begun);
        let (mut granted, is_wanted_back) = (self.granted.take(), self.back.is_some());
        granted.iter_mut().for_each(Granted::leave);
        self.under_way.push_back(self.client.inner.core.go_on(async move {
            let mut call = Call::new(Method::Put, &bucket, &key);
            call.query = format!("partNumber={number}&uploadId={}", encode_query(id.as_bytes()));
            let part = client.call(&call, Load::Runs(&mut runs, &Cell::new(Some(crc)))).await.map(|reply| {
                let etag = reply.etag().trim_matches('"').to_owned();
                (CompletedPart { number, etag, checksums: Checksums(vec![(Algorithm::Crc64Nvme, shown_crc(crc))]) }, reply.way)
            });
            if !is_wanted_back {
                runs.clear();
            }
            drop(granted);
            (part, runs)
        }));
        Ok(())
    }

    /// The upload, with room for a part of so many bytes.
    async fn ready(&mut self, bytes: u64) -> Result<String, Failure> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => self.begin().await?,
        };
        if self.under_way.len() >= AT_ONCE {
            self.reap().await?;
        }
        if u64::from(self.begun) == PARTS_MAX {
            let what = format!("PUT s3://{}/{}: it is longer than {PARTS_MAX} parts of {bytes} bytes", self.bucket, self.key);
            return Err(Error::new(ErrorKind::Usage, what)
                .remedy("say how long it is when it is begun (upload's size_hint), or copy it from a file")
                .into());
        }
        Ok(id)
    }

    /// The memory of a part that is not sent any more.
    fn keep(&mut self, runs: Vec<Run>) {
        if let Some(back) = &mut self.back {
            back.extend(runs);
        }
    }

    async fn reap(&mut self) -> Result<(), Failure> {
        let Some(first) = self.under_way.pop_front() else { return Ok(()) };
        let (part, runs) = first.await.map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?;
        self.keep(runs);
        let (part, way) = part?;
        self.parts.push(part);
        if !matches!(way, Way::Rdma(_)) {
            self.other_way = Some(way);
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<String, Failure> {
        let mut call = Call::new(Method::Post, &self.bucket, &self.key)
            .field("x-amz-checksum-algorithm", "CRC64NVME")
            .field("x-amz-checksum-type", "FULL_OBJECT");
        self.options.describe(&mut call);
        call.query = "uploads=".to_owned();
        self.is_unnamed = true;
        let begun = self.client.call(&call, Load::Document(b"")).await;
        self.is_unnamed = begun.as_ref().is_err_and(Failure::is_unknown);
        let reply = begun?;
        let told = InitiateMultipartUploadResult::parse(&reply.document)
            .map_err(|_| Error::new(ErrorKind::Protocol, format!("{}: an answer that names no upload", call.shown())))?;
        self.id = Some(told.upload_id.clone());
        Ok(told.upload_id)
    }

    /// Waits for the end of all parts that are under way, good or bad.
    async fn reap_all(&mut self) {
        while !self.under_way.is_empty() {
            let _ = self.reap().await;
        }
    }

    /// Gives up: what was put of it is removed, for which the server has some seconds. False if parts of it may stay, or an upload without
    /// any.
    pub async fn abort(&mut self) -> bool {
        let core = self.client.core().clone();
        // A part that arrives after the end would stay.
        if core.timeout(ABORT_PATIENCE, self.reap_all()).await.is_err() {
            self.under_way.iter().for_each(Task::abort);
        }
        let Some(id) = self.id.take() else { return !self.is_unnamed };
        let mut call = Call::new(Method::Delete, &self.bucket, &self.key);
        call.query = format!("uploadId={}", encode_query(id.as_bytes()));
        let why = match core.timeout(ABORT_PATIENCE, self.client.call(&call, Load::None)).await {
            Ok(Ok(_)) => return true,
            Ok(Err(failure)) if failure.is_not_found() => return true,
            Ok(Err(failure)) => format!("{failure:#}"),
            Err(_) => "the server does not answer".into(),
        };
        tracing::warn!("parts of s3://{}/{} may stay: {why}", self.bucket, self.key.escape_debug());
        false
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        // Given up half-way: the parts are removed as soon as somebody has time for it, if the core goes on.
        self.under_way.iter().for_each(Task::abort);
        let (client, bucket, key) = (self.client.clone(), self.bucket.clone(), self.key.clone());
        drop(self.client.inner.core.try_spawn(async move {
            let mut call = Call::new(Method::Delete, &bucket, &key);
            call.query = format!("uploadId={}", encode_query(id.as_bytes()));
            drop(client.call(&call, Load::None).await);
        }));
    }
}
