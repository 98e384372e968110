//! What holds for all documents: they read back as they were written whatever text they carry, and nothing makes the readers panic.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::acl::{AccessControlPolicy, Grant, Grantee, Permission};
use super::attributes::{ObjectAttributes, ObjectPart, ObjectParts, PartsPage};
use super::buckets::{Bucket, CreateBucketConfiguration, ListAllMyBucketsResult, LocationConstraint};
use super::checksums::Checksums;
use super::cors::{CorsConfiguration, CorsRule, Method};
use super::delete::{Delete, DeleteResult, Deleted, NotDeleted, ObjectIdentifier};
use super::failure::ErrorDocument;
use super::lifecycle::{Expiration, Filter, LifecycleConfiguration, Rule, Status};
use super::list::{ListBucketResult, ListBucketV2Result, ListVersionsResult, Object, Page, Version};
use super::lock::{LegalHold, ObjectLockConfiguration, Retention};
use super::multipart::{
    CompleteMultipartUpload, CompleteMultipartUploadResult, CompletedPart, CopyResult, InitiateMultipartUploadResult,
    ListMultipartUploadsResult, ListPartsResult, Part, Upload,
};
use super::owner::Owner;
use super::post::PostResponse;
use super::reader::{Document, Limits};
use super::session::CreateSessionResult;
use super::settings;
use super::tagging::{BUCKET_TAGS_MAX, Tag, Tagging};
use super::writer::{HEADER, Writer, is_of_xml};
use crate::s3::checksum::{Algorithm, Kind};
use crate::s3::error::{Code, S3Error};

/// A document as the writer has it, made of one that is indented.
pub(super) fn dense(indented: &str) -> String {
    let rest = indented.strip_prefix(HEADER).expect("it begins with the header");
    HEADER.to_owned() + &rest.lines().map(str::trim).collect::<String>()
}

/// The code of an error.
pub(super) fn code<T>(result: Result<T, S3Error>) -> Option<Code> {
    result.err().map(|error| error.code)
}

/// Text of all kinds of characters, those that XML cannot hold too.
fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        any::<char>(),
        (0u32..0x30).prop_map(|code| char::from_u32(code).expect("it is ASCII")),
        prop::sample::select(vec![
            '&', '<', '>', '"', '\'', ']', '\r', '\n', '\t', '\0', '\u{85}', '\u{2028}', '\u{feff}', '\u{fffe}', '\u{ffff}'
        ]),
    ];
    vec(character, 0..12).prop_map(String::from_iter)
}

/// An ETag: what is trimmed or stripped of it is not in it.
fn etag() -> impl Strategy<Value = String> {
    "[0-9a-f]{0,32}(-[0-9]{1,5})?"
}

/// Times from 1970 to 9999.
fn time_ms() -> impl Strategy<Value = u64> {
    // As S3 tells them.
    (0..253_402_300_800u64).prop_map(|seconds| seconds * 1000)
}

fn owner() -> impl Strategy<Value = Owner> {
    (text(), option::of(text())).prop_map(|(id, display_name)| Owner { id, display_name })
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL.to_vec())
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![Kind::Composite, Kind::FullObject])
}

fn checksums() -> impl Strategy<Value = Checksums> {
    prop::sample::subsequence(Algorithm::ALL.to_vec(), 0..=Algorithm::ALL.len())
        .prop_flat_map(|algorithms| {
            let count = algorithms.len();
            (Just(algorithms), vec(text(), count))
        })
        .prop_map(|(algorithms, values)| Checksums(algorithms.into_iter().zip(values).collect()))
}

fn object() -> impl Strategy<Value = Object> {
    (text(), time_ms(), etag(), any::<u64>(), text(), option::of(owner()), option::of((algorithm(), kind()))).prop_map(
        |(key, modified_ms, etag, size, storage_class, owner, checksum)| Object {
            key,
            modified_ms,
            etag,
            size,
            storage_class,
            owner,
            checksum_algorithm: checksum.map(|(algorithm, _)| algorithm),
            checksum_kind: checksum.map(|(_, kind)| kind),
        },
    )
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![
        (object(), text(), any::<bool>()).prop_map(|(object, version_id, is_latest)| Version::Object { object, version_id, is_latest }),
        (text(), text(), any::<bool>(), time_ms(), option::of(owner())).prop_map(|(key, version_id, is_latest, modified_ms, owner)| {
            Version::DeleteMarker { key, version_id, is_latest, modified_ms, owner }
        }),
    ]
}

fn page<T: std::fmt::Debug>(entry: impl Strategy<Value = T>) -> impl Strategy<Value = Page<T>> {
    (text(), text(), text(), any::<(u32, bool, bool)>(), vec(entry, 0..4), vec(text(), 0..3)).prop_map(
        |(bucket, prefix, delimiter, (max_keys, is_truncated, is_encoded), entries, common_prefixes)| Page {
            bucket,
            prefix,
            delimiter,
            max_keys,
            is_truncated,
            is_encoded,
            entries,
            common_prefixes,
        },
    )
}

fn tag() -> impl Strategy<Value = Tag> {
    ("[a-zà-ö +=._:/@-]{1,20}", "[0-9A-Z語 +=._:/@-]{0,20}")
        .prop_filter("it is no system tag", |(key, _)| !key.starts_with("aws:"))
        .prop_map(|(key, value)| Tag { key, value })
}

fn tags(most: usize) -> impl Strategy<Value = Vec<Tag>> {
    vec(tag(), 0..=most).prop_map(|mut tags: Vec<Tag>| {
        tags.sort_by(|a, b| a.key.cmp(&b.key));
        tags.dedup_by(|a, b| a.key == b.key);
        tags
    })
}

/// Every reader there is, on the same bytes.
fn read_all(body: &[u8]) {
    let _ = AccessControlPolicy::parse(body);
    let _ = ObjectAttributes::parse(body);
    let _ = CreateBucketConfiguration::parse(body);
    let _ = ListAllMyBucketsResult::parse(body);
    let _ = LocationConstraint::parse(body);
    let _ = CorsConfiguration::parse(body);
    let _ = Delete::parse(body);
    let _ = DeleteResult::parse(body);
    let _ = ErrorDocument::parse(body);
    let _ = LifecycleConfiguration::parse(body);
    let _ = ListBucketResult::parse(body);
    let _ = ListBucketV2Result::parse(body);
    let _ = ListVersionsResult::parse(body);
    let _ = ObjectLockConfiguration::parse(body);
    let _ = Retention::parse(body);
    let _ = LegalHold::parse(body);
    let _ = InitiateMultipartUploadResult::parse(body);
    let _ = CompleteMultipartUpload::parse(body);
    let _ = CompleteMultipartUploadResult::parse(body);
    let _ = ListPartsResult::parse(body);
    let _ = ListMultipartUploadsResult::parse(body);
    let _ = CopyResult::parse(body);
    let _ = PostResponse::parse(body);
    let _ = CreateSessionResult::parse(body);
    let _ = settings::VersioningConfiguration::parse(body);
    let _ = settings::OwnershipControls::parse(body);
    let _ = settings::PublicAccessBlockConfiguration::parse(body);
    let _ = settings::PolicyStatus::parse(body);
    let _ = settings::BucketLoggingStatus::parse(body);
    let _ = settings::RequestPaymentConfiguration::parse(body);
    let _ = settings::ServerSideEncryptionConfiguration::parse(body);
    let _ = settings::NotificationConfiguration::parse(body);
    let _ = settings::AccelerateConfiguration::parse(body);
    let _ = Tagging::parse(body, BUCKET_TAGS_MAX);
}

/// Names that documents have, as they stand in tags.
const NAMES: [&str; 24] = [
    "Delete",
    "Object",
    "Key",
    "Quiet",
    "Tagging",
    "TagSet",
    "Tag",
    "Value",
    "LifecycleConfiguration",
    "Rule",
    "Filter",
    "And",
    "Expiration",
    "Days",
    "Date",
    "CompleteMultipartUpload",
    "Part",
    "PartNumber",
    "ETag",
    "Error",
    "Code",
    "s3:Status",
    "ListBucketResult",
    "Contents",
];

/// Something that looks like a document.
fn soup() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(NAMES.to_vec());
    let piece = prop_oneof![
        4 => name().prop_map(|name| format!("<{name}>")),
        4 => name().prop_map(|name| format!("</{name}>")),
        1 => name().prop_map(|name| format!("<{name}/>")),
        1 => name().prop_map(|name| format!("<{name} xsi:type=\"Group\" a='&amp;'>")),
        1 => text(),
        1 => prop::sample::select(vec![
            "1", "true", "Enabled", "2009-10-12T17:50:30.000Z", "&#x1;", "&amp;", "&lol;", "<![CDATA[", "]]>", "<!--", "-->",
            "<!DOCTYPE a [",
            "<?xml version='1.0'?>", "<?", "?>", "<", ">", "&", "\"", " ",
        ])
        .prop_map(str::to_owned),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// A well-formed element of such names.
fn element() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(NAMES.to_vec());
    let leaf = (name(), text()).prop_map(|(name, text)| {
        let mut writer = Writer::bare("x");
        writer.text(name, &text);
        writer.take()["<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<x>".len()..].to_owned()
    });
    leaf.prop_recursive(6, 60, 6, move |inner| {
        (prop::sample::select(NAMES.to_vec()), vec(inner, 0..6)).prop_map(|(name, inner)| format!("<{name}>{}</{name}>", inner.concat()))
    })
}

proptest! {
    #[test]
    fn bytes_never_panic(body in vec(any::<u8>(), 0..200)) {
        read_all(&body);
    }

    #[test]
    fn soup_never_panics(body in soup()) {
        read_all(body.as_bytes());
    }

    #[test]
    fn elements_never_panic_and_are_read_whole(body in element()) {
        read_all(body.as_bytes());
        let limits = Limits { bytes: 1 << 20, elements: 1000 };
        let document = Document::parse(body.as_bytes(), limits);
        prop_assert!(document.is_ok(), "{body}");
        let count = body.matches("</").count();
        let less = Limits { elements: count - 1, ..limits };
        prop_assert_eq!(code(Document::parse(body.as_bytes(), less)), Some(Code::MalformedXml));
    }

    /// Cut off anywhere, or with a byte changed, it is refused or read, and nothing else.
    #[test]
    fn damaged_documents_never_panic(objects in vec(object(), 1..3), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let page = Page { entries: objects, ..Page::default() };
        let mut body = ListBucketResult { page, ..ListBucketResult::default() }.to_xml().into_bytes();
        let at = at.index(body.len());
        prop_assert!(ListBucketResult::parse(&body[..at]).is_err());
        body[at] = byte;
        read_all(&body);
    }

    #[test]
    fn texts(text in text()) {
        let mut writer = Writer::new("A");
        writer.content(&text);
        let body = writer.finish();
        let document = Document::parse(body.as_bytes(), Limits { bytes: 1 << 16, elements: 1 }).expect("it is well-formed");
        prop_assert_eq!(document.any_root().text(), text);
    }

    #[test]
    fn errors(message in text(), resource in text(), request_id in text(), host_id in text(), value in text()) {
        let error = S3Error::with(Code::NoSuchKey, message.clone()).field("Key", value.clone());
        let read = ErrorDocument::parse(error.to_xml(&resource, &request_id, &host_id).as_bytes()).expect("an error");
        let told = value.replace(super::failure::is_not_for_xml, "\u{fffd}");
        prop_assert_eq!((read.known(), &read.message, read.field("Key")), (Some(Code::NoSuchKey), &message, Some(told.as_str())));
        prop_assert_eq!(read.request_id, Some(request_id));
        prop_assert_eq!((read.resource.unwrap_or_default(), read.host_id.unwrap_or_default()), (resource, host_id));
    }

    #[test]
    fn lists(page in page(object()), marker in text(), next in option::of(text()), token in option::of(text())) {
        let mut first = page.clone();
        // Which is told encoded, though others are not: nothing says so.
        first.prefix.retain(is_of_xml);
        let list = ListBucketResult { page: first, marker, next_marker: next.clone() };
        prop_assert_eq!(ListBucketResult::parse(list.to_xml().as_bytes()), Ok(list));
        let list = ListBucketV2Result { page, continuation_token: token, next_continuation_token: next.clone(), start_after: next };
        prop_assert_eq!(ListBucketV2Result::parse(list.to_xml().as_bytes()), Ok(list));
    }

    #[test]
    fn version_lists(page in page(version()), key_marker in text(), version_id_marker in text(), next in option::of((text(), text()))) {
        let (next_key_marker, next_version_id_marker) = next.unzip();
        let list = ListVersionsResult { page, key_marker, version_id_marker, next_key_marker, next_version_id_marker };
        prop_assert_eq!(ListVersionsResult::parse(list.to_xml().as_bytes()), Ok(list));
    }

    #[test]
    fn deletions(
        objects in vec((text(), option::of(text()), option::of(etag()), option::of(time_ms()), option::of(any::<u64>())), 1..5),
        is_quiet in any::<bool>(),
    ) {
        let objects = objects.into_iter().map(|(key, version_id, etag, modified_ms, size)| ObjectIdentifier {
            key: format!("k{key}"),
            version_id: version_id.filter(|version| !version.is_empty()),
            etag,
            modified_ms: modified_ms.map(|time| time - time % 1000),
            size,
        });
        let delete = Delete { objects: objects.collect(), is_quiet };
        prop_assert_eq!(Delete::parse(delete.to_xml().as_bytes()), Ok(delete));
    }

    #[test]
    fn deletion_answers(
        deleted in vec((text(), option::of(text()), any::<bool>(), option::of(text())), 0..4),
        errors in vec((text(), option::of(text()), text(), text()), 0..4),
    ) {
        let deleted = deleted.into_iter().map(|(key, version_id, is_delete_marker, delete_marker_version_id)| {
            Deleted { key, version_id, is_delete_marker, delete_marker_version_id }
        });
        let errors = errors.into_iter().map(|(key, version_id, code, message)| NotDeleted { key, version_id, code, message });
        let result = DeleteResult { deleted: deleted.collect(), errors: errors.collect() };
        prop_assert_eq!(DeleteResult::parse(result.to_xml().as_bytes()), Ok(result));
    }

    #[test]
    fn completions(
        parts in vec((1..=10_000u16, etag(), checksums()), 1..5),
        names in (text(), text(), text()),
        kind in option::of(kind()),
    ) {
        let parts = parts.into_iter().map(|(number, etag, checksums)| CompletedPart { number, etag, checksums });
        let complete = CompleteMultipartUpload { parts: parts.collect() };
        let (location, bucket, key) = names;
        let CompletedPart { etag, checksums, .. } = complete.parts[0].clone();
        let result = CompleteMultipartUploadResult { location, bucket, key, etag, checksums, checksum_kind: kind };
        prop_assert_eq!(CompleteMultipartUpload::parse(complete.to_xml().as_bytes()), Ok(complete));
        prop_assert_eq!(CompleteMultipartUploadResult::parse(result.to_xml().as_bytes()), Ok(result));
    }

    #[test]
    fn part_lists(
        names in (text(), text(), text(), text()),
        owners in (option::of(owner()), option::of(owner())),
        numbers in (any::<u16>(), option::of(any::<u16>()), any::<u32>(), any::<bool>()),
        checksum in (option::of(algorithm()), option::of(kind())),
        parts in vec((any::<u16>(), time_ms(), etag(), any::<u64>(), checksums()), 0..4),
    ) {
        let parts = parts.into_iter();
        let parts = parts.map(|(number, modified_ms, etag, size, checksums)| Part { number, modified_ms, etag, size, checksums });
        let list = ListPartsResult {
            bucket: names.0, key: names.1, upload_id: names.2, storage_class: names.3, initiator: owners.0, owner: owners.1,
            part_number_marker: numbers.0, next_part_number_marker: numbers.1, max_parts: numbers.2, is_truncated: numbers.3,
            checksum_algorithm: checksum.0, checksum_kind: checksum.1, parts: parts.collect(),
        };
        prop_assert_eq!(ListPartsResult::parse(list.to_xml().as_bytes()), Ok(list));
    }

    #[test]
    fn upload_lists(
        names in (text(), text(), text(), text(), text()),
        next in option::of((text(), text())),
        (max_uploads, is_truncated, is_encoded) in any::<(u32, bool, bool)>(),
        uploads in vec((text(), text(), option::of(owner()), text(), time_ms(), option::of(kind())), 0..4),
        common_prefixes in vec(text(), 0..3),
    ) {
        let uploads = uploads.into_iter().map(|(key, upload_id, owner, storage_class, initiated_ms, checksum_kind)| Upload {
            key, upload_id, initiator: owner.clone(), owner, storage_class, initiated_ms, checksum_algorithm: None, checksum_kind,
        });
        let (next_key_marker, next_upload_id_marker) = next.unzip();
        let list = ListMultipartUploadsResult {
            bucket: names.0, key_marker: names.1, upload_id_marker: names.2, prefix: names.3, delimiter: names.4, next_key_marker,
            next_upload_id_marker, max_uploads, is_truncated, is_encoded, uploads: uploads.collect(), common_prefixes,
        };
        prop_assert_eq!(ListMultipartUploadsResult::parse(list.to_xml().as_bytes()), Ok(list));
    }

    #[test]
    fn small_answers(
        names in (text(), text(), text()),
        (etag, time_ms) in (etag(), time_ms()),
        (checksums, kind) in (checksums(), option::of(kind())),
    ) {
        let (bucket, key, upload_id) = names;
        let post = PostResponse { location: upload_id.clone(), bucket: bucket.clone(), key: key.clone(), etag: etag.clone() };
        prop_assert_eq!(PostResponse::parse(post.to_xml().as_bytes()), Ok(post));
        let session = CreateSessionResult {
            access_key_id: bucket.clone(), secret_access_key: key.clone(), session_token: upload_id.clone(), expires_ms: time_ms,
        };
        prop_assert_eq!(CreateSessionResult::parse(session.to_xml().as_bytes()), Ok(session));
        let location = LocationConstraint(bucket.clone());
        prop_assert_eq!(LocationConstraint::parse(location.to_xml().as_bytes()), Ok(location));
        let upload = InitiateMultipartUploadResult { bucket, key, upload_id };
        prop_assert_eq!(InitiateMultipartUploadResult::parse(upload.to_xml().as_bytes()), Ok(upload));
        let copy = CopyResult { etag, modified_ms: time_ms, checksums, checksum_kind: kind };
        prop_assert_eq!(CopyResult::parse(copy.to_object_xml().as_bytes()), Ok(copy));
    }

    #[test]
    fn attributes(
        etag in option::of(etag()),
        checksums in option::of((checksums(), option::of(kind()))),
        total in any::<u16>(),
        page in option::of((any::<u16>(), any::<u16>(), any::<u32>(), any::<bool>(), vec((any::<u16>(), any::<u64>(), checksums()), 0..4))),
        rest in (option::of(text()), option::of(any::<u64>())),
    ) {
        let page = page.map(|(part_number_marker, next_part_number_marker, max_parts, is_truncated, parts)| {
            let parts = parts.into_iter().map(|(number, size, checksums)| ObjectPart { number, size, checksums });
            PartsPage { part_number_marker, next_part_number_marker, max_parts, is_truncated, parts: parts.collect() }
        });
        let attributes =
            ObjectAttributes { etag, checksums, parts: Some(ObjectParts { total, page }), storage_class: rest.0, size: rest.1 };
        prop_assert_eq!(ObjectAttributes::parse(attributes.to_xml().as_bytes()), Ok(attributes));
    }

    #[test]
    fn bucket_lists(
        owner in option::of(owner()),
        buckets in vec((text(), time_ms(), option::of(text())), 0..4),
        (continuation_token, prefix) in (option::of(text()), option::of(text())),
    ) {
        let buckets = buckets.into_iter().map(|(name, created_ms, region)| Bucket { name, created_ms, region });
        let list = ListAllMyBucketsResult { owner, buckets: buckets.collect(), continuation_token, prefix };
        prop_assert_eq!(ListAllMyBucketsResult::parse(list.to_xml().as_bytes()), Ok(list));
    }

    #[test]
    fn acls(owner in option::of(owner()), grants in vec((owner(), 0..3, prop::sample::select(<Permission as super::Name>::ALL)), 0..5)) {
        let grants = grants.into_iter().map(|(user, grantee, permission)| {
            let grantee = match grantee {
                0 => Grantee::User(user),
                1 => Grantee::Email(user.id),
                _ => Grantee::Group(user.id),
            };
            Grant { grantee, permission }
        });
        let policy = AccessControlPolicy { owner, grants: grants.collect() };
        prop_assert_eq!(AccessControlPolicy::parse(policy.to_xml().as_bytes()), Ok(policy));
    }

    #[test]
    fn tag_sets(tags in tags(50), location_constraint in option::of(text())) {
        let create = CreateBucketConfiguration { location_constraint, tags: tags.clone(), ..CreateBucketConfiguration::default() };
        prop_assert_eq!(CreateBucketConfiguration::parse(create.to_xml().as_bytes()), Ok(create));
        let tagging = Tagging { tags };
        prop_assert_eq!(Tagging::parse(tagging.to_xml().as_bytes(), BUCKET_TAGS_MAX), Ok(tagging));
    }

    #[test]
    fn cors_rules(
        rules in vec((option::of(text()), vec("([^*\\s]{1,8})?\\*?", 0..3), vec("[!#a-z0-9-]{1,8}", 0..3), option::of(any::<u32>())), 1..4),
    ) {
        let rules = rules.into_iter().map(|(id, allowed_headers, expose_headers, max_age_seconds)| CorsRule {
            id, allowed_headers, allowed_methods: vec![Method::Get, Method::Delete], allowed_origins: vec!["*".into()], expose_headers,
            max_age_seconds,
        });
        let cors = CorsConfiguration { rules: rules.collect() };
        prop_assert_eq!(CorsConfiguration::parse(cors.to_xml().as_bytes()), Ok(cors));
    }

    #[test]
    fn lifecycles(
        rules in vec((text(), option::of(text()), tags(3), option::of(0..1000u64), option::of(1000..2000u64), 1..1000u32), 1..5),
        is_date in any::<bool>(),
    ) {
        let rules = rules.into_iter().enumerate().map(|(at, (id, prefix, tags, greater, less, days))| Rule {
            id: Some(format!("{at}{id}")),
            status: if is_date { Status::Enabled } else { Status::Disabled },
            filter: if tags.is_empty() && prefix.is_some() {
                Filter { is_first_version: true, prefix, ..Filter::default() }
            } else {
                Filter { is_first_version: false, prefix, tags, size_greater_than: greater, size_less_than: less }
            },
            expiration: Some(if is_date { Expiration::Date(u64::from(days) * 86_400_000) } else { Expiration::Days(days) }),
            noncurrent_expiration: None,
            abort_uploads_days: None,
            transitions: Vec::new(),
            noncurrent_transitions: Vec::new(),
        });
        let lifecycle = LifecycleConfiguration { rules: rules.collect() };
        prop_assert_eq!(LifecycleConfiguration::parse(lifecycle.to_xml().as_bytes()), Ok(lifecycle));
    }
}
