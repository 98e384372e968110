//! A server's ports: its cores share them among themselves, and with nobody else.

use std::collections::BTreeSet;
use std::io::ErrorKind::AddrInUse;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};
use crate::device::socket::TcpListener;

/// How often a port is tried that is taken, and how long is waited in between: five seconds in all. The kernel ends the rings of a
/// predecessor that was killed, which have its ports, some time after the process.
const TRIES: u32 = 250;
const PAUSE: Duration = Duration::from_millis(20);

/// Addresses that this process is going to listen at, or does: another server of the same user, whom the kernel would let share them, is
/// refused as long as there is this. It goes with the process.
///
/// Each is a name in the kernel's abstract namespace, which is that of the network, as ports are; nobody connects there.
#[must_use]
pub struct Claims(Vec<UnixListener>);

impl Claims {
    /// Claims addresses where nobody listens, each with what else could be told to the server. Port 0 is nobody's.
    ///
    /// # Errors
    /// `Busy`: somebody listens at one of them, or is going to. Others as for [`TcpListener::bind`].
    pub fn of(addresses: &[(SocketAddr, &str)]) -> Result<Claims> {
        Claims::with(addresses, TRIES)
    }

    fn with(addresses: &[(SocketAddr, &str)], tries: u32) -> Result<Claims> {
        let (mut claims, mut seen) = (Claims(Vec::new()), BTreeSet::new());
        for &(address, otherwise) in addresses {
            if address.port() != 0 && !seen.insert(address) {
                // Two of its own doors.
                continue;
            }
            // First the claim: who has begun to listen since then had it before.
            claims.0.extend(patiently(tries, otherwise, || claim(address))?);
            patiently(tries, otherwise, || TcpListener::probe(address))?;
        }
        Ok(claims)
    }
}

/// That nobody listens there.
///
/// # Errors
/// As for [`Claims::of`].
pub fn is_free(address: SocketAddr, otherwise: &str) -> Result<()> {
    patiently(TRIES, otherwise, || TcpListener::probe(address))
}

/// Tries what somebody else may still have.
fn patiently<T>(tries: u32, otherwise: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let mut tried = attempt();
    for _ in 1..tries {
        match &tried {
            Err(error) if error.kind() == ErrorKind::Busy => std::thread::sleep(PAUSE),
            _ => break,
        }
        tried = attempt();
    }
    tried.map_err(|error| match error.kind() {
        ErrorKind::Busy => error.remedy(format!("end the other server, or choose another address: basin serve {otherwise}")),
        _ => error,
    })
}

fn claim(address: SocketAddr) -> Result<Option<UnixListener>> {
    if address.port() == 0 {
        return Ok(None);
    }
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("basin serve {address}"));
    match name.and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if error.kind() == AddrInUse => Err(Error::io(format!("listening on {address}"), &error)),
        Err(error) => {
            // It is in front of mistakes only; a server that may have no such socket serves all the same.
            tracing::warn!(%address, %error, "another server that starts now could share the port");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_address() -> SocketAddr {
        std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
    }

    #[test]
    fn two_that_are_going_to_listen_at_an_address_are_one_too_many() {
        let (address, other) = (free_address(), free_address());
        let all = [(address, "--listen"), (other, "--rdma-port"), (address, "--https")];
        let claims = Claims::with(&all, 1).unwrap();
        for (address, option) in [(address, "--listen"), (other, "--rdma-port")] {
            let error = Claims::with(&[(address, option)], 1).map(drop).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Busy && error.to_string().contains(&format!("listening on {address}: EADDRINUSE")),
                "{error}"
            );
            assert!(error.remedy_text().is_some_and(|remedy| remedy.ends_with(option)), "{error}");
        }
        drop(claims);
        Claims::with(&all, 1).map(drop).unwrap();
    }

    #[test]
    fn who_listens_or_is_about_to_end_is_seen() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(Claims::with(&[(address, "")], 1).map(drop).unwrap_err().kind(), ErrorKind::Busy);
        drop(listener);
        let ending = Claims::with(&[(address, "")], 1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(3 * PAUSE);
                drop(ending);
            });
            Claims::of(&[(address, "")]).map(drop).unwrap();
        });
    }

    #[test]
    fn any_port_is_for_all() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let _claims = Claims::with(&[(any, ""), (any, "")], 1).unwrap();
        Claims::with(&[(any, "")], 1).map(drop).unwrap();
    }
}
