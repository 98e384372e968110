//! What belongs to an object beside its bytes, as it is kept in the store's properties. It stays as it was put; what may be changed is in
//! [`labels`](super::labels).

use super::access::canonical::CanonicalId;
use super::checksum::{Algorithm, Kind};
use super::encryption::{Encryption, NONCE_BYTES, Nonce, PartSeal};
use super::fields::{self, Unreadable, Writer};
use super::listed::Listed;
use crate::store::engine::Attributes;

/// A checksum that an object or a part was put with, or that was made of its parts'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Which.
    pub algorithm: Algorithm,
    /// Of what it is.
    pub kind: Kind,
    /// Its bytes; none where only the algorithm was asked for.
    pub value: Box<[u8]>,
}

impl Checksum {
    /// As it is told: Base64, with the number of parts where it is of their checksums.
    pub fn shown(&self, parts: u16) -> String {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        let value = BASE64_STANDARD.encode(&self.value);
        if self.kind == Kind::Composite && parts > 0 { format!("{value}-{parts}") } else { value }
    }
}

/// What belongs to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `Content-Type`.
    pub content_type: Option<Box<str>>,
    /// `Content-Encoding`, without `aws-chunked`.
    pub content_encoding: Option<Box<str>>,
    /// `Content-Language`.
    pub content_language: Option<Box<str>>,
    /// `Content-Disposition`.
    pub content_disposition: Option<Box<str>>,
    /// `Cache-Control`.
    pub cache_control: Option<Box<str>>,
    /// `Expires`, as it was sent.
    pub expires: Option<Box<str>>,
    /// `x-amz-website-redirect-location`.
    pub redirect: Option<Box<str>>,
    /// `x-amz-storage-class`, where it is not STANDARD.
    pub storage_class: Option<Box<str>>,
    /// Names behind `x-amz-meta-`, in lower case, and values.
    pub user: Vec<(Box<str>, Box<str>)>,
    /// The canonical identifier of who put it.
    pub owner: Option<CanonicalId>,
    /// A checksum.
    pub checksum: Option<Checksum>,
    /// Of an object made of parts, their lengths.
    pub parts: Vec<u64>,
    /// And their checksums, one behind the other, if there are any and there was room.
    pub part_checksums: Box<[u8]>,
    /// How its bytes are encrypted, if they are. Of parts their upload has it.
    pub encryption: Option<Encryption>,
    /// Of an encrypted object made of parts, the nonce of each.
    pub nonces: Vec<Nonce>,
    /// Of an encrypted part.
    pub part_seal: Option<PartSeal>,
    /// The rename that gave it its name, where that had a client token: what it is known by.
    pub renamed: Option<[u8; 32]>,
}

const CONTENT_TYPE: u8 = 1;
const CONTENT_ENCODING: u8 = 2;
const CONTENT_LANGUAGE: u8 = 3;
const CONTENT_DISPOSITION: u8 = 4;
const CACHE_CONTROL: u8 = 5;
const EXPIRES: u8 = 6;
const REDIRECT: u8 = 7;
const STORAGE_CLASS: u8 = 8;
const USER: u8 = 9;
const OWNER: u8 = 10;
const CHECKSUM: u8 = 11;
const PARTS: u8 = 12;
const PART_CHECKSUMS: u8 = 13;
const ENCRYPTION: u8 = 14;
const RENAMED: u8 = 15;
const NONCES: u8 = 16;
const PART_SEAL: u8 = 17;
/// The field of a CRC64NVME: tag, length, what it is, and that.
const CHECKSUM_BYTES: usize = 1 + 4 + 2 + 8;

/// What a checksum is, before its bytes.
fn checksum_head(algorithm: Algorithm, kind: Kind) -> [u8; 2] {
    let place = Algorithm::ALL.iter().position(|one| *one == algorithm).expect("it is one of all");
    [place as u8, u8::from(kind == Kind::FullObject)]
}

impl Meta {
    /// As the store keeps it.
    pub fn to_bytes(&self) -> Box<[u8]> {
        let mut writer = Writer::new();
        writer.text(CONTENT_TYPE, self.content_type.as_deref());
        writer.text(CONTENT_ENCODING, self.content_encoding.as_deref());
        writer.text(CONTENT_LANGUAGE, self.content_language.as_deref());
        writer.text(CONTENT_DISPOSITION, self.content_disposition.as_deref());
        writer.text(CACHE_CONTROL, self.cache_control.as_deref());
        writer.text(EXPIRES, self.expires.as_deref());
        writer.text(REDIRECT, self.redirect.as_deref());
        writer.text(STORAGE_CLASS, self.storage_class.as_deref());
        for (name, value) in &self.user {
            writer.pair(USER, name, value);
        }
        if let Some(owner) = &self.owner {
            writer.bytes(OWNER, owner.as_bytes());
        }
        if let Some(Checksum { algorithm, kind, value }) = &self.checksum {
            writer.bytes(CHECKSUM, &[&checksum_head(*algorithm, *kind)[..], value].concat());
        }
        if !self.parts.is_empty() {
            writer.bytes(PARTS, &runs(&self.parts));
        }
        if !self.part_checksums.is_empty() {
            writer.bytes(PART_CHECKSUMS, &self.part_checksums);
        }
        if let Some(encryption) = &self.encryption {
            writer.bytes(ENCRYPTION, &encryption.to_bytes());
        }
        if !self.nonces.is_empty() {
            let bytes: Vec<u8> = self.nonces.iter().flat_map(|nonce| nonce.to_le_bytes().into_iter().take(NONCE_BYTES)).collect();
            writer.bytes(NONCES, &bytes);
        }
        if let Some(PartSeal { nonce, crc, stored_crc }) = &self.part_seal {
            writer.bytes(PART_SEAL, &[nonce, crc, stored_crc].map(|number| number.to_le_bytes()).concat());
        }
        if let Some(renamed) = &self.renamed {
            writer.bytes(RENAMED, renamed);
        }
        writer.finish()
    }

    /// What a put of an object that has all this says of it.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::default();
        self.tell(&mut attributes);
        attributes
    }

    /// Has a put say that its object has all this.
    pub fn tell(&self, attributes: &mut Attributes) {
        attributes.properties = self.to_bytes();
        attributes.listed = Listed::of(self);
    }

    /// What is kept of an object that has all this, and the CRC64NVME of all its bytes as a checksum.
    pub fn with_crc(kept: &[u8], crc: u64) -> Box<[u8]> {
        let mut writer = Writer::behind(kept, CHECKSUM_BYTES);
        let [algorithm, kind] = checksum_head(Algorithm::Crc64Nvme, Kind::FullObject);
        let [a, b, c, d, e, f, g, h] = crc.to_be_bytes();
        writer.bytes(CHECKSUM, &[algorithm, kind, a, b, c, d, e, f, g, h]);
        writer.finish()
    }

    /// Reads what the store has kept.
    ///
    /// # Errors
    /// `Unreadable`: another program's, or a newer version's.
    pub fn parse(bytes: &[u8]) -> Result<Meta, Unreadable> {
        let mut meta = Meta::default();
        for field in fields::read(bytes)? {
            let (tag, value) = field?;
            let text = |value: &[u8]| fields::text(value).map(Some);
            match tag {
                CONTENT_TYPE => meta.content_type = text(value)?,
                CONTENT_ENCODING => meta.content_encoding = text(value)?,
                CONTENT_LANGUAGE => meta.content_language = text(value)?,
                CONTENT_DISPOSITION => meta.content_disposition = text(value)?,
                CACHE_CONTROL => meta.cache_control = text(value)?,
                EXPIRES => meta.expires = text(value)?,
                REDIRECT => meta.redirect = text(value)?,
                STORAGE_CLASS => meta.storage_class = text(value)?,
                USER => meta.user.push(fields::pair(value)?),
                OWNER => meta.owner = Some(CanonicalId::from_bytes(value.try_into().map_err(|_| Unreadable)?)),
                CHECKSUM => {
                    let [algorithm, kind, value @ ..] = value else { return Err(Unreadable) };
                    let algorithm = *Algorithm::ALL.get(usize::from(*algorithm)).ok_or(Unreadable)?;
                    let kind = if *kind == 1 { Kind::FullObject } else { Kind::Composite };
                    meta.checksum = Some(Checksum { algorithm, kind, value: value.into() });
                }
                PARTS => meta.parts = lengths(value).ok_or(Unreadable)?,
                PART_CHECKSUMS => meta.part_checksums = value.into(),
                ENCRYPTION => meta.encryption = Some(Encryption::parse(value)?),
                NONCES => {
                    let (nonces, []) = value.as_chunks::<NONCE_BYTES>() else { return Err(Unreadable) };
                    let number = |bytes: &[u8; NONCE_BYTES]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
                    meta.nonces = nonces.iter().map(number).collect();
                }
                PART_SEAL => {
                    let (numbers, []) = value.as_chunks() else { return Err(Unreadable) };
                    let numbers: &[[u8; 8]; 3] = numbers.try_into().map_err(|_| Unreadable)?;
                    let [nonce, crc, stored_crc] = numbers.map(u64::from_le_bytes);
                    meta.part_seal = Some(PartSeal { nonce, crc, stored_crc });
                }
                RENAMED => meta.renamed = Some(value.try_into().map_err(|_| Unreadable)?),
                _ => {}
            }
        }
        Ok(meta)
    }

    /// It with the CRC64NVME that the store has of all bytes, where it has no checksum of its own. What is encrypted always has one.
    #[must_use]
    pub fn or_crc(mut self, crc: u64) -> Meta {
        if self.encryption.is_some() {
            return self;
        }
        let of_store = || Checksum { algorithm: Algorithm::Crc64Nvme, kind: Kind::FullObject, value: crc.to_be_bytes().into() };
        self.checksum.get_or_insert_with(of_store);
        self
    }

    /// The checksum of part `number` (from 1), if it is known.
    pub fn part_checksum(&self, number: u16) -> Option<Checksum> {
        let whole = self.checksum.as_ref()?;
        let bytes = whole.algorithm.bytes();
        let at = usize::from(number).checked_sub(1)? * bytes;
        let value = self.part_checksums.get(at..at + bytes)?;
        Some(Checksum { algorithm: whole.algorithm, kind: whole.kind, value: value.into() })
    }

    /// Where part `number` (from 1) of an object begins, and its length.
    pub fn part(&self, number: u16) -> Option<(u64, u64)> {
        let at = usize::from(number).checked_sub(1)?;
        let length = *self.parts.get(at)?;
        Some((self.parts[..at].iter().sum(), length))
    }
}

/// Lengths as numbers of base 128, each behind how many of it follow one another: parts are of one length, but for the last.
fn runs(lengths: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut number = |mut value: u64| loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        bytes.push(low | if value > 0 { 0x80 } else { 0 });
        if value == 0 {
            break;
        }
    };
    for run in lengths.chunk_by(|one, next| one == next) {
        number(run.len() as u64);
        number(run[0]);
    }
    bytes
}

/// S3's bound on parts: what lies on a medium may say anything.
const PARTS_MAX: u64 = 10_000;

fn lengths(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut lengths = Vec::new();
    let number = |bytes: &mut &[u8]| {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift += 7;
        }
    };
    while !bytes.is_empty() {
        let (count, length) = (number(&mut bytes)?, number(&mut bytes)?);
        if count > PARTS_MAX || lengths.len() as u64 + count > PARTS_MAX {
            return None;
        }
        lengths.extend(std::iter::repeat_n(length, count as usize));
    }
    Some(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::encryption;
    use proptest::prelude::*;

    fn full() -> Meta {
        Meta {
            content_type: Some("text/plain".into()),
            content_encoding: Some("gzip".into()),
            content_language: Some("de".into()),
            content_disposition: Some("attachment".into()),
            cache_control: Some("no-cache".into()),
            expires: Some("tomorrow".into()),
            redirect: Some("/there".into()),
            storage_class: Some("STANDARD_IA".into()),
            user: vec![("one".into(), "eins".into()), ("".into(), "".into())],
            owner: Some(CanonicalId::from_bytes([7; 32])),
            checksum: Some(Checksum { algorithm: Algorithm::Sha1, kind: Kind::Composite, value: vec![9; 20].into() }),
            parts: vec![5 << 20, 5 << 20, 17],
            part_checksums: vec![7; 60].into(),
            encryption: Some(Encryption { kind: encryption::Kind::Customer { md5: [2; 16] }, sealed: encryption::keys::Sealed([5; 60]) }),
            nonces: vec![0, 1 << 26 | 5, 10_000 << 26 | 0x3ff_ffff],
            part_seal: Some(PartSeal { nonce: 1 << 26, crc: u64::MAX, stored_crc: 7 }),
            renamed: Some([3; 32]),
        }
    }

    #[test]
    fn a_checksum_that_comes_later_is_as_if_it_had_been_there() {
        for meta in [Meta::default(), full()] {
            let bare = Meta { checksum: None, ..meta };
            let value = [1, 2, 3, 4, 5, 6, 7, 8].into();
            let whole =
                Meta { checksum: Some(Checksum { algorithm: Algorithm::Crc64Nvme, kind: Kind::FullObject, value }), ..bare.clone() };
            assert_eq!(Meta::parse(&Meta::with_crc(&bare.to_bytes(), 0x0102_0304_0506_0708)), Ok(whole));
        }
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        assert_eq!(Meta::parse(&full().to_bytes()), Ok(full()));
        assert_eq!(Meta::parse(&Meta::default().to_bytes()), Ok(Meta::default()));
        assert_eq!(Meta::parse(b""), Ok(Meta::default()));
        let (begins, length) = full().part(3).unwrap();
        assert_eq!((begins, length), (10 << 20, 17));
        assert_eq!((full().part(0), full().part(4)), (None, None));
    }

    #[test]
    fn ten_thousand_parts_of_one_length_take_a_few_bytes() {
        let meta = Meta { parts: vec![8 << 20; 10_000], ..Meta::default() };
        assert!(meta.to_bytes().len() < 16);
        assert_eq!(Meta::parse(&meta.to_bytes()).unwrap().parts.len(), 10_000);
    }

    proptest! {
        #[test]
        fn lengths_are_read_as_they_were_written(all in prop::collection::vec(any::<u64>(), 0..50)) {
            prop_assert_eq!(lengths(&runs(&all)), Some(all));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Meta::parse(&bytes);
            let _ = lengths(&bytes);
        }
    }
}
