//! Heads of requests: those of the RFCs and of S3's clients, and those that smuggle.

use super::*;
use proptest::prelude::*;

fn parse(text: impl AsRef<[u8]>) -> Result<Head, BadHead> {
    let text = text.as_ref();
    let (head, used) = Head::parse(text)?.expect("the whole head");
    assert_eq!(used, text.len());
    Ok(head)
}

/// A request with these lines behind its first and its Host.
fn with(lines: &str) -> Result<Head, BadHead> {
    parse(format!("PUT /b/k HTTP/1.1\r\nHost: s3\r\n{lines}\r\n"))
}

/// The presigned GET of "Authenticating requests: using query parameters" in the S3 API reference.
const PRESIGNED: &str = "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
    &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z\
    &X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
    &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404 HTTP/1.1\r\n\
    Host: examplebucket.s3.amazonaws.com\r\nAccept: */*\r\n\r\n";

#[test]
fn a_request_is_read() {
    let head = parse(PRESIGNED).unwrap();
    assert_eq!((head.method(), head.path(), head.host()), ("GET", "/test.txt", "examplebucket.s3.amazonaws.com"));
    assert!(head.query().starts_with("X-Amz-Algorithm=") && head.query().ends_with("604d404"));
    assert_eq!(head.target(), format!("/test.txt?{}", head.query()));
    assert_eq!((head.framing(), head.keeps_alive(), head.expects_continue(), head.minor_version()), (Framing::None, true, false, 1));
    let fields: Vec<_> = head.headers().collect();
    assert_eq!(fields, [("Host", &b"examplebucket.s3.amazonaws.com"[..]), ("Accept", b"*/*")]);
    for cut in 0..PRESIGNED.len() {
        assert!(Head::parse(&PRESIGNED.as_bytes()[..cut]).unwrap().is_none(), "{cut} bytes are not all");
    }
    let pipelined = format!("\r\n{PRESIGNED}GET /next");
    assert_eq!(Head::parse(pipelined.as_bytes()).unwrap().unwrap().1, PRESIGNED.len() + 2);
}

#[test]
fn fields_are_found_in_any_case_and_trimmed() {
    let head = with("X-Amz-Meta-A: \t one \t\r\nx-amz-meta-a:two\r\nEmpty:\r\nBlank:  \r\nLatin: \u{e9}\r\n").unwrap();
    assert_eq!((head.text("x-amz-meta-a"), head.text("EMPTY"), head.text("blank")), (Some("one"), Some(""), Some("")));
    assert_eq!((head.text("latin"), head.header("absent")), (Some("\u{e9}"), None));
    assert_eq!(head.headers().filter(|field| field.0.eq_ignore_ascii_case("x-amz-meta-a")).count(), 2);
    let head = parse(b"GET / HTTP/1.1\r\nHost: s3\r\nBytes: \xff\r\n\r\n").unwrap();
    assert_eq!((head.header("bytes"), head.text("bytes")), (Some(&b"\xff"[..]), None));
}

#[test]
fn targets_have_their_forms() {
    let split = |target: &str| {
        let head = parse(format!("GET {target} HTTP/1.1\r\nHost: header:80\r\n\r\n"))?;
        Ok((head.host().to_owned(), head.path().to_owned(), head.query().to_owned()))
    };
    let good = |host: &str, path: &str, query: &str| Ok((host.to_owned(), path.to_owned(), query.to_owned()));
    assert_eq!(split("/a//b/../c%2F?x?y=/"), good("header:80", "/a//b/../c%2F", "x?y=/"));
    assert_eq!(split("/?"), good("header:80", "/", ""));
    assert_eq!(split("/http://b/k"), good("header:80", "/http://b/k", ""));
    assert_eq!(split("*"), good("header:80", "*", ""));
    assert_eq!(split("http://b.s3:9000/k?q"), good("b.s3:9000", "/k", "q"));
    assert_eq!(split("HTTPS://[::1]:9000?q"), good("[::1]:9000", "/", "q"));
    assert_eq!(split("http://b"), good("b", "/", ""));
    assert_eq!(split("/\u{43a}\u{43b}"), good("header:80", "/\u{43a}\u{43b}", ""));
    for bad in ["b:443", "*a", "b/k", "?q", "http:///k", "ftp://b/k", "http:/b"] {
        assert_eq!(split(bad), Err(BadHead::Target), "{bad}");
    }
    assert_eq!(split("http://user@b/k"), Err(BadHead::Host));
    assert_eq!(parse(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n").unwrap_err(), BadHead::Syntax);
}

#[test]
fn bodies_are_framed_in_one_way() {
    let framing = |lines: &str| with(lines).map(|head| head.framing());
    assert_eq!(framing(""), Ok(Framing::None));
    assert_eq!(framing("Content-Length: 0\r\n"), Ok(Framing::Length(0)));
    assert_eq!(framing("content-length: 5368709120\r\n"), Ok(Framing::Length(5 << 30)));
    assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
    for length in ["", "-1", "+1", "1, 1", "1 1", "0x10", "1_000", "18446744073709551616", "1;", "\u{ff11}"] {
        assert_eq!(framing(&format!("Content-Length: {length}\r\n")), Err(BadHead::Length), "{length:?}");
    }
    assert_eq!(framing("Content-Length: 1\r\nContent-Length: 1\r\n"), Err(BadHead::Length));
    assert_eq!(framing("Content-Length: 1\r\ncontent-length: 2\r\n"), Err(BadHead::Length));
    for coding in
        ["", "identity", "gzip", "gzip, chunked", "chunked, chunked", "chunked, identity", "xchunked", "\"chunked\"", "chunked;q=1"]
    {
        assert_eq!(framing(&format!("Transfer-Encoding: {coding}\r\n")), Err(BadHead::Coding), "{coding:?}");
    }
    assert_eq!(framing("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), Err(BadHead::Framing));
    assert_eq!(framing("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"), Err(BadHead::Framing));
    assert_eq!(framing("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), Err(BadHead::Framing));
    assert_eq!(framing("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"), Err(BadHead::Framing));
    assert_eq!(parse("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err(), BadHead::Framing);
}

#[test]
fn what_smuggles_is_refused() {
    for (lines, why) in [
        ("Transfer-Encoding : chunked\r\n", BadHead::Syntax),
        (" Transfer-Encoding: chunked\r\n", BadHead::Syntax),
        ("X: a\r\n Transfer-Encoding: chunked\r\n", BadHead::Syntax),
        ("X: a\r\n\tfolded\r\n", BadHead::Syntax),
        ("X: a\rContent-Length: 4\r\n", BadHead::Syntax),
        ("X: a\r\r\n", BadHead::Syntax),
        ("X: a\nContent-Length: 4\r\n", BadHead::LineEnd),
        ("X: a\r\n\nContent-Length: 4\r\n", BadHead::LineEnd),
        ("X: a\0\r\n", BadHead::Syntax),
        ("X: a\x0bb\r\n", BadHead::Syntax),
        ("X: a\x7fb\r\n", BadHead::Syntax),
        ("Transfer-Encoding\x0b: chunked\r\n", BadHead::Syntax),
        ("Transfer-Encoding:\x0bchunked\r\n", BadHead::Syntax),
        ("\u{212a}: a\r\n", BadHead::Syntax),
        (": a\r\n", BadHead::Syntax),
        ("no colon\r\n", BadHead::Syntax),
    ] {
        assert_eq!(with(lines).unwrap_err(), why, "{lines:?}");
    }
    for (text, why) in [
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::Syntax),
        ("GET / a HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::Version),
        ("GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", BadHead::Syntax),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", BadHead::Syntax),
        ("GET / HTTP/1.1\rHost: a\r\n\r\n", BadHead::Syntax),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", BadHead::Syntax),
        ("GET /\r\n\r\n", BadHead::Syntax),
        ("G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n", BadHead::Syntax),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", BadHead::Version),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", BadHead::Version),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", BadHead::Version),
        ("PRI * HTTP/2.0\r\n\r\n", BadHead::Version),
        ("CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n", BadHead::Target),
    ] {
        assert_eq!(parse(text).unwrap_err(), why, "{text:?}");
    }
}

#[test]
fn a_request_names_one_host() {
    let host = |lines: &str| parse(format!("GET / HTTP/1.1\r\n{lines}\r\n")).map(|head| head.host().to_owned());
    assert_eq!(host("hOST: b.s3.example:9000\r\n"), Ok("b.s3.example:9000".into()));
    assert_eq!(host("Host:\r\n"), Ok(String::new()));
    for bad in [
        "",
        "Host: a\r\nHost: a\r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: u@a\r\n",
        "Host: a?b\r\n",
        "Host: a, b#\r\n",
        "Host: \u{e9}\r\n",
    ] {
        assert_eq!(host(bad), Err(BadHead::Host), "{bad:?}");
    }
    let old = parse("GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!((old.host(), old.minor_version()), ("", 0));
}

#[test]
fn connections_are_kept_as_the_versions_have_it() {
    let keeps = |minor: u8, lines: &str| parse(format!("GET / HTTP/1.{minor}\r\nHost: a\r\n{lines}\r\n")).unwrap().keeps_alive();
    assert!(keeps(1, "") && !keeps(0, ""));
    assert!(keeps(0, "Connection: Keep-Alive\r\n") && keeps(0, "Connection: TE, keep-alive\r\n"));
    assert!(!keeps(1, "Connection: close\r\n") && !keeps(1, "Connection: TE , Close\r\n"));
    assert!(!keeps(1, "Connection: keep-alive\r\nConnection: close\r\n") && !keeps(0, "Connection: close, keep-alive\r\n"));
    assert!(keeps(1, "Connection: closed\r\n"));
    let waits =
        |minor: u8, value: &str| parse(format!("PUT / HTTP/1.{minor}\r\nHost: a\r\nExpect: {value}\r\n\r\n")).unwrap().expects_continue();
    assert!(waits(1, "100-continue") && waits(1, "100-Continue"));
    assert!(!waits(0, "100-continue") && !waits(1, "200-ok") && !waits(1, ""));
}

#[test]
fn heads_are_bounded() {
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(count - 1));
    assert_eq!(parse(fields(HEADERS_MAX)).unwrap().headers().count(), HEADERS_MAX);
    assert_eq!(parse(fields(HEADERS_MAX + 1)).unwrap_err(), BadHead::TooMany);
    let around = "GET / HTTP/1.1\r\nHost: a\r\nb: \r\n\r\n".len();
    let long = |bytes: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nb: {}\r\n\r\n", "c".repeat(bytes - around));
    assert_eq!(parse(long(HEAD_MAX)).unwrap().header("b").unwrap().len(), HEAD_MAX - around);
    assert_eq!(Head::parse(long(HEAD_MAX + 1).as_bytes()).unwrap_err(), BadHead::TooLong);
    assert!(Head::parse(&long(HEAD_MAX).as_bytes()[..HEAD_MAX - 1]).unwrap().is_none());
    assert_eq!(Head::parse("\r\n".repeat(HEAD_MAX).as_bytes()).unwrap_err(), BadHead::TooLong);
}

#[test]
fn what_is_logged_has_no_credentials() {
    let head = parse(PRESIGNED.replace("Accept: */*", "Authorization: secret")).unwrap();
    assert_eq!(format!("{head:?}"), "Head { method: \"GET\", path: \"/test.txt\", .. }");
}

#[test]
fn statuses_of_refusals() {
    for (bad, status) in [(BadHead::Syntax, 400), (BadHead::TooLong, 431), (BadHead::Coding, 501), (BadHead::Version, 505)] {
        assert_eq!(bad.status(), status);
    }
}

proptest! {
    #[test]
    fn what_was_sent_is_read(
        method in "[A-Z]{1,10}",
        path in "/[!-\"$->@-~]{0,40}",
        query in prop::option::of("[!-~]{0,40}"),
        fields in prop::collection::vec(("x-[a-zA-Z0-9-]{1,20}", "([!-~\u{e4}\u{4e2d}]([ -~\t]{0,20}[!-~])?)?", "[ \t]{0,3}"), 0..20),
        length in prop::option::of(any::<u64>()),
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let query_text = query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        let mut text = format!("{method} {path}{query_text} HTTP/1.1\r\nhost: s3\r\n");
        for (name, value, space) in &fields {
            text += &format!("{name}:{space}{value}{space}\r\n");
        }
        if let Some(length) = length {
            text += &format!("Content-Length: {length}\r\n");
        }
        text += "\r\n";
        let bytes = [text.as_bytes(), &behind].concat();
        let (head, used) = Head::parse(&bytes).unwrap().unwrap();
        prop_assert_eq!(used, text.len());
        prop_assert_eq!((head.method(), head.path(), head.query()), (method.as_str(), path.as_str(), query.as_deref().unwrap_or("")));
        prop_assert_eq!(head.framing(), length.map_or(Framing::None, Framing::Length));
        let read: Vec<_> = head.headers().filter(|field| field.0.starts_with("x-")).collect();
        let sent: Vec<_> = fields.iter().map(|(name, value, _)| (name.as_str(), value.as_bytes())).collect();
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        parts in prop::collection::vec(prop::sample::select(vec![
            "GET ", "/", "?", " HTTP/1.1", " HTTP/1.0", "\r\n", "\r", "\n", "Host: a\r\n", "Content-Length: 1",
            "Transfer-Encoding: chunked",
            ":", " ", "\t", ",", "http://a", "*", "\u{e9}", "\0", "Connection: close\r\n", "\r\n\r\n",
        ]), 0..20),
        any in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let _ = Head::parse(&any);
        let bytes = parts.concat().into_bytes();
        let whole = Head::parse(&bytes);
        // Fewer bytes never mean something else: they are too few, or as bad.
        for cut in 0..bytes.len() {
            match (Head::parse(&bytes[..cut]), &whole) {
                (Ok(None), _) => {}
                (Ok(Some((_, used))), Ok(Some((_, whole)))) => prop_assert_eq!(used, *whole),
                (Err(_), Err(_)) => {}
                (front, whole) => prop_assert!(false, "{:?} of {} bytes, {:?} of all", front, cut, whole),
            }
        }
        if let Ok(Some((head, used))) = whole {
            let _ = (head.method(), head.target(), head.path(), head.query(), head.host(), head.headers().count());
            prop_assert!(used <= bytes.len());
        }
    }
}
