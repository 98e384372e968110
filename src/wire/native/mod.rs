//! Formats of our own making, and the one line that stock tools exchange out of band.
//!
//! | module | bytes |
//! | --- | --- |
//! | [`pingpong`] | the TCP line of `ibv_rc_pingpong` |
//! | [`record`] | 64 bytes in front of every payload that flow 1 stores |
//! | [`datagram`] | 24 bytes in front of every test datagram, and its acknowledgements |

pub mod datagram;
pub mod pingpong;
pub mod record;
