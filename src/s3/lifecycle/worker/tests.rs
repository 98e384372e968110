//! Rounds through buckets of a store on a simulated disk, with a clock of their own.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;

use super::*;
use crate::device::sim::disk::Image;
use crate::s3::bucket::Document;
use crate::s3::lock::Lock;
use crate::s3::xml::lock::{HoldStatus, Mode};
use crate::store::handle::Get;
use crate::store::testing::World;

const DAY: u64 = 24 * 60 * 60 * 1000;
/// A midnight.
const TODAY: u64 = 20_000 * DAY;
const OWNER: CanonicalId = CanonicalId::from_bytes([7; 32]);

/// A clock that is set.
#[derive(Clone)]
struct Clock(Rc<Cell<u64>>);

impl Clock {
    fn set(&self, ms: u64) {
        self.0.set(ms);
    }
}

/// A store, and a worker on it.
struct Bench {
    worker: Worker<Box<dyn Fn() -> u64>>,
    clock: Clock,
    world: World,
}

/// Runs a test on a store for so many engines.
fn on_store<R: Future<Output = ()> + 'static>(cores: usize, test: impl FnOnce(Rc<Bench>) -> R + 'static) {
    let Some(world) = World::new(512, Image::default(), 1) else { return };
    let core = world.core.clone();
    let test = async move {
        let stores = world.stores(cores).await;
        let clock = Clock(Rc::new(Cell::new(TODAY)));
        let told = clock.0.clone();
        let clock_of_worker: Box<dyn Fn() -> u64> = Box::new(move || told.get());
        let worker = Worker { core: world.core.clone(), store: stores[0].clone(), days: Days::Whole, clock: clock_of_worker };
        test(Rc::new(Bench { worker, clock, world })).await;
        stores[0].halt().await;
    };
    core.run(test).unwrap();
}

fn document(rules: &str) -> String {
    format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", rules.replace("<Rule>", "<Rule><Status>Enabled</Status>"))
}

impl Bench {
    fn store(&self) -> &Store {
        &self.worker.store
    }

    /// Makes a bucket with these rules.
    async fn bucket(&self, name: &str, versioning: Versioning, rules: &str) -> u32 {
        let meta = self.meta(versioning, rules);
        self.store().create_bucket(name.as_bytes(), &meta.to_bytes(), 1).await.unwrap()
    }

    fn meta(&self, versioning: Versioning, rules: &str) -> BucketMeta {
        let mut meta = BucketMeta::new(OWNER, 1);
        meta.versioning = versioning;
        meta.set_document(Document::Lifecycle, Some(document(rules).as_bytes()));
        assert!(Rules::of(&meta).is_some(), "{}", document(rules));
        meta
    }

    /// Puts an object of a few bytes, so many days from today.
    async fn put(&self, bucket: u32, name: &str, days: i64, is_version: bool) -> Version {
        self.put_tagged(bucket, name, days, is_version, &[]).await
    }

    async fn put_tagged(&self, bucket: u32, name: &str, days: i64, is_version: bool, tags: &[(&str, &str)]) -> Version {
        let tags = tags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self.put_with(bucket, name, days, is_version, Labels { tags, ..Labels::default() }).await
    }

    async fn put_with(&self, bucket: u32, name: &str, days: i64, is_version: bool, labels: Labels) -> Version {
        let mut put = self.store().put(bucket, name.as_bytes()).unwrap();
        let run = self.store().slab().run(512).unwrap();
        put.write(run).await.unwrap();
        let attributes = Attributes { tags: labels.to_bytes(), is_version, time_ms: at(days), ..Attributes::default() };
        put.finish(attributes).await.unwrap()
    }

    async fn mark(&self, bucket: u32, name: &str, days: i64, is_version: bool) -> Version {
        let attributes = Attributes { is_version, time_ms: at(days), ..Attributes::default() };
        self.store().mark_deleted(bucket, name.as_bytes(), attributes).await.unwrap()
    }

    async fn lines(&self, bucket: u32) -> Vec<(Box<[u8]>, Version)> {
        let query = VersionQuery { bucket, prefix: b"", delimiter: b"", behind: Behind::Nothing, limit: usize::MAX };
        let line = |line| match line {
            VersionLine::Version { name, version, .. } => (name, version),
            VersionLine::Prefix(_) => unreachable!("without a delimiter"),
        };
        self.store().versions(&query).await.unwrap().into_iter().map(line).collect()
    }

    /// What there is of a bucket, by name and sequence number; delete markers are negative.
    async fn all(&self, bucket: u32) -> Vec<(String, i64)> {
        let shown = |(name, version): (Box<[u8]>, Version)| {
            let sequence = version.sequence as i64;
            (String::from_utf8(name.into()).unwrap(), if version.is_delete_marker { -sequence } else { sequence })
        };
        self.lines(bucket).await.into_iter().map(shown).collect()
    }

    async fn names(&self, bucket: u32) -> Vec<String> {
        self.all(bucket).await.into_iter().map(|(name, _)| name).collect()
    }

    fn target(&self, name: &str) -> (Target, u64) {
        let (id, bucket) = self.store().bucket(name.as_bytes()).unwrap();
        let meta = BucketMeta::parse(&bucket.properties).unwrap();
        (Target::of(id, &bucket.name, &meta).unwrap(), bucket.at.sequence)
    }

    /// Goes through a bucket so many days from today.
    async fn round(&self, name: &str, days: i64) -> Done {
        self.clock.set(at(days));
        let (target, since) = self.target(name);
        let (done, left) = self.worker.bucket(&target, since).await;
        assert!(left.is_none(), "{left:?}");
        done
    }
}

fn at(days: i64) -> u64 {
    TODAY.saturating_add_signed(days * DAY as i64)
}

fn of(version: &Version) -> i64 {
    version.sequence as i64
}

const ONE_DAY: &str = "<Rule><Filter/><Expiration><Days>1</Days></Expiration></Rule>";

#[test]
fn objects_expire_on_all_cores() {
    on_store(3, |bench| async move {
        let rules = "<Rule><Filter><Prefix>logs/</Prefix></Filter><Expiration><Days>3</Days></Expiration></Rule>\
            <Rule><Filter><Prefix>tmp/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Never, rules).await;
        for number in 0..20 {
            for (prefix, days) in [("logs/", -4), ("tmp/", -2), ("tmp/new ", 0), ("kept/", -100)] {
                bench.put(id, &format!("{prefix}{number}"), days, false).await;
            }
        }
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 60, expired: 40, ..Done::default() });
        let left = bench.names(id).await;
        assert_eq!(left.len(), 40);
        assert!(left.iter().all(|name| name.starts_with("kept/") || name.starts_with("tmp/new ")), "{left:?}");
        // Put today, they have their day and the rest of today.
        assert_eq!(bench.round("bucket", 1).await.expired, 0);
        assert_eq!(bench.round("bucket", 2).await.expired, 20);
    });
}

/// Where versions are kept an object goes behind a delete marker, then it goes, then the marker does.
#[test]
fn versions_end_one_stage_after_the_other() {
    on_store(1, |bench| async move {
        let rules = "<Rule><Filter/><Expiration><Days>1</Days></Expiration>\
            <NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays></NoncurrentVersionExpiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Enabled, rules).await;
        let old = bench.put(id, "a", -9, true).await;
        let new = bench.put(id, "a", 0, true).await;
        // The old one is noncurrent since today, however old it is.
        assert_eq!(bench.round("bucket", 1).await, Done { seen: 2, ..Done::default() });
        assert_eq!(bench.round("bucket", 2).await, Done { seen: 2, expired: 1, ..Done::default() });
        let all = bench.all(id).await;
        assert_eq!(all[1..], [("a".into(), of(&new)), ("a".into(), of(&old))]);
        assert!(all[0].1 < -of(&new), "a delete marker in front");
        let got: Get = bench.store().get(id, b"a", Which::Sequence(new.sequence), 0..9).await.unwrap();
        assert_eq!(got.version, new);
        drop(got);
        assert_eq!(bench.round("bucket", 3).await, Done { seen: 3, versions: 1, ..Done::default() });
        assert_eq!(bench.all(id).await, all[..2]);
        // The marker was put on day 2.
        assert_eq!(bench.round("bucket", 4).await, Done { seen: 2, ..Done::default() });
        assert_eq!(bench.round("bucket", 5).await, Done { seen: 2, versions: 1, ..Done::default() });
        assert_eq!(bench.round("bucket", 5).await, Done { seen: 1, markers: 1, ..Done::default() });
        assert_eq!(bench.all(id).await, []);
    });
}

#[test]
fn while_suspended_the_null_version_gives_way_to_a_marker() {
    on_store(1, |bench| async move {
        let id = bench.bucket("bucket", Versioning::Suspended, ONE_DAY).await;
        let kept = bench.put(id, "a", -9, true).await;
        bench.put(id, "a", -5, false).await;
        bench.put(id, "b", -5, false).await;
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 3, expired: 2, ..Done::default() });
        let all = bench.all(id).await;
        assert_eq!((all.len(), all[1].clone()), (3, ("a".into(), of(&kept))), "{all:?}");
        assert!(all[0].1 < 0 && all[2].1 < 0, "{all:?}");
        let null = bench.store().version(id, b"b", Which::Null).await.unwrap().unwrap();
        assert!(null.is_delete_marker);
        let got = bench.worker.store.engine().version(id, b"a", Which::Newest).unwrap();
        assert!(got.is_null && got.is_delete_marker);
        // That of b hides nothing and goes in its time, that of a stays.
        assert_eq!(bench.round("bucket", 2).await, Done { seen: 3, markers: 1, ..Done::default() });
        assert_eq!(bench.names(id).await, ["a", "a"]);
    });
}

/// A name with versions over several pages, and markers that hide nothing on both sides of the end of a page.
#[test]
fn pages_are_no_borders() {
    on_store(2, |bench| async move {
        let rules = "<Rule><Filter/><Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>\
            <NoncurrentVersionExpiration><NewerNoncurrentVersions>5</NewerNoncurrentVersions></NoncurrentVersionExpiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Enabled, rules).await;
        let mut kept = Vec::new();
        for _ in 0..2 * PAGE + 3 {
            kept.push(bench.put(id, "many", -9, true).await);
        }
        kept.drain(..kept.len() - 6);
        let done = bench.round("bucket", 0).await;
        assert_eq!((done.seen, done.versions), (2 * PAGE as u64 + 3, 2 * PAGE as u64 - 3));
        let expected: Vec<_> = kept.iter().rev().map(|version| ("many".to_string(), of(version))).collect();
        assert_eq!(bench.all(id).await, expected);
        // A marker over an object is the last line of the first page, and its object the first of the next.
        for number in 0..PAGE - 7 {
            bench.mark(id, &format!("alone {number:03}"), -9, true).await;
        }
        let below = bench.put(id, "below", -9, true).await;
        let over = bench.mark(id, "below", -9, true).await;
        assert_eq!(bench.all(id).await.iter().position(|(_, sequence)| *sequence == -of(&over)), Some(PAGE - 7));
        for number in 0..6 {
            bench.mark(id, &format!("c {number}"), -9, true).await;
        }
        let done = bench.round("bucket", 0).await;
        assert_eq!((done.markers, done.versions), (PAGE as u64 - 1, 0));
        let pair = [("below".to_string(), -of(&over)), ("below".to_string(), of(&below))];
        assert_eq!(bench.all(id).await, [&pair[..], &expected[..]].concat());
    });
}

#[test]
fn a_marker_at_the_end_of_a_page_hides_what_the_next_begins_with() {
    on_store(1, |bench| async move {
        let rules = "<Rule><Filter/><Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Enabled, rules).await;
        for number in 0..PAGE - 1 {
            bench.put(id, &format!("a {number:03}"), 0, true).await;
        }
        let below = bench.put(id, "b", 0, true).await;
        let over = bench.mark(id, "b", 0, true).await;
        assert_eq!(bench.round("bucket", 0).await, Done { seen: PAGE as u64 + 1, ..Done::default() });
        bench.store().delete(id, b"b", Which::Sequence(below.sequence), Expect::Anything, 1).await.unwrap();
        assert_eq!(bench.round("bucket", 0).await, Done { seen: PAGE as u64, markers: 1, ..Done::default() });
        assert!(!bench.all(id).await.contains(&("b".into(), -of(&over))));
    });
}

#[test]
fn tags_are_those_that_the_version_has() {
    on_store(2, |bench| async move {
        let rules = "<Rule><Filter><Tag><Key>keep</Key><Value>no</Value></Tag></Filter><Expiration><Days>1</Days></Expiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Never, rules).await;
        for name in ["a", "b", "c", "d"] {
            bench.put_tagged(id, name, -9, false, if name < "c" { &[("x", "y"), ("keep", "no")] } else { &[("keep", "yes")] }).await;
        }
        let retag = async |name: &[u8], value: &str| {
            let labels = Labels { tags: vec![("keep".into(), value.into())], ..Labels::default() };
            bench.store().set_tags(id, name, Which::Newest, &labels.to_bytes(), TODAY).await.unwrap();
        };
        retag(b"b", "yes").await;
        retag(b"d", "no").await;
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 4, expired: 2, ..Done::default() });
        assert_eq!(bench.names(id).await, ["b", "c"]);
    });
}

#[test]
fn what_is_held_stays_and_the_others_end() {
    on_store(2, |bench| async move {
        let rules = "<Rule><Filter/><NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration></Rule>";
        let id = bench.bucket("bucket", Versioning::Enabled, rules).await;
        let mut lasting = Vec::new();
        for (number, (retention, legal_hold)) in [
            (None, None),
            (Some((Mode::Governance, at(1))), None),
            (None, Some(HoldStatus::On)),
            (Some((Mode::Compliance, at(2))), Some(HoldStatus::Off)),
            (Some((Mode::Compliance, at(-1))), None),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("{number}");
            let lock = Lock { retention, legal_hold };
            let put = bench.put_with(id, &name, -9, true, Labels { lock, ..Labels::default() }).await;
            let newest = bench.put(id, &name, -5, true).await;
            lasting.push((of(&put), of(&newest)));
        }
        let held = [lasting[1].0, lasting[2].0, lasting[3].0];
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 10, versions: 2, held: 3, ..Done::default() });
        let left: Vec<i64> = bench.all(id).await.into_iter().map(|(_, sequence)| sequence).collect();
        assert!(held.iter().all(|sequence| left.contains(sequence)) && left.len() == 8, "{left:?}");
        // When its time is over.
        assert_eq!(bench.round("bucket", 1).await, Done { seen: 8, versions: 1, held: 2, ..Done::default() });
        assert_eq!(bench.round("bucket", 2).await, Done { seen: 7, versions: 1, held: 1, ..Done::default() });
        let left: Vec<i64> = bench.all(id).await.into_iter().map(|(_, sequence)| sequence).collect();
        assert!(left.contains(&lasting[2].0) && left.len() == 6, "{left:?}");
    });
}

#[test]
fn uploads_that_are_not_complete_end() {
    on_store(2, |bench| async move {
        let rules = "<Rule><Filter><Prefix>a</Prefix></Filter>\
            <AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>";
        let id = bench.bucket("bucket", Versioning::Never, rules).await;
        let mut old = Vec::new();
        for number in 0..3 * UPLOAD_PAGE {
            for (name, days) in [("a", -9), ("a/b", -9), ("a", -2), ("b", -9)] {
                old.push(bench.store().begin_upload(id, format!("{name}{}", number % 5).as_bytes(), b"", at(days)).await.unwrap());
            }
        }
        bench.put(id, "a", -9, false).await;
        let pages = 3 * UPLOAD_PAGE as u64;
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 3 * pages, uploads: 2 * pages, ..Done::default() });
        let left = bench.store().uploads(id, b"", 0, usize::MAX).await.unwrap();
        assert!(left.len() as u64 == 2 * pages && left.iter().all(|((_, name, _), _)| !name.contains(&b'/')));
        assert_eq!(bench.round("bucket", 1).await, Done { seen: pages, uploads: pages, ..Done::default() });
        assert_eq!(bench.names(id).await, ["a"]);
    });
}

/// What is put, deleted or brought back between the look and the end stays as it is then.
#[test]
fn what_was_changed_after_the_look_stays() {
    on_store(1, |bench| async move {
        let rules = "<Rule><Filter/><Expiration><Days>1</Days></Expiration>\
            <NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration></Rule>";
        let plain = bench.bucket("plain", Versioning::Never, rules).await;
        let kept = bench.bucket("kept", Versioning::Enabled, rules).await;
        bench.put(plain, "overwritten", -9, false).await;
        bench.put(plain, "deleted", -9, false).await;
        bench.put(plain, "due", -9, false).await;
        let back = bench.put(kept, "brought back", -9, true).await;
        let marker = bench.mark(kept, "brought back", -9, true).await;
        bench.put(kept, "overwritten", -9, true).await;
        bench.mark(kept, "marker", -9, false).await;
        let mut visits = Vec::new();
        for (name, due) in [("plain", 3), ("kept", 3)] {
            let (target, since) = bench.target(name);
            let lines = bench.lines(target.kind.bucket).await;
            let mut visit = Visit { worker: &bench.worker, target: &target, since, done: Done::default(), failures: 0 };
            let endings = visit.judge(&mut Walk::default(), &lines, lines.len()).await;
            assert_eq!(endings.len(), due, "{endings:?}");
            visits.push((target, since, endings));
        }
        let over = bench.put(plain, "overwritten", -9, false).await;
        bench.store().delete(plain, b"deleted", Which::Newest, Expect::Anything, TODAY).await.unwrap();
        // Back to what it was: the version behind the marker is the current one again.
        bench.store().delete(kept, b"brought back", Which::Sequence(marker.sequence), Expect::Anything, TODAY).await.unwrap();
        bench.put(kept, "overwritten", 0, true).await;
        let null = bench.put(kept, "marker", 0, false).await;
        for (target, since, endings) in visits {
            let mut visit = Visit { worker: &bench.worker, target: &target, since, done: Done::default(), failures: 0 };
            visit.carry_out(endings).await.unwrap();
            let expired = u64::from(target.kind.bucket == plain);
            assert_eq!(visit.done, Done { expired, changed: 3 - expired, ..Done::default() });
        }
        assert_eq!(bench.all(plain).await, [("overwritten".into(), of(&over))]);
        let all = bench.all(kept).await;
        assert_eq!(all[..2], [("brought back".into(), of(&back)), ("marker".into(), of(&null))]);
        assert_eq!(all.len(), 4, "both versions of what was overwritten: {all:?}");
    });
}

#[test]
fn a_bucket_with_other_settings_is_left() {
    on_store(1, |bench| async move {
        let id = bench.bucket("bucket", Versioning::Never, ONE_DAY).await;
        bench.put(id, "a", -9, false).await;
        let (target, since) = bench.target("bucket");
        // With other rules, and without any.
        let later = bench.meta(Versioning::Never, "<Rule><Filter/><Expiration><Days>100</Days></Expiration></Rule>");
        let enabled = bench.meta(Versioning::Enabled, ONE_DAY);
        for meta in [later, enabled, BucketMeta::new(OWNER, 1)] {
            let (_, bucket) = bench.store().bucket(b"bucket").unwrap();
            bench.store().change_bucket(id, bucket.at.sequence, &meta.to_bytes(), 2).await.unwrap();
            let (done, left) = bench.worker.bucket(&target, since).await;
            assert!(matches!(left, Some(Left::Changed)), "{left:?}");
            assert_eq!((done, bench.names(id).await), (Done::default(), vec!["a".to_string()]));
        }
        // With something else of it changed the rules are what they were.
        let (_, bucket) = bench.store().bucket(b"bucket").unwrap();
        let mut meta = bench.meta(Versioning::Never, ONE_DAY);
        meta.set_document(Document::Tagging, Some(b"tags"));
        bench.store().change_bucket(id, bucket.at.sequence, &meta.to_bytes(), 3).await.unwrap();
        let (done, left) = bench.worker.bucket(&target, since).await;
        assert!(left.is_none() && done.expired == 1, "{done:?} {left:?}");
        bench.store().delete_bucket(id, TODAY).await.unwrap();
        let (_, left) = bench.worker.bucket(&target, since).await;
        assert!(matches!(left, Some(Left::Changed)), "{left:?}");
    });
}

/// A disk that fails writes ends nothing for the worker: the next round does it.
#[test]
fn what_fails_is_done_in_the_next_round() {
    on_store(1, |bench| async move {
        let id = bench.bucket("bucket", Versioning::Never, ONE_DAY).await;
        for number in 0..8 {
            bench.put(id, &format!("{number}"), -9, false).await;
        }
        let disk = bench.world.disk.sim().unwrap();
        disk.borrow_mut().fail_writes(1_000_000);
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 8, failed: 8, ..Done::default() });
        assert_eq!(bench.names(id).await.len(), 8);
        disk.borrow_mut().fail_writes(0);
        assert_eq!(bench.round("bucket", 0).await, Done { seen: 8, expired: 8, ..Done::default() });
        assert_eq!(bench.names(id).await.len(), 0);
    });
}

/// A store that is full is not so for deletions.
#[test]
fn a_full_store_is_emptied() {
    on_store(1, |bench| async move {
        let id = bench.bucket("bucket", Versioning::Never, ONE_DAY).await;
        let put = async |number: u32| {
            let mut put = bench.store().put(id, format!("{number}").as_bytes())?;
            put.write(bench.store().slab().run(1 << 20)?).await?;
            put.finish(Attributes { time_ms: at(-9), ..Attributes::default() }).await
        };
        let mut count = 0;
        let full = loop {
            match put(count).await {
                Ok(_) => count += 1,
                Err(failure) => break failure,
            }
        };
        assert!(matches!(&full, Failure::Failed(error) if error.kind() == ErrorKind::Unavailable), "{full}");
        assert_eq!(bench.round("bucket", 0).await, Done { seen: count.into(), expired: count.into(), ..Done::default() });
        put(0).await.unwrap();
    });
}

#[test]
fn rounds_go_on_until_the_core_is_asked_to_stop() {
    on_store(1, |bench| async move {
        let id = bench.bucket("bucket", Versioning::Never, ONE_DAY).await;
        bench.bucket("other", Versioning::Never, ONE_DAY).await;
        let second = const { NonZeroU32::new(1).unwrap() };
        let settings = Lifecycle { interval_seconds: second, day_seconds: second };
        let (core, clock) = (bench.worker.core.clone(), bench.clock.clone());
        let running = core.spawn(run(core.clone(), bench.store().clone(), settings, move || clock.0.get()));
        let put = async |name: &str, put_ms: u64| {
            let mut put = bench.store().put(id, name.as_bytes()).unwrap();
            put.write(bench.store().slab().run(512).unwrap()).await.unwrap();
            put.finish(Attributes { time_ms: put_ms, ..Attributes::default() }).await.unwrap();
        };
        // Short days are not rounded.
        put("a", TODAY - 999).await;
        for round in 0..2 {
            put("due", TODAY - 1000).await;
            let until = core.now().saturating_add(Nanos::from_secs(60));
            while bench.names(id).await.len() > 1 {
                assert!(core.now() < until, "what is due is there in round {round}");
                core.sleep(Nanos::from_millis(20)).await;
            }
            assert_eq!(bench.names(id).await, ["a"]);
        }
        core.stop();
        running.await.unwrap();
    });
}
