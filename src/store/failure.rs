//! Why an operation on a store was not done.

use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Exhausted;

/// A result of the store's.
pub type Outcome<T> = Result<T, Failure>;

/// Why an operation was not done. All but the last two are answers to the request: the store is as it was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// There is no bucket with this name, or none any more with the identifier the caller remembered.
    #[error("there is no bucket {0}")]
    NoSuchBucket(String),
    /// A bucket with this name is there.
    #[error("there is a bucket {0} already")]
    BucketExists(String),
    /// It has objects, or versions of some.
    #[error("bucket {0} is not empty; delete every version of its objects first")]
    BucketNotEmpty(String),
    /// The name has no object, or its newest version is a delete marker.
    #[error("there is no object '{0}'")]
    NoSuchObject(String),
    /// It was never begun, or is completed or aborted.
    #[error("there is no upload {id:#x} of '{name}' under way")]
    NoSuchUpload {
        /// The object's name.
        name: String,
        /// The upload's identifier.
        id: u64,
    },
    /// A part that the upload does not have, or not with this ETag, or out of order.
    #[error("part {0} is not there, has another ETag, or is out of order")]
    InvalidPart(u16),
    /// The condition did not hold when it was judged.
    #[error("the condition on '{0}' does not hold")]
    Precondition(String),
    /// Whoever asked for the change does not want it of a version with these tags: why.
    #[error("{0}")]
    Refused(String),
    /// A name, its properties or a number of parts that no item holds.
    #[error("{0}")]
    TooLong(String),
    /// What was written is not what is read: the object's name and where on the device.
    #[error("{0}")]
    Corrupt(String),
    /// The device, or no room: what was on its way may or may not be there after the next opening, until something later is answered.
    #[error("{0}")]
    Failed(Error),
}

/// The remedy of what is asked of a store that is closed, by which it is known.
pub(super) const OPEN_ANEW: &str = "open it anew";

impl Failure {
    /// Whether the store was closed before this could be done: nothing was.
    pub fn is_closed(&self) -> bool {
        matches!(self, Failure::Failed(error) if error.remedy_text() == Some(OPEN_ANEW))
    }

    /// Whether what failed may be there after the next opening all the same: the device failed it, and may have some or all of it.
    pub(super) fn leaves_open(&self) -> bool {
        matches!(self, Failure::Failed(_)) && !self.lacks_room()
    }

    /// Whether there was no memory for it.
    pub(super) fn is_short_of_memory(&self) -> bool {
        matches!(self, Failure::Failed(error) if is_short_of_memory(error))
    }

    /// Whether there was no room for it, on the device or in memory: nothing of it was written.
    pub(super) fn lacks_room(&self) -> bool {
        let is_full = |error: &Error| error.kind() == ErrorKind::Unavailable && error.errno().is_none();
        self.is_short_of_memory() || matches!(self, Failure::Failed(error) if is_full(error))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error)
    }
}

impl From<Exhausted> for Failure {
    fn from(exhausted: Exhausted) -> Failure {
        Failure::Failed(no_memory("working on the store", exhausted))
    }
}

/// Whether there was no memory for it, or no room for its operations: others have it, and give it back.
pub(super) fn is_short_of_memory(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy && error.errno().is_none()
}

/// Others have the memory for it: it may be tried again. The store is not full.
pub(super) fn no_memory(doing: &str, exhausted: Exhausted) -> Error {
    Error::new(ErrorKind::Busy, format!("{doing}: {exhausted}")).remedy("give it more memory, or let fewer work at a time")
}

/// The core has as many operations under way as it can: it may be tried again.
pub(super) fn no_operations(doing: &str) -> Error {
    let what = format!("{doing}: this core has as many operations under way as it has room for");
    Error::new(ErrorKind::Busy, what).remedy("try again with less at once")
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let kind = match failure {
            Failure::Failed(error) => return error,
            Failure::Corrupt(_) => ErrorKind::Failed,
            _ => ErrorKind::Usage,
        };
        Error::new(kind, failure.to_string())
    }
}

/// A name as people read it.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
