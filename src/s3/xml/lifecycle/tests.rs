//! Lifecycle documents of the reference and of clients, and those that are refused.

use super::*;
use crate::s3::xml::tests::{code, dense};

fn parse(body: &str) -> Result<LifecycleConfiguration, S3Error> {
    LifecycleConfiguration::parse(body.as_bytes())
}

fn rule(inner: &str) -> String {
    format!("<LifecycleConfiguration><Rule>{inner}</Rule></LifecycleConfiguration>")
}

const ALL: &str = "<Filter/><Status>Enabled</Status>";
const EXPIRES: &str = "<Expiration><Days>1</Days></Expiration>";

/// API_PutBucketLifecycleConfiguration and the User Guide's "Examples of S3 Lifecycle configurations", with the order S3 answers in.
#[test]
fn examples_of_the_reference() {
    let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
  <Rule>
    <ID>id1</ID>
    <Filter>
       <Prefix>documents/</Prefix>
    </Filter>
    <Status>Enabled</Status>
    <Transition>
      <Days>30</Days>
      <StorageClass>GLACIER</StorageClass>
    </Transition>
  </Rule>
  <Rule>
    <ID>id2</ID>
    <Prefix>logs/</Prefix>
    <Status>Disabled</Status>
    <Expiration>
      <Days>365</Days>
    </Expiration>
  </Rule>
  <Rule>
    <ID>sizes and tags</ID>
    <Filter>
      <And>
        <Prefix></Prefix>
        <Tag>
          <Key>key1</Key>
          <Value>value1</Value>
        </Tag>
        <ObjectSizeGreaterThan>500</ObjectSizeGreaterThan>
        <ObjectSizeLessThan>64000</ObjectSizeLessThan>
      </And>
    </Filter>
    <Status>Enabled</Status>
    <Expiration>
      <Date>2016-01-01T00:00:00.000Z</Date>
    </Expiration>
  </Rule>
  <Rule>
    <ID>versions</ID>
    <Filter></Filter>
    <Status>Enabled</Status>
    <Expiration>
      <ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker>
    </Expiration>
    <NoncurrentVersionExpiration>
      <NoncurrentDays>10</NoncurrentDays>
      <NewerNoncurrentVersions>5</NewerNoncurrentVersions>
    </NoncurrentVersionExpiration>
    <AbortIncompleteMultipartUpload>
      <DaysAfterInitiation>7</DaysAfterInitiation>
    </AbortIncompleteMultipartUpload>
    <Transition>
      <Date>2020-01-01T00:00:00.000Z</Date>
      <StorageClass>STANDARD_IA</StorageClass>
    </Transition>
    <NoncurrentVersionTransition>
      <NoncurrentDays>0</NoncurrentDays>
      <StorageClass>GLACIER</StorageClass>
    </NoncurrentVersionTransition>
  </Rule>
</LifecycleConfiguration>"#;
    let read = parse(body).expect("rules");
    assert_eq!(read.to_xml(), dense(body));
    assert!(read.rules[1].filter.is_first_version && read.rules[1].status == Status::Disabled);
    assert_eq!(read.rules[2].expiration, Some(Expiration::Date(1_451_606_400_000)));
    assert_eq!(read.rules[3].noncurrent_expiration, Some(NoncurrentExpiration { days: Some(10), newer_versions: Some(5) }));
}

/// awscli and s3cmd write dates without a time or with seconds, mc an empty prefix in a filter; an ID may be missing.
#[test]
fn what_clients_write() {
    for date in ["2017-09-27", "2017-09-27T00:00:00Z", "2017-09-27T00:00:00.000Z"] {
        let read = parse(&rule(&format!("{ALL}<Expiration><Date>{date}</Date></Expiration>"))).expect(date);
        assert_eq!(read.rules[0].expiration, Some(Expiration::Date(1_506_470_400_000)));
        assert_eq!(read.rules[0].id, None);
    }
    let read = parse(&rule(&format!("<ID/><Filter><Prefix/></Filter><Status>Enabled</Status>{EXPIRES}"))).expect("a rule");
    assert_eq!((read.rules[0].filter.prefix.as_deref(), &read.rules[0].id), (Some(""), &None));
}

/// ceph's suite: conditions beside `And`, and several without it.
#[test]
fn conditions_side_by_side() {
    let read = parse(&rule(&format!(
        "<Filter><Prefix>days1/</Prefix><Tag><Key>tom</Key><Value>sawyer</Value></Tag>\
         <And><Prefix>days1</Prefix><Tag><Key>huck</Key><Value>finn</Value></Tag></And></Filter><Status>Enabled</Status>{EXPIRES}"
    )))
    .expect("a rule");
    let filter = &read.rules[0].filter;
    assert_eq!((filter.prefix.as_deref(), filter.tags.len()), (Some("days1/"), 2));
    assert_eq!(parse(&read.to_xml()), Ok(read.clone()));
    let elsewhere = rule(&format!("<Filter><Prefix>a</Prefix><And><Prefix>b</Prefix></And></Filter><Status>Enabled</Status>{EXPIRES}"));
    assert_eq!(code(parse(&elsewhere)), Some(Code::MalformedXml));
}

#[test]
fn malformed_ones() {
    let with = |inner: &str| rule(&format!("{ALL}{inner}"));
    for body in [
        rule(&format!("<Filter/><Status>enabled</Status>{EXPIRES}")),
        rule(&format!("<Filter/><Status>invalid</Status>{EXPIRES}")),
        rule(&format!("<Filter/>{EXPIRES}")),
        rule(&format!("<Status>Enabled</Status>{EXPIRES}")),
        rule(&format!("<Prefix/>{ALL}{EXPIRES}")),
        with("<Expiration/>"),
        with("<Expiration><Days>1</Days><Date>2017-09-27T00:00:00Z</Date></Expiration>"),
        with("<Expiration><Days>1</Days><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"),
        with("<Expiration><Days>one</Days></Expiration>"),
        with("<Expiration><Date>soon</Date></Expiration>"),
        with("<NoncurrentVersionExpiration/>"),
        with("<AbortIncompleteMultipartUpload/>"),
        with("<Transition><Days>1</Days></Transition>"),
        with("<Transition><StorageClass>GLACIER</StorageClass></Transition>"),
        with("<Transition><Days>1</Days><Date>2017-09-27T00:00:00Z</Date><StorageClass>GLACIER</StorageClass></Transition>"),
        // MinIO's own, which would otherwise be left undone.
        with("<DelMarkerExpiration><Days>1</Days></DelMarkerExpiration>"),
        with(&format!("{EXPIRES}{EXPIRES}")),
    ] {
        assert_eq!(code(parse(&body)), Some(Code::MalformedXml), "{body}");
    }
}

#[test]
fn numbers_and_dates_out_of_range() {
    let with = |inner: &str| rule(&format!("{ALL}{inner}"));
    for body in [
        with("<Expiration><Days>0</Days></Expiration>"),
        with("<Expiration><Days>-1</Days></Expiration>"),
        with("<Expiration><Days>2147483648</Days></Expiration>"),
        // What boto3 makes of the date '20200101'.
        with("<Expiration><Date>1970-08-22T19:08:21Z</Date></Expiration>"),
        with("<Transition><Date>1970-08-23T14:40:27Z</Date><StorageClass>GLACIER</StorageClass></Transition>"),
        with("<Transition><Days>-1</Days><StorageClass>GLACIER</StorageClass></Transition>"),
        with("<NoncurrentVersionExpiration><NoncurrentDays>0</NoncurrentDays></NoncurrentVersionExpiration>"),
        with("<NoncurrentVersionExpiration><NewerNoncurrentVersions>0</NewerNoncurrentVersions></NoncurrentVersionExpiration>"),
        with("<NoncurrentVersionExpiration><NewerNoncurrentVersions>101</NewerNoncurrentVersions></NoncurrentVersionExpiration>"),
        with("<AbortIncompleteMultipartUpload><DaysAfterInitiation>0</DaysAfterInitiation></AbortIncompleteMultipartUpload>"),
        with(&format!("<ID>{}</ID>{EXPIRES}", "a".repeat(256))),
        format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", format!("<Rule><ID>a</ID>{ALL}{EXPIRES}</Rule>").repeat(2)),
    ] {
        assert_eq!(code(parse(&body)), Some(Code::InvalidArgument), "{body}");
    }
    assert!(parse(&with(&format!("<ID>{}</ID>{EXPIRES}", "é".repeat(255)))).is_ok());
}

#[test]
fn what_does_not_go_together() {
    let tagged = "<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter><Status>Enabled</Status>";
    let sized = "<Filter><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan></Filter><Status>Enabled</Status>";
    let abort = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
    let marker = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
    let sizes = "<And><ObjectSizeGreaterThan>5</ObjectSizeGreaterThan><ObjectSizeLessThan>5</ObjectSizeLessThan></And>";
    let rules =
        |count| format!("<LifecycleConfiguration>{}</LifecycleConfiguration>", format!("<Rule>{ALL}{EXPIRES}</Rule>").repeat(count));
    for body in [
        rule(ALL),
        rule(&format!("{tagged}{abort}")),
        rule(&format!("{tagged}{marker}")),
        rule(&format!("{sized}{abort}")),
        rule(&format!("<Filter>{sizes}</Filter><Status>Enabled</Status>{EXPIRES}")),
        rule(&format!("<Filter><Prefix>{}</Prefix></Filter><Status>Enabled</Status>{EXPIRES}", "a".repeat(1025))),
        "<LifecycleConfiguration/>".to_owned(),
        rules(1001),
    ] {
        assert_eq!(code(parse(&body)), Some(Code::InvalidRequest), "{body:.200}");
    }
    assert_eq!(parse(&rules(1000)).map(|read| read.rules.len()), Ok(1000));
    let twice = "<Filter><And><Tag><Key>a</Key><Value/></Tag><Tag><Key>a</Key><Value/></Tag></And></Filter><Status>Enabled</Status>";
    assert_eq!(code(parse(&rule(&format!("{twice}{EXPIRES}")))), Some(Code::InvalidRequest));
    let many = |count| {
        let tags: String = (0..count).map(|i| format!("<Tag><Key>{i}</Key><Value/></Tag>")).collect();
        rule(&format!("<Filter><And>{tags}</And></Filter><Status>Enabled</Status>{EXPIRES}"))
    };
    assert!(parse(&many(10)).is_ok());
    assert_eq!(code(parse(&many(11))), Some(Code::InvalidRequest));
    let wrong = "<Filter><Tag><Key/><Value/></Tag></Filter><Status>Enabled</Status>";
    assert_eq!(code(parse(&rule(&format!("{wrong}{EXPIRES}")))), Some(Code::InvalidTag));
}
