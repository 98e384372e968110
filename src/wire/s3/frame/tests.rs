//! Bytes of frames, written out by hand, and what is none.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const NO_MEMORY: Memory = Memory { address: 0, bytes: 0, rkey: 0 };

fn get() -> Request<'static> {
    Request {
        method: Method::Get,
        id: 7,
        window: Memory { address: 0x1000, bytes: 4096, rkey: 9 },
        list: &[],
        crc: 0,
        is_summed_later: false,
        target: b"/b/k",
        fields: b"range: bytes=0-9\r\n",
        body: Body::None,
    }
}

#[test]
fn bytes_of_a_request() {
    let mut out = [0xff; 128];
    let length = get().emit(&mut out);
    // Written out by hand from the table in docs/S3-RDMA.md.
    let mut expected = vec![72, 0, 0, 0, 1, 1, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0];
    expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 18, 0, 0, 0, 0, 0]);
    expected.extend(b"/b/krange: bytes=0-9\r\n\0\0");
    assert_eq!(out[..length], expected);
    assert_eq!(out[length], 0xff);
    assert_eq!(Request::parse(&out[..length]), Ok((get(), &[][..])));
}

/// A body in two windows.
fn listed(list: &[Listed]) -> Request<'_> {
    let bytes = list.iter().map(|listed| listed.memory().bytes).sum();
    Request { method: Method::Put, window: Memory { bytes, ..NO_MEMORY }, list, crc: 0x0102, body: Body::Granted, ..get() }
}

#[test]
fn bytes_of_a_request_with_a_list() {
    let list = [Listed::new(0x1000, 1 << 20, 9), Listed::new(0x0001_0000_0000, 3, 0x0a0b)];
    let put = listed(&list);
    let mut out = [0xff; 160];
    let length = put.emit(&mut out);
    // Written out by hand from the tables in docs/S3-RDMA.md.
    let mut expected = vec![104, 0, 0, 0, 1, 3, 3, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0x10, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 18, 0, 2, 0, 0, 0]);
    expected.extend(b"/b/krange: bytes=0-9\r\n\0\0");
    expected.extend([0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 9, 0, 0, 0]);
    expected.extend([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0x0b, 0x0a, 0, 0]);
    assert_eq!(out[..length], expected);
    assert_eq!(Request::parse(&out[..length]), Ok((put, &[][..])));
    let get = Request { method: Method::Get, crc: 0, body: Body::None, ..put };
    let length = get.emit(&mut out);
    assert_eq!((out[5], out[6]), (1, 3));
    assert_eq!(Request::parse(&out[..length]), Ok((get, &[][..])));
    assert!(format!("{put:?}").contains("list: [Memory(1048576 bytes, ..), Memory(3 bytes, ..)]"), "{put:?}");
}

#[test]
fn bytes_of_a_sum_and_of_the_request_it_is_behind() {
    let window = Memory { address: 0x1000, bytes: 1 << 20, rkey: 9 };
    let put = Request { method: Method::Put, window, is_summed_later: true, body: Body::Granted, ..get() };
    let sum = Sum { id: 7, crc: 0x0807_0605_0403_0201 };
    let mut out = [0xff; 128];
    let length = put.emit(&mut out);
    assert_eq!(out[4..8], [1, 3, 2, 1]);
    assert_eq!(sum.emit(&mut out[length..]), SUM_BYTES);
    let expected = [24, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(out[length..length + SUM_BYTES], expected);
    assert_eq!(out[length + SUM_BYTES], 0xff);
    let message = &out[..length + SUM_BYTES];
    let (request, behind) = Asked::parse(message).unwrap();
    assert_eq!((request, Asked::parse(behind)), (Asked::Request(put), Ok((Asked::Sum(sum), &[][..]))));
    assert_eq!((Request::parse(behind), Sum::parse(message)), (Err(Malformed::Length), Err(Malformed::Protocol)));
    assert_eq!(Answer::parse(behind), Err(Malformed::Length));
    for (at, byte, why) in [
        (0, 32, Malformed::Truncated),
        (0, 16, Malformed::Length),
        (4, 2, Malformed::Protocol),
        (5, 1, Malformed::Field),
        (7, 1, Malformed::Field),
        (12, 1, Malformed::Field),
        (15, 1, Malformed::Field),
    ] {
        let mut bad = expected;
        bad[at] = byte;
        assert_eq!(Sum::parse(&bad), Err(why), "byte {at}");
    }
    let mut last = expected;
    last[8..12].fill(0xff);
    assert_eq!(Asked::parse(&last), Err(Malformed::Field), "the number of no request");
    let longer = [&[32, 0, 0, 0][..], &expected[4..], &[0; 8]].concat();
    assert_eq!(Asked::parse(&longer), Err(Malformed::Length));
    for cut in 0..expected.len() {
        assert!(Asked::parse(&expected[..cut]).is_err(), "{cut} bytes");
    }
}

/// A request of which a field is not good.
fn refused(request: Request<'_>) {
    let mut out = vec![0; request.frame_bytes()];
    request.emit(&mut out);
    assert_eq!(Request::parse(&out), Err(Malformed::Field), "{request:?}");
}

#[test]
fn what_has_no_body_in_a_window_is_not_summed_later() {
    let later = Request { is_summed_later: true, ..get() };
    refused(later);
    refused(Request { method: Method::Delete, window: NO_MEMORY, ..later });
    refused(Request { method: Method::Put, window: NO_MEMORY, ..later });
    refused(Request { method: Method::Put, window: Memory { bytes: 5, ..NO_MEMORY }, body: Body::Inline(b"hello"), ..later });
    let put = Request { method: Method::Put, body: Body::Granted, ..later };
    refused(Request { crc: 1, ..put });
    let mut out = vec![0; put.frame_bytes()];
    put.emit(&mut out);
    assert_eq!(Request::parse(&out), Ok((put, &[][..])));
    out[7] = 2;
    assert_eq!(Request::parse(&out), Err(Malformed::Field));
    // Of a list as well, if it is the body that is in it.
    let list = [Listed::new(0x1000, 4096, 9), Listed::new(0x9000, 4096, 8)];
    let put = Request { crc: 0, is_summed_later: true, ..listed(&list) };
    let mut out = vec![0; put.frame_bytes()];
    put.emit(&mut out);
    assert_eq!(Request::parse(&out), Ok((put, &[][..])));
    refused(Request { method: Method::Get, body: Body::None, ..put });
}

#[test]
fn every_byte_of_a_target_is_looked_at() {
    for length in 0..26 {
        assert!(is_graphic(&vec![b'~'; length]) && is_graphic(&vec![b'!'; length]));
        for (at, byte) in (0..length).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
            for others in [b'!', b'~'] {
                let mut bytes = vec![others; length];
                bytes[at] = byte;
                assert_eq!(is_graphic(&bytes), byte.is_ascii_graphic(), "{byte:#x} at {at} of {length}");
            }
        }
    }
}

#[test]
fn a_list_that_is_none_is_refused() {
    let list = [Listed::new(0x1000, 4096, 9), Listed::new(0x9000, 4096, 8)];
    let put = listed(&list);
    // It lies about its length, names a window besides, or is of a request that has neither a body nor a long answer.
    for bytes in [0, 4096, 8191, 8193, u64::MAX] {
        refused(Request { window: Memory { bytes, ..NO_MEMORY }, ..put });
    }
    refused(Request { window: Memory { address: 1, ..put.window }, ..put });
    refused(Request { window: Memory { rkey: 1, ..put.window }, ..put });
    for method in [Method::Head, Method::Delete, Method::Get] {
        refused(Request { method, ..put });
    }
    refused(listed(&[list[0], Listed::new(0x9000, 0, 8)]));
    refused(listed(&[list[0], Listed::new(u64::MAX - 4094, 4096, 8)]));
    refused(listed(&[list[0]; WINDOWS_MAX + 1]));
    let mut out = vec![0; listed(&[list[0]; WINDOWS_MAX]).frame_bytes()];
    listed(&[list[0]; WINDOWS_MAX]).emit(&mut out);
    assert!(Request::parse(&out).is_ok());
    // A count that is not of the list; a list of nothing; a count without a list.
    for count in [0u32, 15, 17, u32::MAX] {
        let mut bad = out.clone();
        bad[44..48].copy_from_slice(&count.to_le_bytes());
        assert!(Request::parse(&bad).is_err(), "{count} windows");
    }
    let mut none = [0; 72];
    Request { window: NO_MEMORY, ..get() }.emit(&mut none);
    none[6] = 3;
    assert_eq!(Request::parse(&none), Err(Malformed::Field));
    (none[6], none[44]) = (0, 1);
    assert_eq!(Request::parse(&none), Err(Malformed::Field));
}

#[test]
fn bytes_of_an_answer() {
    let answer = Answer { id: 7, status: 206, bytes: 3, crc: 0x0102, fields: b"etag: \"x\"\r\n", body: Body::Inline(b"abc") };
    let mut out = [0xff; 64];
    let length = answer.emit(&mut out);
    let mut expected = vec![56, 0, 0, 0, 2, 0, 1, 0, 7, 0, 0, 0, 206, 0, 11, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
    expected.extend(b"etag: \"x\"\r\n\0\0\0\0\0abc\0\0\0\0\0");
    assert_eq!(out[..length], expected);
    assert_eq!(Answer::parse(&out[..length]), Ok((answer, &[][..])));
}

#[test]
fn frames_follow_one_another() {
    let put = Request { method: Method::Put, window: Memory { bytes: 5, ..NO_MEMORY }, crc: 1, body: Body::Inline(b"hello"), ..get() };
    let mut out = vec![0; put.frame_bytes() + get().frame_bytes()];
    let first = put.emit(&mut out);
    get().emit(&mut out[first..]);
    let (one, behind) = Request::parse(&out).unwrap();
    assert_eq!((one, Request::parse(behind)), (put, Ok((get(), &[][..]))));
    assert_eq!(Answer::parse(&out), Err(Malformed::Protocol));
}

#[test]
fn what_is_no_request_is_refused() {
    let bytes_of = |request: &Request<'_>| {
        let mut out = vec![0; request.frame_bytes()];
        request.emit(&mut out);
        out
    };
    let refused = |request: Request<'_>, why| assert_eq!(Request::parse(&bytes_of(&request)), Err(why), "{request:?}");
    for target in ["", "b", "/a b", "/a\r\n", "/\x7f", "/é"] {
        refused(Request { target: target.as_bytes(), ..get() }, Malformed::Field);
    }
    for fields in ["a: b", "a: b\n", "\r\n", "a: b\r\n\r\n", "a: b\r\n\r\nc: d\r\n", "a: \0\r\n", "a\r: b\r\n"] {
        refused(Request { fields: fields.as_bytes(), ..get() }, Malformed::Field);
    }
    refused(Request { body: Body::Granted, ..get() }, Malformed::Field);
    refused(Request { crc: 1, ..get() }, Malformed::Field);
    refused(Request { id: LAST, ..get() }, Malformed::Field);
    refused(Request { method: Method::Delete, ..get() }, Malformed::Field);
    refused(Request { window: Memory { bytes: 0, ..get().window }, ..get() }, Malformed::Field);
    refused(Request { window: Memory { address: u64::MAX, ..get().window }, ..get() }, Malformed::Field);
    refused(Request { method: Method::Put, body: Body::Inline(&[0; 4096]), ..get() }, Malformed::Field);
    let good = bytes_of(&get());
    for (at, byte, why) in [
        (0, 71, Malformed::Length),
        (0, 80, Malformed::Truncated),
        (0, 64, Malformed::Length),
        (0, 0, Malformed::Length),
        (4, 2, Malformed::Protocol),
        (5, 0, Malformed::Opcode),
        (5, 6, Malformed::Opcode),
        (6, 3, Malformed::Field),
        (6, 4, Malformed::Field),
        (7, 1, Malformed::Field),
        (44, 1, Malformed::Field),
        (71, 1, Malformed::Pad),
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(Request::parse(&bad), Err(why), "byte {at}");
    }
    for cut in 0..good.len() {
        assert!(Request::parse(&good[..cut]).is_err(), "{cut} bytes");
    }
}

const PIECES: [&[u8]; 9] = [b"\r\n", b"\r", b"\n", b"a", b"\t", b"\x7f", b"\x01", b"\xff", b"a: b\r\n"];

/// What lines are, byte by byte.
fn are_lines_slowly(mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return false };
        let line = &rest[..end];
        if line.is_empty() || line.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
            return false;
        }
        rest = &rest[end + 2..];
    }
    true
}

proptest! {
    #[test]
    fn targets_are_targets(target in "/[!-~]{0,40}", at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        prop_assert!(is_target(target.as_bytes()));
        let mut bytes = target.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        prop_assert_eq!(is_target(&bytes), bytes[0] == b'/' && byte.is_ascii_graphic());
    }

    #[test]
    fn lines_are_lines(pieces in vec(prop::sample::select(PIECES.to_vec()), 0..12)) {
        let fields = pieces.concat();
        prop_assert_eq!(are_lines(&fields), are_lines_slowly(&fields));
    }

    #[test]
    fn what_is_taken_is_what_would_be_written(mut bytes in vec(any::<u8>(), 0..160), kind in 1u8..4, length in 3u32..20) {
        if bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&(length * 8).to_le_bytes());
            bytes[4] = kind;
        }
        let mut out = [0; 256];
        if let Ok((asked, behind)) = Asked::parse(&bytes) {
            let written = match asked {
                Asked::Request(request) => request.emit(&mut out),
                Asked::Sum(sum) => sum.emit(&mut out),
            };
            prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
        }
        if let Ok((answer, behind)) = Answer::parse(&bytes) {
            let written = answer.emit(&mut out);
            prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written(
        windows in vec((0u64..1 << 48, 1u32.., any::<u32>()), 1..=WINDOWS_MAX),
        is_put in any::<bool>(),
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let list: Vec<Listed> = windows.iter().map(|&(address, bytes, rkey)| Listed::new(address, bytes, rkey)).collect();
        let put = listed(&list);
        let request = if is_put { put } else { Request { method: Method::Get, crc: 0, body: Body::None, ..put } };
        let mut bytes = vec![0; request.frame_bytes()];
        request.emit(&mut bytes);
        prop_assert_eq!(Request::parse(&bytes), Ok((request, &[][..])));
        prop_assert!(Request::parse(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok((read, behind)) = Request::parse(&bytes) {
            let mut out = vec![0; read.frame_bytes()];
            read.emit(&mut out);
            prop_assert_eq!(&out[..], &bytes[..bytes.len() - behind.len()]);
            let sum: u64 = read.list.iter().map(|listed| listed.memory().bytes).sum();
            prop_assert!(read.list.is_empty() || sum == read.window.bytes);
        }
    }

    #[test]
    fn a_damaged_request_is_read_as_it_is_or_refused(at in 0usize..72, byte in any::<u8>()) {
        let mut bytes = [0; 72];
        get().emit(&mut bytes);
        bytes[at] = byte;
        if let Ok((request, behind)) = Request::parse(&bytes) {
            let mut out = [0; 256];
            let written = request.emit(&mut out);
            prop_assert_eq!(&out[..written], &bytes[..bytes.len() - behind.len()]);
        }
    }
}
