//! What is refused, with S3's codes, texts and order.

use super::*;

/// The first example, its parts to be replaced.
fn get(replace: &[(&str, &str)]) -> String {
    let mut lines = "GET /test.txt HTTP/1.1
        Host: examplebucket.s3.amazonaws.com
        Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
        SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41
        Range: bytes=0-9
        x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
        x-amz-date: 20130524T000000Z"
        .to_owned();
    for (from, to) in replace {
        assert!(lines.contains(from), "{from}");
        lines = lines.replacen(from, to, 1);
    }
    lines
}

fn refused(replace: &[(&str, &str)]) -> S3Error {
    verify(&get(replace), None, MAY).unwrap_err()
}

#[test]
fn authorization_headers() {
    verify(&get(&[]), None, MAY).unwrap();
    verify(&get(&[(", SignedHeaders", ",SignedHeaders"), (", Signature", ", ,Other=1,   Signature")]), None, MAY).unwrap();
    let header = |value: &str| verify(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: {value}"), None, MAY);
    for (value, message) in [
        ("AWS4-HMAC-SHA256", "Authorization header is invalid -- one and only one ' ' (space) required"),
        ("Bearer token", "Unsupported Authorization Type"),
        ("AWS4-HMAC-SHA512 Credential=a", "Unsupported Authorization Type"),
        ("AWS HAHAHA", "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature"),
        ("AWS a:", "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature"),
        ("AWS a:b:c", "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature"),
        ("AWS  a:b", "Authorization header is invalid -- one and only one ' ' (space) required"),
    ] {
        let error = header(value).unwrap_err();
        assert_eq!((error.code, &error.message[..]), (Code::InvalidArgument, message), "{value}");
        assert_eq!((field(&error, "ArgumentName"), field(&error, "ArgumentValue")), ("Authorization", value));
    }
    assert_eq!(header("").unwrap().how, How::Anonymous);
    assert_eq!(header("AWS4-ECDSA-P256-SHA256 Credential=a").unwrap_err().code, Code::NotImplemented);
    for query in ["X-Amz-Algorithm=AWS4-HMAC-SHA256", "Signature=x"] {
        let error = refused(&[("/test.txt", &format!("/test.txt?{query}"))]);
        assert!(error.code == Code::InvalidArgument && error.message.starts_with("Only one auth mechanism allowed"));
    }
    let error = verify("GET /?Signature=a&X-Amz-Algorithm=b HTTP/1.1\nHost: h", None, MAY).unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.starts_with("Only one auth mechanism allowed"));
}

#[test]
fn components_and_scopes() {
    for (from, to, message) in [
        ("Credential=", "Cred=", "the authorization header requires three components: Credential, SignedHeaders, and Signature."),
        ("SignedHeaders=", "Signed=", "the authorization header requires three components: Credential, SignedHeaders, and Signature."),
        ("/aws4_request", "", "the Credential is mal-formed; expecting \"<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request\"."),
        ("AKIAIOSFODNN7EXAMPLE/", "/", "a non-empty Access Key (AKID) must be provided in the credential."),
        (
            "/20130524/",
            "/2013-05-24/",
            "incorrect date format \"2013-05-24\". This date in the credential must be in the format \"yyyyMMdd\".",
        ),
        ("/20130524/", "/20130523/", "Invalid credential date. Date is not the same as X-Amz-Date."),
        ("/us-east-1/", "//", "a non-empty region must be provided in the credential."),
        ("/us-east-1/", "/eu-west-1/", "the region 'eu-west-1' is wrong; expecting 'us-east-1'"),
        ("/s3/", "/ec2/", "incorrect service \"ec2\". This endpoint belongs to \"s3\"."),
        ("aws4_request", "aws5_request", "incorrect terminal \"aws5_request\". This endpoint uses \"aws4_request\"."),
    ] {
        let error = refused(&[(from, to)]);
        let expected = format!("The authorization header is malformed; {message}");
        assert_eq!((error.code, error.message), (Code::AuthorizationHeaderMalformed, expected), "{to}");
    }
    assert_eq!(field(&refused(&[("/us-east-1/", "/eu-west-1/")]), "Region"), "us-east-1");
    let many = format!("SignedHeaders=host;{}range", "a;".repeat(SIGNED_HEADERS_MAX));
    assert_eq!(refused(&[("SignedHeaders=host;range", &many)]).code, Code::AuthorizationHeaderMalformed);
    // Any region, if none is configured; the signature still counts.
    let verifier = Verifier::new(Config { regions: vec![], allows_v2: false });
    let error = verifier.verify(&head(&get(&[("/us-east-1/", "/eu-west-1/")])), None, MAY, &credentials).unwrap_err();
    assert_eq!(error.code, Code::SignatureDoesNotMatch);
}

#[test]
fn what_the_body_is_said_to_be() {
    let error = refused(&[("x-amz-content-sha256: ", "x-amz-content: ")]);
    let expected = "Missing required header for this request: x-amz-content-sha256";
    assert_eq!((error.code, &error.message[..]), (Code::InvalidRequest, expected));
    for value in ["unsigned-payload", "e3b0", "", "UNSIGNED-PAYLOAD-TRAILER", &"g".repeat(64), &"a".repeat(65), &"a".repeat(66)] {
        let error = refused(&[("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", value)]);
        assert_eq!((error.code, field(&error, "ArgumentName")), (Code::InvalidArgument, "x-amz-content-sha256"), "{value}");
        assert_eq!(field(&error, "ArgumentValue"), value);
    }
    for value in ["STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"] {
        let error = refused(&[("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", value)]);
        assert_eq!(error.code, Code::NotImplemented);
    }
    for value in ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x"] {
        assert!(verify(&format!("PUT / HTTP/1.1\nHost: h\nx-amz-content-sha256: {value}"), None, MAY).is_err(), "anonymous {value}");
    }
}

#[test]
fn dates() {
    for (date, code) in [
        ("", Code::AccessDenied),
        ("Bad Date", Code::AccessDenied),
        ("Tue, 07 Jul 1950 21:53:04 GMT", Code::AccessDenied),
        ("Tue, 07 Jul 2010 21:53:04 GMT", Code::RequestTimeTooSkewed),
        ("Tue, 07 Jul 2030 21:53:04 GMT", Code::RequestTimeTooSkewed),
        ("Tue, 07 Jul 9999 21:53:04 GMT", Code::RequestTimeTooSkewed),
        ("20130523T234459Z", Code::RequestTimeTooSkewed),
        ("20130524T001501Z", Code::RequestTimeTooSkewed),
        ("20130523T234500Z", Code::AuthorizationHeaderMalformed),
        ("20130524T001500Z", Code::SignatureDoesNotMatch),
    ] {
        let error = refused(&[("20130524T000000Z", date)]);
        assert_eq!(error.code, code, "{date}");
        if code == Code::RequestTimeTooSkewed {
            assert_eq!((field(&error, "RequestTime"), field(&error, "ServerTime")), (date, "2013-05-24T00:00:00Z"));
            assert_eq!(field(&error, "MaxAllowedSkewMilliseconds"), "900000");
        }
        let v2 =
            format!("PUT /b HTTP/1.1\nHost: h\nAuthorization: AWS {ACCESS_KEY}:x\nDate: Fri, 24 May 2013 00:00:00 GMT\nx-amz-date: {date}");
        let expected = if code == Code::AuthorizationHeaderMalformed { Code::SignatureDoesNotMatch } else { code };
        assert_eq!(verify(&v2, None, MAY).unwrap_err().code, expected, "{date}");
    }
    let no_date = refused(&[("x-amz-date: 20130524T000000Z", "x-amz-time: 1")]);
    assert_eq!(no_date.message, "AWS authentication requires a valid Date or x-amz-date header");
}

#[test]
fn headers_that_must_be_signed() {
    for (from, to, names) in [
        ("Range:", "X-Amz-Acl: private\nRange:", "x-amz-acl"),
        ("Range:", "X-Amz-Meta-B: 1\nx-amz-meta-a: 2\nx-amz-meta-b: 3\nContent-MD5: x\nRange:", "content-md5, x-amz-meta-a, x-amz-meta-b"),
        ("=host;range", "=range", "host"),
        (";x-amz-date", "", "x-amz-date"),
        ("Range:", "x-amz-rdma-token: t\nRange:", "x-amz-rdma-token"),
    ] {
        let error = refused(&[(from, to)]);
        assert_eq!(error.code, Code::AccessDenied);
        assert_eq!(error.message, "There were headers present in the request which were not signed");
        assert_eq!(field(&error, "HeadersNotSigned"), names);
    }
    // Others need not be, nor the one that is signed in any case.
    for (from, to) in [("Range:", "Content-Type: a\nx-amzn-trace-id: 1\nRange:"), ("x-amz-content-sha256;", "")] {
        let code = verify(&get(&[(from, to)]), None, MAY).map_err(|error| error.code);
        assert!(matches!(code, Ok(_) | Err(Code::SignatureDoesNotMatch)), "{to}: {code:?}");
    }
}

#[test]
fn signatures() {
    let error = refused(&[("/test.txt", "/test2.txt")]);
    assert_eq!((error.code, error.code.status()), (Code::SignatureDoesNotMatch, 403));
    assert_eq!(field(&error, "AWSAccessKeyId"), ACCESS_KEY);
    assert_eq!(field(&error, "SignatureProvided"), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    let start = "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n";
    assert!(field(&error, "StringToSign").starts_with(start) && field(&error, "StringToSign").len() == start.len() + 64);
    assert!(field(&error, "StringToSignBytes").starts_with("41 57 53 34 2d 48"));
    let canonical = "GET\n/test2.txt\n\nhost:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\n\
        x-amz-content-sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\nx-amz-date:20130524T000000Z\n\n\
        host;range;x-amz-content-sha256;x-amz-date\ne3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(field(&error, "CanonicalRequest"), canonical);
    assert!(field(&error, "CanonicalRequestBytes").starts_with("47 45 54 0a 2f"));
    for signature in ["", "f0", "F0E8BDB87C964420E857BD35B5D6ED310BD44F0170ABA48DD91039C6036BDB41"] {
        let error = refused(&[("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", signature)]);
        assert_eq!(error.code, Code::SignatureDoesNotMatch);
    }
    let error = refused(&[("AKIAIOSFODNN7EXAMPLE/", "AKIAIOSFODNN7EXAMPLF/")]);
    assert_eq!((error.code, field(&error, "AWSAccessKeyId")), (Code::InvalidAccessKeyId, "AKIAIOSFODNN7EXAMPLF"));
}

/// An absolute target names the host that is addressed, so that is the one that must be signed.
#[test]
fn the_host_is_the_one_addressed() {
    verify(&get(&[("/test.txt", "http://examplebucket.s3.amazonaws.com/test.txt")]), None, MAY).unwrap();
    let error = refused(&[("/test.txt", "http://otherbucket.s3.amazonaws.com/test.txt")]);
    assert_eq!(error.code, Code::SignatureDoesNotMatch);
}

struct Sessions;

impl Credentials for Sessions {
    fn secret(&self, access_key: &str, token: Option<&str>) -> Result<Secret, Refusal> {
        match (access_key, token) {
            ("session", Some("good")) => Ok(secret()),
            ("session", Some("old")) => Err(Refusal::ExpiredToken),
            ("session", _) => Err(Refusal::BadToken),
            _ => Err(Refusal::Unknown),
        }
    }
}

#[test]
fn sessions() {
    let verifier = Verifier::new(Config::default());
    let base = Request { method: "GET", path: "/b/k", query: "", headers: &[("host", b"h")] };
    for service in [Service::S3, Service::S3Express] {
        for (token, expected) in [("good", None), ("old", Some(Code::ExpiredToken)), ("bad", Some(Code::InvalidToken))] {
            let signer = Signer::new("session", secret(), "us-east-1").with_session(Token::new(token), service);
            let signed = signer.sign(base, sign::Body::Unsigned, MAY);
            let mut headers: Vec<_> = signed.headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            headers.push(("host", b"h"));
            let by_header = verifier.verify_request(Request { headers: &headers, ..base }, None, MAY, &Sessions);
            let query = signer.presign(base, 60, MAY);
            let by_query = verifier.verify_request(Request { query: &query, ..base }, None, MAY, &Sessions);
            for result in [by_header, by_query] {
                match expected {
                    None => {
                        let verified = result.unwrap();
                        assert_eq!((verified.service, verified.token), (service, Some(Token::new(token))));
                    }
                    Some(code) => assert_eq!(result.unwrap_err().code, code),
                }
            }
        }
        let error = verifier.verify_request(base, None, MAY, &Sessions).unwrap();
        assert_eq!(error.how, How::Anonymous);
    }
}

#[test]
fn presigned_urls() {
    let lines = "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request\
        &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
        &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404 HTTP/1.1\nHost: examplebucket.s3.amazonaws.com";
    verify(lines, None, MAY).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(lines.contains(from), "{from}");
        verify(&lines.replacen(from, to, 1), None, MAY).unwrap_err()
    };
    for name in ["Credential", "Date", "Expires", "SignedHeaders", "Signature"] {
        let error = refused(&format!("X-Amz-{name}="), "X-Other=");
        assert_eq!(error.code, Code::AuthorizationQueryParametersError, "without {name}");
        assert!(error.message.starts_with("Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential,"));
    }
    for (from, to, message) in [
        ("=AWS4-HMAC-SHA256", "=AWS4", "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\""),
        ("20130524T", "2013-05-24T", "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""),
        ("=86400", "=", "X-Amz-Expires should be a number"),
        ("=86400", "=1e3", "X-Amz-Expires should be a number"),
        ("=86400", "=9223372036854775808", "X-Amz-Expires should be a number"),
        (
            "/us-east-1/",
            "/eu-west-1/",
            "Error parsing the X-Amz-Credential parameter; the region 'eu-west-1' is wrong; expecting 'us-east-1'",
        ),
        ("/20130524/", "/20130523/", "Invalid credential date \"20130523\". This date is not the same as X-Amz-Date: \"20130524\"."),
    ] {
        let error = refused(from, to);
        assert_eq!((error.code, &error.message[..]), (Code::AuthorizationQueryParametersError, message), "{to}");
    }
    assert_eq!(refused("=AWS4-HMAC-SHA256", "=AWS4-ECDSA-P256-SHA256").code, Code::NotImplemented);
    for (expires, message) in [
        ("-7", "X-Amz-Expires must be non-negative"),
        ("0", "Request has expired"),
        (
            "604801",
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds",
        ),
    ] {
        let error = refused("=86400", &format!("={expires}"));
        assert_eq!((error.code, &error.message[..]), (Code::AccessDenied, message), "{expires}");
    }
    assert_eq!(refused("=86400", "=604800").code, Code::SignatureDoesNotMatch, "a week is not too long");
    let error = refused("Host:", "x-amz-acl: public-read\nHost:");
    assert_eq!((error.code, field(&error, "HeadersNotSigned")), (Code::AccessDenied, "x-amz-acl"));
    // Without the algorithm it is not signed at all.
    assert_eq!(verify(&lines.replace("X-Amz-Algorithm", "X-Other"), None, MAY).unwrap().how, How::Anonymous);
}
