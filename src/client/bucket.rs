//! Buckets, lists, and the deletion of many.

use std::collections::VecDeque;

use super::call::{CRC64NVME, Call, Load, shown_crc};
use super::{Client, Failure};
use crate::base::Error;
use crate::base::error::ErrorKind;
use crate::s3::xml::buckets::{Bucket, CreateBucketConfiguration, ListAllMyBucketsResult};
use crate::s3::xml::delete::{Delete, DeleteResult, NotDeleted, ObjectIdentifier};
use crate::s3::xml::list::ListBucketV2Result;
use crate::wire::http::uri::encode_query;
use crate::wire::s3::frame::Method;

/// Objects that one request deletes at most.
const DELETE_MAX: usize = 1000;
/// The region that a bucket is in if nothing is said.
const USUAL_REGION: &str = "us-east-1";

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object.
    Object {
        /// Its key.
        key: String,
        /// Its bytes.
        size: u64,
        /// When it was put: milliseconds since 1970.
        modified_ms: u64,
        /// Its ETag, without quotes.
        etag: String,
    },
    /// What several keys begin with, up to the delimiter.
    Prefix(String),
}

impl Entry {
    /// The key or prefix.
    pub fn name(&self) -> &str {
        match self {
            Entry::Object { key, .. } => key,
            Entry::Prefix(prefix) => prefix,
        }
    }
}

/// A list that is asked for page by page.
pub struct Listing {
    client: Client,
    bucket: String,
    prefix: String,
    delimiter: String,
    token: Option<String>,
    page: VecDeque<Entry>,
    is_last: bool,
}

impl Client {
    /// Lists objects whose keys begin with `prefix`; what has `delimiter` behind that is one entry. Either may be empty.
    pub fn list(&self, bucket: &str, prefix: &str, delimiter: &str) -> Listing {
        Listing {
            client: self.clone(),
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            delimiter: delimiter.to_owned(),
            token: None,
            page: VecDeque::new(),
            is_last: false,
        }
    }

    /// The buckets of who asks.
    ///
    /// # Errors
    /// Nobody could say.
    pub async fn list_buckets(&self) -> Result<Vec<Bucket>, Failure> {
        let (mut all, mut token) = (Vec::new(), None::<String>);
        loop {
            let mut call = Call::new(Method::Get, "", "");
            call.is_long = true;
            call.query = token.map_or_else(String::new, |token| format!("continuation-token={}", encode_query(token.as_bytes())));
            let reply = self.call(&call, Load::None).await?;
            let page = ListAllMyBucketsResult::parse(&reply.document).map_err(|_| unreadable(&call))?;
            all.extend(page.buckets);
            match page.continuation_token {
                Some(next) => token = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Makes a bucket; one that is the asker's already is as good.
    ///
    /// # Errors
    /// It is somebody else's, or the name is none.
    pub async fn create_bucket(&self, bucket: &str) -> Result<(), Failure> {
        let call = Call::new(Method::Put, bucket, "");
        let region = &self.inner.options.region;
        let document = if region == USUAL_REGION {
            String::new()
        } else {
            CreateBucketConfiguration { location_constraint: Some(region.clone()), ..CreateBucketConfiguration::default() }.to_xml()
        };
        match self.call(&call, Load::Document(document.as_bytes())).await {
            Err(failure) if failure.code() == Some("BucketAlreadyOwnedByYou") => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes a bucket, which must be empty.
    ///
    /// # Errors
    /// It is not there or not empty.
    pub async fn delete_bucket(&self, bucket: &str) -> Result<(), Failure> {
        match self.call(&Call::new(Method::Delete, bucket, ""), Load::None).await {
            // The first time it was removed, and the answer got lost.
            Err(failure) if failure.code() == Some("NoSuchBucket") && failure.is_repeated() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes objects, as many as one likes, and says which were not and why. Those that are not there are as good.
    ///
    /// # Errors
    /// Nobody could say.
    pub async fn delete_many(&self, bucket: &str, keys: &[String]) -> Result<Vec<NotDeleted>, Failure> {
        let mut left = Vec::new();
        for some in keys.chunks(DELETE_MAX) {
            let objects = some.iter().map(|key| ObjectIdentifier { key: key.clone(), ..ObjectIdentifier::default() }).collect();
            let document = Delete { objects, is_quiet: true }.to_xml();
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, document.as_bytes());
            let mut call = Call::new(Method::Post, bucket, "").field(CRC64NVME, shown_crc(crc));
            call.query = "delete=".to_owned();
            let reply = self.call(&call, Load::Document(document.as_bytes())).await?;
            left.extend(DeleteResult::parse(&reply.document).map_err(|_| unreadable(&call))?.errors);
        }
        Ok(left)
    }
}

impl Listing {
    /// The next entry, in order; nothing at the end.
    ///
    /// # Errors
    /// There is no such bucket, or nobody could say.
    pub async fn next(&mut self) -> Result<Option<Entry>, Failure> {
        while self.page.is_empty() && !self.is_last {
            self.turn().await?;
        }
        Ok(self.page.pop_front())
    }

    /// Asks for the next page.
    async fn turn(&mut self) -> Result<(), Failure> {
        let mut call = Call::new(Method::Get, &self.bucket, "");
        call.is_long = true;
        let encoded = |text: &str| encode_query(text.as_bytes()).to_string();
        // In order: servers that compare signatures have them sorted all the same.
        let mut query = String::new();
        if let Some(token) = &self.token {
            query += &format!("continuation-token={}&", encoded(token));
        }
        if !self.delimiter.is_empty() {
            query += &format!("delimiter={}&", encoded(&self.delimiter));
        }
        call.query = format!("{query}encoding-type=url&list-type=2&prefix={}", encoded(&self.prefix));
        let reply = self.client.call(&call, Load::None).await?;
        let result = ListBucketV2Result::parse(&reply.document).map_err(|_| unreadable(&call))?;
        let objects = result.page.entries.into_iter().map(|object| Entry::Object {
            key: object.key,
            size: object.size,
            modified_ms: object.modified_ms,
            etag: object.etag,
        });
        let prefixes = result.page.common_prefixes.into_iter().map(Entry::Prefix);
        let mut page: Vec<Entry> = objects.chain(prefixes).collect();
        if page.iter().any(|entry| !entry.name().starts_with(&self.prefix)) {
            // Somebody who copies or removes what is listed would touch what he has not named.
            let what = format!("{}: a list of other objects than were asked for", call.shown());
            return Err(Error::new(ErrorKind::Protocol, what).remedy("check that the endpoint is a server of S3").into());
        }
        page.sort_by(|one, other| one.name().cmp(other.name()));
        self.page = page.into();
        self.is_last = !result.page.is_truncated;
        self.token = result.next_continuation_token;
        if !self.is_last && self.token.is_none() {
            return Err(unreadable(&call));
        }
        Ok(())
    }
}

fn unreadable(call: &Call<'_>) -> Failure {
    let what = format!("{}: an answer that is no document of S3", call.shown());
    Error::new(ErrorKind::Protocol, what).remedy("check that the endpoint is a server of S3").into()
}
