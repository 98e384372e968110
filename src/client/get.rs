//! An object as a stream: pieces in order, several of them under way.
//!
//! All pieces are of one version: each is asked for with the ETag that the first look found. The last piece is given out only when the
//! checksum of all of them is the object's, where the server has told one.

use std::collections::VecDeque;

use super::object::{Got, Head};
use super::sum::Sum;
use super::{Buffer, Check, Client, Failure, RUN_BYTES};
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Span;
use crate::reactor::Task;
use crate::s3::checksum::Running;

/// Bytes of a piece.
const PIECE: u64 = RUN_BYTES as u64;

/// An object that is being got.
pub struct Download {
    client: Client,
    bucket: String,
    key: String,
    head: Head,
    /// Where the next piece begins that is not asked for yet.
    asked: u64,
    /// Where the next piece begins that is not given out yet.
    given: u64,
    under_way: VecDeque<Task<Result<(Buffer, Got), Failure>>>,
    /// The checksum of what was given out, where the server has told that of the object.
    running: Option<Running>,
    /// Whether each piece was compared with a checksum of its own.
    each_verified: bool,
    is_over: bool,
}

impl Client {
    /// Begins to get an object.
    ///
    /// # Errors
    /// It is not there, or nobody could say.
    pub async fn get(&self, bucket: &str, key: &str) -> Result<Download, Failure> {
        let head = self.head(bucket, key).await?;
        let running = head.sum.as_ref().map(Sum::start);
        Ok(Download {
            client: self.clone(),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            head,
            running,
            asked: 0,
            given: 0,
            under_way: VecDeque::new(),
            each_verified: true,
            is_over: false,
        })
    }
}

impl Download {
    /// What is known of the object.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next piece; nothing at the end. What was given out is the object once that has come.
    ///
    /// # Errors
    /// The object was changed or removed meanwhile; the bytes are not those that were put; nobody answers. Nothing more comes then.
    pub async fn next(&mut self) -> Result<Option<Buffer>, Failure> {
        if self.is_over {
            return Ok(None);
        }
        let next = self.advance().await;
        self.is_over = !matches!(next, Ok(Some(_)));
        next
    }

    async fn advance(&mut self) -> Result<Option<Buffer>, Failure> {
        let size = self.head.size;
        if self.given == size {
            return Ok(None);
        }
        while self.asked < size && self.under_way.len() < self.client.inner.options.ahead {
            let range = self.asked..(self.asked + PIECE).min(size);
            self.asked = range.end;
            let (client, bucket, key, etag) = (self.client.clone(), self.bucket.clone(), self.key.clone(), self.head.etag.clone());
            self.under_way.push_back(self.client.inner.core.go_on(async move {
                let mut runs = vec![client.lease(|slab| slab.run((range.end - range.start) as u32)).await?];
                let got = client.get_range(&bucket, &key, Some(range), Some(&etag), &mut runs).await?;
                Ok((Buffer { span: runs.pop().map(Span::of_run) }, got))
            }));
        }
        let first = self.under_way.pop_front().expect("a piece was asked for");
        let (buffer, got) = first
            .await
            .map_err(|panicked| Error::new(ErrorKind::Failed, panicked.to_string()))?
            .map_err(|failure| if failure.is_precondition() { overwritten(&self.bucket, &self.key) } else { failure })?;
        let wanted = PIECE.min(size - self.given);
        if got.size != size || got.bytes != wanted {
            return Err(overwritten(&self.bucket, &self.key));
        }
        self.each_verified &= got.check == Check::Verified;
        if let Some(running) = &mut self.running {
            running.update(buffer.as_slice());
        }
        if self.given + wanted == size
            && let Some((told, running)) = self.head.sum.as_ref().zip(self.running.take())
        {
            let what = format!("GET s3://{}/{}", self.bucket, self.key);
            told.compare(&what, size, running).map_err(|error| Failure::unknown(&error))?;
        }
        self.given += wanted;
        Ok(Some(buffer))
    }

    /// What is known of the bytes, once all of them were given out.
    pub fn check(&self) -> Check {
        let is_whole = self.given == self.head.size;
        let is_told = self.head.sum.is_some() || (self.each_verified && self.head.size > 0);
        if is_whole && is_told { Check::Verified } else { Check::NotTold }
    }
}

/// That an object is not the one any more whose first bytes came.
pub(super) fn overwritten(bucket: &str, key: &str) -> Failure {
    let what = format!("GET s3://{bucket}/{key}: it was overwritten while it was read");
    Failure::coded("PreconditionFailed", Error::new(ErrorKind::Busy, what).remedy("get it again"))
}

impl Drop for Download {
    fn drop(&mut self) {
        // What is under way gives its memory back when it is done; nobody needs it any more.
        self.under_way.iter().for_each(Task::abort);
    }
}
