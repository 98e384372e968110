//! Memory that knows who may write where.

use std::ops::Range;

use crate::base::Rkey;
use crate::proto::rc::{Access, AccessFault, Change, Memory, Sge};

/// A flat piece of memory at some base address, with grants to the peer and windows the engine may fill. Writing anywhere else
/// is the engine's bug and panics.
#[derive(Clone, Debug)]
pub struct Arena {
    base: u64,
    bytes: Vec<u8>,
    grants: Vec<Grant>,
    open: Vec<Sge>,
}

#[derive(Clone, Debug)]
struct Grant {
    rkey: Rkey,
    range: Range<u64>,
    read: bool,
    write: bool,
}

impl Arena {
    /// Memory with these contents at `base`, granted to nobody.
    pub fn new(base: u64, bytes: Vec<u8>) -> Arena {
        Arena { base, bytes, grants: Vec::new(), open: Vec::new() }
    }

    /// Grants `range` (offsets) under `rkey`.
    pub fn grant(&mut self, rkey: Rkey, range: Range<u64>, read: bool, write: bool) {
        self.grants.push(Grant { rkey, range: self.base + range.start..self.base + range.end, read, write });
    }

    /// Ends a grant.
    pub fn revoke(&mut self, rkey: Rkey) {
        self.grants.retain(|grant| grant.rkey != rkey);
    }

    /// Lets the engine fill `sge`, until it is shut.
    pub fn open(&mut self, sge: Sge) {
        self.open.push(sge);
    }

    /// Ends what [`open`](Self::open) allowed.
    pub fn shut(&mut self, sge: Sge) {
        let at = self.open.iter().position(|open| *open == sge).expect("was opened");
        self.open.swap_remove(at);
    }

    /// The address of the byte at `offset`.
    pub fn addr(&self, offset: u64) -> u64 {
        self.base + offset
    }

    /// The bytes a piece names.
    pub fn bytes(&self, sge: Sge) -> &[u8] {
        let start = (sge.addr - self.base) as usize;
        &self.bytes[start..start + sge.len as usize]
    }

    /// All bytes.
    pub fn all(&self) -> &[u8] {
        &self.bytes
    }

    fn may_place(&self, addr: u64, len: u64) -> bool {
        let within = |range: Range<u64>| addr >= range.start && addr + len <= range.end;
        self.open.iter().any(|sge| within(sge.addr..sge.addr + u64::from(sge.len)))
            || self.grants.iter().any(|grant| grant.write && within(grant.range.clone()))
    }
}

impl Memory for Arena {
    type Payload = [u8];

    fn check(&self, rkey: Rkey, va: u64, len: u32, access: Access) -> Result<u64, AccessFault> {
        assert_ne!(len, 0, "nothing to check");
        let end = va.checked_add(u64::from(len)).ok_or(AccessFault)?;
        let granted = self.grants.iter().any(|grant| {
            let allowed = match access {
                Access::Read => grant.read,
                Access::Write => grant.write,
                Access::Atomic => grant.read && grant.write,
            };
            grant.rkey == rkey && allowed && va >= grant.range.start && end <= grant.range.end
        });
        if granted { Ok(va) } else { Err(AccessFault) }
    }

    fn place(&mut self, addr: u64, payload: &[u8], offset: u32, len: u32) {
        assert_ne!(len, 0, "nothing to place");
        assert!(self.may_place(addr, u64::from(len)), "{len} bytes at {addr:#x} lie outside what was granted or posted");
        let start = (addr - self.base) as usize;
        self.bytes[start..start + len as usize].copy_from_slice(&payload[offset as usize..(offset + len) as usize]);
    }

    fn atomic(&mut self, rkey: Rkey, va: u64, change: Change) -> Result<u64, AccessFault> {
        assert_eq!(va % 8, 0, "the engine asks for aligned numbers only");
        let start = (self.check(rkey, va, 8, Access::Atomic)? - self.base) as usize;
        let number = &mut self.bytes[start..start + 8];
        let original = u64::from_ne_bytes((&*number).try_into().expect("eight bytes"));
        number.copy_from_slice(&change.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn store(&mut self, addr: u64, original: u64) {
        assert!(self.may_place(addr, 8), "eight bytes at {addr:#x} lie outside what was posted");
        let start = (addr - self.base) as usize;
        self.bytes[start..start + 8].copy_from_slice(&original.to_ne_bytes());
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), AccessFault> {
        let before = self.grants.len();
        self.revoke(rkey);
        if self.grants.len() < before { Ok(()) } else { Err(AccessFault) }
    }
}
