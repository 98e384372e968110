//! Which pages of other origins may read a bucket.

use super::reader::{Document, Element, Limits, malformed};
use super::writer::Writer;
use super::{Name, names};
use crate::s3::error::{Code, S3Error};
use crate::wire::http::is_field;

/// Rules at most (API_PutBucketCors).
pub const RULES_MAX: usize = 100;
/// Characters of a rule's ID at most (API_CORSRule).
pub const ID_CHARS_MAX: usize = 255;
/// API_PutBucketCors: "the cors configuration … is limited to 64 KB in size".
const LIMITS: Limits = Limits { bytes: 64 << 10, elements: 16 << 10 };

names! {
    /// A method that a rule allows.
    Method {
        /// GET.
        Get = "GET",
        /// PUT.
        Put = "PUT",
        /// HEAD.
        Head = "HEAD",
        /// POST.
        Post = "POST",
        /// DELETE.
        Delete = "DELETE",
    }
}

/// A rule. In an origin and in a header one `*` stands for any characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsRule {
    /// What it is called.
    pub id: Option<String>,
    /// Headers that a preflight may ask for.
    pub allowed_headers: Vec<String>,
    /// Methods, at least one.
    pub allowed_methods: Vec<Method>,
    /// Origins, at least one.
    pub allowed_origins: Vec<String>,
    /// Headers that a page may read.
    pub expose_headers: Vec<String>,
    /// How long a browser may remember the answer to a preflight.
    pub max_age_seconds: Option<u32>,
}

/// `CORSConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsConfiguration {
    /// Its rules; the first that fits counts.
    pub rules: Vec<CorsRule>,
}

impl CorsRule {
    fn read(element: Element<'_>) -> Result<CorsRule, S3Error> {
        element.only(&["ID", "AllowedHeader", "AllowedMethod", "AllowedOrigin", "ExposeHeader", "MaxAgeSeconds"])?;
        // White space around a word is of the document's form.
        let string = |element: Element<'_>| Ok::<_, S3Error>(element.string()?.trim().to_owned());
        let strings = |name| element.all(name).map(string).collect::<Result<Vec<_>, _>>();
        let rule = CorsRule {
            id: element.get_string("ID")?,
            allowed_headers: strings("AllowedHeader")?,
            allowed_methods: strings("AllowedMethod")?.iter().map(|name| method(name)).collect::<Result<_, _>>()?,
            allowed_origins: strings("AllowedOrigin")?,
            expose_headers: strings("ExposeHeader")?,
            max_age_seconds: element.get_number("MaxAgeSeconds")?,
        };
        rule.check()?;
        Ok(rule)
    }

    fn check(&self) -> Result<(), S3Error> {
        if self.allowed_methods.is_empty() || self.allowed_origins.is_empty() {
            return Err(malformed());
        }
        let refused = |message: String| Err(S3Error::with(Code::InvalidRequest, message));
        for (kind, values) in [("AllowedOrigin", &self.allowed_origins), ("AllowedHeader", &self.allowed_headers)] {
            if let Some(value) = values.iter().find(|value| value.matches('*').count() > 1) {
                return refused(format!("{kind} \"{value}\" can not have more than one wildcard."));
            }
        }
        if let Some(value) = self.expose_headers.iter().find(|value| value.contains('*')) {
            return refused(format!("ExposeHeader \"{value}\" contains wildcard. We currently do not support wildcard for ExposeHeader."));
        }
        if let Some(value) = self.expose_headers.iter().find(|value| !is_field(value, b"")) {
            return refused(format!("ExposeHeader \"{value}\" is no name of a header field."));
        }
        match &self.id {
            Some(id) if id.chars().count() > ID_CHARS_MAX => {
                Err(S3Error::with(Code::InvalidArgument, format!("ID length should not exceed allowed limit of {ID_CHARS_MAX}")))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, writer: &mut Writer) {
        let all = |writer: &mut Writer, name, values: &[String]| values.iter().for_each(|value| writer.text(name, value));
        writer.open("CORSRule");
        writer.text_if("ID", self.id.as_deref());
        all(writer, "AllowedHeader", &self.allowed_headers);
        self.allowed_methods.iter().for_each(|method| writer.one("AllowedMethod", *method));
        all(writer, "AllowedOrigin", &self.allowed_origins);
        all(writer, "ExposeHeader", &self.expose_headers);
        writer.number_if("MaxAgeSeconds", self.max_age_seconds);
        writer.close("CORSRule");
    }
}

fn method(name: &str) -> Result<Method, S3Error> {
    Method::from_name(name).ok_or_else(|| {
        S3Error::with(Code::InvalidRequest, format!("Found unsupported HTTP method in CORS config. Unsupported method is {name}"))
    })
}

impl CorsConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `MalformedXML`; `InvalidRequest` of methods that are none, wildcards where they may not be, and too many rules; `InvalidArgument` of
    /// an ID that is too long.
    pub fn parse(body: &[u8]) -> Result<CorsConfiguration, S3Error> {
        let document = Document::parse(body, LIMITS)?;
        let root = document.root("CORSConfiguration")?;
        root.only(&["CORSRule"])?;
        let rules = root.children().map(CorsRule::read).collect::<Result<Vec<_>, _>>()?;
        match rules.len() {
            0 => Err(malformed()),
            1..=RULES_MAX => Ok(CorsConfiguration { rules }),
            _ => {
                let message = format!("The number of CORS rules should not exceed allowed limit of {RULES_MAX} rules.");
                Err(S3Error::with(Code::InvalidRequest, message))
            }
        }
    }

    /// Writes it.
    pub fn to_xml(&self) -> String {
        let mut writer = Writer::new("CORSConfiguration");
        self.rules.iter().for_each(|rule| rule.write(&mut writer));
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::xml::tests::{code, dense};

    /// API_PutBucketCors.
    #[test]
    fn the_example_of_the_reference() {
        let body = r#"<?xml version="1.0" encoding="UTF-8"?>
<CORSConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
 <CORSRule>
   <AllowedHeader>*</AllowedHeader>
   <AllowedMethod>PUT</AllowedMethod>
   <AllowedMethod>POST</AllowedMethod>
   <AllowedMethod>DELETE</AllowedMethod>
   <AllowedOrigin>http://www.example.com</AllowedOrigin>
   <ExposeHeader>x-amz-server-side-encryption</ExposeHeader>
   <MaxAgeSeconds>3000</MaxAgeSeconds>
 </CORSRule>
 <CORSRule>
   <AllowedMethod>GET</AllowedMethod>
   <AllowedOrigin>*</AllowedOrigin>
 </CORSRule>
</CORSConfiguration>"#;
        let cors = CorsConfiguration::parse(body.as_bytes()).expect("rules");
        assert_eq!(cors.rules[0].allowed_methods, [Method::Put, Method::Post, Method::Delete]);
        assert_eq!((cors.rules[0].max_age_seconds, cors.rules[1].allowed_origins.as_slice()), (Some(3000), &["*".to_owned()][..]));
        assert_eq!(cors.to_xml(), dense(body));
        // The reference has the origin first.
        let other_order = body.replacen("<AllowedHeader>*</AllowedHeader>", "", 1).replacen(
            "</AllowedOrigin>",
            "</AllowedOrigin><AllowedHeader>*</AllowedHeader>",
            1,
        );
        assert_eq!(CorsConfiguration::parse(other_order.as_bytes()), Ok(cors));
    }

    #[test]
    fn refused() {
        let rule = |inner: &str| format!("<CORSConfiguration><CORSRule>{inner}</CORSRule></CORSConfiguration>");
        let get = "<AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin>";
        let with = |more: &str| rule(&format!("{get}{more}"));
        let of = |body: &str| code(CorsConfiguration::parse(body.as_bytes()));
        assert_eq!(of(&rule(get)), None);
        assert_eq!(of(&with("<AllowedHeader>x-*</AllowedHeader><ID>a</ID>")), None);
        for body in [
            "<CORSConfiguration/>".to_owned(),
            rule("<AllowedMethod>GET</AllowedMethod>"),
            rule("<AllowedOrigin>*</AllowedOrigin>"),
            with("<MaxAgeSeconds>-1</MaxAgeSeconds>"),
            with("<MaxAgeSeconds/>"),
            with("<Other/>"),
            with("<ID>a</ID><ID>b</ID>"),
        ] {
            assert_eq!(of(&body), Some(Code::MalformedXml), "{body}");
        }
        for body in [
            with("<AllowedMethod>PATCH</AllowedMethod>"),
            with("<AllowedMethod>get</AllowedMethod>"),
            with("<AllowedOrigin>http://*.*.com</AllowedOrigin>"),
            with("<AllowedHeader>**</AllowedHeader>"),
            with("<ExposeHeader>x-*</ExposeHeader>"),
            format!("<CORSConfiguration>{}</CORSConfiguration>", format!("<CORSRule>{get}</CORSRule>").repeat(101)),
        ] {
            assert_eq!(of(&body), Some(Code::InvalidRequest), "{body}");
        }
        assert_eq!(of(&with(&format!("<ID>{}</ID>", "a".repeat(256)))), Some(Code::InvalidArgument));
    }
}
