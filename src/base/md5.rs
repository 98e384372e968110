//! MD5 (RFC 1321) of many streams side by side: a lane of a vector for each. One stream is slow because every step of MD5 waits for
//! the one before; the steps of several streams do not wait for one another.
//!
//! For ETags and Content-MD5, which S3's clients want. It protects from accidents, not from attackers.

use std::hint::black_box;

use pulp::{Arch, Simd, WithSimd};

/// Bytes that are hashed at a time.
pub const BLOCK: usize = 64;
/// The most streams that are hashed side by side.
pub const LANES_MAX: usize = 16;
/// So many streams take as long one by one as side by side.
pub const ALONE_MAX: usize = 2;

/// The sines of RFC 1321, section 3.4.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee, 0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be, 0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa, 0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed, 0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c, 0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05, 0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039, 0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1, 0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];

/// A hash under way.
#[derive(Clone, Debug)]
pub struct State {
    words: [u32; 4],
    bytes: u64,
    /// The last bytes, where they are no whole block.
    partial: [u8; BLOCK],
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// Of nothing yet.
    pub fn new() -> State {
        State { words: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476], bytes: 0, partial: [0; BLOCK] }
    }

    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> [u8; 16] {
        let mut state = State::new();
        state.update(bytes);
        state.finish()
    }

    /// More bytes, of this stream alone.
    pub fn update(&mut self, bytes: &[u8]) {
        let blocks = self.begin(bytes);
        for block in blocks {
            compress(&mut self.words, block);
        }
        self.end(bytes, blocks.len());
    }

    /// A whole block, of this stream alone.
    ///
    /// # Panics
    /// When the bytes before it end within a block: a bug of the caller's.
    #[inline(always)]
    pub fn block(&mut self, block: &[u8; BLOCK]) {
        assert!(self.is_between_blocks(), "a block within another one");
        compress(&mut self.words, block);
        self.bytes = self.bytes.wrapping_add(BLOCK as u64);
    }

    /// Whether the bytes so far end with a block.
    pub fn is_between_blocks(&self) -> bool {
        self.partial_bytes() == 0
    }

    /// The hash.
    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.bytes.wrapping_mul(8).to_le_bytes();
        let zeros = (2 * BLOCK - 9 - self.partial_bytes()) % BLOCK;
        let mut padding = [0; 2 * BLOCK];
        padding[0] = 0x80;
        padding[1 + zeros..9 + zeros].copy_from_slice(&bits);
        self.update(&padding[..9 + zeros]);
        let mut hash = [0; 16];
        for (bytes, word) in hash.chunks_exact_mut(4).zip(self.words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        hash
    }

    fn partial_bytes(&self) -> usize {
        self.bytes as usize % BLOCK
    }

    /// Takes what fills the partial block, and gives the whole blocks behind it.
    fn begin<'a>(&mut self, bytes: &'a [u8]) -> &'a [[u8; BLOCK]] {
        let partial = self.partial_bytes();
        let mut behind = bytes;
        if partial > 0 {
            let (first, rest) = bytes.split_at(bytes.len().min(BLOCK - partial));
            self.partial[partial..partial + first.len()].copy_from_slice(first);
            if partial + first.len() == BLOCK {
                compress(&mut self.words, &self.partial);
            }
            behind = rest;
        }
        behind.as_chunks().0
    }

    /// Keeps what is behind the whole blocks, which are hashed now.
    fn end(&mut self, bytes: &[u8], blocks: usize) {
        let partial = self.partial_bytes();
        let first = if partial > 0 { bytes.len().min(BLOCK - partial) } else { 0 };
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
        let rest = &bytes[first + blocks * BLOCK..];
        self.partial[..rest.len()].copy_from_slice(rest);
    }
}

/// More bytes of several streams. Fastest with 8 or 16 of them of one length.
pub fn update_many(streams: &mut [(&mut State, &[u8])]) {
    for some in streams.chunks_mut(LANES_MAX) {
        update_some(some);
    }
}

/// The same of as many as there are lanes at most.
fn update_some(streams: &mut [(&mut State, &[u8])]) {
    if let [(state, bytes)] = streams {
        return state.update(bytes);
    }
    let mut blocks: [&[[u8; BLOCK]]; LANES_MAX] = [&[]; LANES_MAX];
    for (blocks, (state, bytes)) in blocks.iter_mut().zip(streams.iter_mut()) {
        *blocks = state.begin(bytes);
    }
    let arch = Arch::new();
    let mut done = [0; LANES_MAX];
    loop {
        // As far as the shortest goes; those that are at their end are left out then.
        let mut lanes = [0; LANES_MAX];
        let (mut width, mut count) = (0, usize::MAX);
        for stream in 0..streams.len() {
            let left = blocks[stream].len() - done[stream];
            if left > 0 {
                lanes[width] = stream;
                (width, count) = (width + 1, count.min(left));
            }
        }
        let lanes = &lanes[..width];
        let Some(&first) = lanes.first() else { break };
        let mut words: [[u32; 4]; LANES_MAX] = [[0; 4]; LANES_MAX];
        // Lanes without a stream hash another's blocks, and nobody looks at what comes of it.
        let mut data = [&blocks[first][done[first]..][..count]; LANES_MAX];
        for (lane, &stream) in lanes.iter().enumerate() {
            words[lane] = streams[stream].0.words;
            data[lane] = &blocks[stream][done[stream]..][..count];
        }
        match width {
            1..=ALONE_MAX => {
                for (words, blocks) in words.iter_mut().zip(data).take(width) {
                    blocks.iter().for_each(|block| compress(words, block));
                }
            }
            ..=8 => {
                arch.dispatch(Lanes::<8> { words: words.first_chunk_mut().expect("8 of 16"), data: data.first_chunk().expect("8 of 16") })
            }
            _ => arch.dispatch(Lanes::<16> { words: &mut words, data: &data }),
        }
        for (lane, &stream) in lanes.iter().enumerate() {
            streams[stream].0.words = words[lane];
            done[stream] += count;
        }
    }
    for ((state, bytes), blocks) in streams.iter_mut().zip(blocks) {
        state.end(bytes, blocks.len());
    }
}

/// As many blocks of N streams.
struct Lanes<'a, const N: usize> {
    words: &'a mut [[u32; 4]; N],
    data: &'a [&'a [[u8; BLOCK]]; N],
}

impl<const N: usize> WithSimd for Lanes<'_, N> {
    type Output = ();

    /// With the instructions of the processor it runs on: the compiler makes vectors of the lanes.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Lanes { words, data } = self;
        let mut state = [Lane([0; N]); 4];
        for (lane, words) in words.iter().enumerate() {
            for (state, word) in state.iter_mut().zip(words) {
                state.0[lane] = *word;
            }
        }
        for block in 0..data[0].len() {
            let mut message = [Lane([0; N]); 16];
            for (lane, blocks) in data.iter().enumerate() {
                for (message, word) in message.iter_mut().zip(blocks[block].as_chunks().0) {
                    message.0[lane] = u32::from_le_bytes(*word);
                }
            }
            mix(&mut state, &message);
        }
        for (lane, words) in words.iter_mut().enumerate() {
            *words = state.map(|word| word.0[lane]);
        }
    }
}

/// One block of one stream.
#[inline(always)]
fn compress(words: &mut [u32; 4], block: &[u8; BLOCK]) {
    let mut message = [Lane([0]); 16];
    for (word, bytes) in message.iter_mut().zip(block.as_chunks().0) {
        word.0[0] = u32::from_le_bytes(*bytes);
    }
    let mut state = words.map(|word| Lane([word]));
    mix(&mut state, &message);
    *words = state.map(|word| word.0[0]);
}

/// A word of each of N streams.
#[derive(Clone, Copy)]
struct Lane<const N: usize>([u32; N]);

impl<const N: usize> Lane<N> {
    #[inline(always)]
    fn with(self, other: Lane<N>, each: impl Fn(u32, u32) -> u32) -> Lane<N> {
        let mut out = self;
        for lane in 0..N {
            out.0[lane] = each(self.0[lane], other.0[lane]);
        }
        out
    }

    #[inline(always)]
    fn plus(self, other: Lane<N>) -> Lane<N> {
        self.with(other, u32::wrapping_add)
    }

    #[inline(always)]
    fn and(self, other: Lane<N>) -> Lane<N> {
        self.with(other, |one, other| one & other)
    }

    #[inline(always)]
    fn and_not(self, other: Lane<N>) -> Lane<N> {
        self.with(other, |one, other| one & !other)
    }

    #[inline(always)]
    fn or_not(self, other: Lane<N>) -> Lane<N> {
        self.with(other, |one, other| one | !other)
    }

    #[inline(always)]
    fn xor(self, other: Lane<N>) -> Lane<N> {
        self.with(other, |one, other| one ^ other)
    }

    #[inline(always)]
    fn rotated(self, bits: u32) -> Lane<N> {
        self.with(self, |one, _| one.rotate_left(bits))
    }
}

/// RFC 1321, section 3.4: four rounds of sixteen steps.
#[inline(always)]
fn mix<const N: usize>(state: &mut [Lane<N>; 4], m: &[Lane<N>; 16]) {
    // Numbers that the compiler does not know: those it knows it adds last, and the newest word, which everything waits for, one addition
    // later. That is a sixth of the speed of one stream.
    let sines = black_box(&SINES);
    type L<const N: usize> = Lane<N>;
    let before = *state;
    // What depends on the newest word, b, comes last in each.
    let f = |sum: L<N>, b: L<N>, c: L<N>, d: L<N>| sum.plus(c.xor(d).and(b).xor(d));
    let g = |sum: L<N>, b: L<N>, c: L<N>, d: L<N>| sum.plus(c.and_not(d)).plus(b.and(d));
    let h = |sum: L<N>, b: L<N>, c: L<N>, d: L<N>| sum.plus(c.xor(d).xor(b));
    let i = |sum: L<N>, b: L<N>, c: L<N>, d: L<N>| sum.plus(c.xor(b.or_not(d)));
    four(state, (m, sines), f, 0, [0, 1, 2, 3], [7, 12, 17, 22]);
    four(state, (m, sines), f, 4, [4, 5, 6, 7], [7, 12, 17, 22]);
    four(state, (m, sines), f, 8, [8, 9, 10, 11], [7, 12, 17, 22]);
    four(state, (m, sines), f, 12, [12, 13, 14, 15], [7, 12, 17, 22]);
    four(state, (m, sines), g, 16, [1, 6, 11, 0], [5, 9, 14, 20]);
    four(state, (m, sines), g, 20, [5, 10, 15, 4], [5, 9, 14, 20]);
    four(state, (m, sines), g, 24, [9, 14, 3, 8], [5, 9, 14, 20]);
    four(state, (m, sines), g, 28, [13, 2, 7, 12], [5, 9, 14, 20]);
    four(state, (m, sines), h, 32, [5, 8, 11, 14], [4, 11, 16, 23]);
    four(state, (m, sines), h, 36, [1, 4, 7, 10], [4, 11, 16, 23]);
    four(state, (m, sines), h, 40, [13, 0, 3, 6], [4, 11, 16, 23]);
    four(state, (m, sines), h, 44, [9, 12, 15, 2], [4, 11, 16, 23]);
    four(state, (m, sines), i, 48, [0, 7, 14, 5], [6, 10, 15, 21]);
    four(state, (m, sines), i, 52, [12, 3, 10, 1], [6, 10, 15, 21]);
    four(state, (m, sines), i, 56, [8, 15, 6, 13], [6, 10, 15, 21]);
    four(state, (m, sines), i, 60, [4, 11, 2, 9], [6, 10, 15, 21]);
    for (word, before) in state.iter_mut().zip(before) {
        *word = word.plus(before);
    }
}

/// Four steps from `at` on, after which each word is in its place again.
#[inline(always)]
fn four<const N: usize>(
    state: &mut [Lane<N>; 4],
    (message, sines): (&[Lane<N>; 16], &[u32; 64]),
    add: impl Fn(Lane<N>, Lane<N>, Lane<N>, Lane<N>) -> Lane<N>,
    at: usize,
    words: [usize; 4],
    shifts: [u32; 4],
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..4 {
        let sum = a.plus(Lane([sines[at + step]; N])).plus(message[words[step]]);
        (a, d, c, b) = (d, c, b, add(sum, b, c, d).rotated(shifts[step]).plus(b));
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::md5::{Digest as _, Md5};
    use proptest::prelude::*;

    /// RFC 1321, appendix A.5.
    #[test]
    fn the_vectors_of_the_rfc() {
        for (text, hash) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"),
            ("12345678901234567890123456789012345678901234567890123456789012345678901234567890", "57edf4a22be3c955ac49da2e2107b67a"),
        ] {
            assert_eq!(base16ct::lower::encode_string(&State::of(text.as_bytes())), hash, "{text:?}");
        }
    }

    #[test]
    fn every_number_of_streams_side_by_side() {
        for count in 0..=3 * LANES_MAX {
            let data: Vec<Vec<u8>> = (0..count).map(|stream| (0..640).map(|at| (stream * 31 + at * 7) as u8).collect()).collect();
            let mut states = vec![State::new(); count];
            update_many(&mut states.iter_mut().zip(&data).map(|(state, bytes)| (state, &bytes[..])).collect::<Vec<_>>());
            for (state, bytes) in states.into_iter().zip(&data) {
                assert_eq!(state.finish()[..], Md5::digest(bytes)[..], "of {count}");
            }
        }
    }

    #[test]
    fn every_length_around_a_block_and_its_padding() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..200 {
            assert_eq!(State::of(&bytes[..length])[..], Md5::digest(&bytes[..length])[..], "{length} bytes");
        }
    }

    proptest! {
        /// Streams of different lengths, which come in pieces of any size, some of them together with others.
        #[test]
        fn pieces_of_many_streams(
            streams in prop::collection::vec(prop::collection::vec(0usize..700, 0..6), 0..40),
            seed in any::<u8>(),
        ) {
            let byte = |stream: usize, at: usize| (at * 131 + stream * 17 + usize::from(seed)) as u8 ^ (at >> 8) as u8;
            let mut states = vec![State::new(); streams.len()];
            let mut so_far = vec![Vec::<u8>::new(); streams.len()];
            for round in 0..6 {
                let pieces: Vec<Vec<u8>> = streams.iter().enumerate().map(|(stream, pieces)| {
                    let from = so_far[stream].len();
                    (from..from + pieces.get(round).copied().unwrap_or(0)).map(|at| byte(stream, at)).collect()
                }).collect();
                update_many(&mut states.iter_mut().zip(&pieces).map(|(state, piece)| (state, &piece[..])).collect::<Vec<_>>());
                so_far.iter_mut().zip(pieces).for_each(|(so_far, piece)| so_far.extend(piece));
            }
            for (state, bytes) in states.into_iter().zip(so_far) {
                prop_assert_eq!(&state.finish()[..], &Md5::digest(&bytes)[..]);
            }
        }
    }
}
