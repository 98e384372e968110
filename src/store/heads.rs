//! The heads of a segment that is in use, a window at a time: of long items little else is read.

use super::failure::Outcome;
use super::log::LogEnv;
use super::recover::read;
use super::scan::Scan;
use crate::base::limits;
use crate::mem::Run;
use crate::wire::store::segment;

/// The shortest piece of a segment that is looked for items.
const WINDOW_MIN: u32 = 16 << 10;
/// Of an item with so much more behind what was read the rest is not read. Of shorter ones many reads would take longer than one.
const SKIPPED_MIN: u64 = 128 << 10;

/// Where in a segment heads are looked for.
pub(super) struct Heads {
    /// The next byte of the device where an item may begin.
    at: u64,
    /// Where the segment ends on the device.
    end: u64,
    salt: u64,
    block: u64,
    window_bytes: u32,
    /// What was read.
    bytes: u64,
}

impl Heads {
    /// From the front of a segment that is in use.
    pub fn new(env: &LogEnv, segment: u32) -> Heads {
        let base = env.superblock.segment_at(segment);
        let at = base + u64::from(segment::BYTES);
        Heads {
            at,
            end: base + u64::from(env.superblock.segment_bytes),
            salt: env.segments.salt(at),
            block: env.superblock.block_bytes.into(),
            window_bytes: WINDOW_MIN,
            bytes: 0,
        }
    }

    /// Whether the end of the segment was reached.
    pub fn are_over(&self) -> bool {
        self.at >= self.end
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block with the first byte where an item may begin.
    fn from(&self) -> u64 {
        self.at / self.block * self.block
    }

    /// Reads the next window.
    ///
    /// # Errors
    /// The device's; no memory.
    pub async fn read(&mut self, env: &LogEnv) -> Outcome<Run> {
        let bytes = (self.end - self.from()).min(self.window_bytes.into()) as u32;
        let window = read(&env.disk, &env.slab, self.from(), bytes).await?;
        self.bytes += u64::from(bytes);
        Ok(window)
    }

    /// The items whose heads are in the window that was read.
    pub fn scan<'a>(&self, window: &'a Run) -> Scan<'a> {
        Scan::new(&window.as_slice()[(self.at - self.from()) as usize..], self.at, self.salt, self.end)
    }

    /// The next item may begin at byte `next` of the device, as the scan of `window` says.
    pub fn go_on(&mut self, window: &Run, next: u64) {
        let seen = self.from() + u64::from(window.len());
        self.at = if seen >= self.end { self.end } else { next };
        // Behind a long item only the head of the next one is of interest; a head that is not whole needs a longer piece.
        let is_skipped = self.at >= seen + SKIPPED_MIN;
        self.window_bytes = if is_skipped { WINDOW_MIN } else { (2 * self.window_bytes).min(limits::IO_MAX_BYTES) };
    }
}
