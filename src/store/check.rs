//! Every item that is needed, read and compared with its checksums.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::catalog::Catalog;
use super::engine::{Engine, ended};
use super::failure::{Outcome, shown};
use super::log::Written;
use super::read::Found;
use crate::reactor::Task;
use crate::wire::store::item::{ExtentRef, What};

/// Items read side by side.
const READERS: usize = 16;
/// Items looked up at once.
const PAGE: usize = 4096;

/// Bucket and name of an object.
pub type Owner = (u32, Box<[u8]>);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Items that were read.
    pub items: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What is not as it was written, a line each: what it is, and where on the device.
    pub damaged: Vec<String>,
    /// Objects that have lost some of their bytes, by bucket and name.
    pub objects: BTreeSet<Owner>,
}

/// An item to read.
struct Wanted {
    at: Written,
    /// What it is, for people.
    what: String,
    /// Of an object or a part.
    owner: Option<Owner>,
    /// Of an extent.
    extent: Option<u64>,
}

impl Engine {
    /// Reads every item that is needed.
    ///
    /// # Errors
    /// None of what is damaged: that is in what comes back. Only a lack of memory.
    pub async fn check(&self) -> Outcome<Checked> {
        let mut checked = Checked::default();
        let mut lost = BTreeSet::new();
        let mut page = Some(self.inner.catalog.borrow().first_page());
        while let Some(from) = page {
            let mut wanted = Vec::new();
            page = self.inner.catalog.borrow().entries(from, |entry| {
                if wanted.len() == PAGE {
                    return false;
                }
                let item = &entry.item;
                let at =
                    Written { sequence: item.sequence, address: entry.address, item_bytes: entry.item_bytes, head_bytes: entry.head_bytes };
                let name = shown(item.name);
                let (what, is_owned) = match item.what {
                    What::Object(_) => (format!("object '{name}' of bucket {}", item.bucket), true),
                    What::Part(part) => (format!("part {} of an upload of '{name}'", part.fields.part), true),
                    What::Extent => (format!("extent {:#x}", item.sequence), false),
                    What::Upload => (format!("an upload of '{name}'"), false),
                    What::Bucket => (format!("bucket '{name}'"), false),
                    What::Tombstone(_) => (format!("a tombstone of '{name}'"), false),
                    What::Checkpoint(_) => ("a checkpoint".into(), false),
                };
                let owner = is_owned.then(|| (item.bucket, item.name.into()));
                wanted.push(Wanted { at, what, owner, extent: (item.what == What::Extent).then_some(item.sequence) });
                true
            });
            // Forwards over the device.
            wanted.sort_by_key(|wanted| wanted.at.address);
            let mut reading: VecDeque<(Task<Outcome<Option<u64>>>, Wanted)> = VecDeque::new();
            let mut rest = wanted.into_iter();
            loop {
                let next = rest.next();
                let is_last = next.is_none();
                if let Some(wanted) = next {
                    let (engine, at) = (self.clone(), wanted.at);
                    reading.push_back((self.inner.core.spawn(async move { engine.damage(at).await }), wanted));
                }
                while reading.len() > if is_last { 0 } else { READERS } {
                    let (task, wanted) = reading.pop_front().expect("it was counted");
                    checked.items += 1;
                    checked.bytes += u64::from(wanted.at.item_bytes);
                    if let Some(byte) = ended(task).await? {
                        checked.damaged.push(format!("{}: byte {byte} of the device is not what was written there", wanted.what));
                        checked.objects.extend(wanted.owner);
                        lost.extend(wanted.extent);
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        owners(&self.inner.catalog.borrow(), &lost, &mut checked);
        Ok(checked)
    }

    /// Where an item is not as it was written. Compaction may move it meanwhile: then the copy was verified.
    async fn damage(&self, at: Written) -> Outcome<Option<u64>> {
        let address = match self.inner.reader.item(&at, 0..u32::MAX).await {
            Ok(Found::Item(_)) => return Ok(None),
            Ok(Found::NoItem) => at.address,
            Ok(Found::Rotten(block)) => at.address + u64::from(block),
            // The device cannot read it.
            Err(_) => at.address,
        };
        let is_there = self.inner.catalog.borrow().needed_at(at.address);
        Ok(is_there.then_some(address))
    }
}

/// The objects and parts that lost extents are of.
fn owners(catalog: &Catalog, lost: &BTreeSet<u64>, checked: &mut Checked) {
    if lost.is_empty() {
        return;
    }
    let mut holders: BTreeMap<u64, Vec<Owner>> = BTreeMap::new();
    catalog.each_spread(|bucket, name, extents| {
        let mut open: Vec<ExtentRef> = extents.to_vec();
        while let Some(extent) = open.pop() {
            if lost.contains(&extent.id()) {
                holders.entry(extent.id()).or_default().push((bucket, name.into()));
            }
            open.extend(catalog.listed(extent.id()).unwrap_or_default());
        }
    });
    for (id, of) in holders {
        let names: Vec<String> = of.iter().map(|(bucket, name)| format!("'{}' of bucket {bucket}", shown(name))).collect();
        checked.damaged.push(format!("extent {id:#x} is of object {}", names.join(", ")));
        checked.objects.extend(of);
    }
}
