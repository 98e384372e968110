//! Dates as requests, scopes, policies and errors have them. All in milliseconds since 1970 (UTC); S3 takes none before.

use crate::wire::http::date;

fn seconds(ms: u64) -> i64 {
    i64::try_from(ms / 1000).unwrap_or(i64::MAX)
}

fn milliseconds(seconds: i64) -> Option<u64> {
    Some(u64::try_from(seconds).ok()? * 1000)
}

/// `20130524T000000Z`, the ISO 8601 basic form that version 4 uses.
pub(super) fn parse_basic(text: &str) -> Option<u64> {
    milliseconds(date::parse_amz(text)?)
}

/// A `Date` or `x-amz-date` header: the basic form, or one of those of HTTP, where S3 takes other zones as well.
pub(super) fn parse_header(text: &str, now_ms: u64) -> Option<u64> {
    let now = seconds(now_ms);
    milliseconds(date::parse_amz(text).or_else(|| date::parse_http(text, now)).or_else(|| parse_zoned(text, now))?)
}

/// A date of HTTP with `-0700` or `UTC` for `GMT`; botocore sends `-0000`.
fn parse_zoned(text: &str, now: i64) -> Option<i64> {
    let (rest, zone) = text.rsplit_once(' ')?;
    let east_s = match zone.as_bytes() {
        b"UTC" => 0,
        [sign @ (b'+' | b'-'), digits @ ..] if digits.len() == 4 && digits.iter().all(u8::is_ascii_digit) => {
            let number: i64 = zone[1..].parse().ok()?;
            let east_s = (number / 100 * 60 + number % 100) * 60;
            if *sign == b'+' { east_s } else { -east_s }
        }
        _ => return None,
    };
    Some(date::parse_http(&format!("{rest} GMT"), now)? - east_s)
}

/// `2015-12-30T12:00:00.000Z`, with or without the fraction: a policy's expiration. S3 takes no other offset than `Z`.
pub(super) fn parse_iso(text: &str) -> Option<u64> {
    let ms = date::parse_iso8601(text).filter(|_| text.ends_with('Z'))?;
    u64::try_from(ms).ok()
}

/// `20130524T000000Z`.
pub(super) fn basic(ms: u64) -> String {
    date::amz(seconds(ms)).as_str().to_owned()
}

/// `2013-05-24T00:00:00Z`: `ServerTime` and `Expires` of errors.
pub(super) fn iso(ms: u64) -> String {
    let text = date::iso8601(seconds(ms).saturating_mul(1000));
    format!("{}Z", &text[.."2013-05-24T00:00:00".len()])
}

/// Whether a scope's date, `20130524`, is the day of that time.
pub(super) fn is_day(date: &str, ms: u64) -> bool {
    date == &date::amz(seconds(ms))[..8]
}

/// Whether it has the form of a scope's date.
pub(super) fn is_date(date: &str) -> bool {
    date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2007-03-27T19:36:42Z.
    const MARCH: u64 = 1_175_024_202_000;

    #[test]
    fn headers() {
        for text in [
            "20070327T193642Z",
            "Tue, 27 Mar 2007 19:36:42 +0000",
            "Tue, 27 Mar 2007 19:36:42 GMT",
            "Tue, 27 Mar 2007 19:36:42 -0000",
            "Tue, 27 Mar 2007 12:06:42 -0730",
            "Wed, 28 Mar 2007 01:36:42 +0600",
            "Tue, 27 Mar 2007 19:36:42 UTC",
            "Mon, 27 Mar 2007 19:36:42 GMT", // it was a Tuesday
            "Tuesday, 27-Mar-07 19:36:42 GMT",
            "Tue Mar 27 19:36:42 2007",
        ] {
            assert_eq!(parse_header(text, MARCH), Some(MARCH), "{text}");
        }
        for text in [
            "",
            "Bad Date",
            "20070327T193642",
            "20071327T193642Z",
            "2007-03-27T19:36:42Z",
            "Tue, 27 Mar 2007 19:36:42 +é00",
            "Tue, 07 Jul 1950 21:53:04 GMT",
        ] {
            assert_eq!(parse_header(text, MARCH), None, "{text}");
        }
        assert!(parse_header("Tue, 07 Jul 9999 21:53:04 GMT", MARCH) > Some(MARCH));
    }

    #[test]
    fn expirations() {
        assert_eq!(parse_iso("2007-03-27T19:36:42.000Z"), Some(MARCH));
        assert_eq!(parse_iso("2007-03-27T19:36:42.250Z"), Some(MARCH + 250));
        assert_eq!(parse_iso("2007-03-27T19:36:42Z"), Some(MARCH));
        for text in
            ["2007-03-27 19:36:42Z", "2007-03-27T19:36:42+00:00", "2026-09-29 12:00:00.123456+00:00", "1969-01-01T00:00:00Z", "Z", ""]
        {
            assert_eq!(parse_iso(text), None, "{text}");
        }
    }

    #[test]
    fn written() {
        assert_eq!((&basic(MARCH + 999)[..], &iso(MARCH)[..]), ("20070327T193642Z", "2007-03-27T19:36:42Z"));
        assert!(is_day("20070327", MARCH) && !is_day("20070328", MARCH) && !is_day("", MARCH));
        assert!(basic(u64::MAX).starts_with("9999") && iso(u64::MAX).starts_with("9999"));
    }
}
