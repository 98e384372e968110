//! The checksums S3 clients ask for beside the ETag: which there are, and the running digest of a body.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::error::{Code, S3Error};
use super::octets::strip_prefix_ignoring_case;
use crate::wire::joined;

/// A checksum algorithm of `x-amz-checksum-algorithm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// CRC-32 as in zip.
    Crc32,
    /// CRC-32 with Castagnoli's polynomial.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

/// Those that S3 has beside them.
const ELSEWHERE: [&str; 5] = ["md5", "sha512", "xxhash128", "xxhash3", "xxhash64"];

/// What a multipart object's checksum is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of the checksums of its parts.
    Composite,
    /// Of its bytes.
    FullObject,
}

impl Kind {
    /// As S3 writes it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Composite => "COMPOSITE",
            Kind::FullObject => "FULL_OBJECT",
        }
    }

    /// Reads it.
    pub fn parse(name: &str) -> Option<Kind> {
        [Kind::Composite, Kind::FullObject].into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

impl Algorithm {
    /// All there are.
    pub const ALL: [Algorithm; 5] = [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256];

    /// As S3 writes it: `CRC32`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// The header that carries it.
    pub fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The element of XML documents that carries it.
    pub fn element(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "ChecksumCRC32",
            Algorithm::Crc32c => "ChecksumCRC32C",
            Algorithm::Crc64Nvme => "ChecksumCRC64NVME",
            Algorithm::Sha1 => "ChecksumSHA1",
            Algorithm::Sha256 => "ChecksumSHA256",
        }
    }

    /// Reads its name, in either case.
    pub fn parse(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// The algorithm a header carries, if it carries a checksum.
    ///
    /// # Errors
    /// `NotImplemented`, `InvalidRequest`: the checksum is of none of those there are.
    pub fn of_header(name: &str) -> Result<Option<Algorithm>, S3Error> {
        let Some(of) = strip_prefix_ignoring_case(name, "x-amz-checksum-") else { return Ok(None) };
        let is = |one: &&str| one.eq_ignore_ascii_case(of);
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.header().eq_ignore_ascii_case(name));
        match found {
            // These say something of checksums.
            None if ["algorithm", "mode", "type"].iter().any(is) => Ok(None),
            None if ELSEWHERE.iter().any(is) => {
                Err(S3Error::with(Code::NotImplemented, format!("{name} is not implemented")).field("Header", name))
            }
            None => {
                let what = "The algorithm type you specified in x-amz-checksum- header is invalid.";
                Err(S3Error::with(Code::InvalidRequest, what).field("Header", name))
            }
            found => Ok(found),
        }
    }

    /// Bytes of a checksum.
    pub fn bytes(self) -> usize {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32c => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        }
    }

    /// That a request says another checksum than the computed one; or one that is none, which may have the number of parts behind it.
    pub fn mismatch(self, said: &str) -> S3Error {
        let (value, parts) = said.split_once('-').map_or((said, None), |(value, parts)| (value, Some(parts)));
        let is_number = parts.is_none_or(|parts| !parts.is_empty() && parts.bytes().all(|byte| byte.is_ascii_digit()));
        match BASE64_STANDARD.decode(value) {
            Ok(bytes) if is_number && bytes.len() == self.bytes() => {
                let what = format!("The {} you specified did not match the calculated checksum.", self.name());
                S3Error::with(Code::BadDigest, what)
            }
            _ => S3Error::with(Code::InvalidRequest, format!("Value for {} header is invalid.", self.header())),
        }
    }

    /// That a request says the checksum of another algorithm than this.
    pub fn other_named(self, named: Algorithm) -> S3Error {
        let (usual, named) = (self.name().to_lowercase(), named.name().to_lowercase());
        let what = format!("Checksum Type mismatch occurred, expected checksum Type: {usual}, actual checksum Type: {named}");
        S3Error::with(Code::InvalidRequest, what)
    }

    /// Whether checksums of pieces make one of the whole.
    pub fn combines(self) -> bool {
        self.crc().is_some()
    }

    /// What a multipart object's checksum is of where the client does not say.
    pub fn usual_kind(self) -> Kind {
        match self {
            Algorithm::Crc64Nvme => Kind::FullObject,
            _ => Kind::Composite,
        }
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 | Algorithm::Sha256 => None,
        }
    }

    /// The checksum of two pieces, one behind the other, from theirs; `None` where it cannot be told from them.
    pub fn combine(self, one: &[u8], other: &[u8], other_bytes: u64) -> Option<Vec<u8>> {
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let (one, other) = (number(one), number(other));
        let joined = match self {
            Algorithm::Crc32 => joined::crc32(one as u32, other as u32, other_bytes).into(),
            Algorithm::Crc32c => joined::crc32c(one as u32, other as u32, other_bytes).into(),
            Algorithm::Crc64Nvme => joined::crc64nvme(one, other, other_bytes),
            Algorithm::Sha1 | Algorithm::Sha256 => return None,
        };
        Some(joined.to_be_bytes()[8 - self.bytes()..].to_vec())
    }

    /// A running checksum.
    pub fn start(self) -> Running {
        match self {
            Algorithm::Sha1 => Running::Sha1(Box::default()),
            Algorithm::Sha256 => Running::Sha256(Box::default()),
            _ => Running::Crc(self, Box::new(crc_fast::Digest::new(self.crc().expect("the others are CRCs")))),
        }
    }

    /// The checksum of some bytes.
    pub fn of(self, bytes: &[u8]) -> Vec<u8> {
        let mut running = self.start();
        running.update(bytes);
        running.finish()
    }
}

/// A checksum of what has come so far.
pub enum Running {
    /// One of the CRCs.
    Crc(Algorithm, Box<crc_fast::Digest>),
    /// SHA-1.
    Sha1(Box<Sha1>),
    /// SHA-256.
    Sha256(Box<Sha256>),
    /// The CRC64NVME of all bytes, which somebody else has computed.
    Known(u64),
}

impl Running {
    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Running::Known(_) => unreachable!("it is of all bytes"),
            Running::Crc(_, digest) => digest.update(bytes),
            Running::Sha1(digest) => digest.update(bytes),
            Running::Sha256(digest) => digest.update(bytes),
        }
    }

    /// The CRC64NVME so far, if it is that.
    pub fn crc64nvme(&self) -> Option<u64> {
        match self {
            Running::Crc(Algorithm::Crc64Nvme, digest) => Some(digest.finalize()),
            Running::Known(crc) => Some(*crc),
            _ => None,
        }
    }

    /// The checksum, in the order of bytes in which it is told.
    pub fn finish(self) -> Vec<u8> {
        match self {
            Running::Crc(algorithm, digest) => digest.finalize().to_be_bytes()[8 - algorithm.bytes()..].to_vec(),
            Running::Sha1(digest) => digest.finalize().to_vec(),
            Running::Sha256(digest) => digest.finalize().to_vec(),
            Running::Known(crc) => crc.to_be_bytes().to_vec(),
        }
    }
}

/// What is computed of a body while it comes.
#[derive(Default)]
pub struct Digests {
    /// For `x-amz-content-sha256`.
    pub sha256: Option<Sha256>,
    /// For `x-amz-checksum-*`.
    pub checksum: Option<Running>,
}

impl Digests {
    /// Whether anything is to be computed.
    pub fn is_any(&self) -> bool {
        self.sha256.is_some() || self.checksum.is_some()
    }

    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
        if let Some(checksum) = &mut self.checksum {
            checksum.update(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of CRCs, and of FIPS 180's "abc" for the hashes.
    #[test]
    fn each_is_what_its_catalogue_says() {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(Algorithm::Crc32.of(b"123456789")), "cbf43926");
        assert_eq!(hex(Algorithm::Crc32c.of(b"123456789")), "e3069283");
        assert_eq!(hex(Algorithm::Crc64Nvme.of(b"123456789")), "ae8b14860a799888");
        assert_eq!(hex(Algorithm::Sha1.of(b"abc")), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(hex(Algorithm::Sha256.of(b"abc")).starts_with("ba7816bf8f01cfea"));
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.of(b"").len(), algorithm.bytes());
            assert_eq!(Algorithm::parse(algorithm.name()), Some(algorithm));
            assert_eq!(Algorithm::of_header(algorithm.header()).unwrap(), Some(algorithm));
        }
        for (name, code) in [("x-amz-checksum-MD5", Code::NotImplemented), ("X-Amz-Checksum-", Code::InvalidRequest)] {
            assert_eq!(Algorithm::of_header(name).unwrap_err().code, code, "{name}");
        }
        for name in ["x-amz-checksum-type", "x-amz-checksum-Mode", "x-amz-checksum-algorithm", "x-amz-checksum", "etag"] {
            assert_eq!(Algorithm::of_header(name).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn checksums_of_pieces_make_that_of_the_whole() {
        let (one, other) = (b"a piece and ", b"another one");
        let whole = [&one[..], &other[..]].concat();
        for algorithm in Algorithm::ALL {
            let combined = algorithm.combine(&algorithm.of(one), &algorithm.of(other), other.len() as u64);
            assert_eq!(combined, algorithm.combines().then(|| algorithm.of(&whole)), "{algorithm:?}");
        }
    }
}
