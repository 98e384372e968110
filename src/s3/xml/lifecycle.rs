//! When a bucket's objects, versions and uploads end.
//!
//! Rules come in two forms: with a `Prefix` of their own, the first version of this document, or with a `Filter`. Which one is kept, since
//! clients expect to read what they wrote.

use super::names;
use super::reader::{Document, Element, Limits, malformed};
use super::tagging::{OBJECT_TAGS_MAX, Tag};
use super::writer::Writer;
use crate::s3::error::{Code, S3Error};

/// Rules at most (API_PutBucketLifecycleConfiguration).
pub const RULES_MAX: usize = 1000;
/// Characters of a rule's ID at most (API_LifecycleRule).
pub const ID_CHARS_MAX: usize = 255;
/// Noncurrent versions that a rule may keep at most (API_NoncurrentVersionExpiration).
pub const NEWER_VERSIONS_MAX: u32 = 100;
/// Bytes of a prefix at most: those of a key.
const PREFIX_MAX: usize = 1024;
/// A thousand rules, most of which are short; one has some twenty elements.
pub const LIMITS: Limits = Limits { bytes: 4 << 20, elements: 64 << 10 };
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

names! {
    /// Whether a rule is in force.
    Status {
        /// It is.
        Enabled = "Enabled",
        /// It is not.
        Disabled = "Disabled",
    }
}

/// Which objects a rule is for: those for which all of it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The rule has a `Prefix` and no `Filter`.
    pub is_first_version: bool,
    /// What their keys begin with.
    pub prefix: Option<String>,
    /// Tags they have.
    pub tags: Vec<Tag>,
    /// They are longer, in bytes.
    pub size_greater_than: Option<u64>,
    /// They are shorter, in bytes.
    pub size_less_than: Option<u64>,
}

/// When current versions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiration {
    /// So many days after they were put, at the midnight that follows.
    Days(u32),
    /// At this midnight, in milliseconds since 1970, and from then on.
    Date(u64),
    /// Delete markers that no version is left behind.
    DeleteMarker(bool),
}

/// When noncurrent versions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoncurrentExpiration {
    /// Days after they became noncurrent.
    pub days: Option<u32>,
    /// How many of the newest stay.
    pub newer_versions: Option<u32>,
}

/// When a current version moves to another storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Days after it was put.
    pub days: Option<u32>,
    /// At this midnight, in milliseconds since 1970.
    pub date_ms: Option<u64>,
    /// Where to.
    pub storage_class: String,
}

/// When a noncurrent version moves to another storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoncurrentTransition {
    /// Days after it became noncurrent.
    pub days: Option<u32>,
    /// How many of the newest stay.
    pub newer_versions: Option<u32>,
    /// Where to.
    pub storage_class: String,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is called. S3 makes up a name for a rule without one.
    pub id: Option<String>,
    /// Whether it is in force.
    pub status: Status,
    /// Which objects it is for.
    pub filter: Filter,
    /// When current versions end.
    pub expiration: Option<Expiration>,
    /// When noncurrent versions end.
    pub noncurrent_expiration: Option<NoncurrentExpiration>,
    /// Days after which uploads that are not complete end.
    pub abort_uploads_days: Option<u32>,
    /// When current versions move.
    pub transitions: Vec<Transition>,
    /// When noncurrent versions move.
    pub noncurrent_transitions: Vec<NoncurrentTransition>,
}

/// `LifecycleConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleConfiguration {
    /// Its rules.
    pub rules: Vec<Rule>,
}

fn refused<T>(code: Code, message: impl Into<String>) -> Result<T, S3Error> {
    Err(S3Error::with(code, message))
}

/// A number of days, which is not 0.
fn days(element: Element<'_>, name: &str, action: &str) -> Result<Option<u32>, S3Error> {
    let Some(days) = element.get_number::<i64>(name)? else { return Ok(None) };
    match u32::try_from(days) {
        Ok(days) if (1..=i32::MAX as u32).contains(&days) => Ok(Some(days)),
        _ => refused(Code::InvalidArgument, format!("'{name}' for {action} action must be a positive integer")),
    }
}

/// A date, which is a midnight.
fn midnight(element: Element<'_>) -> Result<Option<u64>, S3Error> {
    match element.get("Date")?.map(Element::time_ms).transpose()? {
        Some(date) if !date.is_multiple_of(DAY_MS) => refused(Code::InvalidArgument, "'Date' must be at midnight GMT"),
        date => Ok(date),
    }
}

fn newer_versions(element: Element<'_>) -> Result<Option<u32>, S3Error> {
    match element.get_number::<i64>("NewerNoncurrentVersions")? {
        None => Ok(None),
        Some(count) => match u32::try_from(count) {
            Ok(count @ 1..=NEWER_VERSIONS_MAX) => Ok(Some(count)),
            _ => refused(Code::InvalidArgument, format!("'NewerNoncurrentVersions' must be between 1 and {NEWER_VERSIONS_MAX}")),
        },
    }
}

impl Filter {
    /// Takes in `Filter`, and `And` in it. S3 has one condition in the one or several in the other; ceph's suite has both side by side, and
    /// then all of them count.
    fn read(element: Element<'_>) -> Result<Filter, S3Error> {
        element.only(&["And", "Prefix", "Tag", "ObjectSizeGreaterThan", "ObjectSizeLessThan"])?;
        let mut filter = Filter::default();
        filter.add(element)?;
        if let Some(and) = element.get("And")? {
            and.only(&["Prefix", "Tag", "ObjectSizeGreaterThan", "ObjectSizeLessThan"])?;
            if and.children().next().is_none() {
                // Of all objects it would be.
                return Err(malformed());
            }
            filter.add(and)?;
        }
        Ok(filter)
    }

    fn add(&mut self, element: Element<'_>) -> Result<(), S3Error> {
        if let Some(prefix) = element.get_string("Prefix")? {
            self.prefix = match self.prefix.take() {
                Some(other) if other.starts_with(&prefix) => Some(other),
                Some(other) if !prefix.starts_with(&other) => return Err(malformed()),
                _ => Some(prefix),
            };
        }
        for tag in element.all("Tag") {
            let tag = Tag::read(tag)?;
            tag.check()?;
            if self.tags.iter().any(|other| other.key == tag.key) {
                return refused(Code::InvalidRequest, "Duplicate Tag Keys are not allowed.");
            }
            if self.tags.len() == OBJECT_TAGS_MAX {
                return refused(Code::InvalidRequest, format!("A filter has at most {OBJECT_TAGS_MAX} tags, as objects have."));
            }
            self.tags.push(tag);
        }
        for (name, place) in [("ObjectSizeGreaterThan", &mut self.size_greater_than), ("ObjectSizeLessThan", &mut self.size_less_than)] {
            match (element.get_number(name)?, *place) {
                (Some(_), Some(_)) => return Err(malformed()),
                (Some(size), None) => *place = Some(size),
                (None, _) => {}
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), S3Error> {
        if self.prefix.as_ref().is_some_and(|prefix| prefix.len() > PREFIX_MAX) {
            return refused(Code::InvalidRequest, format!("The maximum size of a prefix is {PREFIX_MAX}."));
        }
        match (self.size_greater_than, self.size_less_than) {
            (Some(greater), Some(less)) if less <= greater => {
                refused(Code::InvalidRequest, "'ObjectSizeLessThan' has to be a value greater than 'ObjectSizeGreaterThan'.")
            }
            _ => Ok(()),
        }
    }

    fn write(&self, writer: &mut Writer) {
        if self.is_first_version {
            return writer.text("Prefix", self.prefix.as_deref().unwrap_or_default());
        }
        let sizes = usize::from(self.size_greater_than.is_some()) + usize::from(self.size_less_than.is_some());
        let is_several = usize::from(self.prefix.is_some()) + self.tags.len() + sizes > 1;
        writer.within("Filter", |writer| {
            if is_several {
                writer.open("And");
            }
            writer.text_if("Prefix", self.prefix.as_deref());
            self.tags.iter().for_each(|tag| tag.write(writer));
            writer.number_if("ObjectSizeGreaterThan", self.size_greater_than);
            writer.number_if("ObjectSizeLessThan", self.size_less_than);
            if is_several {
                writer.close("And");
            }
        });
    }
}

impl Expiration {
    fn read(element: Element<'_>) -> Result<Expiration, S3Error> {
        element.only(&["Days", "Date", "ExpiredObjectDeleteMarker"])?;
        let marker = element.get("ExpiredObjectDeleteMarker")?.map(Element::flag).transpose()?;
        match (days(element, "Days", "Expiration")?, midnight(element)?, marker) {
            (Some(days), None, None) => Ok(Expiration::Days(days)),
            (None, Some(date), None) => Ok(Expiration::Date(date)),
            (None, None, Some(marker)) => Ok(Expiration::DeleteMarker(marker)),
            _ => Err(malformed()),
        }
    }

    fn write(self, writer: &mut Writer) {
        writer.within("Expiration", |writer| match self {
            Expiration::Days(days) => writer.number("Days", days.into()),
            Expiration::Date(date) => writer.time("Date", date),
            Expiration::DeleteMarker(marker) => writer.flag("ExpiredObjectDeleteMarker", marker),
        });
    }
}

impl NoncurrentExpiration {
    fn read(element: Element<'_>) -> Result<NoncurrentExpiration, S3Error> {
        element.only(&["NoncurrentDays", "NewerNoncurrentVersions"])?;
        let days = days(element, "NoncurrentDays", "NoncurrentVersionExpiration")?;
        let newer_versions = newer_versions(element)?;
        if days.is_none() && newer_versions.is_none() { Err(malformed()) } else { Ok(NoncurrentExpiration { days, newer_versions }) }
    }
}

/// Days until a transition, which may be 0.
fn transition_days(element: Element<'_>, name: &str) -> Result<Option<u32>, S3Error> {
    let Some(days) = element.get_number::<i64>(name)? else { return Ok(None) };
    match i32::try_from(days).map(u32::try_from) {
        Ok(Ok(days)) => Ok(Some(days)),
        _ => refused(Code::InvalidArgument, format!("'{name}' in Transition action must be nonnegative")),
    }
}

fn storage_class(element: Element<'_>) -> Result<String, S3Error> {
    let class = element.need_string("StorageClass")?;
    if class.is_empty() { Err(malformed()) } else { Ok(class) }
}

impl Transition {
    fn read(element: Element<'_>) -> Result<Transition, S3Error> {
        element.only(&["Days", "Date", "StorageClass"])?;
        let transition =
            Transition { days: transition_days(element, "Days")?, date_ms: midnight(element)?, storage_class: storage_class(element)? };
        if transition.days.is_some() == transition.date_ms.is_some() { Err(malformed()) } else { Ok(transition) }
    }

    fn write(&self, writer: &mut Writer) {
        writer.within("Transition", |writer| {
            writer.number_if("Days", self.days);
            if let Some(date) = self.date_ms {
                writer.time("Date", date);
            }
            writer.text("StorageClass", &self.storage_class);
        });
    }
}

impl NoncurrentTransition {
    fn read(element: Element<'_>) -> Result<NoncurrentTransition, S3Error> {
        element.only(&["NoncurrentDays", "NewerNoncurrentVersions", "StorageClass"])?;
        Ok(NoncurrentTransition {
            days: transition_days(element, "NoncurrentDays")?,
            newer_versions: newer_versions(element)?,
            storage_class: storage_class(element)?,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.within("NoncurrentVersionTransition", |writer| {
            writer.number_if("NoncurrentDays", self.days);
            writer.number_if("NewerNoncurrentVersions", self.newer_versions);
            writer.text("StorageClass", &self.storage_class);
        });
    }
}

impl Rule {
    fn read(element: Element<'_>) -> Result<Rule, S3Error> {
        element.only(&[
            "ID",
            "Status",
            "Prefix",
            "Filter",
            "Expiration",
            "NoncurrentVersionExpiration",
            "AbortIncompleteMultipartUpload",
            "Transition",
            "NoncurrentVersionTransition",
        ])?;
        let filter = match (element.get_string("Prefix")?, element.get("Filter")?) {
            (Some(prefix), None) => Filter { is_first_version: true, prefix: Some(prefix), ..Filter::default() },
            (None, Some(filter)) => Filter::read(filter)?,
            _ => return Err(malformed()),
        };
        let abort_uploads_days = match element.get("AbortIncompleteMultipartUpload")? {
            None => None,
            Some(abort) => {
                abort.only(&["DaysAfterInitiation"])?;
                Some(days(abort, "DaysAfterInitiation", "AbortIncompleteMultipartUpload")?.ok_or_else(malformed)?)
            }
        };
        let rule = Rule {
            // An empty ID is none.
            id: element.get_string("ID")?.filter(|id| !id.is_empty()),
            status: element.need("Status")?.one()?,
            filter,
            expiration: element.get("Expiration")?.map(Expiration::read).transpose()?,
            noncurrent_expiration: element.get("NoncurrentVersionExpiration")?.map(NoncurrentExpiration::read).transpose()?,
            abort_uploads_days,
            transitions: element.all("Transition").map(Transition::read).collect::<Result<_, _>>()?,
            noncurrent_transitions: element.all("NoncurrentVersionTransition").map(NoncurrentTransition::read).collect::<Result<_, _>>()?,
        };
        rule.check()?;
        Ok(rule)
    }

    fn check(&self) -> Result<(), S3Error> {
        self.filter.check()?;
        if self.id.as_ref().is_some_and(|id| id.chars().count() > ID_CHARS_MAX) {
            return refused(Code::InvalidArgument, format!("ID length should not exceed allowed limit of {ID_CHARS_MAX}"));
        }
        let is_idle = self.expiration.is_none()
            && self.noncurrent_expiration.is_none()
            && self.abort_uploads_days.is_none()
            && self.transitions.is_empty()
            && self.noncurrent_transitions.is_empty();
        if is_idle {
            return refused(Code::InvalidRequest, "At least one action needs to be specified in a rule.");
        }
        let has_size = self.filter.size_greater_than.is_some() || self.filter.size_less_than.is_some();
        let wants_marker = matches!(self.expiration, Some(Expiration::DeleteMarker(_)));
        for (is_wanted, action) in
            [(self.abort_uploads_days.is_some(), "AbortIncompleteMultipartUpload"), (wants_marker, "ExpiredObjectDeleteMarker")]
        {
            if is_wanted && !self.filter.tags.is_empty() {
                return refused(Code::InvalidRequest, format!("{action} cannot be specified with Tags."));
            }
            if is_wanted && has_size {
                return refused(Code::InvalidRequest, format!("{action} cannot be specified with Object Size."));
            }
        }
        Ok(())
    }

    fn write(&self, writer: &mut Writer) {
        writer.open("Rule");
        writer.text_if("ID", self.id.as_deref());
        self.filter.write(writer);
        writer.one("Status", self.status);
        if let Some(expiration) = self.expiration {
            expiration.write(writer);
        }
        if let Some(expiration) = self.noncurrent_expiration {
            writer.within("NoncurrentVersionExpiration", |writer| {
                writer.number_if("NoncurrentDays", expiration.days);
                writer.number_if("NewerNoncurrentVersions", expiration.newer_versions);
            });
        }
        if let Some(days) = self.abort_uploads_days {
            writer.within("AbortIncompleteMultipartUpload", |writer| writer.number("DaysAfterInitiation", days.into()));
        }
        self.transitions.iter().for_each(|transition| transition.write(writer));
        self.noncurrent_transitions.iter().for_each(|transition| transition.write(writer));
        writer.close("Rule");
    }
}

impl LifecycleConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`; `InvalidArgument` of numbers and dates out of their range and of IDs that are too long or not unique;
    /// `InvalidRequest` of what does not go together, and of too many rules or none; `InvalidTag`.
    pub fn parse(body: &[u8]) -> Result<LifecycleConfiguration, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("LifecycleConfiguration")?;
        root.only(&["Rule"])?;
        let rules = root.children().map(Rule::read).collect::<Result<Vec<_>, _>>()?;
        if rules.is_empty() {
            return refused(Code::InvalidRequest, "At least one lifecycle rule must be specified");
        }
        if rules.len() > RULES_MAX {
            let message = format!("The number of lifecycle rules must not exceed the allowed limit of {RULES_MAX} rules");
            return refused(Code::InvalidRequest, message);
        }
        let mut ids: Vec<&str> = rules.iter().filter_map(|rule| rule.id.as_deref()).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return refused(Code::InvalidArgument, "Rule ID must be unique. Found same ID for one or more rules");
        }
        Ok(LifecycleConfiguration { rules })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("LifecycleConfiguration");
        self.rules.iter().for_each(|rule| rule.write(&mut writer));
        writer.finish()
    }
}

#[cfg(test)]
mod tests;
