//! Checksums in documents: Base64, each in an element named after its algorithm.

use super::reader::Element;
use super::writer::Writer;
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::error::{Code, S3Error};

/// Checksums as documents have them: at most one of each algorithm, in Base64, those of several parts' checksums with `-` and their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checksums(pub Vec<(Algorithm, String)>);

impl Checksums {
    /// That of an algorithm.
    pub fn get(&self, algorithm: Algorithm) -> Option<&str> {
        self.0.iter().find(|(which, _)| *which == algorithm).map(|(_, value)| value.as_str())
    }

    pub(super) fn read(element: Element<'_>) -> Result<Checksums, S3Error> {
        let mut checksums = Vec::new();
        for algorithm in Algorithm::ALL {
            if let Some(value) = element.get_string(algorithm.element())? {
                checksums.push((algorithm, value));
            }
        }
        Ok(Checksums(checksums))
    }

    /// Of a request, in which no checksum may be left unread.
    pub(super) fn read_all(element: Element<'_>) -> Result<Checksums, S3Error> {
        for child in element.children().filter(|child| child.name().starts_with("Checksum")) {
            if !Algorithm::ALL.iter().any(|algorithm| algorithm.element() == child.name()) {
                return Err(S3Error::with(Code::NotImplemented, format!("{} is not implemented", child.name())));
            }
        }
        Checksums::read(element)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        for (algorithm, value) in &self.0 {
            writer.text(algorithm.element(), value);
        }
    }
}

/// `ChecksumAlgorithm` and `ChecksumType` of an answer; one that is not known is none.
pub(super) fn read_kinds(element: Element<'_>) -> Result<(Option<Algorithm>, Option<Kind>), S3Error> {
    let algorithm = element.all("ChecksumAlgorithm").find_map(|algorithm| Algorithm::parse(algorithm.text()));
    Ok((algorithm, read_kind(element)?))
}

/// `ChecksumType` of an answer.
pub(super) fn read_kind(element: Element<'_>) -> Result<Option<Kind>, S3Error> {
    Ok(element.get("ChecksumType")?.and_then(|kind| Kind::parse(kind.text())))
}

/// Writes `ChecksumAlgorithm` and `ChecksumType`, those that there are.
pub(super) fn write_kinds(writer: &mut Writer, algorithm: Option<Algorithm>, kind: Option<Kind>) {
    writer.text_if("ChecksumAlgorithm", algorithm.map(Algorithm::name));
    writer.text_if("ChecksumType", kind.map(Kind::name));
}
