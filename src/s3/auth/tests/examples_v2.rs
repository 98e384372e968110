//! The examples of userguide/RESTAuthentication.html (signature version 2), as of today and as of when its buckets were johnsmith's.
//!
//! Not its DELETE: the page signs `x-amz-date` in the place of `Date` and leaves it out of the headers, against its own rule.

use super::super::v2;
use super::*;

/// 2007-03-27T19:36:42Z; the other examples are hours away.
const MARCH: u64 = 1_175_024_202_000;
const HOUR: u64 = 3_600_000;

/// Lines without authorization, the bucket of the host, and the signature.
const EXAMPLES: &[(&str, Option<&str>, u64, &str)] = &[
    (
        "GET /photos/puppy.jpg HTTP/1.1
         Host: awsexamplebucket1.us-west-1.s3.amazonaws.com
         Date: Tue, 27 Mar 2007 19:36:42 +0000",
        Some("awsexamplebucket1"),
        MARCH,
        "qgk2+6Sv9/oM7G3qLEjTH1a1l1g=",
    ),
    (
        "PUT /photos/puppy.jpg HTTP/1.1
         Content-Type: image/jpeg
         Content-Length: 94328
         Host: awsexamplebucket1.s3.us-west-1.amazonaws.com
         Date: Tue, 27 Mar 2007 21:15:45 +0000",
        Some("awsexamplebucket1"),
        MARCH + 2 * HOUR - 1_257_000,
        "iqRzw+ileNPu1fhspnRs8nOjjIA=",
    ),
    (
        "GET /?prefix=photos&max-keys=50&marker=puppy HTTP/1.1
         User-Agent: Mozilla/5.0
         Host: awsexamplebucket1.s3.us-west-1.amazonaws.com
         Date: Tue, 27 Mar 2007 19:42:41 +0000",
        Some("awsexamplebucket1"),
        MARCH,
        "m0WP8eCtspQl5Ahe6L1SozdX9YA=",
    ),
    (
        "GET /?acl HTTP/1.1
         Host: awsexamplebucket1.s3.us-west-1.amazonaws.com
         Date: Tue, 27 Mar 2007 19:44:46 +0000",
        Some("awsexamplebucket1"),
        MARCH,
        "82ZHiFIjc+WbcwFKGUVEQspPn+0=",
    ),
    (
        "PUT /db-backup.dat.gz HTTP/1.1
         User-Agent: curl/7.15.5
         Host: static.awsexamplebucket1.net:8080
         Date: Tue, 27 Mar 2007 21:06:08 +0000
         x-amz-acl: public-read
         content-type: application/x-download
         Content-MD5: 4gJE4saaMU4BqNR0kLY+lw==
         X-Amz-Meta-ReviewedBy: joe@awsexamplebucket1.net
         X-Amz-Meta-ReviewedBy: jane@awsexamplebucket1.net
         X-Amz-Meta-FileChecksum: 0x02661779
         X-Amz-Meta-ChecksumAlgorithm: crc32
         Content-Disposition: attachment; filename=database.dat
         Content-Encoding: gzip
         Content-Length: 5913339",
        Some("static.awsexamplebucket1.net"),
        MARCH + 2 * HOUR - 1_257_000,
        "dKZcB+bz2EPXgSdXZp9ozGeOM4I=",
    ),
    (
        "GET / HTTP/1.1
         Host: s3.us-west-1.amazonaws.com
         Date: Wed, 28 Mar 2007 01:29:59 +0000",
        None,
        MARCH + 6 * HOUR,
        "qGdzdERIC03wnaRNKh6OqZehG9s=",
    ),
    (
        "GET /dictionary/fran%C3%A7ais/pr%c3%a9f%c3%a8re HTTP/1.1
         Host: s3.us-west-1.amazonaws.com
         Date: Wed, 28 Mar 2007 01:49:49 +0000",
        None,
        MARCH + 6 * HOUR,
        "DNEZGsoieTZ92F3bUfSPQcbGmlM=",
    ),
    // Path style is signed as virtual-hosted style.
    (
        "GET /johnsmith/photos/puppy.jpg HTTP/1.1\nHost: s3\nDate: Tue, 27 Mar 2007 19:36:42 +0000",
        None,
        MARCH,
        "bWq2s1WEIj+Ydj0vQ697zp+IXMU=",
    ),
    ("GET /?acl HTTP/1.1\nHost: s3\nDate: Tue, 27 Mar 2007 19:44:46 +0000", Some("johnsmith"), MARCH, "c2WLPFtWHVgbEmeEG93a4cG37dM="),
    // A bucket addressed by path, signed with a slash behind it.
    ("GET /johnsmith?prefix=p HTTP/1.1\nHost: s3\nDate: Tue, 27 Mar 2007 19:42:41 +0000", None, MARCH, "htDYFYduRNen8P9ZfE/s9SuKy0U="),
];

fn with_signature(lines: &str, signature: &str) -> String {
    format!("{lines}\nAuthorization: AWS {ACCESS_KEY}:{signature}")
}

#[test]
fn headers() {
    for &(lines, bucket, now, signature) in EXAMPLES {
        let verified = verify(&with_signature(lines, signature), bucket, now).unwrap_or_else(|error| panic!("{lines}: {error:?}"));
        assert_eq!((verified.how, verified.access_key.as_deref()), (How::HeaderV2, Some(ACCESS_KEY)));
        assert!(verified.signs("X-Amz-Meta-ReviewedBy") && verified.signs("content-type") && !verified.signs("host"));
        let verify = |lines: &str| verify(lines, bucket, now);
        let path = lines.split([' ', '?']).nth(1).expect("a path");
        let date = lines.split_once("Date: ").expect("a date").1;
        assert_all_signed(&with_signature(lines, signature), &[&path[1..], &date[..20], signature, ACCESS_KEY], verify);
    }
    let (lines, bucket, now, signature) = EXAMPLES[4];
    let pieces = ["public-read", "application/x-download", "4gJE4saaMU4BqNR0kLY+lw", "joe@awsexamplebucket1.net", "jane", "FileChecksum"];
    assert_all_signed(&with_signature(lines, signature), &pieces, |lines| verify(lines, bucket, now));
    assert!(verify(&with_signature(lines, signature), Some("other"), now).is_err(), "another bucket");
    let (lines, bucket, now, signature) = EXAMPLES[3];
    for other in ["/?acls", "/", "/?acl&versioning", "/?policy"] {
        let lines = lines.replace("/?acl", other);
        assert!(verify(&with_signature(&lines, signature), bucket, now).is_err(), "{other}");
    }
}

#[test]
fn strings_to_sign() {
    let string = |query: &str, headers: &[(&str, &[u8])]| {
        let request = Request { method: "GET", path: "/b/k", query, headers };
        String::from_utf8(v2::string_to_sign(&request, None, "D", "")).unwrap()
    };
    for (query, resource) in [
        ("uploads=&acl=v", "/b/k?acl&uploads"),
        ("versionId=a%2Bb&partNumber=2&uploadId=x+y", "/b/k?partNumber=2&uploadId=x y&versionId=a+b"),
        ("prefix=acl&ACL&acls&x-id=GetObject", "/b/k"),
        ("acl&acl=2", "/b/k?acl"),
        ("response-content-type=a%2Fb&versionId", "/b/k?response-content-type=a/b&versionId="),
    ] {
        assert_eq!(string(query, &[]), format!("GET\n\n\nD\n{resource}"), "{query}");
    }
    let headers: &[(&str, &[u8])] = &[("X-Amz-B", b" 1 "), ("content-md5", b"m"), ("x-amz-a", b"2"), ("x-amz-b", b"3"), ("x-amzn-c", b"4")];
    assert_eq!(string("", headers), "GET\nm\n\nD\nx-amz-a:2\nx-amz-b:1,3\n/b/k");
    // In a presigned URL parameters stand for headers, x-amz-* over those that are there.
    let presigned = string("x-amz-a=5&X-Amz-D=6&content-type=t&content-md5=n&Signature=s", headers);
    assert_eq!(presigned, "GET\nm\nt\nD\nx-amz-a:5\nx-amz-b:1,3\nx-amz-d:6\n/b/k");
    assert_eq!(string("x-amz-a=5&content-type=t", headers), string("", headers));
    assert_eq!(string("x-amz-c=5%0Ax-amz-d:6&Signature", headers), string("", headers));
}

#[test]
fn x_amz_date_stands_for_date() {
    let lines = "GET /b/k HTTP/1.1\nHost: h\nDate: Tue, 27 Mar 2007 21:20:27 +0000\nx-amz-date: Tue, 27 Mar 2007 19:36:42 +0000";
    let string = b"GET\n\n\n\nx-amz-date:Tue, 27 Mar 2007 19:36:42 +0000\n/b/k";
    let lines = with_signature(lines, &v2::sign(&secret(), string));
    assert_eq!(verify(&lines, None, MARCH).unwrap().signed_ms, MARCH);
}

const PRESIGNED: &str = "GET /photos/puppy.jpg?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE\
    &Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620 HTTP/1.1\nHost: johnsmith.s3.amazonaws.com";

#[test]
fn a_presigned_url() {
    let verify = |lines: &str, now| verify(lines, Some("johnsmith"), now);
    let verified = verify(PRESIGNED, MARCH).unwrap();
    assert_eq!((verified.how, verified.access_key.as_deref(), verified.signed_ms), (How::QueryV2, Some(ACCESS_KEY), MARCH));
    assert_all_signed(PRESIGNED, &["photos", "1175139620", "NpgCjnDzrM%2BWFzoENXmpNDUsSn8", ACCESS_KEY], |lines| verify(lines, MARCH));
    let error = verify(PRESIGNED, 1_175_139_621_000).unwrap_err();
    assert_eq!((error.code, &error.message[..]), (Code::AccessDenied, "Request has expired"));
    assert_eq!((field(&error, "Expires"), field(&error, "ServerTime")), ("2007-03-29T03:40:20Z", "2007-03-29T03:40:21Z"));
    for (from, to) in [("&Expires=1175139620", ""), ("AWSAccessKeyId", "AWSKey"), ("=1175139620", "=soon"), ("=1175139620", "=2147483648")]
    {
        assert_eq!(verify(&PRESIGNED.replace(from, to), MARCH).unwrap_err().code, Code::AccessDenied, "{to}");
    }
    assert_eq!(verify(&PRESIGNED.replace("=1175139620", "=-9223372036854775808"), MARCH).unwrap_err().message, "Request has expired");
}

#[test]
fn it_can_be_switched_off() {
    let verifier = Verifier::new(Config { allows_v2: false, ..Config::default() });
    let (lines, bucket, now, signature) = EXAMPLES[0];
    for (lines, now) in [(with_signature(lines, signature), now), (PRESIGNED.to_owned(), MARCH)] {
        let error = verifier.verify(&head(&lines), bucket, now, &credentials).unwrap_err();
        assert_eq!((error.code, error.message.contains("Please use AWS4-HMAC-SHA256")), (Code::InvalidRequest, true));
    }
    let error = verifier.verify_post(&[("key", "k"), ("AWSAccessKeyId", ACCESS_KEY)], "b", MARCH, &credentials).unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
}
