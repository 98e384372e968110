//! Conditions of statements: an operator, a key, and the values that the request's are held against
//! (IAM user guide, reference_policies_elements_condition_operators.html).

use std::net::IpAddr;
use std::str::FromStr;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

use super::key::{Key, Plain, Scope, Value, Values};
use super::pattern::{BadVariable, Pattern, Subject, Syntax};

/// One line of a statement's `Condition`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    /// `ForAllValues:` or `ForAnyValue:`.
    set: Option<Set>,
    is_negated: bool,
    /// `..IfExists`: holds where the request has nothing.
    if_exists: bool,
    key: Key,
    operands: Operands,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    All,
    Any,
}

/// What a value of the request is held against: one of these.
#[derive(Clone, Debug, PartialEq)]
enum Operands {
    Text(Box<[Pattern]>),
    Number(Order, Box<[f64]>),
    /// Milliseconds since 1970.
    Date(Order, Box<[i64]>),
    Bool(Box<[bool]>),
    /// Base64, in the one form that is right for its bytes.
    Binary(Box<[Box<str>]>),
    Network(Box<[Network]>),
    Arn(Box<[ArnPattern]>),
    /// Whether there is no value.
    Null(Box<[bool]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Why a condition is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadCondition {
    Operator,
    Key,
    /// Of an operator, a value that it does not take.
    Value,
    Address,
    Variable,
}

impl From<BadVariable> for BadCondition {
    fn from(_: BadVariable) -> BadCondition {
        BadCondition::Variable
    }
}

/// What an operator compares, and how.
#[derive(Clone, Copy)]
enum Kind {
    /// With wildcards, without regard to case.
    Text(bool, bool),
    Number(Order),
    Date(Order),
    Bool,
    Binary,
    Network,
    Arn,
    Null,
}

/// Operators, whether they are negated, and what they compare.
const OPERATORS: [(&str, bool, Kind); 28] = [
    ("StringEquals", false, Kind::Text(false, false)),
    ("StringNotEquals", true, Kind::Text(false, false)),
    ("StringEqualsIgnoreCase", false, Kind::Text(false, true)),
    ("StringNotEqualsIgnoreCase", true, Kind::Text(false, true)),
    ("StringLike", false, Kind::Text(true, false)),
    ("StringNotLike", true, Kind::Text(true, false)),
    ("NumericEquals", false, Kind::Number(Order::Equal)),
    ("NumericNotEquals", true, Kind::Number(Order::Equal)),
    ("NumericLessThan", false, Kind::Number(Order::Less)),
    ("NumericLessThanEquals", false, Kind::Number(Order::LessOrEqual)),
    ("NumericGreaterThan", false, Kind::Number(Order::Greater)),
    ("NumericGreaterThanEquals", false, Kind::Number(Order::GreaterOrEqual)),
    ("DateEquals", false, Kind::Date(Order::Equal)),
    ("DateNotEquals", true, Kind::Date(Order::Equal)),
    ("DateLessThan", false, Kind::Date(Order::Less)),
    ("DateLessThanEquals", false, Kind::Date(Order::LessOrEqual)),
    ("DateGreaterThan", false, Kind::Date(Order::Greater)),
    ("DateGreaterThanEquals", false, Kind::Date(Order::GreaterOrEqual)),
    ("Bool", false, Kind::Bool),
    ("BinaryEquals", false, Kind::Binary),
    ("BinaryNotEquals", true, Kind::Binary),
    ("IpAddress", false, Kind::Network),
    ("NotIpAddress", true, Kind::Network),
    ("ArnEquals", false, Kind::Arn),
    ("ArnLike", false, Kind::Arn),
    ("ArnNotEquals", true, Kind::Arn),
    ("ArnNotLike", true, Kind::Arn),
    ("Null", false, Kind::Null),
];

impl Condition {
    /// The condition of an operator with its prefix and suffix, a key and values. `variables`: whether the policy's version has them.
    pub(super) fn parse(operator: &str, key: &str, values: &[String], variables: bool) -> Result<Condition, BadCondition> {
        let (set, name) = match operator.split_once(':') {
            None => (None, operator),
            Some(("ForAllValues", name)) => (Some(Set::All), name),
            Some(("ForAnyValue", name)) => (Some(Set::Any), name),
            Some(_) => return Err(BadCondition::Operator),
        };
        let (name, if_exists) = name.strip_suffix("IfExists").map_or((name, false), |name| (name, true));
        let (_, is_negated, kind) = *OPERATORS.iter().find(|(known, ..)| *known == name).ok_or(BadCondition::Operator)?;
        if matches!(kind, Kind::Null) && (if_exists || set.is_some()) {
            return Err(BadCondition::Operator);
        }
        let key = Key::parse(key).ok_or(BadCondition::Key)?;
        let operands = Operands::parse(kind, &key, values, variables)?;
        Ok(Condition { set, is_negated, if_exists, key, operands })
    }

    pub(super) fn holds(&self, scope: &Scope<'_>) -> bool {
        let values = scope.values(&self.key);
        if let Operands::Null(wanted) = &self.operands {
            return wanted.contains(&matches!(values, Values::None));
        }
        let is_one = |value| self.operands.any(value, scope);
        match (values, self.set) {
            (Values::None, _) if self.if_exists => true,
            (Values::None, Some(Set::All)) => true,
            (Values::None, Some(Set::Any)) => false,
            (Values::None, None) => self.is_negated,
            (Values::One(value), _) => is_one(value) != self.is_negated,
            (Values::Names(tags), Some(Set::All)) => tags.iter().all(|(name, _)| is_one(Value::Text(name)) != self.is_negated),
            (Values::Names(tags), Some(Set::Any)) => tags.iter().any(|(name, _)| is_one(Value::Text(name)) != self.is_negated),
            (Values::Names(tags), None) => tags.iter().any(|(name, _)| is_one(Value::Text(name))) != self.is_negated,
        }
    }

    /// Whether it asks for tags that the object has.
    pub(super) fn reads_existing_tags(&self) -> bool {
        matches!(self.key, Key::ExistingTag(_))
    }

    /// Whether it holds only for fixed values of something that says to whom a statement gives something.
    pub(super) fn says_who(&self) -> bool {
        let is_fixed = match &self.operands {
            Operands::Text(patterns) => patterns.iter().all(Pattern::is_fixed),
            Operands::Arn(patterns) => patterns.iter().all(ArnPattern::is_fixed),
            Operands::Network(networks) => networks.iter().all(Network::is_narrow),
            _ => false,
        };
        is_fixed && self.key.says_who() && !self.is_negated && !self.if_exists && self.set != Some(Set::All)
    }
}

impl Operands {
    fn parse(kind: Kind, key: &Key, values: &[String], variables: bool) -> Result<Operands, BadCondition> {
        fn all<T>(values: &[String], parse: impl FnMut(&String) -> Result<T, BadCondition>) -> Result<Box<[T]>, BadCondition> {
            values.iter().map(parse).collect()
        }
        let bad = BadCondition::Value;
        let flags = || all(values, |value| value.to_ascii_lowercase().parse().map_err(|_| bad.clone()));
        Ok(match kind {
            Kind::Text(wildcards, ignores_case) => Operands::Text(all(values, |value| {
                // Clients name what they copy with or without a slash before it, and so do policies.
                let is_source = *key == Key::Plain(Plain::CopySource);
                let value = value.strip_prefix('/').filter(|_| is_source).unwrap_or(value);
                Ok(Pattern::parse(value, Syntax { wildcards, variables, ignores_case })?)
            })?),
            Kind::Number(order) => Operands::Number(order, all(values, |value| number(value).ok_or(bad.clone()))?),
            Kind::Date(order) => Operands::Date(order, all(values, |value| date(value).ok_or(bad.clone()))?),
            Kind::Bool => Operands::Bool(flags()?),
            Kind::Null => Operands::Null(flags()?),
            Kind::Binary => Operands::Binary(all(values, |value| {
                BASE64_STANDARD.decode(value).map(|_| value.as_str().into()).map_err(|_| bad.clone())
            })?),
            Kind::Network => Operands::Network(all(values, |value| value.parse().map_err(|_| BadCondition::Address))?),
            Kind::Arn => Operands::Arn(all(values, |value| ArnPattern::parse(value, variables))?),
        })
    }

    /// Whether a value of the request is one of these, or stands to one of these as it should.
    fn any(&self, value: Value<'_>, scope: &Scope<'_>) -> bool {
        match self {
            Operands::Text(patterns) => {
                let text = value.text();
                patterns.iter().any(|pattern| pattern.matches(Subject::of(text.as_str()), scope))
            }
            Operands::Number(order, numbers) => {
                let own = match value {
                    Value::Number(number) => Some(number as f64),
                    Value::Text(text) => number(text),
                    _ => None,
                };
                own.is_some_and(|own| numbers.iter().any(|other| order.holds(own.partial_cmp(other))))
            }
            Operands::Date(order, dates) => {
                let own = match value {
                    Value::Time(ms) => Some(ms),
                    Value::Number(seconds) => seconds.checked_mul(1000),
                    Value::Text(text) => date(text),
                    _ => None,
                };
                own.is_some_and(|own| dates.iter().any(|other| order.holds(Some(own.cmp(other)))))
            }
            Operands::Bool(flags) => match value {
                Value::Bool(is_so) => flags.contains(&is_so),
                Value::Text(text) => flags.iter().any(|flag| text.eq_ignore_ascii_case(if *flag { "true" } else { "false" })),
                _ => false,
            },
            Operands::Binary(texts) => matches!(value, Value::Text(text) if texts.iter().any(|other| **other == *text)),
            Operands::Network(networks) => match value {
                Value::Ip(ip) => networks.iter().any(|network| network.has(ip)),
                Value::Text(text) => text.parse().is_ok_and(|ip: IpAddr| networks.iter().any(|network| network.has(ip.to_canonical()))),
                _ => false,
            },
            Operands::Arn(patterns) => matches!(value, Value::Text(text) if patterns.iter().any(|pattern| pattern.matches(text, scope))),
            Operands::Null(_) => false,
        }
    }
}

impl Order {
    fn holds(self, order: Option<std::cmp::Ordering>) -> bool {
        order.is_some_and(|order| match self {
            Order::Equal => order.is_eq(),
            Order::Less => order.is_lt(),
            Order::LessOrEqual => order.is_le(),
            Order::Greater => order.is_gt(),
            Order::GreaterOrEqual => order.is_ge(),
        })
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Milliseconds since 1970 of seconds since then, or of a date as ISO 8601 writes it; a time without a zone is UTC.
fn date(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<i64>() {
        return seconds.checked_mul(1000);
    }
    let utc = |time: DateTime| Offset::UTC.to_timestamp(time).ok();
    let time = text.parse::<Timestamp>().ok();
    let time = time.or_else(|| utc(text.parse::<DateTime>().ok().filter(|_| text.contains('T'))?));
    Some(time.or_else(|| utc(text.parse::<Date>().ok()?.at(0, 0, 0, 0)))?.as_millisecond())
}

/// A network, as RFC 4632 writes it, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

/// The shortest prefixes that are not the public (access-control-block-public-access.html, "The meaning of public").
const NARROW_V4: u8 = 8;
const NARROW_V6: u8 = 32;

impl FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Network, ()> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok().filter(|&bits| bits <= most).ok_or(())?,
            Some(_) => return Err(()),
        };
        // Requests come from addresses of version 4 under their own names.
        match address {
            IpAddr::V6(mapped) if bits >= 96 && mapped.to_ipv4_mapped().is_some() => {
                Ok(Network { address: address.to_canonical(), bits: bits - 96 })
            }
            address => Ok(Network { address, bits }),
        }
    }
}

impl Network {
    fn has(&self, ip: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => (own.to_bits() ^ ip.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0,
            (IpAddr::V6(own), IpAddr::V6(ip)) => (own.to_bits() ^ ip.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0,
            _ => false,
        }
    }

    fn is_narrow(&self) -> bool {
        self.bits >= if self.address.is_ipv4() { NARROW_V4 } else { NARROW_V6 }
    }
}

/// An ARN whose six parts are patterns of their own, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ArnPattern(Option<[Pattern; 6]>);

impl ArnPattern {
    fn parse(text: &str, variables: bool) -> Result<ArnPattern, BadCondition> {
        if text == "*" {
            return Ok(ArnPattern(None));
        }
        let parts = split_arn(text).ok_or(BadCondition::Value)?;
        let syntax = Syntax { wildcards: true, variables, ignores_case: false };
        let parsed: Vec<Pattern> = parts.into_iter().map(|part| Pattern::parse(part, syntax)).collect::<Result<_, _>>()?;
        Ok(ArnPattern(Some(parsed.try_into().map_err(|_| BadCondition::Value)?)))
    }

    fn matches(&self, text: &str, scope: &Scope<'_>) -> bool {
        let Some(patterns) = &self.0 else { return true };
        split_arn(text).is_some_and(|parts| patterns.iter().zip(parts).all(|(pattern, part)| pattern.matches(Subject::of(part), scope)))
    }

    fn is_fixed(&self) -> bool {
        self.0.as_ref().is_some_and(|parts| parts.iter().all(Pattern::is_fixed))
    }
}

/// The six parts of an ARN. Colons in a variable are its own.
pub(super) fn split_arn(text: &str) -> Option<[&str; 6]> {
    let mut parts = [""; 6];
    let (mut from, mut number, mut in_variable) = (0, 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if text[..at].ends_with('$') => in_variable = true,
            b'}' => in_variable = false,
            b':' if !in_variable && number < 5 => {
                parts[number] = &text[from..at];
                (from, number) = (at + 1, number + 1);
            }
            _ => {}
        }
    }
    parts[5] = &text[from..];
    (number == 5).then_some(parts)
}
