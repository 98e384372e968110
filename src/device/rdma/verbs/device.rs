//! A device by the name a user gives, the port, the address, and what they can do.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::ffi::{Context, DeviceAttr, OpenError, PortAttr};
use crate::base::error::{ErrorKind, describe_errno};
use crate::base::{Error, Result};
use crate::device::rdma::endpoint;
use crate::device::rdma::port::{self, Gid, GidKind, INDEX_MAX};

/// `link_layer` of InfiniBand; RoCE is on Ethernet, which is 2 (`include/infiniband/verbs.h`).
const LINK_LAYER_INFINIBAND: u8 = 1;
/// `enum ibv_port_state`: active.
const PORT_ACTIVE: u32 = 4;

/// An opened device, one of its ports, and the address used.
pub struct Device {
    pub context: Rc<Context>,
    pub name: String,
    pub port: u8,
    pub attr: DeviceAttr,
    pub port_attr: PortAttr,
    pub gid: Gid,
    /// How that was chosen: the address and the index that were asked for, and the address that was found.
    chosen_by: (Option<IpAddr>, Option<u32>, Ipv6Addr),
    /// The number of its directory in sysfs: another device of the same name has another.
    pub inode: Option<u64>,
    /// The directory of what programs open it by, and its number.
    access: Option<(PathBuf, u64)>,
}

/// Where the kernel lists what programs open RDMA devices by.
const ACCESS: &str = "/sys/class/infiniband_verbs";

impl Device {
    /// Opens what the user named: `mlx5_0`, or `mlx5_0:2` for its second port.
    pub fn open(named: &str, address: Option<IpAddr>, gid_index: Option<u32>) -> Result<Device> {
        let (name, port) = parse(named)?;
        let inode = inode(&Path::new(port::CLASS).join(name));
        let context = Context::open(name).map_err(|why| unavailable(name, why))?;
        let attr = context.device_attr()?;
        if !(1..=attr.phys_port_cnt).contains(&port) {
            let what = format!("the RDMA device {name} has no port {port}");
            return Err(Error::new(ErrorKind::Usage, what).remedy(format!("its ports are 1 to {}", attr.phys_port_cnt)));
        }
        let port_attr = context.port_attr(port)?;
        if port_attr.state != PORT_ACTIVE {
            let what = format!("port {port} of the RDMA device {name} is not active");
            let remedy = "look at the cable and at its interface (ip link set IFNAME up), and on InfiniBand at the subnet manager";
            return Err(Error::new(ErrorKind::Unavailable, what).remedy(remedy));
        }
        let gids = port::gids(&port::directory(name, port));
        let on_infiniband = port_attr.link_layer == LINK_LAYER_INFINIBAND;
        let gid = choose(&gids, on_infiniband, address, gid_index).map_err(|why| {
            let known: Vec<String> = gids.iter().map(Gid::to_string).collect();
            let known = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join("; ")) };
            Error::new(ErrorKind::Unavailable, format!("port {port} of the RDMA device {name}: {why}; {known}"))
                .remedy("give the port's network interface an IP address, or name one of them with --gid-index")
        })?;
        let chosen_by = (address, gid_index, gid.address);
        Ok(Device { context, name: name.to_owned(), port, attr, port_attr, gid, chosen_by, inode, access: access(name) })
    }

    /// The address to use as the port's are now: the one that was found first, wherever it is, or one like it in its place.
    pub fn address_now(&self) -> Option<Gid> {
        let gids = port::gids(&port::directory(&self.name, self.port));
        again(&gids, self.is_infiniband(), self.chosen_by, self.gid.kind)
    }

    /// Whether it is on InfiniBand, not on Ethernet.
    pub fn is_infiniband(&self) -> bool {
        self.port_attr.link_layer == LINK_LAYER_INFINIBAND
    }

    /// Bytes of the port's path MTU: `enum ibv_mtu` counts from 1 = 256.
    pub fn mtu(&self) -> u32 {
        128 << self.port_attr.active_mtu.clamp(1, 5)
    }

    /// Its address on an IP network.
    pub fn ip(&self) -> IpAddr {
        self.gid.address.to_ipv4_mapped().map_or(IpAddr::V6(self.gid.address), IpAddr::V4)
    }

    /// Whether the kernel has taken it out of its list: then it has destroyed all that was made on it.
    pub fn is_removed(&self) -> bool {
        inode(&Path::new(port::CLASS).join(&self.name)) != self.inode
    }

    /// Whether the kernel wants to take it out and waits until nobody has it open: what programs open it by is gone already. Drivers that
    /// can take a device from a program say so by an event; rxe cannot, and says nothing.
    pub fn is_awaited(&self) -> bool {
        self.access.as_ref().is_some_and(|(directory, number)| inode(directory) != Some(*number))
    }
}

/// The kernel's names of the devices that libibverbs knows.
///
/// # Errors
/// The library is missing (`EOPNOTSUPP`), or finds none: the error number.
pub fn known() -> Result<Vec<String>, i32> {
    Context::names()
}

/// What programs open the device by, in sysfs.
fn access(name: &str) -> Option<(PathBuf, u64)> {
    let mut entries = std::fs::read_dir(ACCESS).into_iter().flatten().flatten().map(|entry| entry.path());
    let directory = entries.find(|path| std::fs::read_to_string(path.join("ibdev")).is_ok_and(|device| device.trim() == name))?;
    let number = inode(&directory)?;
    Some((directory, number))
}

fn inode(directory: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(directory).ok().map(|meta| meta.ino())
}

/// Device and port of a name.
fn parse(named: &str) -> Result<(&str, u8)> {
    let Some((name, port)) = named.split_once(':') else { return Ok((named, 1)) };
    match port.parse() {
        Ok(port) if port > 0 && !name.is_empty() => Ok((name, port)),
        _ => {
            let what = format!("'{named}' names no RDMA device");
            Err(Error::new(ErrorKind::Usage, what).remedy("write DEVICE or DEVICE:PORT, such as mlx5_0 or mlx5_0:1; ports count from 1"))
        }
    }
}

fn unavailable(name: &str, why: OpenError) -> Error {
    let devices = port::devices();
    let found = if devices.is_empty() { "this machine has none".to_owned() } else { format!("found: {}", devices.join(", ")) };
    let soft = "use soft, the RoCEv2 HCA in user space: it needs no RDMA hardware";
    let what = format!("the RDMA device '{name}'");
    match why {
        _ if !devices.iter().any(|device| device == name) => {
            Error::new(ErrorKind::Usage, format!("{what} is not there; {found}")).remedy(format!("name one of them, or {soft}"))
        }
        OpenError::NoDevices(libc::EOPNOTSUPP) => {
            Error::new(ErrorKind::Unavailable, format!("{what} needs libibverbs, which is not installed"))
                .remedy(format!("sudo apt-get install libibverbs1 ibverbs-providers, or {soft}"))
        }
        OpenError::NoDevices(errno) => {
            let because = if errno == 0 { String::new() } else { format!(": {}", describe_errno(errno)) };
            Error::new(ErrorKind::Unavailable, format!("{what} is known to the kernel, but libibverbs lists none{because}"))
                .remedy("sudo modprobe ib_uverbs; sudo apt-get install ibverbs-providers; basin doctor says more")
        }
        OpenError::NotFound => Error::new(ErrorKind::Unavailable, format!("{what} is known to the kernel, but not to libibverbs"))
            .remedy("sudo apt-get install ibverbs-providers: the driver of its kind is missing"),
        OpenError::Refused(errno) => Error::from_errno(format!("opening {what}"), errno)
            .remedy("/dev/infiniband/uverbs* must be readable and writable for this user; basin doctor says more"),
    }
}

/// The address to use when addresses have changed.
fn again(gids: &[Gid], on_infiniband: bool, by: (Option<IpAddr>, Option<u32>, Ipv6Addr), kind: Option<GidKind>) -> Option<Gid> {
    let (address, index, first) = by;
    let same = gids.iter().find(|gid| gid.address == first && gid.kind == kind && gid.index <= INDEX_MAX);
    // An index is the user's word.
    if index.is_some() {
        return choose(gids, on_infiniband, address, index).ok();
    }
    // Where it is gone for the moment the port still has its link-local one, which is not what peers were told.
    let class = |address: Ipv6Addr| (address.to_ipv4_mapped().is_some(), is_link_local(address));
    let other = || choose(gids, on_infiniband, address, None).ok().filter(|gid| class(gid.address) == class(first));
    same.cloned().or_else(other)
}

/// The address to use: the one asked for, or by type and address.
fn choose(gids: &[Gid], on_infiniband: bool, address: Option<IpAddr>, index: Option<u32>) -> Result<Gid, String> {
    if let Some(index) = index {
        if index > INDEX_MAX {
            return Err(format!("an address with the index {index}: queue pairs take those up to {INDEX_MAX}"));
        }
        let asked = gids.iter().find(|gid| gid.index == index);
        return asked.cloned().ok_or_else(|| format!("no address has the index {index}"));
    }
    let usable = |gid: &&Gid| gid.is_usable(on_infiniband);
    let rank = |gid: &&Gid| match gid.address {
        it if address.is_some_and(|address| endpoint::gid(address) == it) => 0,
        it if it.to_ipv4_mapped().is_some() => 1,
        it if !is_link_local(it) => 2,
        _ => 3,
    };
    gids.iter().filter(usable).min_by_key(rank).cloned().ok_or_else(|| {
        let kind = if on_infiniband { "InfiniBand" } else { "RoCE v2" };
        format!("no {kind} address")
    })
}

fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
        Gid { index, address: address.parse().unwrap(), kind: Some(kind), interface: "eth0".into() }
    }

    #[test]
    fn addresses_are_chosen_by_type_and_address() {
        use GidKind::{IbOrRoceV1, RoceV2};
        let all = [
            gid(0, "fe80::1", IbOrRoceV1),
            gid(1, "fe80::1", RoceV2),
            gid(2, "::ffff:10.0.0.1", IbOrRoceV1),
            gid(3, "::ffff:10.0.0.1", RoceV2),
            gid(4, "2001:db8::1", RoceV2),
            gid(5, "::ffff:10.0.0.9", RoceV2),
        ];
        let index = |gids: &[Gid], address: Option<&str>, asked| {
            choose(gids, false, address.map(|text| text.parse().unwrap()), asked).map(|gid| gid.index)
        };
        assert_eq!(index(&all, Some("10.0.0.9"), None), Ok(5));
        assert_eq!(index(&all, Some("2001:db8::1"), None), Ok(4));
        assert_eq!(index(&all, Some("192.0.2.1"), None), Ok(3), "an address of another interface: the first of IPv4");
        assert_eq!(index(&all, None, None), Ok(3));
        assert_eq!(index(&all[..2], None, None), Ok(1), "link-local where there is no other");
        assert_eq!(index(&all, None, Some(0)), Ok(0), "an index is the user's word");
        assert!(index(&all, None, Some(9)).unwrap_err().contains('9'));
        assert!(index(&all[..1], None, None).unwrap_err().contains("RoCE v2"));
        assert_eq!(choose(&all[..1], true, None, None).unwrap().index, 0, "InfiniBand has its own");
        let far = [gid(256, "::ffff:10.0.0.1", RoceV2), gid(255, "fe80::1", RoceV2)];
        assert_eq!(index(&far, Some("10.0.0.1"), None), Ok(255), "a queue pair cannot be told a later one");
        assert!(index(&far, None, Some(256)).unwrap_err().contains("255"));
    }

    #[test]
    fn an_address_is_found_again_where_it_is_now() {
        use GidKind::{IbOrRoceV1, RoceV2};
        let first = "::ffff:10.0.0.1".parse().unwrap();
        let link_local = gid(1, "fe80::1", RoceV2);
        let index = |gids: &[Gid], asked| again(gids, false, (None, asked, first), Some(RoceV2)).map(|gid| gid.index);
        let back = [link_local.clone(), gid(2, "::ffff:10.0.0.1", IbOrRoceV1), gid(7, "::ffff:10.0.0.1", RoceV2)];
        assert_eq!(index(&back, None), Some(7), "of the same kind");
        assert_eq!(index(&back[..1], None), None, "a link-local one is not what peers were told");
        assert_eq!(index(&[link_local, gid(4, "::ffff:10.0.0.9", RoceV2)], None), Some(4), "another one in its place");
        assert_eq!(index(&[], None), None);
        assert_eq!((index(&back, Some(1)), index(&back, Some(3))), (Some(1), None), "an index is the user's word");
    }

    #[test]
    fn names_have_ports() {
        assert_eq!(parse("mlx5_0").unwrap(), ("mlx5_0", 1));
        assert_eq!(parse("mlx5_0:2").unwrap(), ("mlx5_0", 2));
        for bad in ["mlx5_0:0", "mlx5_0:x", ":1", "mlx5_0:300"] {
            assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_a_usage_error_that_names_those_that_are() {
        let Err(error) = Device::open("nosuch9", None, None) else { panic!("there is no such device") };
        assert_eq!(error.kind(), ErrorKind::Usage);
        let text = error.to_string();
        assert!(text.contains("nosuch9") && text.contains("soft") && (text.contains("found") || text.contains("none")), "{text}");
    }
}
