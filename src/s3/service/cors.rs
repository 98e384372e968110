//! What pages of other origins may do with a bucket (the Fetch standard, "CORS protocol").

use super::{Bucket, Service};
use crate::s3::answer::Answer;
use crate::s3::bucket::Document;
use crate::s3::error::{Code, S3Error};
use crate::s3::request::Request;
use crate::s3::xml::Name;
use crate::s3::xml::cors::{CorsConfiguration, CorsRule};

/// Names of fields that a browser may ask about at once: each is held against each of a rule's.
const HEADERS_MAX: usize = 256;

/// The fields that say what an origin may do.
struct Allowed(Vec<(&'static str, String)>);

/// The answer to a browser that asks what it may do. Nobody signs that.
pub fn preflight(service: &Service, request: &Request) -> Result<Answer, S3Error> {
    let missing = |what: &str| S3Error::with(Code::BadRequest, what);
    let origin = request.text("origin").ok_or_else(|| missing("Insufficient information. Origin request header needed."))?;
    let method = request.text("access-control-request-method");
    let method = method.ok_or_else(|| missing("Invalid Access-Control-Request-Method: null"))?;
    let forbidden = || {
        S3Error::new(Code::AccessForbidden)
            .field("Method", method)
            .field("ResourceType", if request.key.is_empty() { "BUCKET" } else { "OBJECT" })
    };
    let bucket = service.find(&request.bucket)?.ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
    let headers: Vec<&str> = request
        .text("access-control-request-headers")
        .map(|names| names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect())
        .unwrap_or_default();
    if headers.len() > HEADERS_MAX {
        return Err(missing("Invalid Access-Control-Request-Headers: too many"));
    }
    let Allowed(mut fields) = allowed(&bucket, origin, method, &headers)?.ok_or_else(forbidden)?;
    if !headers.is_empty() {
        fields.push(("access-control-allow-headers", headers.join(", ").to_lowercase()));
    }
    Ok(fields.into_iter().fold(Answer::new(200), |answer, (name, value)| answer.header(name, value)))
}

/// Says in an answer, or an error, what the origin of the page that asks may do.
pub fn allow(service: &Service, request: &Request, answered: &mut Result<Answer, S3Error>) {
    let Some(origin) = request.text("origin") else { return };
    let Ok(Some(bucket)) = service.find(&request.bucket) else { return };
    let method = request.text("access-control-request-method").unwrap_or(request.head.method());
    let Ok(Some(Allowed(fields))) = allowed(&bucket, origin, method, &[]) else { return };
    match answered {
        Ok(answer) => answer.headers.extend(fields.into_iter().map(|(name, value)| (name.into(), value))),
        Err(error) => error.headers.extend(fields),
    }
}

/// What a bucket's rules allow: the first that fits counts.
fn allowed(bucket: &Bucket, origin: &str, method: &str, headers: &[&str]) -> Result<Option<Allowed>, S3Error> {
    let Some(document) = bucket.meta.document(Document::Cors) else { return Ok(None) };
    let rules = CorsConfiguration::parse(document)?.rules;
    let Some((rule, matched)) = rules.iter().find_map(|rule| Some((rule, fits(rule, origin, method, headers)?))) else { return Ok(None) };
    let methods: Vec<&str> = rule.allowed_methods.iter().map(|method| method.name()).collect();
    let is_any = matched == "*";
    let mut fields = vec![
        ("access-control-allow-origin", if is_any { "*".into() } else { origin.to_owned() }),
        ("access-control-allow-methods", methods.join(", ")),
        ("vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method".into()),
    ];
    if !is_any {
        fields.push(("access-control-allow-credentials", "true".into()));
    }
    if !rule.expose_headers.is_empty() {
        fields.push(("access-control-expose-headers", rule.expose_headers.join(", ")));
    }
    if let Some(seconds) = rule.max_age_seconds {
        fields.push(("access-control-max-age", seconds.to_string()));
    }
    Ok(Some(Allowed(fields)))
}

/// Whether a rule is for an origin, a method and headers: then the pattern that the origin matches.
fn fits<'a>(rule: &'a CorsRule, origin: &str, method: &str, headers: &[&str]) -> Option<&'a str> {
    let matched = rule.allowed_origins.iter().find(|pattern| matches(pattern, origin))?;
    let has_method = rule.allowed_methods.iter().any(|allowed| allowed.name() == method);
    let has_header = |header: &&str| rule.allowed_headers.iter().any(|pattern| matches_whatever_case(pattern, header));
    (has_method && headers.iter().all(has_header)).then_some(matched)
}

/// The same of names of fields.
fn matches_whatever_case(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(name),
        Some((front, back)) => {
            let (front, back, name) = (front.as_bytes(), back.as_bytes(), name.as_bytes());
            name.len() >= front.len() + back.len()
                && name[..front.len()].eq_ignore_ascii_case(front)
                && name[name.len() - back.len()..].eq_ignore_ascii_case(back)
        }
    }
}

/// Whether a text is what a pattern with at most one `*` stands for.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((front, back)) => text.len() >= front.len() + back.len() && text.starts_with(front) && text.ends_with(back),
    }
}

#[cfg(test)]
mod tests {
    use super::{matches, matches_whatever_case};

    #[test]
    fn patterns() {
        for (pattern, text, is_match) in [
            ("*suffix", "foo.suffix", true),
            ("*suffix", "foo.suffix.get", false),
            ("start*end", "startend", true),
            ("start*end", "start12end", true),
            ("start*end", "0start12end", false),
            ("start*tend", "startend", false),
            ("prefix*", "prefix", true),
            ("prefix*", "bla.prefix", false),
            ("*", "", true),
            ("a", "a", true),
            ("a", "b", false),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
            assert_eq!(matches_whatever_case(&pattern.to_uppercase(), text), is_match, "{pattern} {text}");
        }
    }
}
