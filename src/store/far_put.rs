//! A put whose name another core has: pieces gather here, and go there a mebibyte at a time, or with the commit.

use super::crew::Remote;
use super::draft::Piece;
use super::engine::{Attributes, Engine};
use super::failure::Outcome;
use super::index::Version;
use super::put;
use crate::mem::{Parcel, Run};
use crate::wire::store::DATA_MAX;
use crate::wire::store::sums::Sums;

/// A put under way.
pub(super) struct FarPut {
    engine: Engine,
    owner: usize,
    bucket: u32,
    name: Box<[u8]>,
    target: put::Target,
    /// What is yet to be sent.
    data: Vec<Piece>,
    bytes: u32,
    /// The put, once more was written than goes with its commit.
    there: Option<Remote<Box<put::Put>>>,
    /// A piece could not be sent, or whoever wrote it gave up.
    is_broken: bool,
    /// Of all bytes, for who writes them.
    sums: Sums,
}

/// Pieces on their way, with their checksums.
type Parcels = Vec<(Parcel, Vec<u64>)>;

fn parcels(data: Vec<Piece>) -> Parcels {
    data.into_iter().map(|Piece { run, sums }| (Run::detach(run), sums)).collect()
}

async fn write_all(engine: &Engine, put: &mut put::Put, data: Parcels) -> Outcome<()> {
    for (parcel, sums) in data {
        put.write(Piece { run: engine.welcome(parcel), sums }).await?;
    }
    Ok(())
}

impl FarPut {
    /// One of an object of this bucket and name, which the core `owner` has.
    pub fn new(engine: &Engine, owner: usize, (bucket, name): (u32, &[u8]), target: put::Target) -> FarPut {
        FarPut {
            engine: engine.clone(),
            owner,
            bucket,
            name: name.into(),
            target,
            data: Vec::new(),
            bytes: 0,
            there: None,
            is_broken: false,
            sums: Sums::default(),
        }
    }

    /// The CRC64NVME of the bytes so far.
    pub fn crc64nvme(&self) -> u64 {
        self.sums.of_all()
    }

    /// Takes the next piece.
    pub async fn write(&mut self, mut piece: Piece) -> Outcome<()> {
        if self.bytes + piece.run.len() > DATA_MAX {
            self.send().await?;
        }
        // Once, for both cores.
        piece.sum();
        self.sums.update_known(piece.run.as_slice(), &piece.sums);
        self.bytes += piece.run.len();
        self.data.push(piece);
        Ok(())
    }

    /// Sends what has gathered, and waits while too much is on its way.
    async fn send(&mut self) -> Outcome<()> {
        put::check_whole(self.is_broken, &self.name)?;
        self.is_broken = true;
        let data = parcels(std::mem::take(&mut self.data));
        self.bytes = 0;
        // The checksum of all of it stays.
        self.sums.take();
        if let Some(there) = &self.there {
            let sent = there.ask(async move |engine: Engine, mut put: Box<put::Put>| {
                let written = write_all(&engine, &mut put, data).await;
                (Some(put), written)
            });
            sent.wait().await?;
        } else {
            let (bucket, name, target) = (self.bucket, self.name.clone(), self.target);
            let (there, begun) =
                Remote::make(&self.engine, self.owner, async move |engine: Engine| match engine.put_to(bucket, &name, target) {
                    Ok(mut put) => {
                        let written = write_all(&engine, &mut put, data).await;
                        (Some(put), written)
                    }
                    Err(failure) => (None, Err(failure)),
                });
            begun.wait().await?;
            self.there = Some(there);
        }
        self.is_broken = false;
        Ok(())
    }

    /// Commits.
    pub async fn finish(self, attributes: Attributes) -> Outcome<Version> {
        put::check_whole(self.is_broken, &self.name)?;
        let FarPut { engine, owner, bucket, name, target, data, there, .. } = self;
        let data = parcels(data);
        let finished = match &there {
            None => engine.ask(owner, async move |engine: Engine| {
                let mut put = engine.put_to(bucket, &name, target)?;
                write_all(&engine, &mut put, data).await?;
                put.finish(attributes).await
            }),
            Some(there) => there.ask(async move |engine: Engine, mut put: Box<put::Put>| match write_all(&engine, &mut put, data).await {
                Ok(()) => (None, put.finish(attributes).await),
                Err(failure) => (None, Err(failure)),
            }),
        };
        finished.wait().await
    }
}
