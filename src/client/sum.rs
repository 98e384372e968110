//! The checksum that a server tells of an object, and that of the bytes that come.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::Failure;
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Run;
use crate::s3::checksum::{Algorithm, Running};

/// A checksum of all bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    algorithm: Algorithm,
    value: Vec<u8>,
}

impl Sum {
    /// The one in the fields of an answer that is computed fastest. One of the sums of parts says nothing of the bytes alone.
    pub fn told<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<Sum> {
        if field("x-amz-checksum-type").is_some_and(|kind| kind != "FULL_OBJECT") {
            return None;
        }
        let of = |algorithm: Algorithm| {
            let value = BASE64_STANDARD.decode(field(algorithm.header())?).ok()?;
            (value.len() == algorithm.bytes()).then_some(Sum { algorithm, value })
        };
        let [crc32, crc32c, crc64nvme, sha1, sha256] = Algorithm::ALL;
        [crc64nvme, crc32c, crc32, sha1, sha256].into_iter().find_map(of)
    }

    /// The CRC64NVME, if it is that.
    pub fn crc64nvme(&self) -> Option<u64> {
        let is_it = self.algorithm == Algorithm::Crc64Nvme;
        is_it.then(|| u64::from_be_bytes(self.value[..].try_into().expect("it has as many bytes as its algorithm")))
    }

    /// One to compute beside it.
    pub fn start(&self) -> Running {
        self.algorithm.start()
    }

    /// Compares it with that of so many bytes that came for `what`.
    pub fn compare(&self, what: &str, bytes: u64, found: Running) -> Result<(), Error> {
        let found = found.finish();
        if found == self.value {
            return Ok(());
        }
        let (name, found, told) = (self.algorithm.name(), hex(&found), hex(&self.value));
        let what = format!("{what}: {bytes} bytes came with the checksum ({name}) {found}, and the server told {told}");
        Err(Error::new(ErrorKind::Protocol, what).remedy("get them again; if it goes on, look at what is between here and the server"))
    }

    /// The same with that of what is in these runs, one behind the other.
    pub fn compare_runs(&self, what: &str, bytes: u64, runs: &[Run]) -> Result<(), Failure> {
        let mut running = self.start();
        runs.iter().for_each(|run| running.update(run.as_slice()));
        self.compare(what, bytes, running).map_err(|error| Failure::unknown(&error))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_whole_is_compared_and_none_of_parts() {
        for algorithm in Algorithm::ALL {
            let value = BASE64_STANDARD.encode(algorithm.of(b"abc"));
            let told = |kind: Option<&'static str>| {
                let value = value.clone();
                Sum::told(move |name| match name {
                    "x-amz-checksum-type" => kind,
                    name if name == algorithm.header() => Some(Box::leak(value.clone().into_boxed_str())),
                    _ => None,
                })
            };
            assert_eq!(told(Some("COMPOSITE")), None);
            assert_eq!(told(None), told(Some("FULL_OBJECT")));
            let sum = told(None).unwrap();
            assert_eq!(sum.crc64nvme().is_some(), algorithm == Algorithm::Crc64Nvme);
            let compare = |bytes: &[u8]| {
                let mut running = sum.start();
                running.update(bytes);
                sum.compare("GET s3://b/k", bytes.len() as u64, running)
            };
            compare(b"abc").unwrap();
            let error = compare(b"abd").unwrap_err().to_string();
            assert!(error.starts_with("GET s3://b/k: 3 bytes came with the checksum") && error.contains(algorithm.name()), "{error}");
        }
        // What is no checksum, or that of parts as others tell it.
        for value in ["", "!", "AAAA", "AAAAAAAAAAA=-3"] {
            assert_eq!(Sum::told(|name| (name == "x-amz-checksum-crc64nvme").then_some(value)), None, "{value}");
        }
    }
}
