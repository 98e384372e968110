//! The kernel's connection manager, by the file programs reach it through: commands are written, answers and events come back in the
//! memory that a command names (`rdma/rdma_user_cm.h`, version 4 of its interface).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use rdma_mummy_sys as ibv;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::no_attr;
use crate::base::{Error, Result};

/// Where it is.
const PATH: &str = "/dev/infiniband/rdma_cm";
/// `RDMA_PS_TCP`: ports of connections.
const PORT_SPACE: u16 = 0x0106;
/// `enum ib_qp_type`: reliable connection.
const QP_RC: u8 = 2;
/// `RDMA_USER_CM_QUERY_ADDR`.
const QUERY_ADDRESS: u32 = 0;

/// The commands used here (`RDMA_USER_CM_CMD_…`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
enum Command {
    CreateId = 0,
    DestroyId = 1,
    ResolveRoute = 4,
    Connect = 6,
    Listen = 7,
    Accept = 8,
    Reject = 9,
    Disconnect = 10,
    InitQpAttr = 11,
    GetEvent = 12,
    Query = 19,
    Bind = 20,
    ResolveAddr = 21,
}

/// An open manager. Closed, it ends everything that was made by it.
pub struct Manager {
    file: File,
}

/// The kernel's number of a listener or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmId(u32);

/// What an end tells of a connection to be.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    pub qpn: u32,
    /// READs and atomics this end answers at once.
    pub responder_resources: u8,
    /// Those it wants to have under way.
    pub initiator_depth: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub data: Vec<u8>,
}

/// Which device and port a connection goes by, and to whom.
#[derive(Clone, Copy, Debug)]
pub struct Via {
    /// In network byte order, as the library gives that of a device.
    pub node_guid: u64,
    pub port: u8,
    pub peer: Option<SocketAddr>,
}

/// An event, of the id that was given `token`.
#[derive(Debug)]
pub struct CmEvent {
    pub token: u64,
    pub kind: CmEventKind,
}

/// `enum rdma_cm_event_type`.
#[derive(Debug)]
pub enum CmEventKind {
    AddressResolved,
    AddressError(i32),
    RouteResolved,
    RouteError(i32),
    /// A listener's: a new id, what the peer offers.
    ConnectRequest(CmId, Offer),
    /// The peer agrees, and says this.
    ConnectResponse(Vec<u8>),
    ConnectError(i32),
    Unreachable(i32),
    /// With the reason the peer gives.
    Rejected(u16),
    Established,
    Disconnected,
    DeviceRemoval,
    Other(u32),
}

impl Manager {
    /// Opens it, not to wait for events.
    pub fn open() -> Result<Manager> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(PATH);
        opened.map(|file| Manager { file }).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "it must be readable and writable for this user",
                _ => "sudo modprobe rdma_ucm",
            };
            Error::io(format!("opening {PATH}, the kernel's connection manager"), &error).remedy(remedy)
        })
    }

    /// Readable when there are events.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// A new id, for connections of RC queue pairs. Its events come with `token`.
    pub fn create(&self, token: u64) -> Result<CmId, i32> {
        let mut made = CreateIdResponse::new_zeroed();
        let body = CreateId { token, response: place(&mut made), port_space: PORT_SPACE, qp_type: QP_RC, reserved: [0; 5] };
        // SAFETY: `made` is as long as its type, which is what the command says, and lives.
        unsafe { self.ask::<_, CreateIdResponse>(Command::CreateId, &body) }?;
        Ok(CmId(made.id))
    }

    /// Ends an id: what was connected is told so, what waits is refused, and no event of it comes any more.
    pub fn destroy(&self, id: CmId) {
        let mut ended = DestroyIdResponse::new_zeroed();
        let body = DestroyId { response: place(&mut ended), id: id.0, reserved: 0 };
        // SAFETY: as in `create`, for `ended`.
        if let Err(errno) = unsafe { self.ask::<_, DestroyIdResponse>(Command::DestroyId, &body) } {
            tracing::debug!(errno, ?id, "the kernel's connection manager knew no such id");
        }
    }

    /// Gives an id its own address.
    pub fn bind(&self, id: CmId, at: SocketAddr) -> Result<(), i32> {
        let (addr, addr_size) = Sockaddr::of(at);
        self.tell(Command::Bind, &Bind { id: id.0, addr_size, reserved: 0, addr })
    }

    /// Takes requests for its port from now on.
    pub fn listen(&self, id: CmId, backlog: u32) -> Result<(), i32> {
        self.tell(Command::Listen, &Listen { id: id.0, backlog })
    }

    /// Looks for the device and port that `to` is reached by from `from`.
    pub fn resolve_address(&self, id: CmId, from: SocketAddr, to: SocketAddr, timeout_ms: u32) -> Result<(), i32> {
        let ((src_addr, src_size), (dst_addr, dst_size)) = (Sockaddr::of(from), Sockaddr::of(to));
        self.tell(Command::ResolveAddr, &ResolveAddr { id: id.0, timeout_ms, src_size, dst_size, reserved: 0, src_addr, dst_addr })
    }

    /// Looks for the way there.
    pub fn resolve_route(&self, id: CmId, timeout_ms: u32) -> Result<(), i32> {
        self.tell(Command::ResolveRoute, &ResolveRoute { id: id.0, timeout_ms })
    }

    /// Which device an id goes by, and to whom.
    pub fn via(&self, id: CmId) -> Result<Via, i32> {
        let mut found = QueryAddressResponse::new_zeroed();
        let body = Query { response: place(&mut found), id: id.0, option: QUERY_ADDRESS };
        // SAFETY: as in `create`, for `found`.
        unsafe { self.ask::<_, QueryAddressResponse>(Command::Query, &body) }?;
        Ok(Via { node_guid: found.node_guid, port: found.port_num, peer: found.dst_addr.get() })
    }

    /// Asks the peer for a connection.
    pub fn connect(&self, id: CmId, offer: &Offer) -> Result<(), i32> {
        self.tell(Command::Connect, &Connect { offer: RawOffer::of(offer), id: id.0, reserved: 0, ece: [0; 2] })
    }

    /// Agrees to the peer's request; events of the id come with `token` from now on.
    pub fn accept(&self, id: CmId, token: u64, offer: &Offer) -> Result<(), i32> {
        self.tell(Command::Accept, &Accept { token, offer: RawOffer::of(offer), id: id.0, reserved: 0, ece: [0; 2] })
    }

    /// Tells the peer that agreed that the connection is ready: an acceptance without an offer.
    pub fn establish(&self, id: CmId, token: u64) -> Result<(), i32> {
        self.tell(Command::Accept, &Accept { token, offer: RawOffer::new_zeroed(), id: id.0, reserved: 0, ece: [0; 2] })
    }

    /// Refuses the peer's request, as the program's wish.
    pub fn reject(&self, id: CmId) -> Result<(), i32> {
        self.tell(Command::Reject, &Reject { id: id.0, ..Reject::new_zeroed() })
    }

    /// Ends a connection, or answers the peer that has.
    pub fn disconnect(&self, id: CmId) -> Result<(), i32> {
        self.tell(Command::Disconnect, &id.0)
    }

    /// What a queue pair of this connection must be told on its way to `state` (`enum ibv_qp_state`).
    pub fn qp_attr(&self, id: CmId, state: u32) -> Result<(ibv::ibv_qp_attr, ibv::ibv_qp_attr_mask), i32> {
        let mut raw = RawQpAttr::new_zeroed();
        let body = InitQpAttr { response: place(&mut raw), id: id.0, qp_state: state };
        // SAFETY: as in `create`, for `raw`.
        unsafe { self.ask::<_, RawQpAttr>(Command::InitQpAttr, &body) }?;
        Ok((raw.attr(), ibv::ibv_qp_attr_mask(raw.mask)))
    }

    /// The next event, without waiting for one.
    pub fn next_event(&self) -> Option<CmEvent> {
        let mut raw = RawEvent::new_zeroed();
        let body = place(&mut raw);
        // SAFETY: as in `create`, for `raw`.
        match unsafe { self.ask::<_, RawEvent>(Command::GetEvent, &body) } {
            Ok(()) => Some(raw.event()),
            Err(libc::EAGAIN) => None,
            Err(errno) => {
                tracing::warn!(errno, "the kernel's connection manager gave no event");
                None
            }
        }
    }

    fn tell<B: IntoBytes + Immutable>(&self, command: Command, body: &B) -> Result<(), i32> {
        // SAFETY: nothing is written where no answer is asked for.
        unsafe { self.ask::<B, ()>(command, body) }
    }

    /// Writes a command, whose answer comes back in an `A`.
    ///
    /// # Safety
    /// Where the body names a place, an `A` is there that nobody else touches during the call.
    unsafe fn ask<B: IntoBytes + Immutable, A>(&self, command: Command, body: &B) -> Result<(), i32> {
        let (input, output) = (size_of::<B>(), size_of::<A>());
        let mut bytes = Vec::with_capacity(8 + input);
        bytes.extend((command as u32).to_ne_bytes());
        bytes.extend((input as u16).to_ne_bytes());
        bytes.extend((output as u16).to_ne_bytes());
        bytes.extend(body.as_bytes());
        loop {
            match (&self.file).write(&bytes) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
    }
}

/// Where the kernel shall write an answer. Every bit pattern is one of its type.
fn place<A: FromBytes>(answer: &mut A) -> u64 {
    std::ptr::from_mut(answer).expose_provenance() as u64
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct CreateId {
    token: u64,
    response: u64,
    port_space: u16,
    qp_type: u8,
    reserved: [u8; 5],
}

#[derive(FromBytes)]
#[repr(C)]
struct CreateIdResponse {
    id: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct DestroyId {
    response: u64,
    id: u32,
    reserved: u32,
}

#[derive(FromBytes)]
#[repr(C)]
struct DestroyIdResponse {
    _events_reported: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Bind {
    id: u32,
    addr_size: u16,
    reserved: u16,
    addr: Sockaddr,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Listen {
    id: u32,
    backlog: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ResolveAddr {
    id: u32,
    timeout_ms: u32,
    src_size: u16,
    dst_size: u16,
    reserved: u32,
    src_addr: Sockaddr,
    dst_addr: Sockaddr,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ResolveRoute {
    id: u32,
    timeout_ms: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Query {
    response: u64,
    id: u32,
    option: u32,
}

#[derive(FromBytes)]
#[repr(C)]
struct QueryAddressResponse {
    node_guid: u64,
    port_num: u8,
    _reserved: u8,
    _pkey: u16,
    _src_size: u16,
    _dst_size: u16,
    _src_addr: Sockaddr,
    dst_addr: Sockaddr,
    _device_index: u32,
    _reserved1: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Connect {
    offer: RawOffer,
    id: u32,
    reserved: u32,
    ece: [u32; 2],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Accept {
    token: u64,
    offer: RawOffer,
    id: u32,
    reserved: u32,
    ece: [u32; 2],
}

#[derive(IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Reject {
    id: u32,
    data_len: u8,
    /// 0: the program's wish.
    reason: u8,
    reserved: [u8; 2],
    data: [u8; DATA_MAX],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct InitQpAttr {
    response: u64,
    id: u32,
    qp_state: u32,
}

/// `RDMA_MAX_PRIVATE_DATA`.
const DATA_MAX: usize = 256;

/// `struct rdma_ucm_conn_param`.
#[derive(Clone, Copy, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawOffer {
    qpn: u32,
    qkey: u32,
    data: [u8; DATA_MAX],
    data_len: u8,
    srq: u8,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: u8,
    retries: u8,
    rnr_retries: u8,
    valid: u8,
}

impl RawOffer {
    fn of(offer: &Offer) -> RawOffer {
        let mut raw = RawOffer {
            qpn: offer.qpn,
            data_len: offer.data.len() as u8,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            retries: offer.retries,
            rnr_retries: offer.rnr_retries,
            valid: 1,
            ..RawOffer::new_zeroed()
        };
        raw.data[..offer.data.len()].copy_from_slice(&offer.data);
        raw
    }

    fn offer(&self) -> Offer {
        Offer {
            qpn: self.qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retries: self.retries,
            rnr_retries: self.rnr_retries,
            data: self.data[..usize::from(self.data_len)].to_vec(),
        }
    }
}

/// `struct rdma_ucm_event_resp`.
#[derive(FromBytes)]
#[repr(C)]
struct RawEvent {
    token: u64,
    id: u32,
    kind: u32,
    status: i32,
    offer: RawOffer,
    /// What datagrams are told is longer.
    _datagrams: [u32; 8],
    _reserved: u32,
    _ece: [u32; 2],
}

impl RawEvent {
    fn event(&self) -> CmEvent {
        let kind = match self.kind {
            0 => CmEventKind::AddressResolved,
            1 => CmEventKind::AddressError(self.status.abs()),
            2 => CmEventKind::RouteResolved,
            3 => CmEventKind::RouteError(self.status.abs()),
            4 => CmEventKind::ConnectRequest(CmId(self.id), self.offer.offer()),
            5 => CmEventKind::ConnectResponse(self.offer.offer().data),
            6 => CmEventKind::ConnectError(self.status.abs()),
            7 => CmEventKind::Unreachable(self.status.abs()),
            // Devices of other kinds than InfiniBand and RoCE give an error number.
            8 if self.status < 0 => CmEventKind::ConnectError(self.status.abs()),
            8 => CmEventKind::Rejected(self.status as u16),
            9 => CmEventKind::Established,
            10 => CmEventKind::Disconnected,
            11 => CmEventKind::DeviceRemoval,
            other => CmEventKind::Other(other),
        };
        CmEvent { token: self.token, kind }
    }
}

/// `struct ib_uverbs_ah_attr`.
#[derive(Clone, Copy, FromBytes)]
#[repr(C)]
struct RawWay {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    _reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    _reserved1: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[derive(FromBytes)]
#[repr(C)]
struct RawQpAttr {
    mask: u32,
    qp_state: u32,
    _cur_qp_state: u32,
    path_mtu: u32,
    _path_mig_state: u32,
    _qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    _qp_access_flags: u32,
    way: RawWay,
    _other_way: RawWay,
    _caps: [u32; 5],
    pkey_index: u16,
    _alt_pkey_index: u16,
    _draining: [u8; 2],
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    _alt: [u8; 2],
    _reserved: [u8; 5],
}

impl RawQpAttr {
    fn attr(&self) -> ibv::ibv_qp_attr {
        let (mut attr, way) = (no_attr(), &self.way);
        attr.qp_state = self.qp_state;
        attr.path_mtu = self.path_mtu;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qp_num;
        attr.ah_attr.grh.dgid = ibv::ibv_gid { raw: way.dgid };
        attr.ah_attr.grh.flow_label = way.flow_label;
        attr.ah_attr.grh.sgid_index = way.sgid_index;
        attr.ah_attr.grh.hop_limit = way.hop_limit;
        attr.ah_attr.grh.traffic_class = way.traffic_class;
        attr.ah_attr.dlid = way.dlid;
        attr.ah_attr.sl = way.sl;
        attr.ah_attr.src_path_bits = way.src_path_bits;
        attr.ah_attr.static_rate = way.static_rate;
        attr.ah_attr.is_global = way.is_global;
        attr.ah_attr.port_num = way.port_num;
        attr.pkey_index = self.pkey_index;
        attr.port_num = self.port_num;
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        attr
    }
}

/// `struct sockaddr_storage`, of which the kernel reads as much as the family has.
#[derive(Clone, Copy, IntoBytes, FromBytes, Immutable)]
#[repr(C, align(8))]
struct Sockaddr([u8; 128]);

impl Sockaddr {
    /// With its length.
    fn of(address: SocketAddr) -> (Sockaddr, u16) {
        let mut bytes = [0; 128];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        (Sockaddr(bytes), len as u16)
    }

    fn get(&self) -> Option<SocketAddr> {
        let bytes = &self.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Ipv4Addr::from(*bytes[4..].first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }
}

// What the kernel's header says.
const _: () = {
    assert!(size_of::<CreateId>() == 24 && size_of::<Bind>() == 136 && size_of::<ResolveAddr>() == 272);
    assert!(size_of::<QueryAddressResponse>() == 280 && size_of::<RawOffer>() == 272 && size_of::<Connect>() == 288);
    assert!(size_of::<Accept>() == 296 && size_of::<Reject>() == 264 && size_of::<RawEvent>() == 336);
    assert!(size_of::<RawWay>() == 32 && size_of::<RawQpAttr>() == 144);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_the_kernel_has_them() {
        for (text, len) in [("192.0.2.7:7174", 16), ("[2001:db8::7]:1", 28)] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, size) = Sockaddr::of(address);
            assert_eq!((raw.get(), size), (Some(address), len));
        }
        let (scoped, _) = Sockaddr::of(std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 3).into());
        assert_eq!(scoped.0[24..28], 3u32.to_ne_bytes());
        assert_eq!(Sockaddr([0; 128]).get(), None);
    }

    #[test]
    fn an_event_is_read_as_the_header_lays_it_out() {
        let mut bytes = [0; size_of::<RawEvent>()];
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[12..16].copy_from_slice(&8u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&28u32.to_ne_bytes());
        let event = |bytes: &[u8]| RawEvent::read_from_bytes(bytes).unwrap().event();
        assert!(matches!(event(&bytes), CmEvent { token: 77, kind: CmEventKind::Rejected(28) }));
        bytes[8..12].copy_from_slice(&5u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&4u32.to_ne_bytes());
        bytes[20..24].copy_from_slice(&0x1234u32.to_ne_bytes());
        bytes[28..33].copy_from_slice(b"hello");
        bytes[284..288].copy_from_slice(&[56, 0, 3, 2]);
        let CmEventKind::ConnectRequest(id, offer) = event(&bytes).kind else { panic!("another event") };
        assert_eq!((id, offer.qpn, offer.responder_resources, offer.initiator_depth), (CmId(5), 0x1234, 3, 2));
        assert_eq!((&offer.data[..6], offer.data.len()), (&b"hello\0"[..], 56));
    }
}
