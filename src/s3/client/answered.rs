//! An answer of the native mode, and its bytes, compared with their checksum.

use std::borrow::Cow;
use std::ops::Range;

use super::native::{Undone, bytes_of};
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::rdma::Written;
use crate::mem::{Run, Shared, crc64};
use crate::wire::joined;
use crate::wire::s3::frame::{Answer, Body};

/// An answer.
pub struct Answered {
    /// HTTP's status.
    pub status: u16,
    /// Bytes of the body, or what they would be.
    pub bytes: u64,
    /// The message it came in, and where in that its fields and its body are.
    message: Shared,
    fields: Range<usize>,
    inline: Range<usize>,
    /// The body, compared with its checksum.
    pub body: Came,
    /// The runs that were sent.
    pub sent: Vec<Run>,
    /// Their CRC64NVME; 0 of none.
    pub sent_crc: u64,
}

/// The body of an answer.
pub enum Came {
    /// None; runs that were to take one come back.
    None(Vec<Run>),
    /// In the message: [`Answered::bytes`]. Runs that were to take one come back.
    Message(Vec<Run>),
    /// In the runs, whose views it is, one behind the other; those that it did not reach are viewed as empty.
    Runs(Vec<Run>),
}

impl Answered {
    /// The value of the first field of that name, where it is text.
    pub fn field(&self, name: &str) -> Option<&str> {
        let lines = self.message.as_slice()[self.fields.clone()].split(|&byte| byte == b'\n');
        let mut values =
            lines.filter_map(|line| line.split_at_checked(name.len()).filter(|(one, _)| one.eq_ignore_ascii_case(name.as_bytes())));
        let value = values.find_map(|(_, rest)| rest.strip_prefix(b":"))?;
        std::str::from_utf8(value).ok().map(str::trim)
    }

    /// Lines of HTTP.
    pub fn fields(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.message.as_slice()[self.fields.clone()])
    }

    /// The body's bytes.
    ///
    /// # Panics
    /// Where it came into several runs.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Came::None(_) => &[],
            Came::Message(_) => &self.message.as_slice()[self.inline.clone()],
            Came::Runs(runs) => match &runs[..] {
                [run] => run.as_slice(),
                runs => panic!("an answer in {} runs has its bytes there", runs.len()),
            },
        }
    }
}

/// An answer in the message it came with.
pub(super) struct Told {
    pub message: Shared,
    pub parsed: Parsed,
}

/// Where the body of an answer is.
enum Placed {
    None,
    Message(Range<usize>),
    Window,
}

/// An answer, apart from the message that it is in.
pub(super) struct Parsed {
    status: u16,
    bytes: u64,
    crc: u64,
    fields: Range<usize>,
    body: Placed,
}

impl Parsed {
    pub fn new(message: &[u8], answer: &Answer<'_>) -> Parsed {
        let base = message.as_ptr() as usize;
        let place = |bytes: &[u8]| {
            let from = bytes.as_ptr() as usize - base;
            from..from + bytes.len()
        };
        let body = match answer.body {
            Body::None => Placed::None,
            Body::Inline(bytes) => Placed::Message(place(bytes)),
            Body::Granted => Placed::Window,
        };
        let Answer { status, bytes, crc, .. } = *answer;
        Parsed { status, bytes, crc, fields: place(answer.fields), body }
    }
}

/// The CRC64NVME of runs that were written to, where the device may have summed each.
fn crc_of_written(runs: &[Run], sums: &[Option<Written>]) -> u64 {
    let parts = runs.iter().zip(sums).filter(|(run, _)| !run.is_empty()).map(|(run, sum)| match sum {
        Some(written) if written.bytes == run.len() => (written.crc64nvme, run.len()),
        _ => (crc64(run.as_slice()), run.len()),
    });
    let all = parts.reduce(|(before, _), (crc, bytes)| (joined::crc64nvme(before, crc, bytes.into()), bytes));
    all.map_or(0, |(crc, _)| crc)
}

impl Told {
    /// What it brought. `read` is where its body may be, if the server could write there: there are sums then. `sent` was sent, with this
    /// CRC64NVME.
    pub fn compare(
        self,
        mut read: Vec<Run>,
        sums: Option<&[Option<Written>]>,
        (sent, sent_crc): (Vec<Run>, u64),
    ) -> Result<Answered, Undone> {
        let Told { message, parsed: Parsed { status, bytes, crc, fields, body } } = self;
        let mut inline = 0..0;
        let (body, checked) = match body {
            Placed::None => (Came::None(read), Ok(())),
            Placed::Message(place) => {
                let found = crc64(&message.as_slice()[place.clone()]);
                inline = place;
                (Came::Message(read), check_crc(bytes, crc, found))
            }
            Placed::Window => match sums {
                Some(sums) if bytes <= bytes_of(&read) => {
                    let mut left = bytes;
                    for run in &mut read {
                        run.set_len(left.min(run.len().into()) as u32);
                        left -= u64::from(run.len());
                    }
                    let found = crc_of_written(&read, sums);
                    (Came::Runs(read), check_crc(bytes, crc, found))
                }
                _ => {
                    let error = Error::new(ErrorKind::Protocol, "the S3 server says that it wrote to a window that it does not have");
                    (Came::None(read), Err(error))
                }
            },
        };
        match checked {
            Ok(()) => Ok(Answered { status, bytes, message, fields, inline, body, sent, sent_crc }),
            Err(error) => {
                let (Came::None(into) | Came::Message(into) | Came::Runs(into)) = body;
                Err(Undone { error, was_sent: true, sent, into })
            }
        }
    }
}

/// Compares what came with what was sent.
fn check_crc(bytes: u64, crc: u64, found: u64) -> Result<()> {
    if found == crc {
        return Ok(());
    }
    let what = format!("{bytes} bytes came with the CRC64NVME {found:016x}, and {crc:016x} were sent");
    Err(Error::new(ErrorKind::Failed, what).remedy("get them again; if it goes on, look at the memory of both ends"))
}
