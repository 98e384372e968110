//! What the user may plug into a guest: NVMe controllers and network interfaces, as specs and as QEMU's arguments.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An NVMe controller: `size=256M,lba=512+4096,zns,mdts=7,vwc=off,eio=1M,iops=1`, all optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// Bytes of each namespace.
    pub size: u64,
    /// The LBA size of each namespace, in bytes; namespace identifiers count from 1 in this order.
    pub lba: Vec<u32>,
    /// Zoned namespaces, with zones of this many bytes.
    pub zone: Option<u64>,
    /// Largest transfer: 4 KiB times two to this power, 0 for no limit.
    pub mdts: u8,
    /// Whether there is a volatile write cache.
    pub vwc: bool,
    /// Bytes from the start at which every read and write of the sector fails.
    pub eio: Option<u64>,
    /// The most requests of the first namespace per second: with few, commands wait longer than they may.
    pub iops: Option<u32>,
    /// The image to keep the first namespace in; one that vanishes after the run without it.
    pub file: Option<PathBuf>,
}

/// What a spec is made of, for who got it wrong.
const PARTS: &str = "it is made of size=256M, lba=512+4096 (a namespace each), zns or zns=ZONESIZE, mdts=7, vwc=on|off, eio=OFFSET, \
                     iops=N, file=PATH";

impl Default for Nvme {
    fn default() -> Nvme {
        // QEMU's own limit of a transfer is 512 KiB as well.
        Nvme { size: 256 << 20, lba: vec![512], zone: None, mdts: 7, vwc: true, eio: None, iops: None, file: None }
    }
}

impl FromStr for Nvme {
    type Err = String;

    fn from_str(text: &str) -> Result<Nvme, String> {
        let mut spec = Nvme::default();
        for (key, value) in pairs(text) {
            match (key, value) {
                ("size", Some(value)) => spec.size = size(value)?,
                ("lba", Some(value)) => {
                    spec.lba = value.split('+').map(|lba| number(lba, "lba")).collect::<Result<_, _>>()?;
                    if let Some(bad) = spec.lba.iter().find(|lba| ![512, 1024, 2048, 4096].contains(*lba)) {
                        return Err(format!("an LBA of {bad} bytes: QEMU's controller has 512, 1024, 2048 and 4096"));
                    }
                }
                ("zns", None) => spec.zone = Some(4 << 20),
                ("zns", Some(value)) => spec.zone = Some(size(value)?),
                ("mdts", Some(value)) => spec.mdts = number(value, "mdts")?,
                ("vwc", Some("on")) => spec.vwc = true,
                ("vwc", Some("off")) => spec.vwc = false,
                ("eio", Some(value)) => spec.eio = Some(size(value)?),
                ("iops", Some(value)) => spec.iops = Some(number(value, "iops")?),
                ("file", Some(value)) => spec.file = Some(value.into()),
                ("", None) => {}
                _ => return Err(format!("'{key}' in the NVMe spec '{text}': {PARTS}")),
            }
        }
        if spec.size == 0 || spec.size % 4096 != 0 {
            return Err(format!("a namespace of {} bytes: use a multiple of 4096", spec.size));
        }
        if spec.zone.is_some_and(|zone| zone == 0 || spec.size % zone != 0) {
            return Err(format!("'{text}': the size must be a multiple of the zone's"));
        }
        Ok(spec)
    }
}

/// An image file QEMU opens; made `size` bytes large where it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub path: PathBuf,
    pub size: u64,
    /// Whether it goes when the run is over.
    pub temporary: bool,
}

impl Nvme {
    /// QEMU's arguments for the controller numbered `number` (serial `basin0` …), and the images it needs. With `log` every write and
    /// flush is also recorded, in dm-log-writes format, in `nvme0n1.log` … of `directory`.
    pub fn arguments(&self, number: usize, directory: &Path, log: bool) -> (Vec<String>, Vec<Image>) {
        // An append of at most 4 KiB times two to the fifth: less than any other transfer.
        let append = if self.zone.is_some() { ",zoned.zasl=5" } else { "" };
        let controller = format!("nvme,id=nvme{number},serial=basin{number},mdts={},max_ioqpairs=8{append}", self.mdts);
        let mut arguments = vec!["-device".into(), controller];
        let mut images = Vec::new();
        for (at, lba) in self.lba.iter().enumerate() {
            let name = format!("nvme{number}n{}", at + 1);
            let given = self.file.as_ref().filter(|_| at == 0);
            let path = given.cloned().unwrap_or_else(|| directory.join(format!("{name}.img")));
            let mut node = format!("{name}-file");
            let file = escaped(&path);
            arguments.extend(["-blockdev".into(), format!("driver=file,node-name={node},filename={file},discard=unmap")]);
            images.push(Image { path, size: self.size, temporary: given.is_none() });
            if let Some(offset) = self.eio.filter(|_| at == 0) {
                let sector = offset / 512;
                let inject = |index: usize, kind: &str| {
                    let rule = format!("inject-error.{index}");
                    format!("{rule}.event=none,{rule}.iotype={kind},{rule}.sector={sector},{rule}.errno=5")
                };
                let rules = format!("{},{}", inject(0, "read"), inject(1, "write"));
                arguments.extend(["-blockdev".into(), format!("driver=blkdebug,node-name={name}-eio,image={node},{rules}")]);
                node = format!("{name}-eio");
            }
            if let Some(iops) = self.iops.filter(|_| at == 0) {
                arguments.extend(["-object".into(), format!("throttle-group,id={name}-limit,x-iops-total={iops}")]);
                arguments
                    .extend(["-blockdev".into(), format!("driver=throttle,node-name={name}-slow,throttle-group={name}-limit,file={node}")]);
                node = format!("{name}-slow");
            }
            if log {
                let path = directory.join(format!("{name}.log"));
                let file = escaped(&path);
                arguments.extend(["-blockdev".into(), format!("driver=file,node-name={name}-record,filename={file}")]);
                arguments.extend([
                    "-blockdev".into(),
                    format!("driver=blklogwrites,node-name={name}-log,file={node},log={name}-record,log-sector-size=512"),
                ]);
                images.push(Image { path, size: 0, temporary: false });
                node = format!("{name}-log");
            }
            let mut device =
                format!("nvme-ns,bus=nvme{number},drive={node},nsid={},logical_block_size={lba},physical_block_size={lba}", at + 1);
            if let Some(zone) = self.zone {
                device += &format!(",zoned=on,zoned.zone_size={zone},zoned.zone_capacity={zone},zoned.max_open=6,zoned.max_active=8");
            }
            if !self.vwc {
                device += ",write-cache=off";
            }
            arguments.extend(["-device".into(), device]);
        }
        (arguments, images)
    }
}

/// A network interface: `user`, `tap=NAME` or `dgram=LOCALPORT:REMOTEPORT`, then `mac=`, `addr=A+B`, `mtu=`, `model=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    pub kind: Kind,
    pub mac: Option<String>,
    /// Addresses with prefix lengths, that the guest gives the interface.
    pub addresses: Vec<String>,
    /// The largest MTU, if not 1500.
    pub mtu: Option<u16>,
    /// QEMU's device.
    pub model: String,
}

/// What is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// QEMU's own little network: no privileges, nobody to talk to but the host.
    User,
    /// A tap interface of the network namespace QEMU is started in; made if it does not exist.
    Tap(String),
    /// Raw frames over UDP on the loopback, from this port to that. What a guest does not take in time is lost.
    Dgram { local: u16, remote: u16 },
    /// Raw frames over the datagram socket that is QEMU's standard input: an end of [`super::guest::Boot::wire`].
    Wire,
}

/// The guest's address on QEMU's own network (QEMU's manual, "Network emulation").
const USER_ADDRESS: &str = "10.0.2.15/24";
/// What an interface must not do for AF_XDP zero-copy on virtio-net, and what makes it use the DMA API (kernel 6.11 and later).
const ZERO_COPY: &str = "iommu_platform=on,disable-legacy=on,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Net, String> {
        let mut parts = pairs(text);
        let kind = match parts.next() {
            Some(("user", None)) => Kind::User,
            Some(("tap", Some(name))) if !name.is_empty() && name.len() < 16 => Kind::Tap(name.into()),
            Some(("dgram", Some(ports))) => {
                let (local, remote) = ports.split_once(':').ok_or_else(|| format!("'{text}': dgram=LOCALPORT:REMOTEPORT"))?;
                Kind::Dgram { local: number(local, "port")?, remote: number(remote, "port")? }
            }
            _ => return Err(format!("'{text}': a network is user, tap=NAME or dgram=LOCALPORT:REMOTEPORT")),
        };
        let addresses = if kind == Kind::User { vec![USER_ADDRESS.to_owned()] } else { Vec::new() };
        let mut net = Net { kind, mac: None, addresses, mtu: None, model: "virtio-net-pci".into() };
        for (key, value) in parts {
            match (key, value) {
                ("mac", Some(value)) => net.mac = Some(value.into()),
                ("addr", Some(value)) => net.addresses = value.split('+').map(str::to_owned).collect(),
                ("mtu", Some(value)) => net.mtu = Some(number(value, "mtu")?),
                ("model", Some(value)) => net.model = value.into(),
                _ => return Err(format!("'{key}' in the network '{text}': it takes mac=, addr=A/24+B/64, mtu= and model=")),
            }
        }
        if let Some(bad) = net.addresses.iter().find(|address| !address.contains('/')) {
            return Err(format!("'{bad}' in the network '{text}' needs its prefix length, as in 10.77.0.1/24"));
        }
        Ok(net)
    }
}

impl Net {
    /// QEMU's arguments for the interface numbered `number`, which the guest calls `eth0` ….
    pub fn arguments(&self, number: usize) -> Vec<String> {
        let backend = match &self.kind {
            Kind::User => format!("user,id=net{number}"),
            Kind::Tap(name) => format!("tap,id=net{number},ifname={name},script=no,downscript=no"),
            Kind::Dgram { local, remote } => {
                let end = |side: &str, port: &u16| format!("{side}.type=inet,{side}.host=127.0.0.1,{side}.port={port}");
                format!("dgram,id=net{number},{},{}", end("local", local), end("remote", remote))
            }
            Kind::Wire => format!("dgram,id=net{number},local.type=fd,local.str=0"),
        };
        let mut device = format!("{},netdev=net{number},mac={},romfile=", self.model, self.mac(number));
        if self.model.starts_with("virtio-net") {
            device += &format!(",{ZERO_COPY}");
            if let Some(mtu) = self.mtu {
                device += &format!(",host_mtu={mtu}");
            }
        }
        vec!["-netdev".into(), backend, "-device".into(), device]
    }

    /// The hardware address of the interface numbered `number`.
    pub fn mac(&self, number: usize) -> String {
        self.mac.clone().unwrap_or_else(|| format!("52:54:00:ba:51:{number:02x}"))
    }
}

/// `a=1,b` as (a, 1) and (b, none).
fn pairs(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',').map(|part| part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value))))
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no {what}"))
}

/// `4096`, `512K`, `256M`, `1G`.
pub fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no size; write 4096, 512K, 256M or 1G");
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let count: u64 = digits.parse().map_err(|_| bad())?;
    count.checked_mul(1 << shift).ok_or_else(bad)
}

/// A path inside one of QEMU's option lists, where a comma is doubled.
pub fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nvme_spec_is_read() {
        assert_eq!("".parse(), Ok(Nvme::default()));
        let spec: Nvme = "size=64M,lba=512+4096,zns=2M,mdts=5,vwc=off,eio=1M,iops=3,file=/tmp/a.img".parse().expect("it is well formed");
        let expected = Nvme {
            size: 64 << 20,
            lba: vec![512, 4096],
            zone: Some(2 << 20),
            mdts: 5,
            vwc: false,
            eio: Some(1 << 20),
            iops: Some(3),
            file: Some("/tmp/a.img".into()),
        };
        assert_eq!(spec, expected);
        for bad in ["size=1X", "lba=520", "lbas=512", "vwc=maybe", "size=100", "size=6M,zns=4M", "zns=0"] {
            assert!(bad.parse::<Nvme>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_namespace_has_its_node() {
        let spec: Nvme = "lba=512+4096,eio=1M".parse().expect("it is well formed");
        let (arguments, images) = spec.arguments(0, Path::new("/d"), true);
        let text = arguments.join(" ");
        assert!(text.contains("nsid=1,logical_block_size=512") && text.contains("nsid=2,logical_block_size=4096"), "{text}");
        assert!(text.contains("image=nvme0n1-file") && text.contains("file=nvme0n1-eio,log=nvme0n1-record"), "{text}");
        assert!(!text.contains("throttle"), "{text}");
        assert!(text.contains("sector=2048") && !text.contains("nvme0n2-eio"), "{text}");
        let names: Vec<&str> = images.iter().map(|image| image.path.to_str().expect("text")).collect();
        assert_eq!(names, ["/d/nvme0n1.img", "/d/nvme0n1.log", "/d/nvme0n2.img", "/d/nvme0n2.log"]);
        assert_eq!(images.iter().map(|image| image.temporary).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn a_given_image_stays() {
        let spec = Nvme { file: Some("/d/a,b.img".into()), ..Nvme::default() };
        let (arguments, images) = spec.arguments(1, Path::new("/d"), false);
        assert!(arguments.join(" ").contains("filename=/d/a,,b.img"));
        assert!(!images[0].temporary);
    }

    #[test]
    fn a_network_is_read() {
        let net: Net = "user".parse().expect("it is well formed");
        assert_eq!(net.addresses, [USER_ADDRESS]);
        let net: Net = "dgram=4000:4001,addr=10.77.0.1/24+fd77::1/64,mtu=9000".parse().expect("it is well formed");
        assert_eq!(net.kind, Kind::Dgram { local: 4000, remote: 4001 });
        let text = net.arguments(1).join(" ");
        assert!(text.contains("local.port=4000") && text.contains("host_mtu=9000") && text.contains("guest_tso4=off"), "{text}");
        for bad in ["", "tap", "tap=", "dgram=4000", "user,addr=10.0.0.1", "user,speed=1", "bridge"] {
            assert!(bad.parse::<Net>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("512"), size("2K"), size("1G")), (Ok(512), Ok(2048), Ok(1 << 30)));
        assert!(size("").is_err() && size("M").is_err() && size("1T").is_err() && size("99999999999G").is_err());
    }
}
