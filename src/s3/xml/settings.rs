//! What can be set on a bucket and is short: versioning, ownership of objects, blocks of public access, encryption, logging, who pays.

use super::acl::Grant;
use super::reader::{Document, Element, malformed};
use super::writer::Writer;
use super::{SHORT, names};
use crate::s3::error::{Code, S3Error};

names! {
    /// Whether versions are made, or transfers are accelerated.
    Status {
        /// They are.
        Enabled = "Enabled",
        /// They were, and are no more.
        Suspended = "Suspended",
    }
}

names! {
    /// Whether deleting versions for good needs a second factor.
    MfaDelete {
        /// It does.
        Enabled = "Enabled",
        /// It does not.
        Disabled = "Disabled",
    }
}

/// `VersioningConfiguration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersioningConfiguration {
    /// Whether versions are made; nothing if it was never said.
    pub status: Option<Status>,
    /// Whether deleting versions for good needs a second factor.
    pub mfa_delete: Option<MfaDelete>,
}

impl VersioningConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<VersioningConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("VersioningConfiguration")?;
        root.only(&["Status", "MfaDelete"])?;
        Ok(VersioningConfiguration {
            status: root.get("Status")?.map(Element::one).transpose()?,
            mfa_delete: root.get("MfaDelete")?.map(Element::one).transpose()?,
        })
    }

    /// The status that a request has to name.
    ///
    /// # Errors
    /// `IllegalVersioningConfigurationException` when it names none.
    pub fn wanted(&self) -> Result<Status, S3Error> {
        self.status.ok_or_else(|| Code::IllegalVersioningConfigurationException.into())
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("VersioningConfiguration");
        writer.one_if("Status", self.status);
        writer.one_if("MfaDelete", self.mfa_delete);
        writer.finish()
    }
}

names! {
    /// Whose the objects are that others put into a bucket.
    ObjectOwnership {
        /// The bucket's owner's; there are no ACLs.
        BucketOwnerEnforced = "BucketOwnerEnforced",
        /// The bucket's owner's, if they are put with the ACL bucket-owner-full-control.
        BucketOwnerPreferred = "BucketOwnerPreferred",
        /// Theirs.
        ObjectWriter = "ObjectWriter",
    }
}

/// `OwnershipControls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipControls(pub ObjectOwnership);

impl OwnershipControls {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<OwnershipControls, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("OwnershipControls")?;
        root.only(&["Rule"])?;
        let rule = root.need("Rule")?;
        rule.only(&["ObjectOwnership"])?;
        rule.need("ObjectOwnership")?.one().map(OwnershipControls)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("OwnershipControls");
        writer.within("Rule", |writer| writer.one("ObjectOwnership", self.0));
        writer.finish()
    }
}

/// `PublicAccessBlockConfiguration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAccessBlockConfiguration {
    /// ACLs that give to everybody are refused.
    pub block_public_acls: bool,
    /// ACLs that give to everybody do not count.
    pub ignore_public_acls: bool,
    /// Policies that give to everybody are refused.
    pub block_public_policy: bool,
    /// A bucket whose policy gives to everybody serves only its owner's account.
    pub restrict_public_buckets: bool,
}

impl PublicAccessBlockConfiguration {
    /// Reads it; what is not named is off.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<PublicAccessBlockConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("PublicAccessBlockConfiguration")?;
        root.only(&["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"])?;
        Ok(PublicAccessBlockConfiguration {
            block_public_acls: root.get_flag("BlockPublicAcls")?,
            ignore_public_acls: root.get_flag("IgnorePublicAcls")?,
            block_public_policy: root.get_flag("BlockPublicPolicy")?,
            restrict_public_buckets: root.get_flag("RestrictPublicBuckets")?,
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("PublicAccessBlockConfiguration");
        writer.flag("BlockPublicAcls", self.block_public_acls);
        writer.flag("IgnorePublicAcls", self.ignore_public_acls);
        writer.flag("BlockPublicPolicy", self.block_public_policy);
        writer.flag("RestrictPublicBuckets", self.restrict_public_buckets);
        writer.finish()
    }
}

/// `PolicyStatus`: whether the bucket's policy gives to everybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatus(pub bool);

impl PolicyStatus {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<PolicyStatus, S3Error> {
        Document::parse(body, SHORT)?.root("PolicyStatus")?.get_flag("IsPublic").map(PolicyStatus)
    }

    /// Writes it. The reference's example has `TRUE`; SDKs know only `true`.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("PolicyStatus");
        writer.flag("IsPublic", self.0);
        writer.finish()
    }
}

names! {
    /// Which day a log's name has.
    PartitionDateSource {
        /// That of the requests.
        EventTime = "EventTime",
        /// That of the delivery.
        DeliveryTime = "DeliveryTime",
    }
}

/// How the names of logs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogNames {
    /// Prefix, time, random characters.
    Simple,
    /// Prefix, account, region, bucket, day, time, random characters.
    Partitioned(Option<PartitionDateSource>),
}

/// Where requests are logged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingEnabled {
    /// The bucket that logs are put into.
    pub target_bucket: String,
    /// What their names begin with.
    pub target_prefix: String,
    /// Who else may read them.
    pub target_grants: Vec<Grant>,
    /// How their names are made.
    pub names: Option<LogNames>,
}

/// `BucketLoggingStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketLoggingStatus {
    /// Where requests are logged to, if they are.
    pub enabled: Option<LoggingEnabled>,
}

impl BucketLoggingStatus {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<BucketLoggingStatus, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("BucketLoggingStatus")?;
        root.only(&["LoggingEnabled"])?;
        let Some(logging) = root.get("LoggingEnabled")? else { return Ok(BucketLoggingStatus::default()) };
        logging.only(&["TargetBucket", "TargetPrefix", "TargetGrants", "TargetObjectKeyFormat"])?;
        let grants = logging.get("TargetGrants")?;
        Ok(BucketLoggingStatus {
            enabled: Some(LoggingEnabled {
                target_bucket: logging.need_string("TargetBucket")?,
                target_prefix: logging.need_string("TargetPrefix")?,
                target_grants: grants.into_iter().flat_map(Element::children).map(Grant::read).collect::<Result<_, _>>()?,
                names: logging.get("TargetObjectKeyFormat")?.map(LogNames::read).transpose()?,
            }),
        })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("BucketLoggingStatus");
        if let Some(logging) = &self.enabled {
            writer.open("LoggingEnabled");
            writer.text("TargetBucket", &logging.target_bucket);
            writer.text("TargetPrefix", &logging.target_prefix);
            if !logging.target_grants.is_empty() {
                writer.within("TargetGrants", |writer| logging.target_grants.iter().for_each(|grant| grant.write(writer)));
            }
            if let Some(names) = logging.names {
                writer.within("TargetObjectKeyFormat", |writer| names.write(writer));
            }
            writer.close("LoggingEnabled");
        }
        writer.finish()
    }
}

impl LogNames {
    fn read(element: Element<'_>) -> Result<LogNames, S3Error> {
        element.only(&["SimplePrefix", "PartitionedPrefix"])?;
        match (element.get("SimplePrefix")?, element.get("PartitionedPrefix")?) {
            (Some(_), None) => Ok(LogNames::Simple),
            (None, Some(prefix)) => Ok(LogNames::Partitioned(prefix.get("PartitionDateSource")?.map(Element::one).transpose()?)),
            _ => Err(malformed()),
        }
    }

    fn write(self, writer: &mut Writer) {
        match self {
            LogNames::Simple => writer.within("SimplePrefix", |_| ()),
            LogNames::Partitioned(source) => writer.within("PartitionedPrefix", |writer| writer.one_if("PartitionDateSource", source)),
        }
    }
}

names! {
    /// Who pays for requests.
    Payer {
        /// Who makes them.
        Requester = "Requester",
        /// Whose bucket it is.
        BucketOwner = "BucketOwner",
    }
}

/// `RequestPaymentConfiguration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPaymentConfiguration(pub Payer);

impl RequestPaymentConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<RequestPaymentConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("RequestPaymentConfiguration")?;
        root.only(&["Payer"])?;
        root.need("Payer")?.one().map(RequestPaymentConfiguration)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("RequestPaymentConfiguration");
        writer.one("Payer", self.0);
        writer.finish()
    }
}

names! {
    /// How objects are encrypted.
    SseAlgorithm {
        /// With keys of the service.
        Aes256 = "AES256",
        /// With keys of the key management service.
        Kms = "aws:kms",
        /// With those, in two layers.
        KmsDsse = "aws:kms:dsse",
        /// With keys of FSx.
        Fsx = "aws:fsx",
        /// With keys of Backup.
        Backup = "aws:backup",
    }
}

/// `ServerSideEncryptionConfiguration`, which has one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSideEncryptionConfiguration {
    /// How objects are encrypted that are put without saying it.
    pub algorithm: Option<SseAlgorithm>,
    /// With which key.
    pub kms_key_id: Option<String>,
    /// Whether the bucket has a key of its own that others are made from.
    pub is_bucket_key_enabled: Option<bool>,
    /// Kinds of encryption that are refused: `SSE-C`, `NONE`.
    pub blocked: Vec<String>,
}

impl ServerSideEncryptionConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<ServerSideEncryptionConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("ServerSideEncryptionConfiguration")?;
        root.only(&["Rule"])?;
        let rule = root.need("Rule")?;
        rule.only(&["ApplyServerSideEncryptionByDefault", "BucketKeyEnabled", "BlockedEncryptionTypes"])?;
        let mut read = ServerSideEncryptionConfiguration {
            is_bucket_key_enabled: rule.get("BucketKeyEnabled")?.map(Element::flag).transpose()?,
            ..ServerSideEncryptionConfiguration::default()
        };
        if let Some(default) = rule.get("ApplyServerSideEncryptionByDefault")? {
            default.only(&["SSEAlgorithm", "KMSMasterKeyID"])?;
            read.algorithm = Some(default.need("SSEAlgorithm")?.one()?);
            read.kms_key_id = default.get_string("KMSMasterKeyID")?;
        }
        if let Some(blocked) = rule.get("BlockedEncryptionTypes")? {
            blocked.only(&["EncryptionType"])?;
            read.blocked = blocked.children().map(Element::string).collect::<Result<_, _>>()?;
            if read.blocked.iter().any(|kind| !matches!(&**kind, "NONE" | "SSE-C")) {
                return Err(malformed());
            }
        }
        if read.kms_key_id.is_some() && read.algorithm == Some(SseAlgorithm::Aes256) {
            let message = "a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms or aws:kms:dsse";
            return Err(S3Error::with(Code::InvalidArgument, message));
        }
        Ok(read)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("ServerSideEncryptionConfiguration");
        writer.open("Rule");
        if let Some(algorithm) = self.algorithm {
            writer.within("ApplyServerSideEncryptionByDefault", |writer| {
                writer.one("SSEAlgorithm", algorithm);
                writer.text_if("KMSMasterKeyID", self.kms_key_id.as_deref());
            });
        }
        if let Some(is_enabled) = self.is_bucket_key_enabled {
            writer.flag("BucketKeyEnabled", is_enabled);
        }
        if !self.blocked.is_empty() {
            writer.within("BlockedEncryptionTypes", |writer| self.blocked.iter().for_each(|kind| writer.text("EncryptionType", kind)));
        }
        writer.close("Rule");
        writer.finish()
    }
}

/// `NotificationConfiguration` without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationConfiguration;

impl NotificationConfiguration {
    /// Reads one that asks for nothing, as clients put it to end notifications.
    ///
    /// # Errors
    /// `MalformedXML`; `NotImplemented` of one that asks for some.
    pub fn parse(body: &[u8]) -> Result<NotificationConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        match document.root("NotificationConfiguration")?.children().next() {
            None => Ok(NotificationConfiguration),
            Some(_) => Err(S3Error::with(Code::NotImplemented, "Notifications are not implemented")),
        }
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        Writer::new("NotificationConfiguration").finish()
    }
}

/// `AccelerateConfiguration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccelerateConfiguration {
    /// Whether transfers are accelerated; nothing if it was never said.
    pub status: Option<Status>,
}

impl AccelerateConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<AccelerateConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("AccelerateConfiguration")?;
        root.only(&["Status"])?;
        Ok(AccelerateConfiguration { status: root.get("Status")?.map(Element::one).transpose()? })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("AccelerateConfiguration");
        writer.one_if("Status", self.status);
        writer.finish()
    }
}

#[cfg(test)]
mod tests;
