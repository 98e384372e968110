//! How a client connects a queue pair: `POST /.s3rdma-rc/connect` and `disconnect`.

use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use super::session::{Rdma, Session, Signer};
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos, Psn, Qpn};
use crate::device::rdma::endpoint::{FabricOffer, gid};
use crate::device::rdma::{Qp, QpEndpoint, Transport};
use crate::reactor::Core;
use crate::s3::answer::Answer;
use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::wire::roce::UDP_PORT;
use crate::wire::s3::Memory;
use crate::wire::s3::deal::Deal;
use crate::wire::s3::frame::WINDOWS_MAX;
use crate::wire::s3::token::{Connection, Endpoint, SessionId, parse_psn};

/// The path of connecting, and of disconnecting.
pub const CONNECT: &str = "/.s3rdma-rc/connect";
/// The same of disconnecting.
pub const DISCONNECT: &str = "/.s3rdma-rc/disconnect";
/// Fields of the requests and answers.
pub const TOKEN: &str = "x-amz-rdma-token";
/// The first PSN of an end.
pub const PSN: &str = "x-amz-rdma-psn";
/// Names a session.
pub const SESSION: &str = "x-amz-rdma-session";
/// How a request of RDMA ended.
pub const REPLY: &str = "x-amz-rdma-reply";
/// An end with all its wires: JSON.
pub const ENDPOINT: &str = "x-basin-rdma-endpoint";
/// Asks for the native mode.
pub const NATIVE: &str = "x-basin-rdma-native";
/// Which core has which names.
pub const SHARDS: &str = "x-basin-rdma-shards";
/// The number of a bucket, in answers to requests that came to another core than the name's.
pub const BUCKET: &str = "x-basin-rdma-bucket";

/// The path MTU towards a client that says nothing of it: what stock programs use.
const USUAL_MTU: u32 = 1024;
/// How long the way to a peer is looked for, and how long until the second look; each pause is twice as long as the one before.
const SOUGHT: Nanos = Nanos::from_secs(1);
const SEEK_LOOK: Nanos = Nanos::from_millis(2);
/// Requests of the native mode that may be under way, at most.
const DEPTH_MAX: u32 = 256;
/// Bytes of a message, at least and at most.
const RECEIVE_MIN: u32 = 1024;
const RECEIVE_MAX: u32 = 64 << 10;

/// What the two ends of a session agree on in the native mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Bytes of a message that this end takes.
    pub receive: u32,
    /// Requests at once.
    pub depth: u32,
}

impl Terms {
    /// Reads `1;receive=8192;depth=64`; what an answer has more than that is left out.
    ///
    /// # Errors
    /// `NotImplemented`: another version. `InvalidArgument`: no such terms.
    pub fn parse(text: &str) -> Result<Terms, S3Error> {
        let mut fields = text.split(';').map(str::trim);
        if fields.next() != Some("1") {
            return Err(S3Error::with(Code::NotImplemented, "The native mode of RDMA is spoken in version 1 only."));
        }
        let invalid = || S3Error::with(Code::InvalidArgument, format!("{NATIVE} is 1;receive=BYTES;depth=REQUESTS."));
        let (mut receive, mut depth): (Option<u32>, Option<u32>) = (None, None);
        for field in fields {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            let term = match name {
                "receive" => &mut receive,
                "depth" => &mut depth,
                _ => continue,
            };
            *term = Some(value.parse().map_err(|_| invalid())?);
        }
        match (receive, depth) {
            (Some(receive @ RECEIVE_MIN..=RECEIVE_MAX), Some(depth @ 1..=DEPTH_MAX)) => Ok(Terms { receive, depth }),
            (Some(_), Some(_)) => {
                let what = format!("receive is {RECEIVE_MIN} to {RECEIVE_MAX} bytes, depth 1 to {DEPTH_MAX} requests.");
                Err(S3Error::with(Code::InvalidArgument, what))
            }
            _ => Err(invalid()),
        }
    }
}

/// Windows that one request may have, as a server's answer tells: where it tells nothing there are no lists.
pub fn windows_of(text: &str) -> usize {
    number_in(text, "windows").map_or(1, |windows| windows as usize).clamp(1, WINDOWS_MAX)
}

/// Whether a server takes sums behind their requests, as its answer tells.
pub fn takes_sums(text: &str) -> bool {
    number_in(text, "sums") == Some(1)
}

/// A number in terms, if they have it: `core`.
pub fn number_in(text: &str, name: &str) -> Option<u32> {
    text.split(';').filter_map(|field| field.split_once('=')).find(|(one, _)| one.trim() == name)?.1.trim().parse().ok()
}

/// What a client asks for when it connects a queue pair.
pub struct Wanted {
    /// From where.
    pub peer: IpAddr,
    /// Who has signed, and when, if somebody has.
    signer: Option<Signer>,
    /// The client's end.
    remote: QpEndpoint,
    /// Its end was told with all its wires, and so is ours.
    is_told: bool,
    /// Of the native mode.
    terms: Option<Terms>,
    /// The core that the session is to live on; who names one knows of the shard map.
    pub core: Option<u32>,
}

impl Wanted {
    /// Reads what a request asks for, which `signer` has signed, if somebody has.
    ///
    /// # Errors
    /// A token that cannot be read, a transport that is not there, or what needs a signature without one.
    pub fn read(request: &Request, signer: Option<Signer>) -> Result<Wanted, S3Error> {
        let terms = request.text(NATIVE).map(Terms::parse).transpose()?;
        if terms.is_some() && signer.is_none() {
            return Err(S3Error::with(Code::AccessDenied, "The native mode of RDMA needs a signed connect."));
        }
        let token = request.text(TOKEN).and_then(|text| Endpoint::parse(text).ok()).ok_or(Code::InvalidRdmaToken)?;
        if token.connection == Connection::Dc {
            return Err(S3Error::with(Code::NotImplemented, "Dynamically connected transports are not implemented."));
        }
        let psn = request.text(PSN).and_then(|text| parse_psn(text).ok());
        let psn = psn.ok_or_else(|| S3Error::with(Code::InvalidArgument, format!("{PSN} is 6 hexadecimal digits, not all 0.")))?;
        let remote = match request.text(ENDPOINT) {
            Some(text) => told(text, &token, psn)?,
            None => of_token(&token, psn),
        };
        // Nobody is made to send to a third by somebody he does not know. An address of InfiniBand's says nothing of who sent it; and of
        // links of shared memory there are few.
        let is_plain = remote.fabric.is_none() && remote.link.is_none();
        let is_peer = is_plain && remote.address.is_some_and(|address| address.ip() == request.peer);
        if signer.is_none() && !is_peer {
            let what = "A queue pair at another address than the request's, or over shared memory, needs a signed connect.";
            return Err(S3Error::with(Code::AccessDenied, what));
        }
        let core = request.text(NATIVE).and_then(|text| number_in(text, "core"));
        Ok(Wanted { peer: request.peer, signer, remote, is_told: request.text(ENDPOINT).is_some(), terms, core })
    }
}

/// A queue pair that was connected, as its client is told of it.
pub struct Connected {
    id: SessionId,
    local: QpEndpoint,
    is_told: bool,
    terms: Option<Terms>,
    /// The core, and how many the server has.
    place: (usize, usize),
    shards: Option<Deal>,
    /// Seconds that it lasts.
    life_seconds: u32,
}

impl Connected {
    /// The answer to the client.
    pub fn answer(&self) -> Answer {
        let mut answer = Answer::new(200)
            .header(SESSION, self.id.encode())
            .header(REPLY, format!("200:{}", token_of(&self.local).encode()))
            .header(PSN, format!("{:06x}", self.local.psn));
        if self.is_told {
            answer = answer.header(ENDPOINT, serde_json::to_string(&self.local).expect("an endpoint is plain data"));
        }
        if let Some(Terms { receive, depth }) = self.terms {
            let ((core, cores), expires) = (self.place, self.life_seconds);
            answer = answer.header(
                NATIVE,
                format!("1;receive={receive};depth={depth};expires={expires};core={core};cores={cores};sums=1;windows={WINDOWS_MAX}"),
            );
        }
        answer.maybe(SHARDS, self.shards.as_ref().map(Deal::to_string))
    }
}

/// Connects the queue pair that a client wants. Of the native mode `ready` posts the receives, and is told whether the client knows of
/// the shard map: the client may send as soon as it is answered.
///
/// # Errors
/// No room, or no wire in common.
pub async fn connect(
    rdma: &Rdma,
    wanted: Wanted,
    ready: impl FnOnce(&Rc<Session>, Terms, bool) -> Result<(), S3Error>,
) -> Result<Connected, S3Error> {
    let Wanted { peer, signer, remote, is_told, terms, core } = wanted;
    // What is told back holds.
    let terms = terms.map(|asked| Terms { depth: asked.depth.min(rdma.depth_max()), ..asked });
    let seat = rdma.seat(signer.as_ref(), peer).ok_or(Code::ServiceUnavailable)?;
    let unavailable = |error: Error| {
        if rdma.lines().take() {
            tracing::warn!("a client's queue pair was not connected: {error:#}");
        }
        S3Error::with(Code::ServiceUnavailable, format!("No queue pair: {error}"))
    };
    let qp = rdma.queue_pair(terms.map_or(1, |terms| terms.depth)).map_err(unavailable)?;
    let local = qp.local();
    rdma.seek(&seat, &qp, &remote).await.map_err(unavailable)?;
    let session = rdma.open(qp, &remote, signer, (seat, terms.is_some())).map_err(unavailable)?;
    let shards = terms.and(core).and(rdma.deal());
    if let Some(terms) = terms
        && let Err(error) = ready(&session, terms, shards.is_some())
    {
        rdma.close(session.id);
        return Err(error);
    }
    Ok(Connected { id: session.id, local, is_told, terms, place: rdma.place(), shards: shards.cloned(), life_seconds: rdma.life_seconds() })
}

/// Waits until the way to a peer is known, so that connecting to it does not. Meanwhile the core does other things.
///
/// # Errors
/// Nobody answers there, or as for [`Qp::connect`].
pub async fn seek(core: &Core, qp: &Qp, remote: &QpEndpoint) -> Result<(), Error> {
    let (until, mut pause) = (core.now().saturating_add(SOUGHT), SEEK_LOOK);
    while !qp.seek(remote)? {
        if core.now() >= until {
            let at = remote.address.map_or_else(String::new, |address| format!(" for {}", address.ip()));
            let what = format!("nobody answers{at} within {} ms", SOUGHT.0 / 1_000_000);
            return Err(Error::new(ErrorKind::Unavailable, what).remedy("check the address, the cable and the other machine"));
        }
        core.sleep(pause).await;
        pause = Nanos(2 * pause.0);
    }
    Ok(())
}

/// An end that was told with all its wires; what the token says of it must be the same.
fn told(text: &str, token: &Endpoint, psn: Psn) -> Result<QpEndpoint, S3Error> {
    let invalid = |why: &str| S3Error::with(Code::InvalidArgument, format!("{ENDPOINT}: {why}"));
    let endpoint: QpEndpoint = serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
    if endpoint.qpn != token.qpn.0 || endpoint.psn != psn.get() {
        return Err(invalid("another queue pair or PSN than the token's"));
    }
    Ok(endpoint)
}

/// An end of which the token is all that is told: RoCE at its own port, or InfiniBand.
pub fn of_token(token: &Endpoint, psn: Psn) -> QpEndpoint {
    let fabric = (token.lid != 0).then_some(FabricOffer { lid: token.lid, gid: token.gid, mtu: USUAL_MTU });
    QpEndpoint {
        transport: Transport::Rc,
        qpn: token.qpn.0,
        psn: psn.get(),
        // What libibverbs programs have that say nothing of it.
        reads: 1,
        qkey: 0,
        link: None,
        address: fabric.is_none().then(|| (token.gid.to_canonical(), UDP_PORT).into()),
        mtu: USUAL_MTU,
        is_port_fixed: true,
        fabric,
    }
}

/// An end as a token.
pub fn token_of(endpoint: &QpEndpoint) -> Endpoint {
    let (at, lid) = match (&endpoint.fabric, endpoint.address) {
        (Some(fabric), _) => (fabric.gid, fabric.lid),
        (None, Some(address)) => (gid(address.ip()), 0),
        (None, None) => (Ipv6Addr::UNSPECIFIED, 0),
    };
    let memory = Memory { address: 0, bytes: 0, rkey: 0 };
    Endpoint { connection: Connection::Rc, qpn: Qpn(endpoint.qpn), gid: at, memory, port: 1, lid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read() {
        assert_eq!(Terms::parse("1;receive=8192;depth=64").unwrap(), Terms { receive: 8192, depth: 64 });
        assert_eq!(Terms::parse("1; depth=1; receive=1024; core=0;cores=2").unwrap(), Terms { receive: 1024, depth: 1 });
        let later = "1;receive=8192;depth=64;wire=new;later;core=";
        assert_eq!(Terms::parse(later).unwrap(), Terms { receive: 8192, depth: 64 }, "what is not known is left out");
        for (text, code) in [
            ("2;receive=8192;depth=64", Code::NotImplemented),
            ("", Code::NotImplemented),
            ("1", Code::InvalidArgument),
            ("1;receive=8192", Code::InvalidArgument),
            ("1;receive=8192;depth=0", Code::InvalidArgument),
            ("1;receive=8192;depth=257", Code::InvalidArgument),
            ("1;receive=100;depth=1", Code::InvalidArgument),
            ("1;receive=x;depth=1", Code::InvalidArgument),
            ("1;receive", Code::InvalidArgument),
        ] {
            assert_eq!(Terms::parse(text).unwrap_err().code, code, "{text}");
        }
        let told = "1;receive=8192;depth=64;expires=3600;core=1; cores=2";
        assert_eq!((number_in(told, "core"), number_in(told, "cores"), number_in(told, "none")), (Some(1), Some(2), None));
        // What is none names none.
        assert_eq!((number_in("1;core=x", "core"), number_in("1;core=-1", "core"), number_in("core", "core")), (None, None, None));
    }

    #[test]
    fn windows_are_told_or_there_is_one() {
        for (text, windows) in [
            ("1;receive=8192;depth=64", 1),
            ("1;receive=8192;depth=64;windows=16", 16),
            ("1; windows=4;receive=8192", 4),
            ("1;windows=0", 1),
            ("1;windows=1000", WINDOWS_MAX),
            ("1;windows=x", 1),
        ] {
            assert_eq!(windows_of(text), windows, "{text}");
        }
    }

    #[test]
    fn an_end_is_told_as_a_token_and_back() {
        let endpoint = QpEndpoint {
            transport: Transport::Rc,
            qpn: 0x1234,
            psn: 9,
            reads: 1,
            qkey: 0,
            link: None,
            address: Some("192.0.2.1:4791".parse().unwrap()),
            mtu: USUAL_MTU,
            is_port_fixed: true,
            fabric: None,
        };
        assert_eq!(of_token(&Endpoint::parse(&token_of(&endpoint).encode()).unwrap(), Psn::new(9)), endpoint);
        let fabric = FabricOffer { lid: 3, gid: Ipv6Addr::LOCALHOST, mtu: USUAL_MTU };
        let endpoint = QpEndpoint { address: None, fabric: Some(fabric), ..endpoint };
        assert_eq!(of_token(&Endpoint::parse(&token_of(&endpoint).encode()).unwrap(), Psn::new(9)), endpoint);
    }
}
