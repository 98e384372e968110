//! Packet queues in a build without them: a reader nobody can have, so that what uses readers needs no condition.

use crate::base::Nanos;
use crate::device::packet::{Link, PacketMode, PortFault};
use crate::mem::Buf;

/// An interface opened for packets. There is none in this build.
#[derive(Clone, Debug)]
pub enum Interface {}

/// The packets of some UDP ports of a queue. There is none in this build.
#[derive(Debug)]
pub enum Inlet {}

impl Inlet {
    /// See the build with packet queues.
    pub fn receive(&self, _: &mut Vec<Buf>, _: usize) -> Result<usize, PortFault> {
        match *self {}
    }

    /// See the build with packet queues.
    pub fn hold(&self, _: Nanos) -> bool {
        match *self {}
    }

    /// See the build with packet queues.
    pub async fn readable(&self) {
        match *self {}
    }

    /// See the build with packet queues.
    pub fn try_post(&self, _: Buf) -> Result<(), Buf> {
        match *self {}
    }

    /// See the build with packet queues.
    pub fn mode(&self) -> PacketMode {
        match *self {}
    }

    /// See the build with packet queues.
    pub fn link(&self) -> &Link {
        match *self {}
    }
}
