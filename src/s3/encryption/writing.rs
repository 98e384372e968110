//! A put whose bytes are encrypted on their way to the store, or are not.

use super::cipher::Cipher;
use super::{Nonce, PartSeal};
use crate::store::draft::Piece;
use crate::store::engine::Attributes;
use crate::store::failure::Outcome;
use crate::store::handle::Put;
use crate::store::index::Version;

/// A put under way.
#[must_use = "an object is there when the put is finished"]
pub struct Writing {
    put: Put,
    encrypting: Option<Encrypting>,
}

struct Encrypting {
    cipher: Box<Cipher>,
    nonce: Nonce,
    /// Of the bytes as they come: the put has that of those it writes.
    crc: crc_fast::Digest,
}

impl Writing {
    /// A put of bytes as they come, or encrypted with this.
    pub fn new(put: Put, cipher: Option<(Box<Cipher>, Nonce)>) -> Writing {
        let crc = || crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
        Writing { put, encrypting: cipher.map(|(cipher, nonce)| Encrypting { cipher, nonce, crc: crc() }) }
    }

    /// Whether bytes are encrypted on their way.
    pub fn is_encrypting(&self) -> bool {
        self.encrypting.is_some()
    }

    /// Bytes so far.
    pub fn size(&self) -> u64 {
        self.put.size()
    }

    /// The CRC64NVME of the bytes so far, as they came.
    pub fn crc64nvme(&self) -> u64 {
        match &self.encrypting {
            Some(encrypting) => encrypting.crc.finalize(),
            None => self.put.crc64nvme(),
        }
    }

    /// What a part of an upload keeps of its encryption, if it is encrypted.
    pub fn seal(&self) -> Option<PartSeal> {
        let encrypting = self.encrypting.as_ref()?;
        Some(PartSeal { nonce: encrypting.nonce, crc: encrypting.crc.finalize(), stored_crc: self.put.crc64nvme() })
    }

    /// Takes the next piece, as [`Put::write`] does, and encrypts it where it lies.
    ///
    /// # Errors
    /// As of [`Put::write`].
    pub async fn write(&mut self, mut piece: Piece) -> Outcome<()> {
        if let Some(Encrypting { cipher, nonce, crc }) = &mut self.encrypting {
            crc.update(piece.run.as_slice());
            cipher.apply(*nonce, self.put.size(), piece.run.as_mut_slice());
            // They were of the bytes as they came.
            piece.sums.clear();
        }
        self.put.write(piece).await
    }

    /// Commits, as [`Put::finish`] does.
    ///
    /// # Errors
    /// As of [`Put::finish`].
    pub async fn finish(self, attributes: Attributes) -> Outcome<Version> {
        self.put.finish(attributes).await
    }
}
