//! Documents of the reference, read and written again, and requests that are refused.

use super::*;
use crate::s3::xml::tests::{code, dense};

/// API_CreateMultipartUpload.
#[test]
fn initiating() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<InitiateMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Bucket>example-bucket</Bucket>
  <Key>example-object</Key>
  <UploadId>VXBsb2FkIElEIGZvciA2aWWpbmcncyBteS1tb3ZpZS5tMnRzIHVwbG9hZA</UploadId>
</InitiateMultipartUploadResult>"#;
    let read = InitiateMultipartUploadResult::parse(body.as_bytes()).expect("an upload");
    assert_eq!((read.bucket.as_str(), read.key.as_str()), ("example-bucket", "example-object"));
    assert_eq!(read.to_xml(), dense(body));
}

/// API_CompleteMultipartUpload.
#[test]
fn completing() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Part>
    <PartNumber>1</PartNumber>
    <ETag>&quot;a54357aff0632cce46d942af68356b38&quot;</ETag>
    <ChecksumCRC64NVME>Qeh8oXvGiSo=</ChecksumCRC64NVME>
    <ChecksumSHA256>arcu6553sHVAiX4MjW0j7I7vD4w6R+Gz9Ok0Q9lTa+0=</ChecksumSHA256>
  </Part>
  <Part>
    <PartNumber>2</PartNumber>
    <ETag>&quot;0c78aef83f66abc1fa1e8477f296d394&quot;</ETag>
  </Part>
</CompleteMultipartUpload>"#;
    let read = CompleteMultipartUpload::parse(body.as_bytes()).expect("two parts");
    assert_eq!((read.parts[0].number, read.parts[1].etag.as_str()), (1, "0c78aef83f66abc1fa1e8477f296d394"));
    assert_eq!(read.parts[0].checksums.get(Algorithm::Crc64Nvme), Some("Qeh8oXvGiSo="));
    assert_eq!(read.to_xml(), dense(body));
    // boto3 sorts the elements of a part otherwise, ceph's suite leaves the quotes out, s3cmd writes them bare and no namespace.
    for etag in ["0123", "\"0123\"", "&quot;0123&quot;", "&#34;0123&#34;"] {
        let body =
            format!("<CompleteMultipartUpload><Part><ETag>{etag}</ETag><PartNumber>\n1\n</PartNumber></Part></CompleteMultipartUpload>");
        let read = CompleteMultipartUpload::parse(body.as_bytes()).expect("a part");
        assert_eq!((read.parts[0].number, read.parts[0].etag.as_str()), (1, "0123"), "{body}");
    }
}

#[test]
fn completions_that_are_refused() {
    let part = |number: &str| format!("<Part><PartNumber>{number}</PartNumber><ETag>a</ETag></Part>");
    let with = |parts: &str| format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let of = |body: &str| code(CompleteMultipartUpload::parse(body.as_bytes()));
    assert_eq!(of(&with(&part("10000").repeat(10_000))), None);
    for body in [
        String::new(),
        with(""),
        with(&part("1").repeat(10_001)),
        with(&part("one")),
        with(&part("")),
        with("<Part><ETag>a</ETag></Part>"),
        with("<Part><PartNumber>1</PartNumber></Part>"),
        with("<Part><PartNumber>1</PartNumber><ETag>a</ETag><ETag>b</ETag></Part>"),
        with("<Part><PartNumber>1</PartNumber><ETag>a</ETag><Size>1</Size></Part>"),
        with("<Piece/>"),
    ] {
        assert_eq!(of(&body), Some(Code::MalformedXml), "{body:.200}");
    }
    let strange = "<Part><PartNumber>1</PartNumber><ETag>a</ETag><ChecksumXXHASH3>a</ChecksumXXHASH3></Part>";
    assert_eq!(of(&with(strange)), Some(Code::NotImplemented));
    for number in ["0", "-1", "10001", "65537", "4294967297"] {
        assert_eq!(of(&with(&part(number))), Some(Code::InvalidArgument), "{number}");
    }
    let order = |numbers: &[u16]| {
        let parts = numbers.iter().map(|&number| CompletedPart { number, ..CompletedPart::default() }).collect();
        code(CompleteMultipartUpload { parts }.check_order())
    };
    assert_eq!((order(&[1, 2, 7]), order(&[1, 1]), order(&[2, 1])), (None, None, Some(Code::InvalidPartOrder)));
}

/// The longest request there is: ten thousand parts with every checksum, indented.
#[test]
fn the_longest_completion() {
    let checksums = Algorithm::ALL.map(|algorithm| (algorithm, "A".repeat(algorithm.bytes().div_ceil(3) * 4)));
    let parts = (1..=PARTS_MAX).map(|number| CompletedPart { number, etag: "a".repeat(32), checksums: Checksums(checksums.to_vec()) });
    let complete = CompleteMultipartUpload { parts: parts.collect() };
    let body = complete.to_xml();
    assert!(body.len() < COMPLETE_LIMITS.bytes, "{}", body.len());
    assert_eq!(CompleteMultipartUpload::parse(body.as_bytes()), Ok(complete));
}

/// API_CompleteMultipartUpload.
#[test]
fn completed() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CompleteMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
 <Location>http://Example-Bucket.s3.Region.amazonaws.com/Example-Object</Location>
 <Bucket>Example-Bucket</Bucket>
 <Key>Example-Object</Key>
 <ETag>&quot;3858f62230ac3c915f300c664312c11f-9&quot;</ETag>
 <ChecksumSHA256>Ok6Cs5b96ux6+MWQkJO7UBT5sKPBeXBLwvj/hK89smg=-1</ChecksumSHA256>
 <ChecksumType>COMPOSITE</ChecksumType>
</CompleteMultipartUploadResult>"#;
    let read = CompleteMultipartUploadResult::parse(body.as_bytes()).expect("an object");
    assert_eq!((read.etag.as_str(), read.checksum_kind), ("3858f62230ac3c915f300c664312c11f-9", Some(Kind::Composite)));
    assert_eq!(read.to_xml(), dense(body));
    // Spaces that keep the connection alive stand behind the header.
    let waited = dense(body).replacen("?>\n", "?>\n          \n", 1);
    assert_eq!(CompleteMultipartUploadResult::parse(waited.as_bytes()), Ok(read));
    // And a failure may follow them.
    let failed = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n   <Error><Code>InternalError</Code><Message>We</Message></Error>";
    assert_eq!(code(CompleteMultipartUploadResult::parse(failed.as_bytes())), Some(Code::MalformedXml));
    assert!(super::super::failure::ErrorDocument::parse(failed.as_bytes()).is_ok_and(|error| error.code == "InternalError"));
}

/// API_ListParts.
#[test]
fn parts() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListPartsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Bucket>example-bucket</Bucket>
  <Key>example-object</Key>
  <UploadId>XXBsb2FkIElEIGZvciBlbHZpbmcncyVcdS1tb3ZpZS5tMnRzEEEwbG9hZA</UploadId>
  <Initiator>
      <ID>arn:aws:iam::111122223333:user/some-user-11116a31-17b5-4fb7-9df5-b288870f11xx</ID>
      <DisplayName>umat-user-11116a31-17b5-4fb7-9df5-b288870f11xx</DisplayName>
  </Initiator>
  <Owner>
    <ID>75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID>
    <DisplayName>someName</DisplayName>
  </Owner>
  <StorageClass>STANDARD</StorageClass>
  <PartNumberMarker>1</PartNumberMarker>
  <NextPartNumberMarker>3</NextPartNumberMarker>
  <MaxParts>2</MaxParts>
  <IsTruncated>true</IsTruncated>
  <ChecksumAlgorithm>SHA1</ChecksumAlgorithm>
  <ChecksumType>COMPOSITE</ChecksumType>
  <Part>
    <PartNumber>2</PartNumber>
    <LastModified>2010-11-10T20:48:34.000Z</LastModified>
    <ETag>&quot;7778aef83f66abc1fa1e8477f296d394&quot;</ETag>
    <Size>10485760</Size>
    <ChecksumSHA1>sizjvY4eud3MrcHdZM3cQ/ol39o=</ChecksumSHA1>
  </Part>
  <Part>
    <PartNumber>3</PartNumber>
    <LastModified>2010-11-10T20:48:33.000Z</LastModified>
    <ETag>&quot;aaaa18db4cc2f85cedef654fccc4a4x8&quot;</ETag>
    <Size>10485760</Size>
  </Part>
</ListPartsResult>"#;
    let read = ListPartsResult::parse(body.as_bytes()).expect("a list");
    assert_eq!((read.parts[0].modified_ms, read.parts[1].number, read.next_part_number_marker), (1_289_422_114_000, 3, Some(3)));
    assert_eq!(read.to_xml(), dense(body));
}

/// API_ListMultipartUploads, of two pages one.
#[test]
fn uploads() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Bucket>bucket</Bucket>
  <KeyMarker></KeyMarker>
  <UploadIdMarker></UploadIdMarker>
  <NextKeyMarker>my-movie.m2ts</NextKeyMarker>
  <NextUploadIdMarker>YW55IGlkZWEgd2h5IGVsdmluZydzIHVwbG9hZCBmYWlsZWQ</NextUploadIdMarker>
  <Delimiter>/</Delimiter>
  <Prefix>my</Prefix>
  <MaxUploads>3</MaxUploads>
  <IsTruncated>true</IsTruncated>
  <Upload>
    <Key>my-divisor</Key>
    <UploadId>XMgbGlrZSBlbHZpbmcncyBub3QgaGF2aW5nIG11Y2ggbHVjaw</UploadId>
    <Initiator>
      <ID>arn:aws:iam::111122223333:user/user1-11111a31-17b5-4fb7-9df5-b111111f13de</ID>
      <DisplayName>user1-11111a31-17b5-4fb7-9df5-b111111f13de</DisplayName>
    </Initiator>
    <Owner>
      <ID>75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID>
      <DisplayName>OwnerDisplayName</DisplayName>
    </Owner>
    <StorageClass>STANDARD</StorageClass>
    <Initiated>2010-11-10T20:48:33.000Z</Initiated>
    <ChecksumAlgorithm>CRC32</ChecksumAlgorithm>
    <ChecksumType>FULL_OBJECT</ChecksumType>
  </Upload>
  <CommonPrefixes>
    <Prefix>my/videos/</Prefix>
  </CommonPrefixes>
</ListMultipartUploadsResult>"#;
    let mut read = ListMultipartUploadsResult::parse(body.as_bytes()).expect("a list");
    assert_eq!((read.uploads[0].initiated_ms, read.common_prefixes.len()), (1_289_422_113_000, 1));
    assert_eq!(read.to_xml(), dense(body));

    read.is_encoded = true;
    read.uploads[0].key = "a b".into();
    read.key_marker = "c d".into();
    read.upload_id_marker = "e+f".into();
    let body = read.to_xml();
    for expected in ["<Key>a%20b</Key>", "<KeyMarker>c%20d</KeyMarker>", "<UploadIdMarker>e+f</UploadIdMarker>"] {
        assert!(body.contains(expected), "{expected} in {body}");
    }
    assert_eq!(ListMultipartUploadsResult::parse(body.as_bytes()), Ok(read));
}

/// API_CopyObject and API_UploadPartCopy.
#[test]
fn copies() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CopyObjectResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <LastModified>2009-10-28T22:32:00.000Z</LastModified>
   <ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag>
   <ChecksumType>FULL_OBJECT</ChecksumType>
   <ChecksumCRC32C>xU+Krw==</ChecksumCRC32C>
</CopyObjectResult>"#;
    let read = CopyResult::parse(body.as_bytes()).expect("a copy");
    assert_eq!((read.modified_ms, read.checksums.get(Algorithm::Crc32c)), (1_256_769_120_000, Some("xU+Krw==")));
    assert_eq!(read.to_object_xml(), dense(body));
    assert_eq!(read.to_part_xml(), dense(&body.replace("CopyObjectResult", "CopyPartResult")));
    assert_eq!(CopyResult::parse(read.to_part_xml().as_bytes()), Ok(read));
    assert_eq!(code(CopyResult::parse(b"<Error><Code>SlowDown</Code></Error>")), Some(Code::MalformedXml));
}
