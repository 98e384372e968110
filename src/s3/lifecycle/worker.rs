//! Who goes through the buckets and does what their rules say: one task of core 0, for all cores.
//!
//! Buckets are read page by page with a pause behind each, so that requests always have their turn. What is done with a version is done
//! only if it is still what was looked at, and still stands behind the same newest version: what was put over meanwhile stays. What is held
//! by Object Lock stays too. What cannot be done is told and left for the next round.

use super::rules::{Days, Rules, Seen, Standing, Verdict};
use super::walk::Walk;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos};
use crate::reactor::Core;
use crate::s3::access::canonical::CanonicalId;
use crate::s3::bucket::{BucketMeta, Versioning};
use crate::s3::config::Lifecycle;
use crate::s3::labels::Labels;
use crate::s3::lock::Challenge;
use crate::s3::meta::Meta;
use crate::store::engine::{Attributes, Expect, Which};
use crate::store::failure::{Failure, Outcome};
use crate::store::index::{Behind, Version, VersionLine, VersionQuery};
use crate::store::open::Store;

/// Versions of a page.
const PAGE: usize = 256;
/// Uploads of a page, each of which comes with its parts.
const UPLOAD_PAGE: usize = 16;
/// Changes under way at once: a few of many that the store can have.
const CHANGES: usize = 16;
/// The pause behind a page.
const PAUSE: Nanos = Nanos::from_millis(1);
/// After so many failures with no success between them a bucket is left for the next round.
const FAILURES_MAX: u32 = 256;

/// Goes through all buckets, at once and then again and again, until the core is asked to stop. `clock` tells milliseconds since 1970
/// (UTC).
pub async fn run(core: Core, store: Store, settings: Lifecycle, clock: impl Fn() -> u64) {
    let interval = Nanos::from_secs(settings.interval_seconds.get().into());
    let worker = Worker { core, store, days: Days::of_seconds(settings.day_seconds.get()), clock };
    loop {
        worker.round().await;
        if worker.core.timeout(interval, worker.core.stopping()).await.is_ok() {
            return;
        }
    }
}

/// What was done in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Versions and uploads that were looked at.
    pub seen: u64,
    /// Current versions that expired.
    pub expired: u64,
    /// Noncurrent versions that were removed.
    pub versions: u64,
    /// Delete markers that were removed.
    pub markers: u64,
    /// Uploads that were aborted.
    pub uploads: u64,
    /// What was to end and was changed before it did.
    pub changed: u64,
    /// What was to end and is held by Object Lock.
    pub held: u64,
    /// What was to end and could not.
    pub failed: u64,
}

/// Why a bucket is left before its end.
#[derive(Debug)]
enum Left {
    /// The core is asked to stop.
    Stopping,
    /// The bucket is gone, or has other settings.
    Changed,
    /// Nothing works.
    Failing(String),
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Left {
        match failure {
            Failure::NoSuchBucket(_) => Left::Changed,
            failure => Left::Failing(failure.to_string()),
        }
    }
}

/// What of a bucket decides how things end in it.
#[derive(Clone, Copy)]
struct Kind {
    /// Its identifier.
    bucket: u32,
    versioning: Versioning,
    /// Whose delete markers are.
    owner: CanonicalId,
}

/// A bucket with rules, as it was when its turn came.
struct Target {
    name: Box<[u8]>,
    kind: Kind,
    rules: Rules,
}

impl Target {
    fn of(id: u32, name: &[u8], meta: &BucketMeta) -> Option<Target> {
        let rules = Rules::of(meta)?;
        let kind = Kind { bucket: id, versioning: meta.versioning, owner: meta.owner };
        Some(Target { name: name.into(), kind, rules })
    }
}

/// What is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ending {
    name: Box<[u8]>,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A version, with its sequence number, that of the name's newest, and how it ends.
    Version { sequence: u64, newest: u64, is_null: bool, verdict: Verdict },
    /// The upload with this identifier.
    Upload(u64),
}

/// Who does it.
struct Worker<C> {
    core: Core,
    store: Store,
    days: Days,
    clock: C,
}

impl<C: Fn() -> u64> Worker<C> {
    /// Goes through all buckets once.
    async fn round(&self) {
        for (id, bucket) in self.store.buckets() {
            // A bucket in which nothing is to be done waits for nothing: others have their turn.
            self.core.yield_now().await;
            let Ok(meta) = BucketMeta::parse(&bucket.properties) else { continue };
            let Some(target) = Target::of(id, &bucket.name, &meta) else { continue };
            let (done, left) = self.bucket(&target, bucket.at.sequence).await;
            let Done { seen, expired, versions, markers, uploads, changed, held, failed } = done;
            let name = String::from_utf8_lossy(&target.name);
            match &left {
                Some(Left::Failing(why)) => {
                    tracing::warn!(bucket = %name, failed, "lifecycle: left for the next round: {why}");
                }
                Some(left) => tracing::debug!(bucket = %name, ?left, "lifecycle: left for the next round"),
                None => {}
            }
            if done == (Done { seen, ..Done::default() }) {
                tracing::debug!(bucket = %name, seen, "lifecycle: nothing to do");
            } else {
                tracing::info!(bucket = %name, seen, expired, versions, markers, uploads, changed, held, failed, "lifecycle");
            }
            if matches!(left, Some(Left::Stopping)) {
                return;
            }
        }
    }

    /// Goes through a bucket that was last changed with sequence number `since`: what was done, and why the rest was not.
    async fn bucket(&self, target: &Target, since: u64) -> (Done, Option<Left>) {
        let mut visit = Visit { worker: self, target, since, done: Done::default(), failures: 0 };
        let left = visit.all().await.err();
        (visit.done, left)
    }
}

/// Ends something, if it is still as it was seen.
async fn end(store: Store, of: Kind, ending: Ending, time_ms: u64) -> Outcome<()> {
    let name = &ending.name;
    let (sequence, newest, is_null, verdict) = match ending.what {
        What::Upload(id) => return store.abort_upload(of.bucket, name, id, time_ms).await,
        What::Version { sequence, newest, is_null, verdict } => (sequence, newest, is_null, verdict),
    };
    let expect = Expect::Seen { sequence, newest };
    if verdict == Verdict::Expire && of.versioning != Versioning::Never {
        let properties = Meta { owner: Some(of.owner), ..Meta::default() }.to_bytes();
        let is_version = of.versioning == Versioning::Enabled;
        let attributes = Attributes { properties, expect, is_version, time_ms, ..Attributes::default() };
        return store.mark_deleted(of.bucket, name, attributes).await.map(drop);
    }
    let which = if is_null { Which::Null } else { Which::Sequence(sequence) };
    if of.versioning == Versioning::Never {
        return store.delete(of.bucket, name, which, expect, time_ms).await.map(drop);
    }
    // Nobody lets go of what is held for the sake of a rule.
    let by = Challenge { now_ms: time_ms, bypasses: false };
    store.delete_judged(of.bucket, name, which, expect, time_ms, move |labels| by.judge(labels)).await.map(drop)
}

/// A bucket that is being gone through.
struct Visit<'a, C> {
    worker: &'a Worker<C>,
    target: &'a Target,
    /// The sequence number the bucket was last changed with.
    since: u64,
    done: Done,
    /// Failures since something last worked.
    failures: u32,
}

impl<C: Fn() -> u64> Visit<'_, C> {
    async fn all(&mut self) -> Result<(), Left> {
        let target = self.target;
        for prefix in target.rules.version_prefixes() {
            self.versions(prefix).await?;
        }
        for prefix in target.rules.upload_prefixes() {
            self.uploads(prefix).await?;
        }
        Ok(())
    }

    /// Whether what was known of the bucket still holds. Who changes anything else of it does not stop its rules.
    fn go_on(&mut self) -> Result<(), Left> {
        let (store, target) = (&self.worker.store, self.target);
        if self.worker.core.is_stopping() {
            return Err(Left::Stopping);
        }
        match store.bucket_at(&target.name) {
            Some((id, since)) if id == target.kind.bucket && since == self.since => return Ok(()),
            Some((id, _)) if id == target.kind.bucket => {}
            _ => return Err(Left::Changed),
        }
        let (_, bucket) = store.bucket(&target.name).ok_or(Left::Changed)?;
        let meta = BucketMeta::parse(&bucket.properties).map_err(|_| Left::Changed)?;
        if meta.versioning != target.kind.versioning || Rules::of(&meta).as_ref() != Some(&target.rules) {
            return Err(Left::Changed);
        }
        self.since = bucket.at.sequence;
        Ok(())
    }

    /// Goes through the versions of names that begin with this.
    async fn versions(&mut self, prefix: &str) -> Result<(), Left> {
        // Where a prefix has nothing nothing is waited for: others have their turn.
        self.worker.core.yield_now().await;
        let mut walk = Walk::default();
        // Of each page the last line waits for the next one, which may have others of its name.
        let mut lines: Vec<(Box<[u8]>, Version)> = Vec::new();
        loop {
            self.go_on()?;
            let behind = lines.last().map_or(Behind::Nothing, |(name, version)| Behind::Version(name, version.sequence));
            let query = VersionQuery { bucket: self.target.kind.bucket, prefix: prefix.as_bytes(), delimiter: b"", behind, limit: PAGE };
            let page = self.worker.store.versions(&query).await?;
            let is_end = page.len() < PAGE;
            lines.extend(page.into_iter().filter_map(|line| match line {
                VersionLine::Version { name, version, .. } => Some((name, version)),
                VersionLine::Prefix(_) => None,
            }));
            let ready = if is_end { lines.len() } else { lines.len() - 1 };
            let endings = self.judge(&mut walk, &lines, ready).await;
            self.carry_out(endings).await?;
            if is_end {
                return Ok(());
            }
            lines.drain(..ready);
            self.worker.core.sleep(PAUSE).await;
        }
    }

    /// What of the first `ready` versions is to end.
    async fn judge(&mut self, walk: &mut Walk, lines: &[(Box<[u8]>, Version)], ready: usize) -> Vec<Ending> {
        let now_ms = (self.worker.clock)();
        let mut endings = Vec::new();
        for (at, (name, version)) in lines[..ready].iter().enumerate() {
            self.done.seen += 1;
            let is_last = lines.get(at + 1).is_none_or(|(next, _)| next != name);
            let (standing, newest) = walk.step(name, version, is_last);
            let seen = Seen { key: name, size: version.size, put_ms: version.time_ms, is_marker: version.is_delete_marker, standing };
            let mut verdict = self.target.rules.decide(&seen, None, self.worker.days, now_ms);
            if verdict == Verdict::ReadTags {
                verdict = match self.labels(name, version).await {
                    Some(labels) => self.target.rules.decide(&seen, Some(&labels.tags), self.worker.days, now_ms),
                    None => Verdict::Keep,
                };
            }
            match verdict {
                Verdict::Keep | Verdict::ReadTags => {
                    if matches!(standing, Standing::Noncurrent { .. }) {
                        walk.keep();
                    }
                }
                verdict => {
                    let what = What::Version { sequence: version.sequence, newest, is_null: version.is_null, verdict };
                    endings.push(Ending { name: name.clone(), what });
                }
            }
        }
        endings
    }

    /// The tags of a version, where they can be read. They are those of the version that is there now: if that is another, nothing ends.
    async fn labels(&mut self, name: &[u8], version: &Version) -> Option<Labels> {
        let which = if version.is_null { Which::Null } else { Which::Sequence(version.sequence) };
        let why = match self.worker.store.tags(self.target.kind.bucket, name, which).await {
            Ok(tags) => match Labels::parse(&tags) {
                Ok(labels) => return Some(labels),
                Err(unreadable) => unreadable.to_string(),
            },
            Err(Failure::NoSuchObject(_)) => return None,
            Err(failure) => failure.to_string(),
        };
        self.fail(name, &why);
        None
    }

    /// Goes through the uploads of names that begin with this.
    async fn uploads(&mut self, prefix: &str) -> Result<(), Left> {
        let (worker, target) = (self.worker, self.target);
        worker.core.yield_now().await;
        let mut behind = (Box::<[u8]>::from(prefix.as_bytes()), 0);
        loop {
            self.go_on()?;
            let page = worker.store.uploads(target.kind.bucket, &behind.0, behind.1, UPLOAD_PAGE).await?;
            let now_ms = (worker.clock)();
            let mut endings = Vec::new();
            let of_prefix = page.iter().take_while(|((_, name, _), _)| name.starts_with(prefix.as_bytes()));
            for ((_, name, id), begun_ms) in of_prefix {
                self.done.seen += 1;
                if target.rules.abort(name, *begun_ms, worker.days).is_some_and(|(date, _)| date <= now_ms) {
                    endings.push(Ending { name: name.clone(), what: What::Upload(*id) });
                }
            }
            self.carry_out(endings).await?;
            match page.last() {
                Some(((_, name, id), _)) if page.len() == UPLOAD_PAGE && name.starts_with(prefix.as_bytes()) => {
                    behind = (name.clone(), *id);
                }
                _ => return Ok(()),
            }
            worker.core.sleep(PAUSE).await;
        }
    }

    /// Ends all of these, a few at a time.
    async fn carry_out(&mut self, endings: Vec<Ending>) -> Result<(), Left> {
        let (worker, target) = (self.worker, self.target);
        for some in endings.chunks(CHANGES) {
            self.go_on()?;
            let now_ms = (worker.clock)();
            let begin = |ending: &Ending| worker.core.try_spawn(Box::pin(end(worker.store.clone(), target.kind, ending.clone(), now_ms)));
            let tasks: Vec<_> = some.iter().map(begin).collect();
            for (ending, task) in some.iter().zip(tasks) {
                let outcome = match task {
                    Ok(task) => task.await.unwrap_or_else(|panicked| {
                        Err(Error::new(ErrorKind::Failed, format!("a task of the lifecycle: {panicked}")).into())
                    }),
                    // The core has no task for it: then one after the other.
                    Err(full) => full.0.await,
                };
                self.count(ending, outcome)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, ending: &Ending, outcome: Outcome<()>) -> Result<(), Left> {
        let done = &mut self.done;
        match outcome {
            Ok(()) => {
                self.failures = 0;
                match ending.what {
                    What::Upload(_) => done.uploads += 1,
                    What::Version { verdict: Verdict::Expire, .. } => done.expired += 1,
                    What::Version { verdict: Verdict::EndMarker, .. } => done.markers += 1,
                    What::Version { .. } => done.versions += 1,
                }
            }
            Err(Failure::Precondition(_) | Failure::NoSuchObject(_) | Failure::NoSuchUpload { .. }) => done.changed += 1,
            Err(Failure::Refused(_)) => done.held += 1,
            Err(failure @ Failure::NoSuchBucket(_)) => return Err(failure.into()),
            Err(failure) => self.fail(&ending.name, &failure.to_string()),
        }
        match self.failures {
            FAILURES_MAX.. => Err(Left::Failing(format!("{FAILURES_MAX} changes failed one after the other"))),
            _ => Ok(()),
        }
    }

    /// Something could not be done. The first of a bucket is told.
    fn fail(&mut self, name: &[u8], why: &str) {
        if self.done.failed == 0 {
            let (bucket, key) = (String::from_utf8_lossy(&self.target.name), String::from_utf8_lossy(name));
            tracing::warn!(?bucket, ?key, "lifecycle: what is due could not be ended: {why}");
        }
        self.done.failed += 1;
        self.failures += 1;
    }
}

#[cfg(test)]
mod tests;
