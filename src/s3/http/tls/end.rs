//! What a connection needs of rustls, whichever end it is.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::UnbufferedStatus;
use rustls::{ClientConfig, ProtocolVersion};

use super::identity::Identity;

/// An end of a connection.
pub trait End {
    /// What rustls keeps of it.
    type Data;
    /// Who this end is, or whom it believes.
    type Who: Clone;
    /// Whether it is the server's.
    const IS_SERVER: bool;

    /// Goes on with what has come.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    /// Whether the handshake goes on.
    fn is_handshaking(&self) -> bool;
    /// Whether there is something to be sent.
    fn wants_write(&self) -> bool;
    /// The version that was agreed on.
    fn protocol_version(&self) -> Option<ProtocolVersion>;
}

/// Both ends have the same calls, of different types.
macro_rules! end {
    ($connection:ty, $data:ty, $who:ty, $is_server:literal) => {
        impl End for $connection {
            type Data = $data;
            type Who = $who;
            const IS_SERVER: bool = $is_server;

            fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, $data> {
                self.process_tls_records(bytes)
            }

            fn is_handshaking(&self) -> bool {
                (**self).is_handshaking()
            }

            fn wants_write(&self) -> bool {
                (**self).wants_write()
            }

            fn protocol_version(&self) -> Option<ProtocolVersion> {
                (**self).protocol_version()
            }
        }
    };
}

end!(UnbufferedServerConnection, ServerConnectionData, Arc<Identity>, true);
end!(UnbufferedClientConnection, ClientConnectionData, Arc<ClientConfig>, false);
