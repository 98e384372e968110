//! Lists of an index: the names of a bucket with their newest version, or with all of them.
//!
//! A page costs by its lines, however much lies below a prefix, and by the delete markers between them.

use super::{Cursor, DELETE_MARKER, Index, Key, NULL, Version, name_of, rank};

/// Versions of one name a list steps over before it looks for the next name in the tree.
const STEPS_MAX: usize = 8;

/// Where a page of a list begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After<'a> {
    /// With the first.
    Nothing,
    /// Behind this name.
    Name(&'a [u8]),
    /// Behind all that begins with this.
    Prefix(&'a [u8]),
}

/// What is to be listed.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The bucket's identifier.
    pub bucket: u32,
    /// What the names begin with.
    pub prefix: &'a [u8],
    /// Names that have this behind the prefix are told as one, up to its end.
    pub delimiter: &'a [u8],
    /// Where the page begins.
    pub after: After<'a>,
    /// Lines at most.
    pub limit: usize,
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// An object: its newest version.
    Object(Box<[u8]>, Version),
    /// All names that begin with this.
    Prefix(Box<[u8]>),
}

/// Where a page of a list of versions begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind<'a> {
    /// With the first.
    Nothing,
    /// Behind all versions of this name.
    Name(&'a [u8]),
    /// Behind the version of this name with this sequence number, which need not be there any more: with those put before it. Behind all
    /// versions of a name that is told by its prefix.
    Version(&'a [u8], u64),
    /// Behind all that begins with this.
    Prefix(&'a [u8]),
}

/// Of which names the versions are to be listed.
#[derive(Clone, Copy, Debug)]
pub struct VersionQuery<'a> {
    /// The bucket's identifier.
    pub bucket: u32,
    /// What the names begin with.
    pub prefix: &'a [u8],
    /// Names that have this behind the prefix are told as one, up to its end.
    pub delimiter: &'a [u8],
    /// Where the page begins.
    pub behind: Behind<'a>,
    /// Lines at most.
    pub limit: usize,
}

/// A line of a list of versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionLine {
    /// A version, or a delete marker.
    Version {
        /// The object's name.
        name: Box<[u8]>,
        /// What it is.
        version: Version,
        /// It is the newest of its name.
        is_latest: bool,
    },
    /// All names that begin with this.
    Prefix(Box<[u8]>),
}

impl Index {
    /// A page of a list: objects by their newest version, and prefixes below which there are some. Names that end with a delete marker are
    /// left out: when there were `hidden_max` of them, the list ends before its page does, and goes on behind the name that is given.
    pub fn list(&self, query: &Query, hidden_max: usize) -> (Vec<Line>, Option<Box<[u8]>>) {
        let Query { bucket, prefix, delimiter, after, limit } = *query;
        let mut hidden = 0;
        let mut lines = Vec::new();
        let from = |name: &[u8], rank| self.seek(&Key { bucket, name, rank });
        let behind = |prefix: &[u8]| successor(prefix).map(|next| from(&next, 0));
        let start = match after {
            After::Name(name) if name >= prefix => Some(from(name, u64::MAX)),
            After::Prefix(before) if before >= prefix || prefix.starts_with(before) => behind(before),
            _ => Some(from(prefix, 0)),
        };
        let mut at = start;
        while lines.len() < limit {
            let Some(cursor) = at else { break };
            let Some(id) = self.order.get(cursor) else { break };
            let record = &self.records[id];
            let name = name_of(&self.names, record);
            if record.bucket != bucket || !name.starts_with(prefix) {
                break;
            }
            let newest = &self.records[self.newest_from(cursor, bucket, name).expect("this one at least")];
            if newest.flags & DELETE_MARKER != 0 {
                hidden += 1;
                if hidden == hidden_max {
                    return (lines, Some(name.into()));
                }
                at = Some(self.next_name(cursor, bucket, name));
            } else if let Some(end) = find(&name[prefix.len()..], delimiter) {
                let common = &name[..prefix.len() + end];
                lines.push(Line::Prefix(common.into()));
                at = behind(common);
            } else {
                lines.push(Line::Object(name.into(), newest.version()));
                at = Some(self.next_name(cursor, bucket, name));
            }
        }
        (lines, None)
    }

    /// Behind all versions of a name.
    fn next_name(&self, cursor: Cursor, bucket: u32, name: &[u8]) -> Cursor {
        let mut cursor = cursor;
        for _ in 0..STEPS_MAX {
            cursor = self.order.next(cursor);
            if self.order.get(cursor).is_none_or(|id| !self.is_of(id, bucket, name)) {
                return cursor;
            }
        }
        self.seek(&Key { bucket, name, rank: u64::MAX })
    }

    /// A page of a list of all versions: by name, and of each name the newest first. Delete markers count, for prefixes too.
    pub fn list_versions(&self, query: &VersionQuery) -> Vec<VersionLine> {
        let VersionQuery { bucket, prefix, delimiter, behind, limit } = *query;
        let mut lines = Vec::new();
        let from = |name: &[u8], rank| self.seek(&Key { bucket, name, rank });
        let behind_all = |prefix: &[u8]| successor(prefix).map(|next| from(&next, 0));
        // Of the name that the page begins in, versions from this sequence number on were told.
        let mut told = None;
        let mut at = match behind {
            Behind::Version(name, sequence) if name.strip_prefix(prefix).is_some_and(|rest| find(rest, delimiter).is_none()) => {
                told = Some((name, sequence));
                Some(from(name, 0))
            }
            Behind::Name(name) | Behind::Version(name, _) if name >= prefix => Some(from(name, u64::MAX)),
            Behind::Prefix(before) if before >= prefix || prefix.starts_with(before) => behind_all(before),
            _ => Some(from(prefix, 0)),
        };
        while lines.len() < limit {
            let Some(cursor) = at else { break };
            let Some(id) = self.order.get(cursor) else { break };
            let record = &self.records[id];
            let name = name_of(&self.names, record);
            if record.bucket != bucket || !name.starts_with(prefix) {
                break;
            }
            if let Some(end) = find(&name[prefix.len()..], delimiter) {
                let common = &name[..prefix.len() + end];
                lines.push(VersionLine::Prefix(common.into()));
                at = behind_all(common);
                continue;
            }
            let below = told.filter(|(before, _)| *before == name).map_or(u64::MAX, |(_, sequence)| sequence);
            at = Some(self.versions_of(cursor, bucket, name, below, limit, &mut lines));
        }
        lines
    }

    /// Tells the versions of a name with sequence numbers below one, the newest first, until there are `limit` lines. `cursor` is at the
    /// name's first in order. Gives where the next name begins, if all were told.
    fn versions_of(&self, cursor: Cursor, bucket: u32, name: &[u8], below: u64, limit: usize, lines: &mut Vec<VersionLine>) -> Cursor {
        let newest = self.newest_from(cursor, bucket, name).map(|id| self.records[id].sequence);
        let mut tell = |version: Version| {
            let is_latest = newest == Some(version.sequence);
            lines.push(VersionLine::Version { name: name.into(), version, is_latest });
            lines.len() < limit
        };
        let first = self.order.get(cursor).map(|id| &self.records[id]).filter(|record| record.flags & NULL != 0);
        // The null version is the first in order, and has its turn by its sequence number.
        let mut null = first.map(super::Record::version).filter(|null| null.sequence < below);
        let mut cursor = match first {
            _ if below < u64::MAX => self.seek(&Key { bucket, name, rank: rank(false, below).saturating_add(1) }),
            Some(_) => self.order.next(cursor),
            None => cursor,
        };
        loop {
            let next = self.order.get(cursor).filter(|&id| self.is_of(id, bucket, name)).map(|id| self.records[id].version());
            let is_null_next = null.is_some_and(|null| next.is_none_or(|next| next.sequence < null.sequence));
            let told = if is_null_next { null.take() } else { next };
            match told {
                None => return cursor,
                Some(version) if !tell(version) => return cursor,
                Some(_) if is_null_next => {}
                Some(_) => cursor = self.order.next(cursor),
            }
        }
    }
}

/// Where the first `delimiter` in `name` ends; an empty one is nowhere.
fn find(name: &[u8], delimiter: &[u8]) -> Option<usize> {
    let length = delimiter.len();
    if length == 0 {
        return None;
    }
    name.windows(length).position(|part| part == delimiter).map(|at| at + length)
}

/// The first name behind all that begin with `prefix`; `None` when there can be none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::index::tests::version;
    use crate::store::index::{Index, Put};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A list by looking at everything.
    fn naive(model: &BTreeMap<(u32, Vec<u8>), (u64, bool)>, query: &Query) -> Vec<(Vec<u8>, Option<u64>)> {
        let mut lines: Vec<(Vec<u8>, Option<u64>)> = Vec::new();
        for ((bucket, name), &(sequence, is_delete_marker)) in model {
            if *bucket != query.bucket || !name.starts_with(query.prefix) || is_delete_marker {
                continue;
            }
            let line = match find(&name[query.prefix.len()..], query.delimiter) {
                Some(end) => (name[..query.prefix.len() + end].to_vec(), None),
                None => (name.clone(), Some(sequence)),
            };
            let is_behind = match query.after {
                After::Nothing => true,
                After::Name(after) => name.as_slice() > after,
                After::Prefix(after) => name.as_slice() > after && !name.starts_with(after),
            };
            if is_behind && lines.last() != Some(&line) && lines.len() < query.limit {
                lines.push(line);
            }
        }
        lines
    }

    /// Versions by bucket, name and how much newer than they others can be; and whether each is the null version.
    type Versions = BTreeMap<(u32, Vec<u8>, u64), (bool, bool)>;

    /// Name or prefix, and of a version its number and whether it is the newest.
    type Told = (Vec<u8>, Option<(u64, bool)>);

    /// A list of versions by looking at everything.
    fn naive_versions(model: &Versions, query: &VersionQuery) -> Vec<Told> {
        let mut lines: Vec<Told> = Vec::new();
        let mut before: Option<&Vec<u8>> = None;
        for (bucket, name, age) in model.keys().filter(|(bucket, name, _)| *bucket == query.bucket && name.starts_with(query.prefix)) {
            let (sequence, is_latest) = (u64::MAX - age, before != Some(name));
            assert_eq!(*bucket, query.bucket);
            before = Some(name);
            let line = match find(&name[query.prefix.len()..], query.delimiter) {
                Some(end) => (name[..query.prefix.len() + end].to_vec(), None),
                None => (name.clone(), Some((sequence, is_latest))),
            };
            let is_behind = match query.behind {
                Behind::Nothing => true,
                Behind::Name(after) => name.as_slice() > after,
                Behind::Version(after, number) => name.as_slice() > after || name == after && sequence < number && line.1.is_some(),
                Behind::Prefix(after) => name.as_slice() > after && !name.starts_with(after),
            };
            if is_behind && lines.last() != Some(&line) && lines.len() < query.limit {
                lines.push(line);
            }
        }
        lines
    }

    fn told(index: &Index, query: &VersionQuery) -> Vec<Told> {
        let line = |line| match line {
            VersionLine::Version { name, version, is_latest } => (name.into_vec(), Some((version.sequence, is_latest))),
            VersionLine::Prefix(prefix) => (prefix.into_vec(), None),
        };
        index.list_versions(query).into_iter().map(line).collect()
    }

    proptest! {
        #[test]
        fn as_a_map(
            steps in prop::collection::vec((0u8..5, 1u32..3, "[ab/\u{ff}]{0,5}"), 1..300),
            prefix in "[ab/]{0,2}", delimiter in "/?", after in "[ab/]{0,3}", how in 0..3, limit in 1usize..20, hidden_max in 1usize..8,
        ) {
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            let is = |(sequence, is_delete_marker)| Version { is_delete_marker, ..version(sequence, true) };
            for (sequence, (step, bucket, name)) in steps.into_iter().enumerate() {
                let (sequence, name) = (sequence as u64 + 1, name.into_bytes());
                if step < 4 {
                    let put = (sequence, step >= 2);
                    let before = model.insert((bucket, name.clone()), put);
                    prop_assert_eq!(index.put(bucket, &name, &is(put)), Put::Taken(before.map(is)));
                } else {
                    let gone = index.end(bucket, &name, true, 0, u64::MAX);
                    prop_assert_eq!(gone, model.remove(&(bucket, name)).map(is));
                }
            }
            for ((bucket, name), &newest) in &model {
                prop_assert_eq!(index.newest(*bucket, name), Some(is(newest)));
            }
            let after = match how {
                0 => After::Nothing,
                1 => After::Name(after.as_bytes()),
                _ => After::Prefix(after.as_bytes()),
            };
            let query = Query { bucket: 1, prefix: prefix.as_bytes(), delimiter: delimiter.as_bytes(), after, limit };
            let (mut lines, mut rest) = index.list(&query, hidden_max);
            while let Some(name) = rest.take() {
                let query = Query { after: After::Name(&name), limit: limit - lines.len(), ..query };
                let (more, next) = index.list(&query, hidden_max);
                prop_assert!(next.as_ref().is_none_or(|next| *next > name), "it goes on");
                lines.extend(more);
                rest = next;
            }
            let lines: Vec<(Vec<u8>, Option<u64>)> = lines.into_iter().map(|line| match line {
                Line::Object(name, version) => (name.into(), Some(version.sequence)),
                Line::Prefix(prefix) => (prefix.into(), None),
            }).collect();
            prop_assert_eq!(lines, naive(&model, &query));
        }

        #[test]
        fn versions_as_a_map(
            steps in prop::collection::vec((0u8..8, 1u32..3, "[ab/]{0,3}"), 1..200),
            prefix in "[ab/]{0,2}", delimiter in "/?", after in "[ab/]{0,3}", how in 0..4, number in 0u64..220, limit in 1usize..20,
        ) {
            let (mut index, mut model) = (Index::default(), Versions::new());
            for (sequence, (step, bucket, name)) in steps.into_iter().enumerate() {
                let (sequence, name) = (sequence as u64 + 1, name.into_bytes());
                let (is_null, is_delete_marker) = (step % 2 == 0, step >= 5);
                let of_name = |(key, of, _): &(u32, Vec<u8>, u64)| *key == bucket && *of == name;
                if step == 4 {
                    // The newest goes.
                    let newest = model.iter().find(|(key, _)| of_name(key)).map(|(key, &(is_null, _))| (key.clone(), is_null));
                    if let Some((key, is_null)) = newest {
                        prop_assert!(index.end(bucket, &name, is_null, u64::MAX - key.2, u64::MAX).is_some());
                        model.remove(&key);
                    }
                    continue;
                }
                model.retain(|key, (was_null, _)| !(is_null && *was_null && of_name(key)));
                model.insert((bucket, name.clone(), u64::MAX - sequence), (is_null, is_delete_marker));
                let taken = index.put(bucket, &name, &Version { is_delete_marker, ..version(sequence, is_null) });
                prop_assert!(matches!(taken, Put::Taken(_)));
            }
            let behind = match how {
                0 => Behind::Nothing,
                1 => Behind::Name(after.as_bytes()),
                2 => Behind::Version(after.as_bytes(), number),
                _ => Behind::Prefix(after.as_bytes()),
            };
            let query = VersionQuery { bucket: 1, prefix: prefix.as_bytes(), delimiter: delimiter.as_bytes(), behind, limit };
            prop_assert_eq!(told(&index, &query), naive_versions(&model, &query));
            // Page by page they are the same as all at once, and each line says what the version is.
            let all = VersionQuery { behind: Behind::Nothing, limit: usize::MAX, ..query };
            let (mut paged, mut last) = (Vec::new(), None::<VersionLine>);
            loop {
                let behind = match &last {
                    None => Behind::Nothing,
                    Some(VersionLine::Version { name, version, .. }) => Behind::Version(name, version.sequence),
                    Some(VersionLine::Prefix(prefix)) => Behind::Prefix(prefix),
                };
                let page = index.list_versions(&VersionQuery { behind, limit, ..all });
                let Some(end) = page.last() else { break };
                last = Some(end.clone());
                paged.extend(page);
                prop_assert!(paged.len() <= model.len(), "a line comes again");
            }
            prop_assert_eq!(&paged, &index.list_versions(&all));
            for line in &paged {
                let VersionLine::Version { name, version: is, .. } = line else { continue };
                let (is_null, is_delete_marker) = model[&(1, name.to_vec(), u64::MAX - is.sequence)];
                prop_assert_eq!(*is, Version { is_delete_marker, ..version(is.sequence, is_null) });
            }
        }
    }
}
