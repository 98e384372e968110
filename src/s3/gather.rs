//! Bytes that begin anywhere in memory, or belong to others, copied into pieces of a put: a form's file, and what an object is copied from.

use super::encryption::writing::Writing;
use super::error::S3Error;
use super::hasher::Stream;
use super::rdma::transfer::lease;
use super::service::Service;
use crate::mem::{Ledger, Run, Slab};
use crate::reactor::Core;

/// Bytes of a piece. Several make an extent of the store; while one is hashed the next one is copied.
const PIECE: u32 = 256 << 10;

/// A put of which pieces are gathered.
pub struct Gather<'a> {
    core: &'a Core,
    slab: &'a Slab,
    ledger: &'a Ledger,
    put: Writing,
    md5: Option<Stream>,
    /// A piece, and how much of it there is.
    filling: Option<(Run, u32)>,
}

impl<'a> Gather<'a> {
    /// Of nothing yet.
    pub fn new(service: &'a Service, put: Writing, with_md5: bool) -> Gather<'a> {
        let md5 = with_md5.then(|| service.hasher().stream());
        Gather { core: service.core(), slab: service.store().slab(), ledger: service.ledger(), put, md5, filling: None }
    }

    /// Takes more bytes.
    ///
    /// # Errors
    /// `SlowDown`: there is no memory for a while; or the put's.
    pub async fn take(&mut self, mut bytes: &[u8]) -> Result<(), S3Error> {
        while !bytes.is_empty() {
            let (run, filled) = match &mut self.filling {
                Some(filling) => filling,
                none => none.insert((lease(self.core, self.slab, PIECE).await?, 0)),
            };
            let (at, count) = (*filled as usize, bytes.len().min((PIECE - *filled) as usize));
            self.ledger.copy(&mut run.as_mut_slice()[at..at + count], &bytes[..count]);
            *filled += count as u32;
            bytes = &bytes[count..];
            if *filled == PIECE {
                self.pass_on().await?;
            }
        }
        Ok(())
    }

    /// Hands on what was gathered: to be hashed and then to the put, or to that at once.
    async fn pass_on(&mut self) -> Result<(), S3Error> {
        let Some((mut run, filled)) = self.filling.take() else { return Ok(()) };
        run.set_len(filled);
        let Some(md5) = &mut self.md5 else { return Ok(self.put.write(run.into()).await?) };
        md5.give(run);
        while let Some(piece) = md5.surplus().await {
            self.put.write(piece).await?;
        }
        Ok(())
    }

    /// The put with all of it, and its MD5, if that was wanted.
    ///
    /// # Errors
    /// As for [`Gather::take`].
    pub async fn finish(mut self) -> Result<(Writing, Option<[u8; 16]>), S3Error> {
        self.pass_on().await?;
        if let Some(md5) = &mut self.md5 {
            while let Some(piece) = md5.next().await {
                self.put.write(piece).await?;
            }
        }
        Ok((self.put, self.md5.map(Stream::finish)))
    }
}
