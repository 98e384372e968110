//! Documents of the reference, read and written again, and those that are refused.

use super::*;
use crate::s3::xml::tests::{code, dense};

/// A document in S3's namespace.
fn document(root: &str, inner: &str) -> String {
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root} xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inner}</{root}>")
}

#[test]
fn versioning() {
    let of = |inner: &str| VersioningConfiguration::parse(document("VersioningConfiguration", inner).as_bytes());
    let body = document("VersioningConfiguration", "<Status>Enabled</Status><MfaDelete>Disabled</MfaDelete>");
    let read = VersioningConfiguration::parse(body.as_bytes()).expect("a status");
    assert_eq!(read, VersioningConfiguration { status: Some(Status::Enabled), mfa_delete: Some(MfaDelete::Disabled) });
    assert_eq!((read.to_xml(), read.wanted()), (body, Ok(Status::Enabled)));
    // Pretty printed.
    assert_eq!(of("\n  <Status>\n Suspended </Status>\n").map(|read| read.status), Ok(Some(Status::Suspended)));
    let never = of("").expect("nothing was set");
    assert_eq!(code(never.wanted()), Some(Code::IllegalVersioningConfigurationException));
    assert_eq!(VersioningConfiguration::default().to_xml(), document("VersioningConfiguration", ""));
    for inner in
        ["<Status>enabled</Status>", "<Status/>", "<Status>Enabled</Status><Status>Enabled</Status>", "<MFADelete>Enabled</MFADelete>"]
    {
        assert_eq!(code(of(inner)), Some(Code::MalformedXml), "{inner}");
    }
}

#[test]
fn ownership() {
    for (name, ownership) in [
        ("BucketOwnerEnforced", ObjectOwnership::BucketOwnerEnforced),
        ("BucketOwnerPreferred", ObjectOwnership::BucketOwnerPreferred),
        ("ObjectWriter", ObjectOwnership::ObjectWriter),
    ] {
        let body = document("OwnershipControls", &format!("<Rule><ObjectOwnership>{name}</ObjectOwnership></Rule>"));
        assert_eq!(OwnershipControls::parse(body.as_bytes()), Ok(OwnershipControls(ownership)));
        assert_eq!(OwnershipControls(ownership).to_xml(), body);
    }
    let rule = "<Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule>";
    for inner in ["", "<Rule/>", "<Rule><ObjectOwnership>Mine</ObjectOwnership></Rule>", &rule.repeat(2)] {
        assert_eq!(code(OwnershipControls::parse(document("OwnershipControls", inner).as_bytes())), Some(Code::MalformedXml), "{inner}");
    }
}

#[test]
fn public_access() {
    let body = document(
        "PublicAccessBlockConfiguration",
        "<BlockPublicAcls>true</BlockPublicAcls><IgnorePublicAcls>false</IgnorePublicAcls><BlockPublicPolicy>true</BlockPublicPolicy>\
         <RestrictPublicBuckets>false</RestrictPublicBuckets>",
    );
    let read = PublicAccessBlockConfiguration::parse(body.as_bytes()).expect("four flags");
    assert!(read.block_public_acls && !read.ignore_public_acls && read.block_public_policy && !read.restrict_public_buckets);
    assert_eq!(read.to_xml(), body);
    // The reference's example.
    let body = document("PublicAccessBlockConfiguration", "<RestrictPublicBuckets>TRUE</RestrictPublicBuckets>");
    assert!(PublicAccessBlockConfiguration::parse(body.as_bytes()).is_ok_and(|read| read.restrict_public_buckets));
    let body = document("PublicAccessBlockConfiguration", "<BlockPublicAcls>yes</BlockPublicAcls>");
    assert_eq!(code(PublicAccessBlockConfiguration::parse(body.as_bytes())), Some(Code::MalformedXml));

    let body = document("PolicyStatus", "<IsPublic>true</IsPublic>");
    assert_eq!((PolicyStatus::parse(body.as_bytes()), PolicyStatus(true).to_xml()), (Ok(PolicyStatus(true)), body));
}

/// API_PutBucketLogging, with S3's other namespace.
#[test]
fn logging() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<BucketLoggingStatus xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <LoggingEnabled>
    <TargetBucket>mybucketlogs</TargetBucket>
    <TargetPrefix>mybucket-access_log-/</TargetPrefix>
    <TargetGrants>
      <Grant>
        <Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="AmazonCustomerByEmail">
          <EmailAddress>user@company.com</EmailAddress>
        </Grantee>
        <Permission>READ</Permission>
      </Grant>
    </TargetGrants>
    <TargetObjectKeyFormat>
      <PartitionedPrefix>
        <PartitionDateSource>EventTime</PartitionDateSource>
      </PartitionedPrefix>
    </TargetObjectKeyFormat>
  </LoggingEnabled>
</BucketLoggingStatus>"#;
    let other = body.replace("http://s3.amazonaws.com/doc/2006-03-01/", "http://doc.s3.amazonaws.com/2006-03-01");
    let read = BucketLoggingStatus::parse(other.as_bytes()).expect("a target");
    assert_eq!(read.to_xml(), dense(body));
    assert_eq!(read.enabled.map(|logging| logging.names), Some(Some(LogNames::Partitioned(Some(PartitionDateSource::EventTime)))));
    assert_eq!(BucketLoggingStatus::parse(b"<BucketLoggingStatus/>"), Ok(BucketLoggingStatus::default()));
    let body = "<BucketLoggingStatus><LoggingEnabled><TargetBucket>a</TargetBucket></LoggingEnabled></BucketLoggingStatus>";
    assert_eq!(code(BucketLoggingStatus::parse(body.as_bytes())), Some(Code::MalformedXml));
}

#[test]
fn encryption() {
    let of = |inner: &str| ServerSideEncryptionConfiguration::parse(document("ServerSideEncryptionConfiguration", inner).as_bytes());
    let default = "<ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm>\
                   <KMSMasterKeyID>arn:aws:kms:us-east-1:1234/5678</KMSMasterKeyID></ApplyServerSideEncryptionByDefault>\
                   <BucketKeyEnabled>true</BucketKeyEnabled>";
    let read = of(&format!("<Rule>{default}</Rule>")).expect("a rule");
    assert_eq!((read.algorithm, read.is_bucket_key_enabled), (Some(SseAlgorithm::Kms), Some(true)));
    assert_eq!(read.to_xml(), document("ServerSideEncryptionConfiguration", &format!("<Rule>{default}</Rule>")));
    let blocked = "<Rule><BlockedEncryptionTypes><EncryptionType>SSE-C</EncryptionType></BlockedEncryptionTypes></Rule>";
    assert_eq!(of(blocked).map(|read| read.to_xml()), Ok(document("ServerSideEncryptionConfiguration", blocked)));
    let aes = "<SSEAlgorithm>AES256</SSEAlgorithm>";
    let by_default = |inner: &str| format!("<Rule><ApplyServerSideEncryptionByDefault>{inner}</ApplyServerSideEncryptionByDefault></Rule>");
    assert!(of(&by_default(aes)).is_ok());
    assert_eq!(code(of(&by_default(&format!("{aes}<KMSMasterKeyID>a</KMSMasterKeyID>")))), Some(Code::InvalidArgument));
    for inner in ["", &by_default(""), &by_default("<SSEAlgorithm>ROT13</SSEAlgorithm>"), &by_default(aes).repeat(2)] {
        assert_eq!(code(of(inner)), Some(Code::MalformedXml), "{inner}");
    }
}

#[test]
fn the_others() {
    let body = document("RequestPaymentConfiguration", "<Payer>Requester</Payer>");
    assert_eq!(RequestPaymentConfiguration::parse(body.as_bytes()), Ok(RequestPaymentConfiguration(Payer::Requester)));
    assert_eq!(RequestPaymentConfiguration(Payer::Requester).to_xml(), body);
    assert_eq!(code(RequestPaymentConfiguration::parse(b"<RequestPaymentConfiguration/>")), Some(Code::MalformedXml));

    let body = document("AccelerateConfiguration", "<Status>Suspended</Status>");
    assert_eq!(AccelerateConfiguration::parse(body.as_bytes()).map(|read| read.to_xml()), Ok(body));
    assert_eq!(AccelerateConfiguration::default().to_xml(), document("AccelerateConfiguration", ""));

    let body = document("NotificationConfiguration", "");
    assert_eq!(NotificationConfiguration::parse(body.as_bytes()).map(|read| read.to_xml()), Ok(body));
    let body = document("NotificationConfiguration", "<TopicConfiguration/>");
    assert_eq!(code(NotificationConfiguration::parse(body.as_bytes())), Some(Code::NotImplemented));
}
