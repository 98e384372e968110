//! One error shape for set-up and control paths: what was tried, on what, what the kernel said, what to do.
//!
//! Data paths return small typed errors of their own (a completion status, a refused submission that carries the buffer
//! back); they become an [`Error`] only when a person is to read them.

use std::fmt;

/// A result whose error a person can act on.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of answer the caller may want to give: the tool maps these to exit codes and SKIPPED rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong: a bad name, size or option.
    Usage,
    /// This machine, kernel or user lacks what is needed: privilege, memory lock, a feature, a device.
    Unavailable,
    /// Something else owns the object: a second instance, a mounted device, a taken port.
    Busy,
    /// Doing it would destroy data nobody agreed to lose.
    Refused,
    /// A device, peer or the kernel failed an operation that was well formed.
    Failed,
    /// A peer sent what the protocol does not allow.
    Protocol,
}

/// An error with its object and its remedy.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    what: String,
    errno: Option<i32>,
    remedy: Option<String>,
}

impl Error {
    /// An error of `kind`; `what` says what was tried and names the object.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error { inner: Box::new(Inner { kind, what: what.into(), errno: None, remedy: None }) }
    }

    /// The same of this object, which comes first.
    pub fn of(mut self, object: &str) -> Error {
        self.inner.what = format!("{object}: {}", self.inner.what);
        self
    }

    /// A failed system call: `what` says what was tried, on which object. The kind follows from the error number.
    pub fn from_errno(what: impl Into<String>, errno: i32) -> Error {
        let kind = match errno {
            // Not permitted, or the kernel, device or library has no such feature or object.
            libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENODEV | libc::ENOENT | libc::ENXIO => {
                ErrorKind::Unavailable
            }
            // Out of memory, of the memory-lock budget (io_uring: ENOMEM, UMEM: ENOBUFS) or of descriptors.
            libc::ENOMEM | libc::ENOBUFS | libc::EMFILE | libc::ENFILE => ErrorKind::Unavailable,
            // Held by another process or another binding.
            libc::EBUSY | libc::EADDRINUSE | libc::EWOULDBLOCK | libc::ETXTBSY => ErrorKind::Busy,
            _ => ErrorKind::Failed,
        };
        let mut error = Error::new(kind, what);
        error.inner.errno = Some(errno);
        error
    }

    /// The last system call's failure (`errno`).
    pub fn last_os(what: impl Into<String>) -> Error {
        Error::from_errno(what, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// An I/O error from the standard library or a system-call wrapper.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(errno) => Error::from_errno(what, errno),
            None => Error::new(ErrorKind::Failed, format!("{}: {error}", what.into())),
        }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Error {
        self.inner.remedy = Some(remedy.into());
        self
    }

    /// Overrides the kind, where the errno alone would mislead.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.inner.kind = kind;
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The kernel's error number, where there was one.
    pub fn errno(&self) -> Option<i32> {
        self.inner.errno
    }

    /// What to do about it, where that is known.
    pub fn remedy_text(&self) -> Option<&str> {
        self.inner.remedy.as_deref()
    }
}

/// The symbolic name and text of an error number: `EBUSY (Device or resource busy)`.
pub fn describe_errno(errno: i32) -> String {
    let name = format!("{:?}", nix::errno::Errno::from_raw(errno));
    format!("{name} ({})", nix::errno::Errno::from_raw(errno).desc())
}

/// For a terminal, the remedy on a line of its own. The alternate form, `{:#}`, is one line, for logs.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            // What a peer said may have lines of its own.
            let lines: Vec<&str> = self.inner.what.lines().map(str::trim).collect();
            f.write_str(&lines.join("; "))?;
        } else {
            f.write_str(&self.inner.what)?;
        }
        if let Some(errno) = self.inner.errno {
            write!(f, ": {}", describe_errno(errno))?;
        }
        if let Some(remedy) = &self.inner.remedy {
            if f.alternate() {
                return write!(f, " (remedy: {remedy})");
            }
            write!(f, "\n  to mend it: {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_object_cause_and_remedy() {
        let error = Error::from_errno("cannot open /dev/x", libc::EBUSY).remedy("stop the other user");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(error.to_string(), "cannot open /dev/x: EBUSY (Device or resource busy)\n  to mend it: stop the other user");
        assert_eq!(format!("{error:#}"), "cannot open /dev/x: EBUSY (Device or resource busy) (remedy: stop the other user)");
        let told = Error::new(ErrorKind::Failed, format!("the peer: {error}")).remedy("ask it");
        let line = "the peer: cannot open /dev/x: EBUSY (Device or resource busy); to mend it: stop the other user (remedy: ask it)";
        assert_eq!(format!("{told:#}"), line);
    }
}
