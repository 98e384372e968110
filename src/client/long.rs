//! Buffers that are longer than one request of RDMA takes: several requests, each with as many windows as the server allows.
//!
//! A GET is several ranges of one version; a PUT is parts. Each goes by RDMA, or over HTTP where that fails, and gives its runs back in any
//! case. Over HTTP alone one GET does, which has the checksum of the whole.

use std::collections::VecDeque;
use std::ops::Range;

use super::call::too_long;
use super::get::overwritten;
use super::object::{Got, Put, PutOptions};
use super::put::PARTS_MAX;
use super::{Check, Client, Failure, Way};
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::Run;
use crate::reactor::Task;
use crate::s3::client::native::bytes_of;
use crate::wire::s3::frame::WINDOWS_MAX;

/// Ranges under way at a time.
const AT_ONCE: usize = 2;

impl Client {
    /// Puts what is in these runs: by one request, or in parts. They are as they were afterwards, though not in order.
    pub(super) async fn put_long(&self, bucket: &str, key: &str, runs: &mut Vec<Run>, options: &PutOptions) -> Result<Put, Failure> {
        if runs.len() <= WINDOWS_MAX {
            return self.put_runs(bucket, key, runs, options).await;
        }
        let part_runs = runs.len().div_ceil(PARTS_MAX as usize).max(WINDOWS_MAX);
        self.put_parts(part_runs, (bucket, key), runs, options).await
    }

    /// Gets an object, or a range of it, into these runs, which are viewed as far as it came, in their order.
    pub(super) async fn get_long(&self, bucket: &str, key: &str, range: Option<Range<u64>>, runs: &mut Vec<Run>) -> Result<Got, Failure> {
        let sessions = self.inner.lanes.iter().filter_map(|lane| lane.session(bucket, key));
        let windows = sessions.map(|(_, session)| session.windows()).next().unwrap_or(usize::MAX);
        if runs.len() <= windows {
            return self.get_range(bucket, key, range, None, runs).await;
        }
        let head = self.head(bucket, key).await?;
        let asked = range.clone().unwrap_or(0..head.size);
        let end = asked.end.min(head.size);
        let (wanted, room) = (end.saturating_sub(asked.start), bytes_of(runs));
        if wanted > room {
            return Err(too_long(format!("GET s3://{bucket}/{key}: {wanted} bytes, and the buffer has {room}")));
        }
        // So many runs are filled, and the last of them not always to its end.
        let left_before = runs.iter().scan(wanted, |left, run| Some(std::mem::replace(left, left.saturating_sub(run.len().into()))));
        let used = left_before.take_while(|left| *left > 0).count().max(1);
        let mut behind = runs.split_off(used);
        let outcome = if runs.len() <= windows {
            self.get_range(bucket, key, range, Some(&head.etag), runs).await
        } else {
            let mut ranges =
                Ranges { client: self, place: (bucket, key), etag: &head.etag, next: asked.start..end, under_way: VecDeque::new() };
            ranges.get(runs, windows, head.size).await
        };
        let whole = wanted == head.size;
        let outcome = outcome.and_then(|got| match head.sum.filter(|_| whole && got.check == Check::NotTold) {
            Some(told) => {
                told.compare_runs(&format!("GET s3://{bucket}/{key}"), wanted, runs)?;
                Ok(Got { check: Check::Verified, ..got })
            }
            None => Ok(got),
        });
        behind.iter_mut().for_each(|run| run.set_len(0));
        runs.append(&mut behind);
        outcome.map_err(|failure| if failure.is_precondition() { overwritten(bucket, key) } else { failure })
    }
}

/// What came of a range, and the memory that it came into.
type Came = (Result<Got, Failure>, Vec<Run>);

/// Ranges of an object that are got at the same time.
struct Ranges<'a> {
    client: &'a Client,
    /// Bucket and key.
    place: (&'a str, &'a str),
    etag: &'a str,
    /// What was not asked for yet.
    next: Range<u64>,
    under_way: VecDeque<Task<Came>>,
}

impl Ranges<'_> {
    /// Gets all of them into these runs, so many with a request.
    async fn get(&mut self, runs: &mut Vec<Run>, windows: usize, size: u64) -> Result<Got, Failure> {
        let wanted = self.next.end - self.next.start;
        let (mut back, mut outcome) = (Vec::with_capacity(runs.len()), None::<Result<Got, Failure>>);
        loop {
            while !runs.is_empty() && self.under_way.len() < AT_ONCE && !matches!(outcome, Some(Err(_))) {
                let some = runs.drain(..windows.min(runs.len())).collect();
                self.begin(some);
            }
            let Some(first) = self.under_way.pop_front() else { break };
            let done = match first.await {
                Ok((done, some)) => {
                    back.extend(some);
                    done
                }
                Err(panicked) => Err(Error::new(ErrorKind::Failed, panicked.to_string()).into()),
            };
            outcome = Some(match (outcome, done) {
                (Some(Err(first)), _) => Err(first),
                (_, Err(failure)) => Err(failure),
                (_, Ok(got)) if got.size != size => Err(overwritten(self.place.0, self.place.1)),
                (None, Ok(got)) => Ok(got),
                (Some(Ok(before)), Ok(got)) => Ok(Got {
                    bytes: before.bytes + got.bytes,
                    check: if before.check == Check::Verified { got.check } else { before.check },
                    way: if matches!(before.way, Way::Rdma(_)) { got.way } else { before.way },
                    ..got
                }),
            });
        }
        // What was not asked for any more is behind what was.
        back.append(runs);
        *runs = back;
        match outcome.expect("there is a range at least") {
            Ok(got) if got.bytes != wanted => Err(overwritten(self.place.0, self.place.1)),
            outcome => outcome,
        }
    }

    fn begin(&mut self, mut some: Vec<Run>) {
        let range = self.next.start..self.next.end.min(self.next.start + bytes_of(&some));
        self.next.start = range.end;
        let (client, etag) = (self.client.clone(), self.etag.to_owned());
        let (bucket, key) = (self.place.0.to_owned(), self.place.1.to_owned());
        self.under_way.push_back(self.client.inner.core.go_on(async move {
            let done = client.get_range(&bucket, &key, Some(range), Some(&etag), &mut some).await;
            (done, some)
        }));
    }
}
