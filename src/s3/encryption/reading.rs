//! A get whose bytes are decrypted on their way to a client, or need not be.

use super::Nonce;
use super::cipher::Cipher;
use crate::mem::{Ledger, Shared, Slab};
use crate::reactor::Core;
use crate::s3::error::{Code, S3Error};
use crate::s3::rdma::transfer::{MEMORY_LOOK, MEMORY_PATIENCE};
use crate::store::handle::Get;

/// An object being read.
pub struct Reading {
    /// What the store gives.
    get: Get,
    decrypting: Option<Box<Decrypting>>,
}

/// The memory that is decrypted into, and who counts it: chunks of the store may be in its cache, and others' too.
pub struct Place {
    /// This core.
    pub core: Core,
    /// Its memory.
    pub slab: Slab,
    /// Counts what is copied.
    pub ledger: Ledger,
}

struct Decrypting {
    cipher: Cipher,
    place: Place,
    /// What was encrypted on its own, from where the next bytes are.
    segments: Segments,
}

/// The pieces of an object that were encrypted on their own: the length and nonce of each.
#[derive(Clone, Debug)]
pub struct Segments {
    each: Vec<(u64, Nonce)>,
    /// The one that is next, and where in it.
    at: (usize, u64),
}

impl Segments {
    /// An object in one piece.
    pub fn one() -> Segments {
        Segments { each: vec![(u64::MAX, 0)], at: (0, 0) }
    }

    /// An object made of parts of these lengths, with these nonces.
    pub fn of(parts: impl IntoIterator<Item = (u64, Nonce)>) -> Segments {
        Segments { each: parts.into_iter().collect(), at: (0, 0) }
    }

    /// Goes to a place in the object.
    fn seek(&mut self, mut at: u64) {
        let mut segment = 0;
        while let Some((length, _)) = self.each.get(segment)
            && at >= *length
        {
            at -= length;
            segment += 1;
        }
        self.at = (segment, at);
    }

    /// The nonce of the next bytes, where in their piece they are, and how many of so many are in that; nothing behind the last.
    fn take(&mut self, most: usize) -> Option<(Nonce, u64, usize)> {
        loop {
            let (segment, at) = self.at;
            let (length, nonce) = *self.each.get(segment)?;
            let count = (length - at).min(most as u64);
            if count > 0 || most == 0 {
                self.at.1 += count;
                return Some((nonce, at, count as usize));
            }
            self.at = (segment + 1, 0);
        }
    }
}

impl Decrypting {
    /// Decrypts the next piece where it is, if nobody else has it, or into other memory.
    ///
    /// # Errors
    /// The piece: there is no memory.
    fn open(&mut self, mut piece: Shared) -> Result<Shared, Shared> {
        if let Some(bytes) = piece.sole_mut() {
            self.decrypt(bytes);
            return Ok(piece);
        }
        let Ok(mut run) = self.place.slab.run(piece.len()) else { return Err(piece) };
        run.set_len(piece.len());
        self.decrypt_to(piece.as_slice(), run.as_mut_slice());
        self.place.ledger.note(piece.len());
        Ok(run.freeze())
    }

    fn decrypt(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let (nonce, at, count) = self.take(bytes.len());
            let (these, behind) = bytes.split_at_mut(count);
            self.cipher.apply(nonce, at, these);
            bytes = behind;
        }
    }

    fn decrypt_to(&mut self, mut from: &[u8], mut to: &mut [u8]) {
        while !from.is_empty() {
            let (nonce, at, count) = self.take(from.len());
            let (these, behind) = from.split_at(count);
            let (here, left) = to.split_at_mut(count);
            self.cipher.apply_to(nonce, at, these, here);
            (from, to) = (behind, left);
        }
    }

    fn take(&mut self, most: usize) -> (Nonce, u64, usize) {
        // Parts were held against the object's length when it was opened.
        self.segments.take(most).expect("an object has no more bytes than its parts")
    }
}

impl Reading {
    /// A get of bytes as the store has them.
    pub fn plain(get: Get) -> Reading {
        Reading { get, decrypting: None }
    }

    /// A get of bytes that were encrypted with this, in these pieces.
    pub fn decrypted(get: Get, cipher: Cipher, mut segments: Segments, place: Place) -> Reading {
        segments.seek(get.range.start);
        Reading { get, decrypting: Some(Box::new(Decrypting { cipher, place, segments })) }
    }

    /// What the store gives, where that is what clients get.
    pub fn as_plain(&self) -> Option<&Get> {
        self.decrypting.is_none().then_some(&self.get)
    }

    /// How many they are.
    pub fn bytes(&self) -> u64 {
        self.get.range.end - self.get.range.start
    }

    /// The CRC64NVME of the bytes that are given, where it is known.
    pub fn crc64nvme(&self) -> Option<u64> {
        self.as_plain().and_then(Get::crc64nvme)
    }

    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// The store's; `SlowDown`: no memory to decrypt into.
    pub async fn next(&mut self) -> Result<Option<Shared>, S3Error> {
        let Some(mut piece) = self.fetch().await? else { return Ok(None) };
        let mut until = None;
        loop {
            piece = match self.open(piece) {
                Ok(piece) => return Ok(Some(piece)),
                Err(piece) => piece,
            };
            let Some(Decrypting { place: Place { core, .. }, .. }) = self.decrypting.as_deref() else { return Ok(Some(piece)) };
            if core.now() >= *until.get_or_insert_with(|| core.now().saturating_add(MEMORY_PATIENCE)) {
                return Err(Code::SlowDown.into());
            }
            core.sleep(MEMORY_LOOK).await;
        }
    }

    /// The next bytes as the store has them, which are then to be opened; nothing at the end.
    ///
    /// # Errors
    /// The store's.
    pub async fn fetch(&mut self) -> Result<Option<Shared>, S3Error> {
        Ok(self.get.next().await?)
    }

    /// Those that were fetched last, as clients have them.
    ///
    /// # Errors
    /// The same: there is no memory to decrypt into now. What was read ahead is given back, for others may wait for that.
    pub fn open(&mut self, piece: Shared) -> Result<Shared, Shared> {
        let Some(decrypting) = self.decrypting.as_deref_mut() else { return Ok(piece) };
        decrypting.open(piece).inspect_err(|_| self.get.let_go())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::device::sim::disk::Image;
    use crate::store::engine::{Attributes, Which};
    use crate::store::testing::World;

    /// All memory is in pieces that are to be decrypted: those are, where nobody else has them, and the others are left as they are.
    #[test]
    fn what_is_read_needs_no_memory_to_be_decrypted() {
        const NONCE: Nonce = 7;
        let Some(world) = World::new(512, Image::default(), 1) else { return };
        let core = world.core.clone();
        let run = async move {
            let store = world.stores(1).await.remove(0);
            let bucket = store.create_bucket(b"bucket", b"", 1).await.unwrap();
            let cipher = || Cipher::new(&[9; 32]);
            let mut put = store.put(bucket, b"name").unwrap();
            for piece in 0..4u8 {
                let mut run = world.slab.run(1 << 20).unwrap();
                run.as_mut_slice().fill(piece);
                cipher().apply(NONCE, u64::from(piece) << 20, run.as_mut_slice());
                put.write(run).await.unwrap();
            }
            put.finish(Attributes::default()).await.unwrap();
            let get = store.get(bucket, b"name", Which::Newest, 0..u64::MAX).await.unwrap();
            let place = Place { core: world.core.clone(), slab: world.slab.clone(), ledger: Ledger::new() };
            let mut reading = Reading::decrypted(get, cipher(), Segments::of([(4 << 20, NONCE)]), place);
            let free = || {
                world.slab.collect_returns();
                world.slab.census().free
            };
            let all_memory = || {
                world.slab.collect_returns();
                std::iter::from_fn(|| world.slab.buf().ok()).collect::<Vec<_>>()
            };
            // Until as much memory is free as was a moment before.
            let settled = async || {
                let mut before = None;
                while before.replace(free()) != Some(free()) {
                    world.core.sleep(Nanos::from_millis(20)).await;
                }
            };
            let is_all = |piece: &Shared, byte: u8| piece.as_slice().iter().all(|&one| one == byte);
            let (mut at, mut both) = (0, [false; 2]);
            while let Some(piece) = reading.fetch().await.unwrap() {
                // Read ahead is what there is to give back.
                settled().await;
                let (byte, is_shared, bytes) = ((at >> 20) as u8, (at >> 20) % 2 == 1, u64::from(piece.len()));
                let (other, encrypted) = (is_shared.then(|| piece.clone()), piece.as_slice().to_vec());
                let taken = all_memory();
                let opened = match reading.open(piece) {
                    Ok(opened) => opened,
                    Err(piece) => {
                        assert!(is_shared, "at {at}: it needs memory");
                        settled().await;
                        let is_more = !all_memory().is_empty();
                        assert_eq!(is_more, at < 3 << 20, "at {at}: what was read ahead is given back");
                        drop(taken);
                        world.slab.collect_returns();
                        reading.open(piece).expect("there is memory")
                    }
                };
                assert!(is_all(&opened, byte), "at {at}");
                assert!(other.is_none_or(|other| other.as_slice() == encrypted), "at {at}: others have it as it was");
                both[usize::from(is_shared)] = true;
                at += bytes;
            }
            assert!(at == 4 << 20 && both == [true; 2]);
        };
        core.run(run).unwrap();
    }

    #[test]
    fn bytes_are_in_the_part_they_were_put_with() {
        let mut segments = Segments::of([(10, 7), (0, 8), (5, 9)]);
        assert_eq!([segments.take(4), segments.take(100), segments.take(3)], [Some((7, 0, 4)), Some((7, 4, 6)), Some((9, 0, 3))]);
        assert_eq!([segments.take(2), segments.take(1)], [Some((9, 3, 2)), None]);
        for (at, next) in [(0, (7, 0, 1)), (9, (7, 9, 1)), (10, (9, 0, 1)), (14, (9, 4, 1))] {
            segments.seek(at);
            assert_eq!(segments.take(1), Some(next), "at {at}");
        }
        segments.seek(15);
        assert_eq!(segments.take(1), None);
        let mut one = Segments::one();
        one.seek(1 << 40);
        assert_eq!(one.take(5), Some((0, 1 << 40, 5)));
    }
}
