//! Bodies in every framing, driven as a connection drives them: framing through a small buffer, payload received on its own.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Default, PartialEq)]
struct Seen {
    payload: Vec<u8>,
    /// What was found, and after how many bytes of payload.
    found: Vec<(u64, Found)>,
    trailers: String,
    /// Bytes of the stream that were taken.
    used: usize,
}

/// Drives a body over a stream of which each receive brings as many bytes as the next step says. `Ok(None)`: it wants more.
fn drive(mut body: Body, stream: &[u8], steps: &[usize]) -> Result<Option<Seen>, BadBody> {
    let (mut seen, mut steps, mut buffered, mut at) = (Seen::default(), steps.iter().cycle(), 0, 0);
    let mut receive = |at: usize, most: usize| (*steps.next().expect("some steps")).min(stream.len() - at).min(most);
    loop {
        match body.wants() {
            Wants::Line => {
                if buffered == 0 {
                    buffered = receive(at, usize::MAX);
                    if buffered == 0 {
                        return body.closed().map(|()| None);
                    }
                }
                let step = body.framing(&stream[at..at + buffered])?;
                seen.found.extend(step.found.map(|found| (body.payload_bytes(), found)));
                at += step.used;
                buffered -= step.used;
                assert!(step.used > 0 || step.found.is_some() || body.wants() != Wants::Line, "it goes on");
            }
            Wants::Data(most) => {
                // What is buffered is copied, the rest received in place.
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                let count = if buffered > 0 { buffered.min(most) } else { receive(at, most) };
                if count == 0 {
                    body.closed()?;
                    break;
                }
                seen.payload.extend_from_slice(&stream[at..at + count]);
                body.data(count as u64);
                at += count;
                buffered = buffered.saturating_sub(count);
            }
            Wants::End => break,
        }
    }
    assert_eq!(body.payload_bytes(), seen.payload.len() as u64);
    seen.trailers = body.trailers().map(|trailers| trailers.as_signed().to_owned()).unwrap_or_default();
    seen.used = at;
    Ok(Some(seen))
}

fn in_chunks(stream: &[u8], sizes: &[usize]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), stream);
    for size in sizes.iter().cycle() {
        let (chunk, later) = rest.split_at((*size).min(rest.len()));
        if chunk.is_empty() {
            break;
        }
        super::super::chunked::write_size(&mut out, chunk.len() as u64);
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
        rest = later;
    }
    out.extend_from_slice(super::super::chunked::LAST);
    out
}

const UNSIGNED: &[u8] = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";

#[test]
fn every_framing_brings_the_same_payload_and_stops_at_its_end() {
    let chunked = in_chunks(UNSIGNED, &[1, 3, 2]);
    let bodies = [
        (Framing::Length(5), None, b"hello".to_vec()),
        (Framing::Chunked, None, b"2\r\nhe\r\n3;x\r\nllo\r\n0\r\nA: b\r\n\r\n".to_vec()),
        (Framing::Length(UNSIGNED.len() as u64), Some(Mode::UnsignedTrailer), UNSIGNED.to_vec()),
        (Framing::Chunked, Some(Mode::UnsignedTrailer), chunked),
    ];
    for (framing, mode, stream) in bodies {
        let body = || Body::new(framing, mode).unwrap();
        let behind = [&stream[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
        for step in 1..=behind.len() {
            let seen = drive(body(), &behind, &[step]).unwrap().unwrap();
            assert_eq!((seen.payload.as_slice(), seen.used), (&b"hello"[..], stream.len()), "{framing:?} {mode:?} in pieces of {step}");
            if mode.is_some() {
                let chunk = Found::Chunk { size: 5, signature: None };
                assert_eq!(seen.found, [(0, chunk), (5, Found::ChunkEnd), (5, Found::Last { signature: None })]);
                assert_eq!(seen.trailers, "x-amz-checksum-crc32:NhCmhg==\n");
            }
        }
        for cut in 0..stream.len() {
            let cut_short = drive(body(), &stream[..cut], &[7]);
            assert_eq!(cut_short, Err(BadBody::Incomplete), "{framing:?} {mode:?} after {cut} bytes");
        }
    }
    let empty = Body::new(Framing::None, None).unwrap();
    assert_eq!((empty.wants(), empty.closed(), empty.trailers().is_none()), (Wants::End, Ok(()), true));
}

#[test]
fn answers_may_end_with_the_connection() {
    let seen = drive(Body::of_answer(AnswerFraming::Close), b"hello", &[2]).unwrap().unwrap();
    assert_eq!(seen.payload, b"hello");
    assert_eq!(Body::of_answer(AnswerFraming::None).wants(), Wants::End);
    assert_eq!(Body::of_answer(AnswerFraming::Length(3)).closed(), Err(BadBody::Incomplete));
    assert_eq!(Body::of_answer(AnswerFraming::Chunked).wants(), Wants::Line);
}

/// With the wrong length an aws-chunked body is refused at once: nobody waits for bytes that can not come, or takes those of the next
/// request.
#[test]
fn lengths_that_do_not_fit_are_refused_with_the_last_byte_at_the_latest() {
    let mode = Some(Mode::UnsignedTrailer);
    for length in 0..UNSIGNED.len() as u64 + 9 {
        let stream = [UNSIGNED, b"GET / HTTP/1.1\r\n\r\n"].concat();
        for step in [1, 4, 100] {
            let seen = Body::new(Framing::Length(length), mode).and_then(|body| drive(body, &stream[..length as usize], &[step]));
            let expected = match length.cmp(&(UNSIGNED.len() as u64)) {
                std::cmp::Ordering::Less => Err(BadBody::Incomplete),
                std::cmp::Ordering::Equal => Ok(UNSIGNED.len()),
                std::cmp::Ordering::Greater => Err(BadBody::Excess),
            };
            assert_eq!(seen.map(|seen| seen.expect("it does not ask for more").used), expected, "{length} bytes in pieces of {step}");
        }
    }
    // Not only at the connection's end: the call that takes the last byte says so.
    for length in 1..UNSIGNED.len() {
        let mut body = Body::new(Framing::Length(length as u64), mode).unwrap();
        let mut at = 0;
        let refused = loop {
            match body.wants() {
                Wants::Line => match body.framing(&UNSIGNED[at..]) {
                    Ok(step) => at += step.used,
                    Err(bad) => break bad,
                },
                Wants::Data(most) => {
                    body.data(most);
                    at += most as usize;
                }
                Wants::End => panic!("a body of {length} bytes"),
            }
            assert!(at < length, "{length} bytes were taken without a word");
        };
        assert_eq!(refused, BadBody::Incomplete);
    }
    // A chunk that does not fit is refused before its payload is received.
    for (length, is_good) in [(14, false), (15, true)] {
        let mut body = Body::new(Framing::Length(length), mode).unwrap();
        assert_eq!(body.framing(b"5\r\n").is_ok(), is_good, "{length} bytes");
    }
    // In chunks it is the last of them that shows it.
    let short = in_chunks(&UNSIGNED[..UNSIGNED.len() - 1], &[9]);
    assert_eq!(drive(Body::new(Framing::Chunked, mode).unwrap(), &short, &[5]), Err(BadBody::Incomplete));
    let long = in_chunks(&[UNSIGNED, b"x"].concat(), &[9]);
    assert_eq!(drive(Body::new(Framing::Chunked, mode).unwrap(), &long, &[5]), Err(BadBody::Excess));
    let in_payload = in_chunks(&UNSIGNED[..5], &[9]);
    assert_eq!(drive(Body::new(Framing::Chunked, mode).unwrap(), &in_payload, &[5]), Err(BadBody::Incomplete));
}

#[test]
fn sizes_that_overflow_are_refused() {
    let stream = b"ffffffffffffffff\r\nabc";
    let body = Body::new(Framing::Length(u64::MAX), Some(Mode::UnsignedTrailer)).unwrap();
    assert_eq!(drive(body, stream, &[50]), Err(BadBody::Incomplete));
    let body = Body::new(Framing::Chunked, Some(Mode::UnsignedTrailer)).unwrap();
    assert_eq!(drive(body, &in_chunks(stream, &[50]), &[50]), Err(BadBody::Incomplete));
}

#[test]
#[should_panic(expected = "6 bytes of payload")]
fn more_payload_than_wanted_is_a_bug() {
    Body::new(Framing::Length(5), None).unwrap().data(6);
}

proptest! {
    #[test]
    fn chunks_within_chunks_are_what_they_are_alone(
        sizes in prop::collection::vec(1usize..30, 1..20),
        steps in prop::collection::vec(1usize..40, 1..20),
        payload in prop::collection::vec(any::<u8>(), 0..200),
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut stream = Vec::new();
        if !payload.is_empty() {
            super::super::aws_chunked::write_chunk(&mut stream, payload.len() as u64, Some(&[7; 32]));
            stream.extend_from_slice(&payload);
            stream.extend_from_slice(b"\r\n");
        }
        super::super::aws_chunked::write_chunk(&mut stream, 0, Some(&[8; 32]));
        super::super::aws_chunked::write_trailers(&mut stream, &[("a", "b")], Some(&[9; 32]));
        let mode = Some(Mode::SignedTrailer);
        let alone = Body::new(Framing::Length(stream.len() as u64), mode).unwrap();
        let within = in_chunks(&stream, &sizes);
        let first = drive(alone, &[&stream[..], &behind].concat(), &steps).unwrap().unwrap();
        let second = drive(Body::new(Framing::Chunked, mode).unwrap(), &[&within[..], &behind].concat(), &steps).unwrap().unwrap();
        prop_assert_eq!((first.used, second.used), (stream.len(), within.len()));
        prop_assert_eq!(&first.payload, &payload);
        prop_assert_eq!(second, Seen { used: within.len(), ..first });
    }

    #[test]
    fn cuts_change_nothing(
        parts in prop::collection::vec(prop::sample::select(vec![
            "0", "1", "2", "9", ";", "\r\n", "\r", "\n", "a", ":", "0\r\n", "1\r\na\r\n", "3\r\n", "a:b\r\n", "\r\n\r\n",
            "5\r\n0\r\n\r\n\r\n",
        ]), 0..30),
        framing in prop::sample::select(vec![Framing::None, Framing::Length(5), Framing::Length(40), Framing::Chunked]),
        mode in prop::sample::select(vec![None, Some(Mode::UnsignedTrailer), Some(Mode::Signed)]),
        steps in prop::collection::vec(1usize..10, 1..10),
    ) {
        let stream = parts.concat();
        let run = |steps: &[usize]| Body::new(framing, mode).and_then(|body| drive(body, stream.as_bytes(), steps));
        prop_assert_eq!(run(&[stream.len().max(1)]), run(&steps));
    }
}
