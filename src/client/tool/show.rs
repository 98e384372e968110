//! What is there.

use serde_json::json;

use super::super::bucket::Entry;
use super::super::{Client, Failure};
use super::place::shown;
use super::{Ls, Print, Stat, complain};
use crate::base::clock::unix_now_ns;
use crate::base::units::human_bytes;
use crate::wire::http::date;

/// A time for people and programs: ISO 8601.
fn when(time_ms: i64) -> String {
    date::iso8601(time_ms).to_string()
}

/// Lists buckets, or what is in one.
pub(super) async fn list(client: &Client, task: &Ls, print: Print) -> Result<(), Failure> {
    let size_of = |size: u64| if task.bytes { size.to_string() } else { human_bytes(size) };
    let Some(place) = &task.place else {
        for bucket in client.list_buckets().await? {
            let created = when(bucket.created_ms as i64);
            let line = match task.json {
                true => json!({ "bucket": bucket.name, "created": created }).to_string() + "\n",
                false => format!("{created}  s3://{}\n", shown(&bucket.name)),
            };
            if !print(line)? {
                break;
            }
        }
        return Ok(());
    };
    let mut listing = client.list(&place.bucket, &place.key, if task.recursive { "" } else { "/" });
    let mut is_empty = true;
    while let Some(entry) = listing.next().await? {
        is_empty = false;
        let line = match (entry, task.json) {
            (Entry::Object { key, size, modified_ms, etag }, true) => {
                json!({ "key": key, "size": size, "modified": when(modified_ms as i64), "etag": etag }).to_string() + "\n"
            }
            (Entry::Prefix(prefix), true) => json!({ "prefix": prefix }).to_string() + "\n",
            (Entry::Object { key, size, modified_ms, .. }, false) => {
                format!("{}  {:>12}  {}\n", when(modified_ms as i64), size_of(size), shown(&key))
            }
            (Entry::Prefix(prefix), false) => format!("{:24}  {:>12}  {}\n", "", "", shown(&prefix)),
        };
        if !print(line)? {
            break;
        }
    }
    if is_empty && !place.key.is_empty() {
        complain(format!("nothing is there whose name begins with {place}"));
    }
    Ok(())
}

/// What is known of an object; of a bucket that it is there.
pub(super) async fn stat(client: &Client, task: &Stat, print: Print) -> Result<(), Failure> {
    let head = client.head(&task.place.bucket, &task.place.key).await?;
    if task.place.key.is_empty() {
        print(if task.json { json!({ "bucket": task.place.bucket }).to_string() + "\n" } else { format!("{} is there\n", task.place) })?;
        return Ok(());
    }
    // As lists have it. What is no date of HTTP is told as it is.
    let modified = date::parse_http(&head.modified, (unix_now_ns() / 1_000_000_000) as i64);
    let modified = modified.map_or(head.modified, |seconds| when(seconds * 1000));
    let crc = head.crc.map(|crc| format!("{crc:016x}"));
    if task.json {
        let metadata: serde_json::Map<_, _> = head.metadata.into_iter().map(|(name, value)| (name, value.into())).collect();
        let told = json!({
            "bucket": task.place.bucket, "key": task.place.key, "size": head.size, "etag": head.etag.trim_matches('"'),
            "modified": modified, "content_type": head.content_type, "crc64nvme": crc, "version": head.version,
            "encryption": head.encryption.as_ref().map(ToString::to_string),
            "metadata": metadata, "way": head.way.to_string(),
        });
        print(told.to_string() + "\n")?;
        return Ok(());
    }
    let mut lines = vec![
        ("place", task.place.to_string()),
        ("bytes", format!("{} ({})", head.size, human_bytes(head.size))),
        ("modified", modified),
        ("etag", head.etag.trim_matches('"').to_owned()),
        ("type", head.content_type),
        ("crc64nvme", crc.unwrap_or_else(|| "not told".to_owned())),
    ];
    lines.extend(head.version.map(|version| ("version", version)));
    lines.extend(head.encryption.map(|encryption| ("encrypted", encryption.to_string())));
    lines.extend(head.metadata.iter().map(|(name, value)| ("metadata", format!("{name}: {value}"))));
    lines.push(("asked by", head.way.to_string()));
    // The place has its key written out already.
    let line = |(name, value): (&str, String)| format!("{name:10} {}\n", if name == "place" { value } else { shown(&value) });
    print(lines.into_iter().map(line).collect())?;
    Ok(())
}
