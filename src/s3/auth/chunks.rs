//! The signatures in a body of signed chunks: each is over the one before it, the first over the request's
//! (API/sigv4-streaming.html, API/sigv4-streaming-trailers.html). The framing is [`aws_chunked`]'s.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::keys::{Hex, SigningKey, hex};
use crate::s3::error::{Code, S3Error};
#[cfg(doc)]
use crate::wire::http::aws_chunked;
use crate::wire::http::aws_chunked::Signature;

/// SHA-256 of nothing, where a chunk's headers would be.
const EMPTY_SHA256: &[u8] = b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Verifies or makes the signatures of a body's chunks, in their order.
#[derive(Clone)]
pub struct ChunkSigner {
    key: SigningKey,
    /// The lines between the algorithm and the signature before: date and scope.
    lines: Box<[u8]>,
    previous: Hex,
}

impl fmt::Debug for ChunkSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkSigner").finish_non_exhaustive()
    }
}

impl ChunkSigner {
    /// Before the first chunk of a request signed like this. `scope_line` ends in a newline.
    pub(super) fn new(key: SigningKey, date: &str, scope_line: &str, seed: Signature) -> ChunkSigner {
        let lines = [date.as_bytes(), b"\n", scope_line.as_bytes()].concat().into();
        ChunkSigner { key, lines, previous: hex(&seed) }
    }

    fn chunk(&self, sha256: &[u8; 32]) -> Signature {
        let hash = hex(sha256);
        self.key.sign(&[b"AWS4-HMAC-SHA256-PAYLOAD\n", &self.lines, &self.previous, b"\n", EMPTY_SHA256, b"\n", &hash])
    }

    fn trailer(&self, trailers: &str) -> Signature {
        let hash = hex(&Sha256::digest(trailers).into());
        self.key.sign(&[b"AWS4-HMAC-SHA256-TRAILER\n", &self.lines, &self.previous, b"\n", &hash])
    }

    /// Signs the next chunk, whose payload has this SHA-256. The last chunk is the empty one.
    pub fn sign(&mut self, sha256: &[u8; 32]) -> Signature {
        let signature = self.chunk(sha256);
        self.previous = hex(&signature);
        signature
    }

    /// Signs the trailers, after the last chunk: a line `name:value` with a newline for each, names in lower case.
    pub fn sign_trailer(&mut self, trailers: &str) -> Signature {
        let signature = self.trailer(trailers);
        self.previous = hex(&signature);
        signature
    }

    /// Verifies the next chunk, whose payload has this SHA-256. The last one, which is empty, is to be verified too.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`; nothing of the body counts then.
    pub fn verify(&mut self, sha256: &[u8; 32], signature: &Signature) -> Result<(), S3Error> {
        self.advance(self.chunk(sha256), signature)
    }

    /// Verifies the trailers, after the last chunk; they are what [`as_signed`](aws_chunked::Trailers::as_signed) gives.
    ///
    /// # Errors
    /// `SignatureDoesNotMatch`.
    pub fn verify_trailer(&mut self, trailers: &str, signature: &Signature) -> Result<(), S3Error> {
        self.advance(self.trailer(trailers), signature)
    }

    fn advance(&mut self, expected: Signature, signature: &Signature) -> Result<(), S3Error> {
        if !bool::from(expected.ct_eq(signature)) {
            return Err(S3Error::new(Code::SignatureDoesNotMatch));
        }
        self.previous = hex(&expected);
        Ok(())
    }
}
