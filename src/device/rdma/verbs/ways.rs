//! Datagrams: the ways to other ports, resolved once each, and where the headers of what arrives go.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::rc::{Rc, Weak};

use super::ffi::{AddressHandle, Mr, Pd, Piece, Rights, WayAttr};
use crate::base::{Error, Result};
use crate::mem::{PageKind, Region, RegionConfig};

/// The port at the other end of a way: GID and local identifier.
pub type To = (Ipv6Addr, u16);

/// The ways in use, each shared by all that send by it.
#[derive(Default)]
pub struct Ways {
    known: HashMap<To, Weak<AddressHandle>>,
}

impl Ways {
    /// The way to a port, resolved if nobody uses it yet.
    ///
    /// # Errors
    /// The error number: there is no such way, most often.
    pub fn to(&mut self, pd: &Rc<Pd>, to: To, attr: WayAttr) -> Result<Rc<AddressHandle>, i32> {
        if let Some(known) = self.known.get(&to).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Rc::new(AddressHandle::new(pd, attr)?);
        self.known.retain(|_, way| way.strong_count() > 0);
        self.known.insert(to, Rc::downgrade(&made));
        Ok(made)
    }
}

/// Memory of its own for what devices put before datagrams. Nobody reads it, so all receives share it.
pub struct Headers {
    mr: Mr,
    address: u64,
}

impl Headers {
    /// A page, registered for local use.
    pub fn new(pd: &Rc<Pd>) -> Result<Headers> {
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(4096) })?;
        let address = region.base() as u64;
        let mr = Mr::new(pd, &region, address, region.bytes(), Rights::local(false))
            .map_err(|errno| Error::from_errno("registering a page for the headers of datagrams", errno))?;
        Ok(Headers { mr, address })
    }

    /// Its first bytes.
    #[inline]
    pub fn piece(&self, length: u32) -> Piece {
        Piece { addr: self.address, length, lkey: self.mr.lkey }
    }
}
