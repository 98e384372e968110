//! When objects end by themselves, as clients say and hear it: PutBucketLifecycleConfiguration, and the fields of answers that tell what
//! the rules come to. Those count whole days, however short the server's are.

use super::settings::{change, kept};
use super::{Bucket, Call};
use crate::s3::answer::Answer;
use crate::s3::body::Body;
use crate::s3::bucket::Document;
use crate::s3::error::{Code, S3Error};
use crate::s3::labels::Labels;
use crate::s3::lifecycle::rules::{Days, Seen, Standing};
use crate::s3::time;
use crate::s3::xml::lifecycle::{Expiration, LIMITS, LifecycleConfiguration, Rule};
use crate::store::index::Version;
use crate::store::put::PROPERTIES_MAX;
use crate::wire::http::uri;

/// What is to move at least, of which nothing depends here: tools put it, and look until it is told.
const SIZE_FIELD: &str = "x-amz-transition-default-minimum-object-size";
const SIZE_USUAL: &str = "all_storage_classes_128K";
const SIZE_BY_CLASS: &str = "varies_by_storage_class";

/// PutBucketLifecycleConfiguration. A rule without an ID is given one.
pub async fn put(call: &Call<'_>, body: &mut Body<'_>) -> Result<Answer, S3Error> {
    let mut asked = LifecycleConfiguration::parse(&body.document(LIMITS.bytes).await?)?;
    refuse_moves(&asked)?;
    let size = match call.request.text(SIZE_FIELD) {
        None | Some(SIZE_USUAL) => None,
        Some(word @ SIZE_BY_CLASS) => Some(word),
        Some(other) => {
            let what = format!("{SIZE_FIELD} is {SIZE_USUAL} or {SIZE_BY_CLASS}");
            return Err(S3Error::with(Code::InvalidRequest, what).field("ArgumentValue", other));
        }
    };
    give_ids(&mut asked, || {
        let mut rng = call.service().core().rng();
        format!("{:016x}{:016x}", rng.u64(), rng.u64())
    });
    let document = asked.to_xml();
    change(call, |meta| {
        if meta.is_directory {
            refuse_in_directory(&asked)?;
        }
        meta.set_document(Document::Lifecycle, Some(document.as_bytes()));
        meta.set_document(Document::TransitionSize, size.map(str::as_bytes));
        match meta.to_bytes().len() {
            0..=PROPERTIES_MAX => Ok(()),
            bytes => {
                let what = format!(
                    "The lifecycle configuration has {} bytes, and with the bucket's policy, CORS rules, tags and lists of access it \
                     would be {bytes}: at most {PROPERTIES_MAX} belong to a bucket. Join rules or make their IDs shorter.",
                    document.len()
                );
                Err(S3Error::with(Code::InvalidRequest, what))
            }
        }
    })
    .await?;
    Ok(Answer::new(200).header(SIZE_FIELD, size.unwrap_or(SIZE_USUAL)))
}

/// GetBucketLifecycleConfiguration.
pub fn get(bucket: &Bucket) -> Result<Answer, S3Error> {
    let size = bucket.meta.document(Document::TransitionSize).and_then(|word| str::from_utf8(word).ok());
    let answer = kept(bucket, Document::Lifecycle, Code::NoSuchLifecycleConfiguration)?;
    Ok(answer.header(SIZE_FIELD, size.unwrap_or(SIZE_USUAL)))
}

/// DeleteBucketLifecycle.
pub async fn delete(call: &Call<'_>) -> Result<Answer, S3Error> {
    change(call, |meta| {
        meta.set_document(Document::Lifecycle, None);
        meta.set_document(Document::TransitionSize, None);
        Ok(())
    })
    .await?;
    Ok(Answer::new(204))
}

/// Rules of directory buckets are of the current versions by prefix and size, and of uploads (directory-buckets-objects-lifecycle.html).
fn refuse_in_directory(asked: &LifecycleConfiguration) -> Result<(), S3Error> {
    let of_rule = |rule: &Rule| match rule {
        _ if !rule.filter.tags.is_empty() => Some("a filter by tags"),
        _ if rule.filter.is_first_version => Some("a Prefix outside of its Filter"),
        _ if rule.noncurrent_expiration.is_some() => Some("NoncurrentVersionExpiration"),
        _ => match rule.expiration {
            Some(Expiration::Date(_)) => Some("an Expiration by Date"),
            Some(Expiration::DeleteMarker(_)) => Some("ExpiredObjectDeleteMarker"),
            Some(Expiration::Days(_)) | None => None,
        },
    };
    match asked.rules.iter().find_map(of_rule) {
        Some(what) => Err(S3Error::with(Code::InvalidRequest, format!("A rule of a directory bucket does not have {what}"))),
        None => Ok(()),
    }
}

/// There is nowhere to move objects to, and a rule that is not carried out is not kept.
fn refuse_moves(asked: &LifecycleConfiguration) -> Result<(), S3Error> {
    let of_rule = |rule: &Rule| {
        let current = rule.transitions.iter().map(|transition| transition.storage_class.clone());
        current.chain(rule.noncurrent_transitions.iter().map(|transition| transition.storage_class.clone())).next()
    };
    match asked.rules.iter().find_map(of_rule) {
        Some(class) => {
            let what = "Objects stay in the storage class they were put in: rules have no Transition and no NoncurrentVersionTransition";
            Err(S3Error::with(Code::InvalidStorageClass, what).field("StorageClassRequested", class))
        }
        None => Ok(()),
    }
}

/// Gives rules without an ID one that no other has.
fn give_ids(asked: &mut LifecycleConfiguration, mut new: impl FnMut() -> String) {
    for at in 0..asked.rules.len() {
        while asked.rules[at].id.is_none() {
            let id = Some(new());
            if asked.rules.iter().all(|rule| rule.id != id) {
                asked.rules[at].id = id;
            }
        }
    }
}

/// With the field that tells when an object expires, which is the current version of its name.
pub fn with_expiration(answer: Answer, bucket: &Bucket, key: &str, version: &Version, labels: &Labels) -> Answer {
    let Some(rules) = &bucket.lifecycle else { return answer };
    let standing = Standing::Current { is_alone: true };
    let seen = Seen { key: key.as_bytes(), size: version.size, put_ms: version.time_ms, is_marker: false, standing };
    match rules.expiration(&seen, &labels.tags, Days::Whole) {
        Some((date, id)) => {
            let id = uri::encode_query(id.as_bytes());
            answer.header("x-amz-expiration", format!("expiry-date=\"{}\", rule-id=\"{id}\"", time::http(date)))
        }
        None => answer,
    }
}

/// With the fields that tell when an upload is aborted if it is not complete.
pub fn with_abort(answer: Answer, bucket: &Bucket, key: &str, begun_ms: u64) -> Answer {
    match bucket.lifecycle.as_ref().and_then(|rules| rules.abort(key.as_bytes(), begun_ms, Days::Whole)) {
        Some((date, id)) => answer.header("x-amz-abort-date", time::http(date)).header("x-amz-abort-rule-id", as_field(id)),
        None => answer,
    }
}

/// An ID as the value of a field: as it is where it can be, else percent-encoded.
fn as_field(id: &str) -> String {
    let is_plain = id.trim() == id && id.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if is_plain { id.into() } else { uri::encode_query(id.as_bytes()).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_without_an_id_are_given_different_ones() {
        let rule = |id: &str| format!("<Rule>{id}<Status>Enabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>");
        let rules = ["", "<ID>taken</ID>", "<ID/>"].map(rule).concat();
        let document = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        let mut asked = LifecycleConfiguration::parse(document.as_bytes()).unwrap();
        let mut made = ["taken", "one", "one", "two"].into_iter().map(String::from);
        give_ids(&mut asked, || made.next().unwrap());
        assert_eq!(asked.rules.iter().filter_map(|rule| rule.id.as_deref()).collect::<Vec<_>>(), ["one", "taken", "two"]);
        assert_eq!(refuse_moves(&asked), Ok(()));
    }

    #[test]
    fn rules_that_move_objects_are_refused() {
        for (name, days) in [("Transition", "Days"), ("NoncurrentVersionTransition", "NoncurrentDays")] {
            let moves = format!("<{name}><{days}>1</{days}><StorageClass>GLACIER</StorageClass></{name}>");
            let rule = format!("<Rule><Status>Disabled</Status><Filter/><Expiration><Days>1</Days></Expiration>{moves}</Rule>");
            let document = format!("<LifecycleConfiguration>{rule}</LifecycleConfiguration>");
            let refused = refuse_moves(&LifecycleConfiguration::parse(document.as_bytes()).unwrap()).unwrap_err();
            assert_eq!((refused.code, refused.fields[0].1.as_str()), (Code::InvalidStorageClass, "GLACIER"), "{name}");
        }
    }

    #[test]
    fn ids_are_values_of_fields() {
        for (id, shown) in [("a rule", "a rule"), ("R-1.x", "R-1.x"), (" a", "%20a"), ("a\nb", "a%0Ab"), ("ü", "%C3%BC"), ("", "")] {
            assert_eq!(as_field(id), shown);
        }
    }
}
