//! Object lock: what a bucket's objects are held by, and what holds one of them.

use super::reader::{Document, Element, malformed};
use super::writer::Writer;
use super::{SHORT, names};
use crate::s3::error::{Code, S3Error};

/// Days that a bucket may hold its objects at most: those of a hundred years (User Guide, "Object Lock considerations").
pub const DAYS_MAX: u32 = 36_500;
/// Years that a bucket may hold its objects at most.
pub const YEARS_MAX: u32 = 100;

names! {
    /// How firmly an object is held.
    Mode {
        /// Some users may let go of it.
        Governance = "GOVERNANCE",
        /// Nobody may.
        Compliance = "COMPLIANCE",
    }
}

names! {
    /// Whether an object is held until someone lets go of it.
    HoldStatus {
        /// It is.
        On = "ON",
        /// It is not.
        Off = "OFF",
    }
}

/// For how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Days.
    Days(u32),
    /// Years.
    Years(u32),
}

/// `ObjectLockConfiguration`, whose `ObjectLockEnabled` has one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectLockConfiguration {
    /// How objects are held that are put without saying it.
    pub default_retention: Option<(Mode, Period)>,
}

fn period(element: Element<'_>, name: &str, most: u32) -> Result<Option<u32>, S3Error> {
    let Some(period) = element.get_number::<i64>(name)? else { return Ok(None) };
    match u32::try_from(period) {
        Ok(period) if (1..=most).contains(&period) => Ok(Some(period)),
        _ => Err(S3Error::with(Code::InvalidRetentionPeriod, format!("Default retention period must be from 1 to {most} {name}"))),
    }
}

impl ObjectLockConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`; `InvalidRetentionPeriod` of one that is out of range.
    pub fn parse(body: &[u8]) -> Result<ObjectLockConfiguration, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("ObjectLockConfiguration")?;
        root.only(&["ObjectLockEnabled", "Rule"])?;
        if root.need_string("ObjectLockEnabled")?.trim_ascii() != "Enabled" {
            return Err(malformed());
        }
        let Some(rule) = root.get("Rule")? else { return Ok(ObjectLockConfiguration::default()) };
        rule.only(&["DefaultRetention"])?;
        let retention = rule.need("DefaultRetention")?;
        retention.only(&["Mode", "Days", "Years"])?;
        let mode = retention.need("Mode")?.one()?;
        let period = match (period(retention, "Days", DAYS_MAX)?, period(retention, "Years", YEARS_MAX)?) {
            (Some(days), None) => Period::Days(days),
            (None, Some(years)) => Period::Years(years),
            _ => return Err(malformed()),
        };
        Ok(ObjectLockConfiguration { default_retention: Some((mode, period)) })
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("ObjectLockConfiguration");
        writer.text("ObjectLockEnabled", "Enabled");
        if let Some((mode, period)) = self.default_retention {
            writer.within("Rule", |writer| {
                writer.within("DefaultRetention", |writer| {
                    writer.one("Mode", mode);
                    match period {
                        Period::Days(days) => writer.number("Days", days.into()),
                        Period::Years(years) => writer.number("Years", years.into()),
                    }
                });
            });
        }
        writer.finish()
    }
}

/// `Retention`: until when an object is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How firmly, and until when in milliseconds since 1970; nothing if it is not held, or shall not be.
    pub until: Option<(Mode, u64)>,
}

impl Retention {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<Retention, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("Retention")?;
        root.only(&["Mode", "RetainUntilDate"])?;
        let mode = root.get("Mode")?.map(Element::one).transpose()?;
        match (mode, root.get("RetainUntilDate")?.map(Element::time_ms).transpose()?) {
            (Some(mode), Some(until_ms)) => Ok(Retention { until: Some((mode, until_ms)) }),
            (None, None) => Ok(Retention::default()),
            _ => Err(malformed()),
        }
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("Retention");
        if let Some((mode, until_ms)) = self.until {
            writer.one("Mode", mode);
            writer.time("RetainUntilDate", until_ms);
        }
        writer.finish()
    }
}

/// `LegalHold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegalHold(pub HoldStatus);

impl LegalHold {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn parse(body: &[u8]) -> Result<LegalHold, S3Error> {
        let document = Document::parse(body, SHORT)?;
        let root = document.root("LegalHold")?;
        root.only(&["Status"])?;
        root.need("Status")?.one().map(LegalHold)
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("LegalHold");
        writer.one("Status", self.0);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::{code, dense};

    /// API_PutObjectLockConfiguration.
    #[test]
    fn configurations() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<ObjectLockConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <ObjectLockEnabled>Enabled</ObjectLockEnabled>
   <Rule>
      <DefaultRetention>
         <Mode>GOVERNANCE</Mode>
         <Days>30</Days>
      </DefaultRetention>
   </Rule>
</ObjectLockConfiguration>"#;
        let read = ObjectLockConfiguration::parse(body.as_bytes()).expect("a rule");
        assert_eq!(read.default_retention, Some((Mode::Governance, Period::Days(30))));
        assert_eq!(read.to_xml(), dense(body));
        let with = |inner: &str| {
            let rule = format!("<Rule><DefaultRetention>{inner}</DefaultRetention></Rule>");
            format!("<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{rule}</ObjectLockConfiguration>")
        };
        let of = |body: &str| code(ObjectLockConfiguration::parse(body.as_bytes()));
        assert_eq!(of(&with("<Mode>COMPLIANCE</Mode><Years>1</Years>")), None);
        for body in [
            body.replace(">Enabled<", ">Disabled<"),
            with("<Mode>GOVERNANCE</Mode><Days>1</Days><Years>1</Years>"),
            with("<Mode>GOVERNANCE</Mode>"),
            with("<Mode>governance</Mode><Days>1</Days>"),
            with("<Mode>abc</Mode><Days>1</Days>"),
            with("<Days>1</Days>"),
            "<ObjectLockConfiguration/>".to_owned(),
        ] {
            assert_eq!(of(&body), Some(Code::MalformedXml), "{body}");
        }
        for period in ["<Days>0</Days>", "<Years>-1</Years>", "<Days>36501</Days>", "<Years>101</Years>"] {
            assert_eq!(of(&with(&format!("<Mode>GOVERNANCE</Mode>{period}"))), Some(Code::InvalidRetentionPeriod), "{period}");
        }
        let none = ObjectLockConfiguration::default();
        assert_eq!(ObjectLockConfiguration::parse(none.to_xml().as_bytes()), Ok(none));
    }

    /// API_PutObjectRetention and API_PutObjectLegalHold.
    #[test]
    fn of_objects() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<Retention xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
   <Mode>COMPLIANCE</Mode>
   <RetainUntilDate>2030-01-01T00:00:00.123Z</RetainUntilDate>
</Retention>"#;
        let read = Retention::parse(body.as_bytes()).expect("a date");
        assert_eq!((read.until, read.to_xml()), (Some((Mode::Compliance, 1_893_456_000_123)), dense(body)));
        // boto3 has microseconds, if the date has them.
        let finer = body.replace(".123Z", ".123456Z");
        assert_eq!(Retention::parse(finer.as_bytes()), Ok(read));
        assert_eq!(Retention::parse(b"<Retention/>"), Ok(Retention::default()));
        for body in ["<Retention><Mode>GOVERNANCE</Mode></Retention>", "<Retention><Mode>abc</Mode></Retention>"] {
            assert_eq!(code(Retention::parse(body.as_bytes())), Some(Code::MalformedXml), "{body}");
        }
        assert_eq!(LegalHold::parse(LegalHold(HoldStatus::On).to_xml().as_bytes()), Ok(LegalHold(HoldStatus::On)));
        assert_eq!(code(LegalHold::parse(b"<LegalHold><Status>abc</Status></LegalHold>")), Some(Code::MalformedXml));
    }
}
