//! Counting the kernel's copies in a build without BPF: nobody does.

use std::path::Path;
use std::sync::Arc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// The programs that count. There are none in this build.
#[derive(Debug)]
pub enum KernelCopies {}

/// A flow's share. There is none in this build.
#[derive(Debug)]
pub enum Share {}

impl KernelCopies {
    /// See the build with BPF.
    ///
    /// # Errors
    /// Always.
    pub fn open() -> Result<KernelCopies> {
        let what = "counting the kernel's copies: this build has no BPF";
        Err(Error::new(ErrorKind::Unavailable, what).remedy("build with the feature xdp"))
    }

    /// See the build with BPF.
    ///
    /// # Errors
    /// None.
    pub fn watch_storage(&self, _: &Path) -> Result<()> {
        match *self {}
    }

    /// See the build with BPF.
    pub fn begin(self: &Arc<Self>) -> Share {
        match **self {}
    }
}

impl Share {
    /// See the build with BPF.
    pub fn end(self) -> Option<u64> {
        match self {}
    }
}
