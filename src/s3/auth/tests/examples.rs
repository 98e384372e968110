//! The examples of API/sig-v4-header-based-auth.html, sigv4-query-string-auth.html, sigv4-streaming.html, sigv4-streaming-trailers.html,
//! verified, altered, and signed again.

use sha2::{Digest as _, Sha256};

use super::super::sign::Body;
use super::*;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn authorization(names: &str, signature: &str) -> String {
    format!(
        "Authorization: AWS4-HMAC-SHA256 \
         Credential={ACCESS_KEY}/20130524/us-east-1/s3/aws4_request,SignedHeaders={names},Signature={signature}"
    )
}

fn get_object() -> String {
    let authorization =
        authorization("host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    format!(
        "GET /test.txt HTTP/1.1
         Host: examplebucket.s3.amazonaws.com
         {authorization}
         Range: bytes=0-9
         x-amz-content-sha256:{EMPTY}
         x-amz-date: 20130524T000000Z"
    )
}

fn put_object() -> String {
    let authorization = authorization(
        "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    );
    format!(
        "PUT /test$file.text HTTP/1.1
         Host: examplebucket.s3.amazonaws.com
         Date: Fri, 24 May 2013 00:00:00 GMT
         {authorization}
         x-amz-date: 20130524T000000Z
         x-amz-storage-class: REDUCED_REDUNDANCY
         x-amz-content-sha256: 44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
    )
}

fn with_query(query: &str, signature: &str) -> String {
    let authorization = authorization("host;x-amz-content-sha256;x-amz-date", signature);
    format!(
        "GET /?{query} HTTP/1.1
         Host: examplebucket.s3.amazonaws.com
         {authorization}
         x-amz-date: 20130524T000000Z
         x-amz-content-sha256:{EMPTY}"
    )
}

fn presigned() -> String {
    "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
     &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
     &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404 HTTP/1.1
     Host: examplebucket.s3.amazonaws.com"
        .to_owned()
}

fn chunked(content: &str, more: &str, names: &str, signature: &str) -> String {
    let authorization = authorization(names, signature);
    format!(
        "PUT /examplebucket/chunkObject.txt HTTP/1.1
         Host: s3.amazonaws.com
         x-amz-date: 20130524T000000Z
         x-amz-storage-class: REDUCED_REDUNDANCY
         {authorization}
         x-amz-content-sha256: {content}
         Content-Encoding: aws-chunked
         x-amz-decoded-content-length: 66560{more}
         Content-Length: 66824"
    )
}

fn streaming() -> String {
    chunked(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "",
        "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class",
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    )
}

fn streaming_trailer() -> String {
    chunked(
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "\nx-amz-trailer: x-amz-checksum-crc32c",
        "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer",
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    )
}

fn binary(signature: &str) -> [u8; 32] {
    base16ct::lower::decode_vec(signature).unwrap().try_into().unwrap()
}

/// The signature in the header of a request.
fn signature(lines: &str) -> &str {
    lines.split_once("Signature=").expect("a signature").1.split_whitespace().next().expect("it is there")
}

#[test]
fn headers() {
    let verify = |lines: &str| verify(lines, None, MAY);
    for (lines, pieces) in [
        (get_object(), &["GET", "test.txt", "examplebucket.s3.amazonaws.com", "bytes=0-9", EMPTY, "20130524T000000Z"][..]),
        (put_object(), &["test$file.text", "Fri, 24 May 2013", "44ce7dd67c959e0d3524ffac", "REDUCED_REDUNDANCY"]),
        (with_query("lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"), &["?lifecycle"]),
        (with_query("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"), &["max-keys=2&prefix=J"]),
        (streaming(), &["chunkObject", "aws-chunked", "66560", "66824", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"]),
        (streaming_trailer(), &["x-amz-checksum-crc32c", "66560"]),
    ] {
        let verified = verify(&lines).unwrap();
        assert_eq!((verified.how, verified.access_key.as_deref(), verified.signed_ms), (How::Header, Some(ACCESS_KEY), MAY));
        assert_eq!((&verified.region[..], verified.service, verified.token), ("us-east-1", Service::S3, None));
        assert_all_signed(&lines, &[pieces, &[signature(&lines), "/us-east-1/s3/aws4_request", "AKIAIOSFODNN7EXAMPLE"]].concat(), verify);
    }
}

#[test]
fn what_the_body_must_be() {
    let payload = |lines: &str| verify(lines, None, MAY).unwrap().payload;
    assert!(matches!(payload(&get_object()), Payload::Sha256(sha256) if sha256[..] == Sha256::digest(b"")[..]));
    assert!(matches!(payload(&put_object()), Payload::Sha256(sha256) if sha256[..] == Sha256::digest(b"Welcome to Amazon S3.")[..]));
    assert!(matches!(payload(&presigned()), Payload::Unsigned));
    assert!(matches!(payload("PUT / HTTP/1.1\nHost: h"), Payload::Unsigned));
    assert!(matches!(payload("PUT / HTTP/1.1\nHost: h\nContent-Encoding: gzip, aws-chunked"), Payload::UnsignedTrailer));
    assert!(verify(&get_object(), None, MAY).unwrap().signs("Range"));
    assert!(!verify(&get_object(), None, MAY).unwrap().signs("x-amz-rdma-token"));
}

#[test]
fn a_presigned_url() {
    let lines = presigned();
    for now in [MAY - SKEW_MAX_MS, MAY, MAY + 86_400_000] {
        let verified = verify(&lines, None, now).unwrap();
        assert_eq!((verified.how, verified.access_key.as_deref(), verified.signed_ms), (How::Query, Some(ACCESS_KEY), MAY));
    }
    let pieces = ["test.txt", "examplebucket", "20130524T000000Z", "86400", "X-Amz-Expires", "=host", signature(&lines)];
    assert_all_signed(&lines, &pieces, |lines| verify(lines, None, MAY));
    for (now, message) in [(MAY + 86_400_001, "Request has expired"), (MAY - SKEW_MAX_MS - 1, "Request is not yet valid")] {
        let error = verify(&lines, None, now).unwrap_err();
        assert_eq!((error.code, &error.message[..], field(&error, "Expires")), (Code::AccessDenied, message, "2013-05-25T00:00:00Z"));
    }
}

#[test]
fn signed_chunks() {
    let chunks = [vec![b'a'; 65536], vec![b'a'; 1024], vec![]].map(|data| <[u8; 32]>::from(Sha256::digest(data)));
    for (lines, signatures, trailer) in [
        (
            streaming(),
            [
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ],
            None,
        ),
        (
            streaming_trailer(),
            [
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ],
            Some("d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"),
        ),
    ] {
        let mut signer = match (verify(&lines, None, MAY).unwrap().payload, trailer) {
            (Payload::SignedChunks(signer), None) | (Payload::SignedChunksTrailer(signer), Some(_)) => signer,
            (payload, _) => panic!("{payload:?}"),
        };
        let mut client = signer.clone();
        for (sha256, signature) in chunks.iter().zip(signatures.map(binary)) {
            for at in 0..32 {
                let mut wrong = signature;
                wrong[at] ^= 1 << (at % 8);
                assert_eq!(signer.verify(sha256, &wrong).unwrap_err().code, Code::SignatureDoesNotMatch);
            }
            assert!(signer.verify(&[7; 32], &signature).is_err(), "other data");
            signer.verify(sha256, &signature).unwrap();
            assert!(signer.verify(sha256, &signature).is_err(), "the same chunk again");
            assert_eq!(client.sign(sha256), signature);
        }
        let Some(trailer) = trailer.map(binary) else { continue };
        for wrong in ["x-amz-checksum-crc32c:sOO8/A==\n", "x-amz-checksum-crc32c:sOO8/Q==", ""] {
            assert!(signer.verify_trailer(wrong, &trailer).is_err(), "{wrong}");
        }
        signer.verify_trailer("x-amz-checksum-crc32c:sOO8/Q==\n", &trailer).unwrap();
        assert_eq!(client.sign_trailer("x-amz-checksum-crc32c:sOO8/Q==\n"), trailer);
    }
}

/// The client signs what the examples sign, with the same result.
#[test]
fn signed_by_the_client() {
    let signer = Signer::new(ACCESS_KEY, secret(), "us-east-1");
    let host = ("Host", &b"examplebucket.s3.amazonaws.com"[..]);
    let authorization = |request: Request<'_>, body| {
        let signed = signer.sign(request, body, MAY);
        signed.headers.into_iter().find(|(name, _)| *name == "authorization").expect("it signs").1
    };
    let empty = Body::Sha256(Sha256::digest(b"").into());
    let get = Request { method: "GET", path: "/test.txt", query: "", headers: &[host, ("Range", b"bytes=0-9"), ("User-Agent", b"basin")] };
    let expected = authorization(get, empty);
    assert!(expected.ends_with(&format!(
        "Credential={ACCESS_KEY}/20130524/us-east-1/s3/aws4_request, SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )));
    let list = Request { method: "GET", path: "/", query: "prefix=J&max-keys=2", headers: &[host] };
    assert!(authorization(list, empty).ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
    let twice = &[host, ("x-amz-meta-a", b"1"), ("X-Amz-Meta-A", b"2")];
    assert!(authorization(Request { headers: twice, ..get }, empty).contains("=host;x-amz-content-sha256;x-amz-date;x-amz-meta-a,"));
    let query = signer.presign(Request { headers: &[host], ..get }, 86_400, MAY);
    assert_eq!(Some(&query[..]), presigned().split_once(" HTTP").and_then(|(line, _)| line.split_once('?')).map(|(_, query)| query));
    let headers: &[(&str, &[u8])] = &[
        ("host", b"s3.amazonaws.com"),
        ("content-encoding", b"aws-chunked"),
        ("x-amz-decoded-content-length", b"66560"),
        ("x-amz-storage-class", b"REDUCED_REDUNDANCY"),
        ("x-amz-trailer", b"x-amz-checksum-crc32c"),
    ];
    let put = Request { method: "PUT", path: "/examplebucket/chunkObject.txt", query: "", headers };
    let mut signed = signer.sign(put, Body::ChunksTrailer, MAY);
    let first = signed.chunks.sign(&Sha256::digest([b'a'; 65536]).into());
    assert_eq!(first, binary("b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"));
}
