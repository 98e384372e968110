//! Lists of the reference, read and written again.

use super::*;
use crate::s3::error::Code;
use crate::s3::xml::tests::{code, dense};

/// API_ListObjects, in the order S3 answers in.
const V1: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Name>bucket</Name>
  <Prefix></Prefix>
  <Marker></Marker>
  <NextMarker>photos/</NextMarker>
  <MaxKeys>1000</MaxKeys>
  <Delimiter>/</Delimiter>
  <IsTruncated>true</IsTruncated>
  <Contents>
    <Key>my-image.jpg</Key>
    <LastModified>2009-10-12T17:50:30.000Z</LastModified>
    <ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag>
    <ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>
    <ChecksumType>FULL_OBJECT</ChecksumType>
    <Size>434234</Size>
    <Owner>
      <ID>75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID>
      <DisplayName>mtd@amazon.com</DisplayName>
    </Owner>
    <StorageClass>STANDARD</StorageClass>
  </Contents>
  <CommonPrefixes>
    <Prefix>photos/</Prefix>
  </CommonPrefixes>
</ListBucketResult>"#;

#[test]
fn first_version() {
    let read = ListBucketResult::parse(V1.as_bytes()).expect("a list");
    let object = &read.page.entries[0];
    assert_eq!((object.key.as_str(), object.etag.as_str()), ("my-image.jpg", "fba9dede5f27731c9771645a39863328"));
    assert_eq!((object.modified_ms, object.size), (1_255_369_830_000, 434_234));
    assert_eq!((object.checksum_algorithm, object.checksum_kind), (Some(Algorithm::Crc64Nvme), Some(Kind::FullObject)));
    assert_eq!((read.next_marker.as_deref(), read.page.common_prefixes.as_slice()), (Some("photos/"), &["photos/".to_owned()][..]));
    assert_eq!(read.to_xml(), dense(V1));
}

/// Without a delimiter there is no such element, and a prefix and a marker always are.
#[test]
fn what_is_always_there() {
    let list = ListBucketResult { page: Page { bucket: "b".into(), max_keys: 1000, ..Page::default() }, ..ListBucketResult::default() };
    assert_eq!(
        list.to_xml(),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
         <Prefix></Prefix><Marker></Marker><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
    );
}

/// API_ListObjectsV2: the answers to a first request and to one with a token.
#[test]
fn second_version() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Name>bucket</Name>
  <Prefix></Prefix>
  <ContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</ContinuationToken>
  <NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOw=</NextContinuationToken>
  <StartAfter>ExampleGuide.pdf</StartAfter>
  <KeyCount>1</KeyCount>
  <MaxKeys>3</MaxKeys>
  <IsTruncated>true</IsTruncated>
  <Contents>
    <Key>happyfacex.jpg</Key>
    <LastModified>2014-11-21T19:40:05.000Z</LastModified>
    <ETag>&quot;70ee1738b6b21e2c8a43f3a5ab0eee71&quot;</ETag>
    <Size>1111</Size>
    <StorageClass>STANDARD</StorageClass>
  </Contents>
</ListBucketResult>"#;
    let read = ListBucketV2Result::parse(body.as_bytes()).expect("a list");
    assert_eq!((read.page.entries[0].owner.as_ref(), read.key_count()), (None, 1));
    assert_eq!(read.to_xml(), dense(body));
}

/// API_ListObjectVersions: versions and delete markers in one order.
#[test]
fn versions() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
    <Name>bucket</Name>
    <Prefix>my</Prefix>
    <KeyMarker></KeyMarker>
    <VersionIdMarker></VersionIdMarker>
    <NextKeyMarker>my-second-image.jpg</NextKeyMarker>
    <NextVersionIdMarker>03jpff543dhffds434rfdsFDN943fdsFkdmqnh892</NextVersionIdMarker>
    <MaxKeys>5</MaxKeys>
    <IsTruncated>true</IsTruncated>
    <Version>
        <Key>my-image.jpg</Key>
        <VersionId>3/L4kqtJl40Nr8X8gdRQBpUMLUo</VersionId>
        <IsLatest>true</IsLatest>
        <LastModified>2009-10-12T17:50:30.000Z</LastModified>
        <ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag>
        <Size>434234</Size>
        <Owner>
            <ID>75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID>
        </Owner>
        <StorageClass>STANDARD</StorageClass>
    </Version>
    <DeleteMarker>
        <Key>my-second-image.jpg</Key>
        <VersionId>03jpff543dhffds434rfdsFDN943fdsFkdmqnh892</VersionId>
        <IsLatest>true</IsLatest>
        <LastModified>2009-11-12T17:50:30.000Z</LastModified>
        <Owner>
            <ID>75aa57f09aa0c8caeab4f8c24e99d10f8e7faeebf76c078efc7c6caea54ba06a</ID>
        </Owner>
    </DeleteMarker>
    <Version>
        <Key>my-second-image.jpg</Key>
        <VersionId>QUpfdndhfd8438MNFDN93jdnJFkdmqnh893</VersionId>
        <IsLatest>false</IsLatest>
        <LastModified>2009-10-10T17:50:30.000Z</LastModified>
        <ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag>
        <Size>166434</Size>
        <StorageClass>STANDARD</StorageClass>
    </Version>
    <CommonPrefixes>
        <Prefix>my/</Prefix>
    </CommonPrefixes>
</ListVersionsResult>"#;
    let read = ListVersionsResult::parse(body.as_bytes()).expect("a list");
    assert_eq!(
        read.page.entries.iter().map(Version::key).collect::<Vec<_>>(),
        ["my-image.jpg", "my-second-image.jpg", "my-second-image.jpg"]
    );
    assert!(matches!(&read.page.entries[1], Version::DeleteMarker { is_latest: true, .. }));
    assert_eq!(read.to_xml(), dense(body));
}

#[test]
fn encoded_names() {
    let mut list = ListBucketResult::parse(V1.as_bytes()).expect("a list");
    list.page.entries[0].key = "a b%\u{1}".into();
    list.page.prefix = "%41 \n".into();
    list.page.delimiter = " ".into();
    list.page.common_prefixes = vec!["c d".into()];
    list.marker = "e f".into();
    list.next_marker = Some("g/h+".into());
    // XML 1.0 has no such reference, S3 writes it.
    assert!(list.to_xml().contains("<Key>a b%&#x1;</Key>"));
    list.page.is_encoded = true;
    let body = list.to_xml();
    for expected in [
        "<EncodingType>url</EncodingType>",
        "<Prefix>%41 &#xA;</Prefix>",
        "<Key>a%20b%25%01</Key>",
        "<Marker>e%20f</Marker>",
        "<NextMarker>g/h%2B</NextMarker>",
        "<Delimiter>%20</Delimiter>",
        "<CommonPrefixes><Prefix>c%20d</Prefix></CommonPrefixes>",
    ] {
        assert!(body.contains(expected), "{expected} in {body}");
    }
    assert_eq!(ListBucketResult::parse(body.as_bytes()), Ok(list.clone()));
    // S3's own spaces.
    assert_eq!(ListBucketResult::parse(body.replace("%20", "+").as_bytes()), Ok(list));
    assert_eq!(code(ListBucketResult::parse(body.replace("%20", "%2").as_bytes())), Some(Code::MalformedXml));

    let page = Page { prefix: " ".into(), is_encoded: true, ..Page::default() };
    let list = ListBucketV2Result { page, start_after: Some("a b".into()), continuation_token: Some("c+d".into()), ..Default::default() };
    let body = list.to_xml();
    assert!(body.contains("<Prefix>%20</Prefix>"), "{body}");
    assert!(body.contains("<StartAfter>a%20b</StartAfter>") && body.contains("<ContinuationToken>c+d</ContinuationToken>"), "{body}");
    assert_eq!(ListBucketV2Result::parse(body.as_bytes()), Ok(list));

    let page = Page { is_encoded: true, ..Page::default() };
    let list = ListVersionsResult { page, key_marker: "a b".into(), version_id_marker: "c+d".into(), ..Default::default() };
    let body = list.to_xml();
    assert!(body.contains("<KeyMarker>a%20b</KeyMarker><VersionIdMarker>c+d</VersionIdMarker>"), "{body}");
    assert_eq!(ListVersionsResult::parse(body.as_bytes()), Ok(list));
}

/// Other servers say more, or less.
#[test]
fn other_servers() {
    let body = "<s3:ListBucketResult xmlns:s3='urn:x'><s3:Name>b</s3:Name><IsTruncated>false</IsTruncated><New><Thing/></New><Contents>\
                <Size>1</Size><Key>k</Key><ETag>0123</ETag><LastModified>2024-01-02T03:04:05Z</LastModified><RestoreStatus>\
                <IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus>\
                <ChecksumAlgorithm>NEW</ChecksumAlgorithm></Contents></s3:ListBucketResult>";
    let read = ListBucketResult::parse(body.as_bytes()).expect("a list");
    assert_eq!((read.page.entries[0].etag.as_str(), read.page.entries[0].checksum_algorithm), ("0123", None));
    for body in ["<ListBucketResult/>", "<ListBucketResult><Name>a</Name><Contents/></ListBucketResult>", "<Error><Code>a</Code></Error>"] {
        assert_eq!(code(ListBucketResult::parse(body.as_bytes())), Some(Code::MalformedXml), "{body}");
    }
}
