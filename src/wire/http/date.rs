//! The dates of HTTP (RFC 9110, section 5.6.7), of S3's XML and of SigV4, to and from time since 1970 (UTC).
//!
//! Times before 1970 are negative. What is written has a year of four digits: a time outside the years 0 to 9999 is written as the
//! nearest within them.

use arrayvec::ArrayString;

const DAY_S: i64 = 86_400;
/// The first second of the year 0 and the last of the year 9999.
const FIRST_S: i64 = -62_167_219_200;
const LAST_S: i64 = 253_402_300_799;

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const LONG_DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A second in the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    year: i64,
    /// From 1.
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    /// Days are counted from the first of March of the year 0, so that the day a leap year adds is the last of a year.
    fn at(seconds: i64) -> Civil {
        let seconds = seconds.clamp(FIRST_S, LAST_S);
        let (days, second) = (seconds.div_euclid(DAY_S) + EPOCH_DAYS, seconds.rem_euclid(DAY_S));
        let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        // From 0 for March.
        let month = (5 * day + 2) / 153;
        let civil_month = if month < 10 { month + 3 } else { month - 9 };
        Civil {
            year: era * 400 + year + i64::from(civil_month <= 2),
            month: civil_month,
            day: day - (153 * month + 2) / 5 + 1,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// `None` if there is no such second. A leap second is that after it.
    fn seconds(self) -> Option<i64> {
        let Civil { year, month, day, hour, minute, second } = self;
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let last = match month {
            2 => 28 + i64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=last).contains(&day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let days = era * ERA_DAYS + 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 1 - EPOCH_DAYS;
        Some(days * DAY_S + hour * 3600 + minute * 60 + second)
    }
}

/// Days in 400 years, after which the calendar is the same again.
const ERA_DAYS: i64 = 146_097;
/// Days from the first of March of the year 0 to 1970.
const EPOCH_DAYS: i64 = 719_468;

/// Puts the last digits of a number in the place of these.
fn put(digits: &mut [u8], mut number: i64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn text<const N: usize>(bytes: &[u8; N]) -> ArrayString<N> {
    ArrayString::from_byte_string(bytes).expect("dates are ASCII")
}

/// The date of HTTP's fields: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub fn http(seconds: i64) -> ArrayString<29> {
    let civil = Civil::at(seconds);
    let day = (seconds.clamp(FIRST_S, LAST_S).div_euclid(DAY_S) + 4).rem_euclid(7);
    let mut out = *b"day, 00 mon 0000 00:00:00 GMT";
    out[..3].copy_from_slice(DAYS[day as usize].as_bytes());
    put(&mut out[5..7], civil.day);
    out[8..11].copy_from_slice(MONTHS[civil.month as usize - 1].as_bytes());
    put(&mut out[12..16], civil.year);
    put(&mut out[17..19], civil.hour);
    put(&mut out[20..22], civil.minute);
    put(&mut out[23..25], civil.second);
    text(&out)
}

/// The date of S3's XML: `2009-10-12T17:50:30.000Z`.
pub fn iso8601(milliseconds: i64) -> ArrayString<24> {
    let milliseconds = milliseconds.clamp(FIRST_S * 1000, LAST_S * 1000 + 999);
    let civil = Civil::at(milliseconds.div_euclid(1000));
    let mut out = *b"0000-00-00T00:00:00.000Z";
    put(&mut out[..4], civil.year);
    put(&mut out[5..7], civil.month);
    put(&mut out[8..10], civil.day);
    put(&mut out[11..13], civil.hour);
    put(&mut out[14..16], civil.minute);
    put(&mut out[17..19], civil.second);
    put(&mut out[20..23], milliseconds.rem_euclid(1000));
    text(&out)
}

/// The date of SigV4: `20130524T000000Z`. Its first eight bytes are the day of a credential's scope.
pub fn amz(seconds: i64) -> ArrayString<16> {
    let civil = Civil::at(seconds);
    let mut out = *b"00000000T000000Z";
    put(&mut out[..4], civil.year);
    put(&mut out[4..6], civil.month);
    put(&mut out[6..8], civil.day);
    put(&mut out[9..11], civil.hour);
    put(&mut out[11..13], civil.minute);
    put(&mut out[13..15], civil.second);
    text(&out)
}

/// Text being read.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    /// Exactly so many digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(digits)?;
        let number = digits.iter().try_fold(0, |number, &byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))?;
        self.0 = rest;
        Some(number)
    }

    fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text.as_bytes())?;
        Some(())
    }

    /// Which of the words is next.
    fn word(&mut self, words: &[&str]) -> Option<i64> {
        let found = words.iter().position(|word| self.0.starts_with(word.as_bytes()))?;
        self.0 = &self.0[words[found].len()..];
        Some(found as i64)
    }

    /// `08:49:37`.
    fn time(&mut self) -> Option<(i64, i64, i64)> {
        let hour = self.number(2)?;
        self.skip(":")?;
        let minute = self.number(2)?;
        self.skip(":")?;
        Some((hour, minute, self.number(2)?))
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Reads the date of a field of HTTP: `Sun, 06 Nov 1994 08:49:37 GMT`, or one of its obsolete forms, `Sunday, 06-Nov-94 08:49:37 GMT` and
/// `Sun Nov  6 08:49:37 1994`. A year of two digits is the last that is at most 50 years after `now_seconds`. As AWS's own examples do
/// so, `+0000` may stand for `GMT`. Whether the day of the week is right is not asked.
pub fn parse_http(text: &str, now_seconds: i64) -> Option<i64> {
    let comma = text.as_bytes().iter().position(|&byte| byte == b',');
    let mut text = Text(text.as_bytes());
    let (year, month, day, (hour, minute, second));
    if comma.is_none() {
        text.word(&DAYS)?;
        text.skip(" ")?;
        month = text.word(&MONTHS)? + 1;
        text.skip(" ")?;
        day = if text.skip(" ").is_some() { text.number(1)? } else { text.number(2)? };
        text.skip(" ")?;
        (hour, minute, second) = text.time()?;
        text.skip(" ")?;
        year = text.number(4)?;
    } else {
        let is_short = comma == Some(3);
        text.word(if is_short { &DAYS } else { &LONG_DAYS })?;
        text.skip(", ")?;
        day = text.number(2)?;
        let between = if is_short { " " } else { "-" };
        text.skip(between)?;
        month = text.word(&MONTHS)? + 1;
        text.skip(between)?;
        year = if is_short { text.number(4)? } else { full_year(text.number(2)?, Civil::at(now_seconds).year) };
        text.skip(" ")?;
        (hour, minute, second) = text.time()?;
        text.skip(" ")?;
        text.word(&["GMT", "+0000"])?;
    }
    text.end()?;
    Civil { year, month, day, hour, minute, second }.seconds()
}

/// The last year with these two digits that is at most 50 years after this one (RFC 9110, section 5.6.7).
fn full_year(digits: i64, this_year: i64) -> i64 {
    let latest = this_year + 50;
    latest - (latest - digits).rem_euclid(100)
}

/// Reads `2009-10-12T17:50:30.000Z` as milliseconds. The fraction may be missing or finer, and `+02:00` may stand for `Z`; what is finer
/// than a millisecond is dropped.
pub fn parse_iso8601(text: &str) -> Option<i64> {
    let mut text = Text(text.as_bytes());
    let year = text.number(4)?;
    text.skip("-")?;
    let month = text.number(2)?;
    text.skip("-")?;
    let day = text.number(2)?;
    text.skip("T")?;
    let (hour, minute, second) = text.time()?;
    let mut milliseconds = 0;
    if text.skip(".").is_some() {
        let mut worth = 100;
        milliseconds = text.number(1)? * worth;
        while let Some(digit) = text.number(1) {
            worth /= 10;
            milliseconds += digit * worth;
        }
    }
    let mut offset_s = 0;
    if text.skip("Z").is_none() {
        let sign = if text.word(&["+", "-"])? == 0 { 1 } else { -1 };
        let hours = text.number(2)?;
        text.skip(":")?;
        let minutes = text.number(2)?;
        if hours > 23 || minutes > 59 {
            return None;
        }
        offset_s = sign * (hours * 3600 + minutes * 60);
    }
    text.end()?;
    let seconds = Civil { year, month, day, hour, minute, second }.seconds()?;
    Some((seconds - offset_s) * 1000 + milliseconds)
}

/// Reads `20130524T000000Z`.
pub fn parse_amz(text: &str) -> Option<i64> {
    let mut text = Text(text.as_bytes());
    let (year, month, day) = (text.number(4)?, text.number(2)?, text.number(2)?);
    text.skip("T")?;
    let (hour, minute, second) = (text.number(2)?, text.number(2)?, text.number(2)?);
    text.skip("Z")?;
    text.end()?;
    Civil { year, month, day, hour, minute, second }.seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2026-01-01.
    const NOW: i64 = 1_767_225_600;

    #[test]
    fn the_three_dates_of_rfc_9110_are_one() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_http(text, NOW), Some(784_111_777), "{text}");
        }
        assert_eq!(http(784_111_777).as_str(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(parse_http("Tue, 27 Mar 2007 19:36:42 +0000", NOW), Some(1_175_024_202));
        assert_eq!(parse_http("Wed Nov 16 08:49:37 1994", NOW), Some(784_975_777));
    }

    #[test]
    fn dates_of_the_s3_api_reference() {
        assert_eq!(iso8601(1_255_369_830_000).as_str(), "2009-10-12T17:50:30.000Z");
        assert_eq!(parse_iso8601("2009-10-12T17:50:30.000Z"), Some(1_255_369_830_000));
        assert_eq!(amz(1_369_353_600).as_str(), "20130524T000000Z");
        assert_eq!(parse_amz("20130524T000000Z"), Some(1_369_353_600));
        assert_eq!(http(1_369_353_600).as_str(), "Fri, 24 May 2013 00:00:00 GMT");
    }

    #[test]
    fn fractions_and_offsets() {
        for (text, milliseconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.5Z", 500),
            ("1970-01-01T00:00:00.123456789Z", 123),
            ("1970-01-01T02:00:00+02:00", 0),
            ("1969-12-31T23:30:00.001-00:30", 1),
            ("1969-12-31T23:59:59.999Z", -1),
        ] {
            assert_eq!(parse_iso8601(text), Some(milliseconds), "{text}");
        }
        assert_eq!(iso8601(-1).as_str(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn two_digits_of_a_year_are_never_far_ahead() {
        let year = |text: &str| Civil::at(parse_http(text, NOW).unwrap()).year;
        assert_eq!(year("Friday, 01-Jan-76 00:00:00 GMT"), 2076);
        assert_eq!(year("Friday, 01-Jan-77 00:00:00 GMT"), 1977);
        assert_eq!(year("Friday, 01-Jan-26 00:00:00 GMT"), 2026);
        assert_eq!(year("Friday, 01-Jan-00 00:00:00 GMT"), 2000);
    }

    #[test]
    fn days_that_are_none_are_refused() {
        for text in ["20130229T000000Z", "20130431T000000Z", "20130001T000000Z", "20131301T000000Z", "20130100T000000Z"] {
            assert_eq!(parse_amz(text), None, "{text}");
        }
        for text in [
            "20130101T240000Z",
            "20130101T006000Z",
            "20130101T000061Z",
            "20130101T000000",
            "20130101T000000Z ",
            "",
            "2013",
            "+0130101T000000Z",
        ] {
            assert_eq!(parse_amz(text), None, "{text}");
        }
        assert!(parse_amz("20000229T000000Z").is_some() && parse_amz("21000229T000000Z").is_none());
        assert_eq!(parse_amz("20161231T235960Z"), parse_amz("20170101T000000Z"), "a leap second");
        for text in [
            "sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sun Nov 6 08:49:37 1994",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "1994-11-06T08:49:37Z",
            ",",
        ] {
            assert_eq!(parse_http(text, NOW), None, "{text}");
        }
        for text in ["2009-10-12", "2009-10-12T17:50:30", "2009-10-12T17:50:30.Z", "2009-10-12 17:50:30Z", "2009-10-12T17:50:30+24:00"] {
            assert_eq!(parse_iso8601(text), None, "{text}");
        }
    }

    #[test]
    fn times_out_of_range_are_written_as_the_nearest() {
        assert_eq!(http(i64::MAX).as_str(), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(iso8601(i64::MAX).as_str(), "9999-12-31T23:59:59.999Z");
        assert_eq!(amz(i64::MIN).as_str(), "00000101T000000Z");
        assert_eq!(iso8601(i64::MIN).as_str(), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn every_day_of_800_years_follows_the_one_before() {
        let start = parse_amz("16000101T000000Z").unwrap() / DAY_S;
        let mut before = Civil::at((start - 1) * DAY_S);
        for day in start..start + 2 * ERA_DAYS {
            let civil = Civil::at(day * DAY_S);
            assert_eq!(civil.seconds(), Some(day * DAY_S));
            let follows = match (civil.month, civil.day) {
                (1, 1) => (before.year + 1, 12, 31) == (civil.year, before.month, before.day),
                (_, 1) => (before.year, before.month + 1) == (civil.year, civil.month) && before.day >= 28,
                _ => (before.year, before.month, before.day + 1) == (civil.year, civil.month, civil.day),
            };
            assert!(follows, "{civil:?} after {before:?}");
            before = civil;
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(milliseconds in FIRST_S * 1000..LAST_S * 1000) {
            let seconds = milliseconds.div_euclid(1000);
            prop_assert_eq!(parse_http(&http(seconds), NOW), Some(seconds));
            prop_assert_eq!(parse_amz(&amz(seconds)), Some(seconds));
            prop_assert_eq!(parse_iso8601(&iso8601(milliseconds)), Some(milliseconds));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[SunNovMTZGday0-9:., +-]{0,40}", any: String, now: i64) {
            for text in [text, any] {
                let _ = (parse_http(&text, now), parse_amz(&text), parse_iso8601(&text));
            }
        }

        #[test]
        fn cut_dates_are_refused(seconds in FIRST_S..LAST_S, cut in 0usize..16) {
            prop_assert_eq!(parse_http(&http(seconds)[..cut], NOW), None);
            prop_assert_eq!(parse_iso8601(&iso8601(seconds)[..cut]), None);
            prop_assert_eq!(parse_amz(&amz(seconds)[..cut]), None);
        }
    }
}
