//! Renaming an object: its newest version under another name of its bucket, in the place of what that name has.
//!
//! Both names are locked. The version is written under the new name, and once that is stable the old one gets its tombstone: a crash leaves
//! the object under the old name, under both, or under the new one, never under none. On one core both are told at once, so nobody sees
//! anything else than before or after. Where another core has the new name, for a moment both names have the object; and wherever the
//! tombstone cannot be written both have it until one is ended.
//!
//! Extents belong to a shard: where both names are of one they are named again, and are written again where not.
//!
//! Permits come before locks, and both in the order of cores: who has a lock waits for nobody who waits for it.

use super::crew::{Remote, Reply};
use super::draft::{Data, Draft, Kind};
use super::engine::{Attributes, Engine, Expect, Which, ended};
use super::failure::{Failure, Outcome};
use super::index::Version;
use super::locks::Guard;
use super::log::Appended;
use super::put::{self, Held, Settled};
use super::recover::core_of;
use super::segments::Purpose;
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::mem::{Parcel, Run, Shared};
use crate::wire::store::item::{Class, Fields};
use crate::wire::store::{name_crc, shard};

/// What a rename is to be.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The name it has.
    pub from: Box<[u8]>,
    /// The name it gets.
    pub to: Box<[u8]>,
    /// What belongs to it then.
    pub properties: Box<[u8]>,
    /// What must be so of the name it has: what was seen of it.
    pub expect_from: Expect,
    /// What must be so of the name it gets.
    pub expect_to: Expect,
    /// The time, milliseconds since 1970 (UTC).
    pub time_ms: u64,
}

impl Engine {
    /// Renames an object whose name is of this core's.
    ///
    /// # Errors
    /// `NoSuchObject`, `Precondition`, `TooLong`, or the device's.
    pub(super) async fn rename(&self, bucket: u32, rename: Rename) -> Outcome<Version> {
        put::check_lengths(&rename.to, &rename.properties)?;
        self.check_writable()?;
        let permit = self.inner.rename_permits.lock(0).await;
        let engine = self.clone();
        ended(self.start(permit, async move {
            let cores = engine.inner.crew.cores();
            match core_of(shard(bucket, &rename.to), cores) {
                to if to == engine.inner.crew.index() => engine.rename_here(bucket, rename).await,
                to => engine.rename_to(to, bucket, rename).await,
            }
        }))
        .await
    }

    /// Both names are this core's.
    async fn rename_here(&self, bucket: u32, rename: Rename) -> Outcome<Version> {
        let Rename { from, to, properties, expect_from, expect_to, time_ms } = rename;
        let (one, other) = (name_crc(bucket, &from), name_crc(bucket, &to));
        let _locks: (Guard, Option<Guard>) = {
            let first = self.inner.locks.lock(one.min(other)).await;
            (first, if one == other { None } else { Some(self.inner.locks.lock(one.max(other)).await) })
        };
        let _entered = (self.judge(bucket, &from, Which::Newest, expect_from)?, self.judge(bucket, &to, Which::Newest, expect_to)?);
        self.pay(bucket, &from).await?;
        self.pay(bucket, &to).await?;
        let mut get = self.get(bucket, &from, Which::Newest, 0..u64::MAX).await?;
        let (version, tags, number) = (get.version, get.tags().await?, number_of(&get.version));
        let to_shard = shard(bucket, &to);
        let (held, data) = if shard(bucket, &from) == to_shard && version.has_extents {
            let held = Held::new(self);
            held.join(&get.extents());
            (held, Data::default())
        } else {
            let mut put = self.put_to(bucket, &to, put::Target::Object)?;
            while let Some(part) = get.next().await? {
                put.write(self.copy_of(&part)?).await?;
            }
            let Settled { held, data, .. } = put.settle(to_shard).await?;
            if version.has_extents {
                // As for every object: what names extents does not outlive them.
                self.settle().await?;
            }
            (held, data)
        };
        let fields = Fields { upload: 0, tag_bytes: tags.len() as u16, ..get.fields };
        drop(get);
        put::check_lengths(&to, &[&properties[..], &tags].concat())?;
        let new = Draft {
            kind: Kind::Object(fields, held.extents()),
            shard: to_shard,
            time_ms: version.time_ms,
            bucket,
            number: Some(0),
            name: to.clone(),
            properties: [properties, tags].concat().into(),
        };
        let old = tombstone(bucket, from, number, time_ms);
        let put = self.inner.log.append(Purpose::Put, new, data).await.map_err(Failure::from);
        let Appended { at: new_at, draft: new, .. } = match put {
            Ok(put) => put,
            Err(failure) => {
                let failed = Err(failure);
                held.end(&failed);
                return failed;
            }
        };
        // The old name goes when the new one is stable.
        let ended = match self.settle().await {
            Ok(()) => self.inner.log.append(Purpose::Delete, old, Vec::new()).await.map_err(Failure::from),
            Err(failure) => Err(failure),
        };
        // Together, with nothing between them.
        self.tell(&new, new_at);
        // It holds its extents itself, whatever becomes of the old name.
        drop(held);
        let Appended { at, draft: old, .. } = ended.map_err(both)?;
        self.tell(&old, at);
        Ok(self.version(bucket, &to, Which::Null).expect("nobody else changes a name that is locked"))
    }

    /// Bytes of a put's own: those of a get may be shared.
    fn copy_of(&self, part: &Shared) -> Outcome<Run> {
        let mut run = self.slab().run(part.as_slice().len() as u32)?;
        self.inner.env.ledger.copy(run.as_mut_slice(), part.as_slice());
        Ok(run)
    }

    /// Core `owner` has the new name.
    async fn rename_to(&self, owner: usize, bucket: u32, rename: Rename) -> Outcome<Version> {
        let Rename { from, to, properties, expect_from, expect_to, time_ms } = rename;
        let hash = name_crc(bucket, &from);
        let early = if self.inner.crew.index() < owner { Some(self.inner.locks.lock(hash).await) } else { None };
        let name = to.clone();
        let (there, begun): (Remote<Box<put::Put>>, Reply<()>) = Remote::make(self, owner, async move |engine: Engine| {
            let guard = engine.inner.locks.lock(name_crc(bucket, &name)).await;
            match engine.put_to(bucket, &name, put::Target::Object) {
                Ok(put) => match engine.judge(bucket, &name, Which::Newest, expect_to) {
                    Ok(_) => (Some(put.under(guard)), Ok(())),
                    Err(failure) => (None, Err(failure)),
                },
                Err(failure) => (None, Err(failure)),
            }
        });
        begun.wait().await?;
        let _lock = match early {
            Some(guard) => guard,
            None => self.inner.locks.lock(hash).await,
        };
        let _entered = self.judge(bucket, &from, Which::Newest, expect_from)?;
        let mut get = self.get(bucket, &from, Which::Newest, 0..u64::MAX).await?;
        let (version, tags) = (get.version, get.tags().await?);
        while let Some(part) = get.next().await? {
            let parcel: Parcel = self.copy_of(&part)?.detach();
            let written = there.ask(async move |engine: Engine, mut put: Box<put::Put>| {
                let written = put.write(engine.welcome(parcel)).await;
                (Some(put), written)
            });
            written.wait().await?;
        }
        let fields = get.fields;
        drop(get);
        let (etag, listed) = (Some(fields.etag), fields.listed);
        let attributes =
            Attributes { properties, tags, etag, listed, expect: expect_to, time_ms: version.time_ms, ..Attributes::default() };
        let finished = there.ask(async move |_: Engine, put: Box<put::Put>| {
            (None, put.finish_locked(attributes, (fields.part, fields.has_opaque_etag)).await)
        });
        let renamed = finished.wait().await?;
        let ended = async {
            self.pay(bucket, &from).await?;
            // The old name goes when the new one is stable: another core has written that.
            self.settle().await?;
            self.end(Class::Object, bucket, from, number_of(&version), time_ms).await
        };
        ended.await.map_err(both)?;
        Ok(renamed)
    }
}

/// Why the old name could not be ended, when the object had come to its new one.
#[cold]
fn both(failure: Failure) -> Failure {
    if !failure.lacks_room() {
        return failure;
    }
    // Who is told of no room takes nothing for done.
    let error = Error::new(ErrorKind::Failed, format!("the object has both names for now: {failure}"));
    error.remedy("rename it again, or delete one of them").into()
}

fn number_of(version: &Version) -> u64 {
    if version.is_null { 0 } else { version.sequence }
}

fn tombstone(bucket: u32, name: Box<[u8]>, number: u64, time_ms: u64) -> Draft {
    let (shard, properties) = (shard(bucket, &name), Box::default());
    Draft { kind: Kind::Tombstone(Class::Object), shard, time_ms, bucket, number: Some(number), name, properties }
}
