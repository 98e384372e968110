//! The body of a request: received into chunks, and held against all that the request says of it.

use std::rc::Rc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use sha2::{Digest as _, Sha256};

use super::auth::Payload;
use super::checksum::{Algorithm, Digests, Kind, Running};
use super::error::{Code, S3Error};
use super::hasher::{self, Hasher};
use super::http::stream::Stream;
use super::meta::Checksum;
use super::patience::LOOK;
use super::rdma::open::Later;
use super::rdma::transfer::{Pull, lease, lease_first};
use super::request::Request;
use super::service::headers::{Said, checksum_of};
use crate::base::{Error, Nanos};
use crate::mem::{Ledger, Run, Shared, Slab};
use crate::reactor::Core;
use crate::store::draft::Piece;
use crate::wire::http::aws_chunked::{Found, Mode, Signature};
use crate::wire::http::body::{BadBody, Body as Decoder, Wants};
use crate::wire::http::head::Framing;

/// The most bytes of one piece. Several make an extent of the store; while one is hashed the next one comes, and what was received is
/// still in the processor's cache when it is summed.
const PIECE: u32 = 256 << 10;
/// What a body must bring a second, over all the time in which it was waited for, beyond a while that everyone has. Who brings less keeps
/// memory from others (which is what he may want), and is sent away.
const SLOWEST: Pace = Pace { bytes_per_second: 1 << 10, grace: Nanos::from_secs(30) };
/// And while there is little memory.
const SLOWEST_IF_SHORT: Pace = Pace { bytes_per_second: 64 << 10, grace: Nanos::from_secs(5) };
/// How long to take what nobody wants of a body.
const LEFT_OVER_TIME: Nanos = Nanos::from_secs(5);
/// Says that the body may come (RFC 9110, section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// How slow a client may be.
struct Pace {
    bytes_per_second: u64,
    grace: Nanos,
}

impl Pace {
    /// How long one who has brought so many bytes may be waited for, in all.
    fn allows(&self, bytes: u64) -> Nanos {
        Nanos::from_millis(bytes.saturating_mul(1000) / self.bytes_per_second).saturating_add(self.grace)
    }
}

/// Where a body is, if it does not come by a stream.
pub enum Elsewhere {
    /// In a client's memory.
    Memory(Pull),
    /// In a message that has come; none of it is left once it was taken.
    Message(Option<Shared>, Ledger),
    /// All of it is here; nothing is left once it was taken.
    Here(Option<Run>),
}

/// The CRC64NVME that a client says a body has.
pub enum Told {
    /// It has said so.
    Now(u64),
    /// It says so behind it.
    Later(Rc<Later>),
}

/// A body that may come.
pub struct Body<'a> {
    core: Core,
    stream: Option<&'a mut Stream>,
    elsewhere: Option<Elsewhere>,
    slab: Slab,
    hasher: Hasher,
    framing: Framing,
    /// The client waits to be told that the body may come.
    awaits_word: bool,
    /// What it is made of, once that is known.
    decoder: Option<Decoder>,
    /// How long the client was waited for.
    waited: Nanos,
    /// It cannot be told any more where it ends.
    is_broken: bool,
    payload: Payload,
    /// The bytes it has, without its framing.
    length: Option<u64>,
    content_md5: Option<[u8; 16]>,
    /// What the request says is to be its checksum; where it has no value that comes behind the body.
    checksum: Option<(Algorithm, Option<Box<str>>)>,
    /// The trailers that are to come, by name.
    announced: Vec<Box<str>>,
    digests: Digests,
    /// Of what an MD5 is wanted of.
    md5: Option<hasher::Stream>,
    /// Bytes of it that came by no stream.
    brought: u64,
    /// The CRC64NVME it was told to have beside what the request says, and that of what has come where nothing else computes it.
    told_crc: Option<(Told, Option<crc_fast::Digest>)>,
    /// Its checksum is the CRC64NVME that whoever takes its pieces computes.
    is_summed_apart: bool,
    /// Of the signed chunk that is being received.
    chunk: Option<(Sha256, Signature)>,
}

/// What was computed of a body.
pub struct Digested {
    /// Its MD5, if that was wanted.
    pub md5: Option<[u8; 16]>,
    /// Its checksum, if one was.
    pub checksum: Option<Checksum>,
}

/// What was received has another CRC64NVME than it was told to have.
pub fn another_crc64nvme() -> S3Error {
    S3Error::with(Code::BadDigest, "The CRC64NVME you specified did not match what was received.")
}

/// What `Content-MD5` says.
///
/// # Errors
/// `InvalidDigest`.
pub fn parse_md5(text: &str) -> Result<[u8; 16], S3Error> {
    let md5 = BASE64_STANDARD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    md5.ok_or_else(|| S3Error::new(Code::InvalidDigest).field("Content-MD5", text))
}

/// What was received has another MD5 than it was told to have.
pub fn another_md5(told: [u8; 16], found: [u8; 16]) -> S3Error {
    S3Error::new(Code::BadDigest)
        .field("ExpectedDigest", BASE64_STANDARD.encode(told))
        .field("CalculatedDigest", BASE64_STANDARD.encode(found))
}

impl<'a> Body<'a> {
    /// A body that nothing is known of but its framing.
    pub fn new(hasher: &Hasher, stream: &'a mut Stream, slab: &Slab, framing: Framing, awaits_word: bool) -> Body<'a> {
        let length = match framing {
            Framing::None => Some(0),
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        Body { length, awaits_word, stream: Some(stream), ..Body::none(hasher, slab, framing) }
    }

    fn none(hasher: &Hasher, slab: &Slab, framing: Framing) -> Body<'a> {
        Body {
            core: hasher.core().clone(),
            stream: None,
            elsewhere: None,
            slab: slab.clone(),
            hasher: hasher.clone(),
            framing,
            awaits_word: false,
            decoder: None,
            waited: Nanos::ZERO,
            is_broken: false,
            payload: Payload::Unsigned,
            length: Some(0),
            content_md5: None,
            checksum: None,
            announced: Vec::new(),
            digests: Digests::default(),
            md5: None,
            brought: 0,
            told_crc: None,
            is_summed_apart: false,
            chunk: None,
        }
    }

    /// A body that comes by no stream: of so many bytes, with this CRC64NVME if one was told; or none.
    pub fn apart(hasher: &Hasher, slab: &Slab, from: Option<(Elsewhere, u64, Option<Told>)>) -> Body<'a> {
        let mut body = Body::none(hasher, slab, Framing::None);
        if let Some((elsewhere, bytes, crc)) = from {
            body.elsewhere = Some(elsewhere);
            body.length = Some(bytes);
            body.told_crc = crc.map(|crc| (crc, None));
        }
        body
    }

    /// Its bytes are in a client's memory, and none come by the stream.
    pub fn take_from(&mut self, pull: Pull) {
        self.length = Some(pull.bytes());
        self.elsewhere = Some(Elsewhere::Memory(pull));
    }

    /// Another core has taken so many bytes of it from a client's memory.
    pub fn was_brought(&mut self, bytes: u64) {
        self.brought += bytes;
    }

    /// Whether it is held against a CRC64NVME that is told beside the request.
    pub fn has_told_crc(&self) -> bool {
        self.told_crc.is_some()
    }

    /// Waits until nothing of it is being read from a client's memory any more.
    pub async fn end(&mut self) {
        if let Some(Elsewhere::Memory(pull)) = &mut self.elsewhere {
            pull.end().await;
        }
    }

    /// What the request says of it is what it will be held against.
    ///
    /// # Errors
    /// `InvalidDigest`, `InvalidRequest`, `MissingContentLength`: what it says cannot be.
    pub fn hold_to(&mut self, request: &Request, payload: Payload) -> Result<(), S3Error> {
        // Who says how long it is without its framing has framed it, though it is signed as what is not.
        let says = |name, what| request.text(name).is_some_and(|text| text.split(',').any(|one| one.trim().eq_ignore_ascii_case(what)));
        let is_framed = || request.text("x-amz-decoded-content-length").is_some() && says("content-encoding", "aws-chunked");
        let mode = match &payload {
            Payload::Unsigned if self.elsewhere.is_none() && is_framed() => Some(Mode::UnsignedTrailer),
            Payload::Unsigned | Payload::Sha256(_) => None,
            Payload::SignedChunks(_) => Some(Mode::Signed),
            Payload::SignedChunksTrailer(_) => Some(Mode::SignedTrailer),
            Payload::UnsignedTrailer => Some(Mode::UnsignedTrailer),
        };
        self.payload = payload;
        if mode.is_some() && self.elsewhere.is_some() {
            return Err(S3Error::with(Code::InvalidRequest, "What is in memory has no framing: x-amz-content-sha256 is UNSIGNED-PAYLOAD."));
        }
        if mode.is_some() {
            let told = request.text("x-amz-decoded-content-length").and_then(|length| length.parse().ok());
            self.length = Some(told.ok_or_else(|| S3Error::new(Code::MissingContentLength))?);
        }
        // Of a request that brings nothing it says nothing, as S3 has it.
        let brings = matches!(request.head.method(), "PUT" | "POST");
        if let Some(text) = request.text("content-md5").filter(|_| brings) {
            self.content_md5 = Some(parse_md5(text)?);
        }
        self.checksum = checksum_of(&Said::of(request))?.map(|(algorithm, value)| (algorithm, value.map(Box::from)));
        let announced = request.text("x-amz-trailer").unwrap_or_default().split(',').map(str::trim);
        self.announced = announced.filter(|name| !name.is_empty()).map(Box::from).collect();
        self.decoder = Some(Decoder::new(self.framing, mode).map_err(|bad| self.broken(bad))?);
        Ok(())
    }

    /// The bytes it has, as far as that is told.
    pub fn length(&self) -> Option<u64> {
        match self.framing {
            Framing::None if self.length == Some(0) && self.elsewhere.is_none() => None,
            _ => self.length,
        }
    }

    /// Whether the request itself has none.
    pub fn is_empty(&self) -> bool {
        matches!(self.framing, Framing::None | Framing::Length(0))
    }

    /// The bytes of it that have come, without its framing.
    pub fn received(&self) -> u64 {
        self.decoder.as_ref().map_or(0, Decoder::payload_bytes) + self.brought
    }

    /// Whether its framing tells its end as it comes.
    pub fn is_chunked(&self) -> bool {
        self.framing == Framing::Chunked
    }

    /// The checksum that the request names.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.checksum.as_ref().map(|(algorithm, _)| *algorithm)
    }

    /// What is to be computed of it: an MD5, and where the request names no checksum, this one.
    pub fn begin(&mut self, with_md5: bool, usual: Algorithm) {
        self.md5 = (with_md5 || self.content_md5.is_some()).then(|| self.hasher.stream());
        let (algorithm, _) = self.checksum.get_or_insert((usual, None));
        self.digests.checksum = Some(algorithm.start());
        if let Some((_, running)) = &mut self.told_crc
            && *algorithm != Algorithm::Crc64Nvme
        {
            *running = Some(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme));
        }
        if matches!(self.payload, Payload::Sha256(_)) {
            self.digests.sha256 = Some(Sha256::new());
        }
    }

    /// Who takes its pieces computes the CRC64NVME of all of them, and tells [`Body::digested`]: once is enough. Where he does nothing else
    /// with their bytes (`is_kept_as_is`), and nobody here does, they come with the checksums of their blocks if they can.
    pub fn sum_apart(&mut self, is_kept_as_is: bool) {
        self.is_summed_apart = self.algorithm() == Some(Algorithm::Crc64Nvme);
        if self.is_summed_apart {
            self.digests.checksum = None;
        }
        let is_read_here = self.md5.is_some() || self.digests.is_any() || matches!(&self.told_crc, Some((_, Some(_))));
        if is_kept_as_is
            && !is_read_here
            && let Some(Elsewhere::Memory(pull)) = &mut self.elsewhere
        {
            pull.sum();
        }
    }

    /// The next piece of it, and nothing at its end.
    ///
    /// # Errors
    /// It is not what was said of it, or ends too early; no memory, or a client that is too slow.
    pub async fn next(&mut self) -> Result<Option<Piece>, S3Error> {
        loop {
            if let Some(md5) = &mut self.md5
                && let Some(piece) = md5.surplus().await
            {
                return Ok(Some(piece));
            }
            match (self.receive().await?, &mut self.md5) {
                (Some(piece), Some(md5)) => md5.give(piece.run),
                (None, Some(md5)) => return Ok(md5.next().await),
                (piece, None) => return Ok(piece),
            }
        }
    }

    /// The next piece as it comes; nothing at the end, however often that is asked for.
    async fn receive(&mut self) -> Result<Option<Piece>, S3Error> {
        if self.elsewhere.is_some() {
            return self.brought().await;
        }
        if std::mem::take(&mut self.awaits_word)
            && let Some(stream) = &mut self.stream
        {
            stream.write(&[CONTINUE]).await.map_err(|_| S3Error::new(Code::IncompleteBody))?;
        }
        let taken = self.decoder.as_ref().map_or(0, Decoder::payload_bytes);
        let size = match self.length {
            Some(length) => length.saturating_sub(taken).min(u64::from(PIECE)) as u32,
            None => PIECE,
        };
        if size == 0 {
            self.take(None, 0, 0).await?;
            return Ok(None);
        }
        let mut run = match taken {
            0 => lease_first(&self.core, &self.slab, size).await?,
            // It has memory already, which comes back once it goes on.
            _ => lease(&self.core, &self.slab, size).await?,
        };
        let filled = self.take(Some(&mut run), 0, size).await?;
        if filled == 0 {
            return Ok(None);
        }
        run.set_len(filled);
        Ok(Some(run.into()))
    }

    /// The next piece of what does not come by a stream.
    async fn brought(&mut self) -> Result<Option<Piece>, S3Error> {
        let piece = match &mut self.elsewhere {
            Some(Elsewhere::Memory(pull)) => pull.next().await?,
            Some(Elsewhere::Message(message, ledger)) => match message.take().filter(|message| !message.is_empty()) {
                Some(message) => {
                    let mut run = lease_first(&self.core, &self.slab, message.len()).await?;
                    run.set_len(message.len());
                    ledger.copy(run.as_mut_slice(), message.as_slice());
                    Some(run.into())
                }
                None => None,
            },
            Some(Elsewhere::Here(run)) => run.take().filter(|run| !run.is_empty()).map(Piece::from),
            None => None,
        };
        if let Some(Piece { run, .. }) = &piece {
            self.brought += u64::from(run.len());
            self.digests.update(run.as_slice());
            if let Some((_, Some(running))) = &mut self.told_crc {
                running.update(run.as_slice());
            }
        } else if let Some((told, _)) = &mut self.told_crc
            && let Told::Later(later) = told
        {
            let crc = later.get(&self.core).await?;
            *told = Told::Now(crc);
        }
        Ok(piece)
    }

    /// Receives until so many bytes are there, or the end is; without a place for payload there may be none.
    async fn take(&mut self, mut run: Option<&mut Run>, mut filled: u32, size: u32) -> Result<u32, S3Error> {
        // For how long nothing has come.
        let mut silent = Nanos::ZERO;
        loop {
            let patience = self.patience(silent).min(LOOK);
            let (Some(decoder), Some(stream)) = (&mut self.decoder, &mut self.stream) else { return Ok(0) };
            match decoder.wants() {
                Wants::End => return Ok(filled),
                Wants::Data(_) if filled == size => match run {
                    Some(_) => return Ok(filled),
                    None => return Err(self.broken_with(Code::IncompleteBody)),
                },
                Wants::Data(most) => {
                    let run = run.as_deref_mut().expect("there is room, so there is a run");
                    let most = most.min(u64::from(size - filled)) as u32;
                    let begun = self.core.now();
                    let got = stream.receive(patience, run, filled, most).await.map(u64::from);
                    let Some(count) = self.waited_for(got, (begun, patience), &mut silent)? else { continue };
                    let count = count as u32;
                    self.decoder.as_mut().expect("it wanted them").data(u64::from(count));
                    let bytes = &run.as_slice()[filled as usize..(filled + count) as usize];
                    self.digests.update(bytes);
                    if let Some((sha256, _)) = &mut self.chunk {
                        sha256.update(bytes);
                    }
                    filled += count;
                }
                Wants::Line => {
                    // Of what is there first; a line may be there in part.
                    let step = match decoder.framing(stream.pending()) {
                        Ok(step) => step,
                        Err(bad) => return Err(self.broken(bad)),
                    };
                    stream.consume(step.used);
                    match step.found {
                        Some(found) => self.found(found)?,
                        None if step.used == 0 => {
                            let begun = self.core.now();
                            let more = stream.more_within(patience).await.map(|count| count as u64);
                            self.waited_for(more, (begun, patience), &mut silent)?;
                        }
                        None => {}
                    }
                }
            }
        }
    }

    /// What came of a wait for the client that began then and was for so long; nothing, if it was only time to look whether it may be
    /// waited for longer.
    fn waited_for(
        &mut self,
        got: Result<u64, Error>,
        (begun, patience): (Nanos, Nanos),
        silent: &mut Nanos,
    ) -> Result<Option<u64>, S3Error> {
        // For how long this core stood still the client is not to blame.
        let waited = self.core.now().since(begun).min(patience);
        self.waited = self.waited.saturating_add(waited);
        *silent = silent.saturating_add(waited);
        match got {
            Ok(0) => Err(self.broken_with(Code::IncompleteBody)),
            Ok(count) => {
                *silent = Nanos::ZERO;
                Ok(Some(count))
            }
            Err(error) if error.errno() != Some(libc::ETIMEDOUT) => Err(self.broken_with(Code::IncompleteBody)),
            Err(_) if self.patience(*silent) == Nanos::ZERO => Err(self.broken_with(Code::RequestTimeout)),
            Err(_) => Ok(None),
        }
    }

    /// How long the client may be waited for now, if nothing has come for so long.
    fn patience(&self, silent: Nanos) -> Nanos {
        let pace = if self.slab.census().is_short() { SLOWEST_IF_SHORT } else { SLOWEST };
        let taken = self.decoder.as_ref().map_or(0, Decoder::payload_bytes);
        pace.allows(taken).since(self.waited).min(pace.grace.since(silent))
    }

    /// A chunk begins or ends.
    fn found(&mut self, found: Found) -> Result<(), S3Error> {
        let (Payload::SignedChunks(signer) | Payload::SignedChunksTrailer(signer)) = &mut self.payload else { return Ok(()) };
        match found {
            Found::Chunk { signature: Some(signature), .. } => self.chunk = Some((Sha256::new(), signature)),
            Found::ChunkEnd => {
                let (sha256, signature) = self.chunk.take().ok_or_else(|| S3Error::new(Code::SignatureDoesNotMatch))?;
                signer.verify(&sha256.finalize().into(), &signature)?;
            }
            Found::Last { signature: Some(signature), .. } => signer.verify(&Sha256::digest(b"").into(), &signature)?,
            _ => return Err(self.broken_with(Code::SignatureDoesNotMatch)),
        }
        Ok(())
    }

    /// What was computed, now that all of it is there and is what the request says. `crc` is the CRC64NVME of all pieces, by who took them.
    ///
    /// # Errors
    /// `XAmzContentSHA256Mismatch`, `BadDigest`, `IncompleteBody`, `SignatureDoesNotMatch`.
    pub fn digested(&mut self, crc: Option<u64>) -> Result<Digested, S3Error> {
        assert!(crc.is_some() || !self.is_summed_apart, "who sums a body tells the sum");
        let decoder = self.decoder.as_ref().expect("a body is held to its request before it is received");
        // What does not come by a stream was counted by who brought it.
        if self.elsewhere.is_none() && self.length.is_some_and(|length| length != decoder.payload_bytes()) {
            return Err(Code::IncompleteBody.into());
        }
        let trailers = decoder.trailers();
        let trailer = |name: &str| trailers.and_then(|trailers| trailers.get(name));
        if let Payload::SignedChunksTrailer(signer) = &mut self.payload {
            let trailers = trailers.ok_or(Code::MalformedTrailerError)?;
            let signature = trailers.signature().ok_or(Code::MalformedTrailerError)?;
            signer.verify_trailer(trailers.as_signed(), signature)?;
        }
        let has_come = |name: &str| trailers.is_some_and(|trailers| trailers.iter().any(|(one, _)| one.eq_ignore_ascii_case(name)));
        let is_announced = |name: &str| self.announced.iter().any(|one| one.eq_ignore_ascii_case(name));
        let are_those = self.announced.iter().all(|name| has_come(name))
            && trailers.is_none_or(|trailers| trailers.iter().all(|(name, _)| is_announced(name)));
        if !are_those {
            return Err(Code::MalformedTrailerError.into());
        }
        let mut digests = std::mem::take(&mut self.digests);
        if self.is_summed_apart {
            digests.checksum = crc.map(Running::Known);
        }
        if let (Payload::Sha256(said), Some(sha256)) = (&self.payload, digests.sha256) {
            let found: [u8; 32] = sha256.finalize().into();
            if found != *said {
                return Err(S3Error::new(Code::XAmzContentSha256Mismatch)
                    .field("ClientComputedContentSHA256", hex(said))
                    .field("S3ComputedContentSHA256", hex(&found)));
            }
        }
        if let Some((told, running)) = self.told_crc.take() {
            let found = match (running, &digests.checksum) {
                (Some(running), _) => Some(running.finalize()),
                (None, Some(running)) => running.crc64nvme(),
                (None, None) => None,
            };
            match told {
                Told::Now(told) if found == Some(told) => {}
                Told::Now(_) => return Err(another_crc64nvme()),
                Told::Later(_) => return Err(Code::IncompleteBody.into()),
            }
        }
        let md5 = self.md5.take().map(hasher::Stream::finish);
        if let (Some(said), Some(found)) = (self.content_md5, md5)
            && said != found
        {
            return Err(another_md5(said, found));
        }
        let checksum = match (&self.checksum, digests.checksum) {
            (Some((algorithm, said)), Some(running)) => {
                let value = running.finish();
                let said = said.as_deref().or_else(|| trailer(algorithm.header()));
                if let Some(said) = said.filter(|said| *said != BASE64_STANDARD.encode(&value)) {
                    return Err(algorithm.mismatch(said));
                }
                Some(Checksum { algorithm: *algorithm, kind: Kind::FullObject, value: value.into() })
            }
            _ => None,
        };
        Ok(Digested { md5, checksum })
    }

    /// The checksum that the request names is of something else.
    pub fn forget_checksum(&mut self) {
        self.checksum = None;
    }

    /// All of it, which is a document of at most so many bytes.
    ///
    /// # Errors
    /// As for [`Body::next`] and [`Body::digested`]; `MaxMessageLengthExceeded`.
    pub async fn document(&mut self, most: usize) -> Result<Vec<u8>, S3Error> {
        if self.length.is_some_and(|length| length > most as u64) {
            return Err(Code::MaxMessageLengthExceeded.into());
        }
        self.begin(false, Algorithm::Crc64Nvme);
        // While it comes it is in the slab's memory, of which slow clients are kept from taking much.
        let (mut runs, mut bytes) = (Vec::new(), 0);
        while let Some(Piece { run, .. }) = self.next().await? {
            bytes += run.len() as usize;
            if bytes > most {
                return Err(Code::MaxMessageLengthExceeded.into());
            }
            runs.push(run);
        }
        self.digested(None)?;
        let mut document = Vec::with_capacity(bytes);
        runs.iter().for_each(|run| document.extend_from_slice(run.as_slice()));
        Ok(document)
    }

    /// Takes what is left of it, up to so many bytes; whether its end was reached, so that another request can follow.
    pub async fn skip(&mut self, most: u64) -> bool {
        if self.awaits_word {
            // Who waits for a word and gets an answer may send it all the same, or not; and botocore takes the next answer for such a word,
            // also where there is nothing to send.
            return false;
        }
        if self.decoder.is_none() {
            self.decoder = Decoder::new(self.framing, None).ok();
        }
        // The answer waits for this, with what it holds.
        let until = self.core.now().saturating_add(LEFT_OVER_TIME);
        loop {
            let (Some(decoder), Some(stream)) = (&mut self.decoder, &mut self.stream) else { return false };
            match decoder.wants() {
                _ if self.is_broken => return false,
                Wants::End => return true,
                _ if self.core.now() >= until => return false,
                wants => {
                    let pending = stream.pending().len();
                    if decoder.payload_bytes() > most {
                        return false;
                    }
                    if pending == 0 {
                        if !matches!(stream.more_within(until.since(self.core.now())).await, Ok(1..)) {
                            return false;
                        }
                        continue;
                    }
                    match wants {
                        Wants::Data(wanted) => {
                            let count = wanted.min(pending as u64);
                            stream.consume(count as usize);
                            decoder.data(count);
                        }
                        _ => {
                            let Ok(step) = decoder.framing(stream.pending()) else { return false };
                            stream.consume(step.used);
                            let is_short = step.used == 0 && step.found.is_none();
                            if is_short && !matches!(stream.more_within(until.since(self.core.now())).await, Ok(1..)) {
                                return false;
                            }
                        }
                    }
                }
            }
        }
    }

    fn broken_with(&mut self, code: Code) -> S3Error {
        self.is_broken = true;
        code.into()
    }

    fn broken(&mut self, bad: BadBody) -> S3Error {
        self.is_broken = true;
        match bad {
            BadBody::SmallChunk { chunk, size } => {
                S3Error::new(Code::InvalidChunkSizeError).field("Chunk", chunk.to_string()).field("BadChunkSize", size.to_string())
            }
            BadBody::Signature => Code::SignatureDoesNotMatch.into(),
            BadBody::Trailer => Code::MalformedTrailerError.into(),
            _ => Code::IncompleteBody.into(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
