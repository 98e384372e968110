//! Bounds that hold across layers, each with its source, checked against one another at compile time.

/// UMEM takes chunks of 2048 and 4096 bytes only (`net/xdp/xdp_umem.c`: a power of two, at least 2048, at most a page).
pub const CHUNK_SIZES: [u32; 2] = [2048, 4096];

/// What the kernel keeps free in front of the packet in every UMEM frame (`XDP_PACKET_HEADROOM`).
pub const XDP_PACKET_HEADROOM: u32 = 256;

/// The most one io_uring fixed buffer may span (`io_uring/rsrc.c`: `SZ_1G`); a larger region takes several.
pub const FIXED_BUFFER_MAX_BYTES: u64 = 1 << 30;

/// The most fixed buffers a ring takes (`IORING_MAX_REG_BUFFERS`).
pub const FIXED_BUFFERS_MAX: u32 = 1 << 14;

/// Chunks of a received RoCE packet, at most: one of 4096 bytes and its headers in chunks of 2 KiB, of which each holds 1536 behind 256
/// bytes of the kernel's and 256 of our own head room.
pub const PACKET_CHUNKS_MAX: usize = 3;

/// The largest write of the runtime; and its largest contiguous run, where chunks are of the smaller size ([`RUN_MAX_CHUNKS`]).
pub const IO_MAX_BYTES: u32 = 1 << 20;

/// The most bytes in one gather: the largest run, and what belongs in front of it. A device may take less with a command.
pub const GATHER_MAX_BYTES: u32 = IO_MAX_BYTES + (64 << 10);

/// Chunks in the largest run: 1 MiB of chunks of 2 KiB, 2 MiB of those of 4.
pub const RUN_MAX_CHUNKS: u32 = IO_MAX_BYTES / CHUNK_SIZES[0];

/// Pieces in one gather or scatter operation: the kernel's `UIO_MAXIOV`. A write of 512 KiB of datagrams of 300 bytes, a block each,
/// needs as many.
pub const GATHER_MAX: usize = 1024;

/// Chunks in the largest region: chunk numbers are 32 bits, and 2³¹ chunks of 2 KiB are 4 TiB.
pub const REGION_MAX_CHUNKS: u64 = 1 << 31;

/// The largest alignment O_DIRECT or an NVMe format asks for here.
pub const BLOCK_MAX_BYTES: u32 = 4096;

/// Cores one process may use.
pub const CORES_MAX: usize = 64;

const _: () = {
    assert!(FIXED_BUFFERS_MAX as u64 * FIXED_BUFFER_MAX_BYTES >= REGION_MAX_CHUNKS * 2048, "fixed buffers cover the largest region");
    assert!(RUN_MAX_CHUNKS.is_power_of_two(), "the slab's buddy orders end at the largest run");
    assert!(GATHER_MAX <= 1024, "UIO_MAXIOV");
    assert!(CORES_MAX.is_power_of_two(), "stream and queue pair numbers begin with log2 of it bits that name the core");
};
