//! aws-chunked: the examples of the S3 API reference, what its clients send, and what is malformed.

use super::*;
use proptest::prelude::*;

/// The chunks and the trailers that a stream has, or what is wrong with it.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    payload: Vec<u8>,
    found: Vec<Found>,
    trailers: String,
    signature: Option<Signature>,
    ended: bool,
}

fn decode(stream: &[u8], mode: Mode, steps: &[usize]) -> Result<Seen, BadBody> {
    let mut decoder = AwsChunked::new(mode);
    let (mut seen, mut rest) = (Seen::default(), stream);
    for step in steps.iter().cycle() {
        let (mut piece, later) = rest.split_at((*step).min(rest.len()));
        rest = later;
        while !piece.is_empty() {
            match decoder.wants() {
                Wants::Line => {
                    let step = decoder.framing(piece)?;
                    assert!(step.used > 0, "framing is taken");
                    piece = &piece[step.used..];
                    assert!(step.found.is_some() || piece.is_empty() || decoder.wants() != Wants::Line);
                    seen.found.extend(step.found);
                }
                Wants::Data(most) => {
                    let (data, behind) = piece.split_at(piece.len().min(usize::try_from(most).unwrap_or(usize::MAX)));
                    seen.payload.extend_from_slice(data);
                    decoder.data(data.len() as u64);
                    piece = behind;
                }
                Wants::End => panic!("{} bytes behind the end", piece.len() + rest.len()),
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    seen.trailers = decoder.trailers().as_signed().into();
    seen.signature = decoder.trailers().signature().copied();
    seen.ended = decoder.wants() == Wants::End;
    Ok(seen)
}

fn signed(digits: &str) -> Option<Signature> {
    Some(signature(digits.as_bytes()).expect("64 digits"))
}

fn found(chunks: &[(u64, Option<Signature>)], last: Option<Signature>) -> Vec<Found> {
    let chunks = chunks.iter().flat_map(|&(size, signature)| [Found::Chunk { size, signature }, Found::ChunkEnd]);
    chunks.chain([Found::Last { signature: last }]).collect()
}

/// Pieces of one byte would take their time with 65 KiB of payload.
const STEPS: [&[usize]; 5] = [&[1 << 20], &[1000], &[97], &[1, 2, 3, 5, 65_536], &[88, 65_536, 1, 1]];

/// "Transferring payload in multiple chunks": 65 KiB of `a`.
#[test]
fn the_documented_upload_is_read() {
    let signatures = [
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ];
    let stream = format!(
        "10000;chunk-signature={}\r\n{}\r\n400;chunk-signature={}\r\n{}\r\n0;chunk-signature={}\r\n\r\n",
        signatures[0],
        "a".repeat(65_536),
        signatures[1],
        "a".repeat(1024),
        signatures[2]
    );
    assert_eq!(stream.len(), 66_824, "the documented Content-Length");
    let [first, second, last] = signatures.map(signed);
    for steps in STEPS {
        let seen = decode(stream.as_bytes(), Mode::Signed, steps).unwrap();
        assert_eq!(seen.found, found(&[(65_536, first), (1024, second)], last));
        assert_eq!((seen.payload.len(), seen.ended, seen.trailers.as_str(), seen.signature), (66_560, true, "", None));
        assert!(seen.payload.iter().all(|&byte| byte == b'a'));
    }
    let mut written = Vec::new();
    for (size, signature) in [(65_536, first), (1024, second)] {
        write_chunk(&mut written, size, signature.as_ref());
        written.extend(std::iter::repeat_n(b'a', size as usize));
        written.extend_from_slice(b"\r\n");
    }
    write_chunk(&mut written, 0, last.as_ref());
    write_trailers(&mut written, &[], None);
    assert!(written == stream.as_bytes());
}

/// "Including trailing headers": the same with a checksum behind it.
#[test]
fn the_documented_trailer_is_read() {
    let signatures = [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ];
    let trailer = "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435";
    // As the SDKs end the trailers, and as the reference does, with LF and then CRLF.
    for end in ["\r\n", "\n\r\n"] {
        let stream = format!(
            "10000;chunk-signature={}\r\n{}\r\n400;chunk-signature={}\r\n{}\r\n0;chunk-signature={}\r\n\
             x-amz-checksum-crc32c:sOO8/Q=={end}x-amz-trailer-signature:{trailer}\r\n\r\n",
            signatures[0],
            "a".repeat(65_536),
            signatures[1],
            "a".repeat(1024),
            signatures[2]
        );
        let [first, second, last] = signatures.map(signed);
        for steps in STEPS {
            let seen = decode(stream.as_bytes(), Mode::SignedTrailer, steps).unwrap();
            assert_eq!(seen.found, found(&[(65_536, first), (1024, second)], last));
            assert_eq!((seen.trailers.as_str(), seen.signature), ("x-amz-checksum-crc32c:sOO8/Q==\n", signed(trailer)));
            assert_eq!((seen.payload.len(), seen.ended), (66_560, true));
        }
    }
}

/// As boto3 sends it over TLS.
#[test]
fn unsigned_chunks_with_trailers_are_read_however_they_are_cut() {
    let stream = b"b\r\nhello\r\nworl\r\n0\r\nX-Amz-Checksum-CRC32 : DUoRhQ==\t\r\nx-amz-meta-e:\r\n\r\n";
    for step in 1..=stream.len() {
        let seen = decode(stream, Mode::UnsignedTrailer, &[step]).unwrap();
        assert_eq!((seen.payload.as_slice(), seen.ended), (&b"hello\r\nworl"[..], true));
        assert_eq!(seen.found, found(&[(11, None)], None));
        assert_eq!((seen.trailers.as_str(), seen.signature), ("x-amz-checksum-crc32:DUoRhQ==\nx-amz-meta-e:\n", None));
    }
    let empty = decode(b"0\r\n\r\n", Mode::UnsignedTrailer, &[1]).unwrap();
    assert_eq!((empty.found, empty.ended), (found(&[], None), true));
    let extended = decode(b"1;chunk-signature=x\r\na\r\n0;y\r\na:b\nc:d\n\r\n\r\n", Mode::UnsignedTrailer, &[3]).unwrap();
    assert_eq!((extended.trailers.as_str(), extended.ended), ("a:b\nc:d\n", true));
}

#[test]
fn trailers_are_found_by_name() {
    let mut trailers = Trailers::default();
    trailers.take(b"X-Amz-Checksum-SHA1: a:b=", Mode::UnsignedTrailer).unwrap();
    trailers.take(b"other:2", Mode::UnsignedTrailer).unwrap();
    assert_eq!(trailers.iter().collect::<Vec<_>>(), [("x-amz-checksum-sha1", "a:b="), ("other", "2")]);
    assert_eq!((trailers.get("x-amz-checksum-sha1"), trailers.get("none")), (Some("a:b="), None));
}

#[test]
fn malformed_streams_are_refused_however_they_are_cut() {
    let hex = "0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789";
    let signed = |text: &str| (Mode::Signed, text.replace("SIG", &format!(";chunk-signature={hex}")));
    let trailer = |text: &str| {
        let text = text.replace("SIG", &format!(";chunk-signature={hex}")).replace("END", &format!("x-amz-trailer-signature:{hex}\r\n"));
        (Mode::SignedTrailer, text)
    };
    let unsigned = |text: &str| (Mode::UnsignedTrailer, text.to_owned());
    let long = "a".repeat(TRAILERS_MAX);
    for ((mode, text), why) in [
        (signed("1\r\n"), BadBody::Chunk),
        (signed("SIG\r\n"), BadBody::Chunk),
        (signed("1 SIG\r\n"), BadBody::Chunk),
        (signed("1;x=1SIG\r\n"), BadBody::Chunk),
        (signed("1;chunk-signature=\r\n"), BadBody::Signature),
        (signed("1SIG0\r\n"), BadBody::Signature),
        (signed("1SIG00\r\n"), BadBody::Signature),
        (signed(&format!("1;chunk-signature={}\r\n", &hex[2..])), BadBody::Signature),
        (signed(&format!("1;chunk-signature={}\r\n", "g".repeat(64))), BadBody::Signature),
        (signed(&format!("1;chunk-signature={}\r\n", "*".repeat(144))), BadBody::Signature),
        (signed("1SIG\r\nab\r\n"), BadBody::Chunk),
        (signed("1SIG\r\na\n\r"), BadBody::Chunk),
        (signed("1SIG\rx"), BadBody::Chunk),
        (signed("1fffffffffffffffffSIG\r\n"), BadBody::Chunk),
        (signed("1SIG\r\na\r\n1SIG\r\n"), BadBody::SmallChunk { chunk: 2, size: 1 }),
        (signed("0SIG\r\na:b\r\n"), BadBody::Trailer),
        (signed("0SIG\r\nx"), BadBody::Incomplete),
        (trailer("0SIG\r\n\r\n"), BadBody::Trailer),
        (trailer("0SIG\r\na:b\r\n\r\n"), BadBody::Trailer),
        (trailer("0SIG\r\nENDa:b\r\n"), BadBody::Trailer),
        (trailer("0SIG\r\nENDEND"), BadBody::Trailer),
        (trailer("0SIG\r\nx-amz-trailer-signature:0\r\n"), BadBody::Trailer),
        (unsigned("x\r\n"), BadBody::Chunk),
        (unsigned("1 \r\n"), BadBody::Chunk),
        (unsigned("1;\x01\r\n"), BadBody::Chunk),
        (unsigned("1\r\na\r\n1\r\na\r\n"), BadBody::SmallChunk { chunk: 2, size: 1 }),
        (unsigned("0\r\n:b\r\n"), BadBody::Trailer),
        (unsigned("0\r\nab\r\n"), BadBody::Trailer),
        (unsigned("0\r\na\u{e9}:b\r\n"), BadBody::Trailer),
        (unsigned("0\r\n\n\r\n"), BadBody::Trailer),
        (unsigned("0\r\na:b\n\nc:d\r\n"), BadBody::Trailer),
        (unsigned("0\r\na:b\rc"), BadBody::Trailer),
        (unsigned(&format!("0\r\nx-amz-trailer-signature:{hex}\r\n")), BadBody::Trailer),
        (unsigned(&format!("0\r\na:{long}\r\n")), BadBody::TooLong),
        (unsigned(&format!("0\r\n{}", "abc:d\r\n".repeat(TRAILERS_MAX))), BadBody::TooLong),
        (unsigned(&format!("1;{long}")), BadBody::TooLong),
    ] {
        for step in [1, 2, 3, 5, 1000, text.len()] {
            let seen = decode(text.as_bytes(), mode, &[step]).and_then(|seen| if seen.ended { Ok(seen) } else { Err(BadBody::Incomplete) });
            assert_eq!(seen, Err(why), "{:.100?} in pieces of {step}", text);
        }
    }
}

#[test]
fn modes_are_those_of_sigv4() {
    assert_eq!(Mode::of_content_sha256("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), Some(Mode::Signed));
    assert_eq!(Mode::of_content_sha256("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"), Some(Mode::SignedTrailer));
    assert_eq!(Mode::of_content_sha256("STREAMING-UNSIGNED-PAYLOAD-TRAILER"), Some(Mode::UnsignedTrailer));
    for other in ["UNSIGNED-PAYLOAD", "", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"] {
        assert_eq!(Mode::of_content_sha256(other), None);
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        mode in prop::sample::select(vec![Mode::Signed, Mode::SignedTrailer, Mode::UnsignedTrailer]),
        sizes in prop::collection::vec(CHUNK_MIN..CHUNK_MIN + 500, 0..4),
        small in prop::option::of(1..CHUNK_MIN),
        seed: u8,
        fields in prop::collection::vec(("[a-z][a-z0-9-]{0,20}", "([!-~]([ -~]{0,20}[!-~])?)?"), 0..4),
        steps in prop::collection::vec(1usize..9000, 1..20),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let fields = if mode == Mode::Signed { &[][..] } else { &fields };
        let (mut stream, mut payload, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for size in sizes.into_iter().chain(small) {
            let signature = mode.is_signed().then_some([seed ^ size as u8; 32]);
            let data: Vec<u8> = (0..size).map(|at| (at * 31) as u8 ^ seed).collect();
            write_chunk(&mut stream, size, signature.as_ref());
            stream.extend_from_slice(&data);
            stream.extend_from_slice(b"\r\n");
            payload.extend(data);
            chunks.push((size, signature));
        }
        let last = mode.is_signed().then_some([seed; 32]);
        let signature = (mode == Mode::SignedTrailer).then_some([!seed; 32]);
        write_chunk(&mut stream, 0, last.as_ref());
        write_trailers(&mut stream, fields, signature.as_ref());
        let trailers = fields.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let seen = decode(&stream, mode, &steps).unwrap();
        prop_assert_eq!(seen, Seen { payload, found: found(&chunks, last), trailers, signature, ended: true });
    }

    #[test]
    fn cuts_change_nothing(
        parts in prop::collection::vec(prop::sample::select(vec![
            "0", "1", "2000", ";", "chunk-signature=", "\r\n", "\r", "\n", "a", ":", " ",
            ";chunk-signature=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n", "0\r\n", "1\r\n", "a\r\n", "a:b\r\n",
            "x-amz-trailer-signature:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n",
        ]), 0..20),
        mode in prop::sample::select(vec![Mode::Signed, Mode::SignedTrailer, Mode::UnsignedTrailer]),
        steps in prop::collection::vec(1usize..30, 1..10),
    ) {
        // Nothing is fed behind an end: the first piece that has one ends the stream.
        let mut stream = parts.concat();
        if let Some(end) = stream.find("\r\n\r\n") {
            stream.truncate(end + 4);
        }
        prop_assert_eq!(decode(stream.as_bytes(), mode, &[stream.len().max(1)]), decode(stream.as_bytes(), mode, &steps));
    }
}
