//! Page-aligned memory for set-up: probing, zero-writing and headers go O_DIRECT like everything else.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;

use crate::base::{Error, Result};

/// `len` zeroed bytes, aligned to a page.
pub fn zeroed(len: usize) -> Result<MmapMut> {
    MmapMut::map_anon(len).map_err(|error| Error::io(format!("mapping {len} bytes for disk set-up"), &error))
}

/// Reads at `offset` until `into` is full or the file ends; returns the bytes read. On an O_DIRECT file offset and length must be
/// aligned.
pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // The rest after a file's unaligned end.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
