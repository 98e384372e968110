//! The policy document of a POST form: what the form's fields must be (API/sigv4-HTTPPOSTConstructPolicy.html).

use serde_json::Value;

use super::{Lengths, time};
use crate::s3::error::{Code, S3Error};

fn invalid(message: impl AsRef<str>) -> S3Error {
    S3Error::with(Code::InvalidPolicyDocument, format!("Invalid Policy: {}", message.as_ref()))
}

/// What the policy does not allow.
pub(super) fn violated(message: impl AsRef<str>) -> S3Error {
    S3Error::with(Code::AccessDenied, format!("Invalid according to Policy: {}", message.as_ref()))
}

/// A form as policies see it: names in lower case, values of the same name joined by commas.
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn new(fields: &[(&str, &str)]) -> Form {
        let mut form = Form(Vec::with_capacity(fields.len() + 1));
        for (name, value) in fields {
            let name = name.to_ascii_lowercase();
            match form.0.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => {
                    values.push(',');
                    values.push_str(value);
                }
                None => form.0.push((name, (*value).to_owned())),
            }
        }
        form
    }

    /// The value of a field; its name is in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &name[..])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equals,
    StartsWith,
}

/// One condition. Without a `$` before its name it is of no field, and never met.
#[derive(Debug)]
struct Condition {
    test: Test,
    field: Option<String>,
    value: String,
    /// As refusals show it.
    text: String,
}

impl Condition {
    fn new(test: Test, name: &str, value: &str) -> Condition {
        let operator = if test == Test::Equals { "eq" } else { "starts-with" };
        let text = format!("[\"{operator}\", {}, {}]", Value::from(name), Value::from(value));
        Condition { test, field: name.strip_prefix('$').map(str::to_ascii_lowercase), value: value.to_owned(), text }
    }

    /// A field that is not there has the empty value, as Ceph has it; S3 was once seen to refuse it.
    fn is_met(&self, form: &Form, bucket: &str) -> bool {
        let Some(field) = self.field.as_deref() else { return false };
        let value = if field == "bucket" { bucket } else { form.get(field).unwrap_or_default() };
        match self.test {
            Test::Equals => value == self.value,
            // "Content-Types values for a starts-with condition that include commas are interpreted as lists."
            Test::StartsWith if field == "content-type" => value.split(',').all(|value| value.starts_with(&self.value)),
            Test::StartsWith => value.starts_with(&self.value),
        }
    }
}

/// A policy document.
#[derive(Debug)]
pub(super) struct Policy {
    expires_ms: u64,
    conditions: Vec<Condition>,
    lengths: Lengths,
}

/// Whether a form may have the field without a condition on it. Checksums are among them as Ceph has it: they allow nothing.
fn needs_no_condition(name: &str) -> bool {
    matches!(name, "x-amz-signature" | "signature" | "awsaccesskeyid" | "file" | "policy")
        || name.starts_with("x-ignore-")
        || name.starts_with("x-amz-checksum-")
}

/// The document with the two escapes that policies have and JSON has not (sigv4-HTTPPOSTConstructPolicy.html): a dollar, a vertical tab.
fn in_json(document: &[u8]) -> Vec<u8> {
    let mut json = Vec::with_capacity(document.len());
    let mut bytes = document.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, if byte == b'\\' { bytes.next() } else { None }) {
            (_, Some(b'$')) => json.push(b'$'),
            (_, Some(b'v')) => json.extend_from_slice(b"\\u000b"),
            (_, escaped) => json.extend([byte].into_iter().chain(escaped)),
        }
    }
    json
}

impl Policy {
    /// Reads the decoded document.
    pub(super) fn parse(document: &[u8]) -> Result<Policy, S3Error> {
        let Ok(Value::Object(members)) = serde_json::from_slice(&in_json(document)) else {
            return Err(invalid("Invalid JSON."));
        };
        if let Some(name) = members.keys().find(|name| !matches!(&name[..], "expiration" | "conditions")) {
            return Err(invalid(format!("Unexpected: '{}'", name.to_ascii_lowercase())));
        }
        let expires_ms = match members.get("expiration") {
            Some(Value::String(text)) => time::parse_iso(text).ok_or_else(|| invalid(format!("Invalid 'expiration' value: '{text}'")))?,
            Some(_) => return Err(invalid("Invalid JSON.")),
            None => return Err(invalid("Policy missing expiration.")),
        };
        let conditions = match members.get("conditions") {
            Some(Value::Array(conditions)) => conditions,
            Some(_) => return Err(invalid("Invalid 'conditions' value: must be a List.")),
            None => return Err(invalid("Policy missing conditions.")),
        };
        let mut policy = Policy { expires_ms, conditions: Vec::with_capacity(conditions.len()), lengths: Lengths::default() };
        conditions.iter().try_for_each(|condition| policy.add(condition))?;
        Ok(policy)
    }

    fn add(&mut self, condition: &Value) -> Result<(), S3Error> {
        match condition {
            Value::Object(members) => {
                let mut members = members.iter();
                let (Some((name, value)), None) = (members.next(), members.next()) else {
                    return Err(invalid("Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."));
                };
                let value = value.as_str().ok_or_else(|| invalid("Invalid Simple-Condition: value must be a string."))?;
                self.conditions.push(Condition::new(Test::Equals, &format!("${name}"), value));
                Ok(())
            }
            Value::Array(items) => self.add_list(items),
            _ => Err(invalid("Invalid condition test: must be a List or Object.")),
        }
    }

    fn add_list(&mut self, items: &[Value]) -> Result<(), S3Error> {
        let Some((Value::String(operator), operands)) = items.split_first() else {
            return Err(invalid("Invalid Condition: missing operation identifier."));
        };
        let operator = operator.to_ascii_lowercase();
        let test = match &operator[..] {
            "eq" => Test::Equals,
            "starts-with" => Test::StartsWith,
            "content-length-range" => return self.add_lengths(operands),
            _ => return Err(invalid(format!("Invalid Condition: unknown operation '{operator}'."))),
        };
        match operands {
            [Value::String(name), Value::String(value)] => {
                self.conditions.push(Condition::new(test, name, value));
                Ok(())
            }
            [_, _] => Err(invalid("Invalid JSON.")),
            _ => Err(invalid(format!("Invalid {operator}: wrong number of arguments."))),
        }
    }

    /// `["content-length-range", 1, 10]`; S3 takes strings of digits as well.
    fn add_lengths(&mut self, operands: &[Value]) -> Result<(), S3Error> {
        let [least, most] = operands else {
            return Err(invalid("Invalid content-length-range: wrong number of arguments."));
        };
        let number = |value: &Value| match value {
            Value::Number(number) => number.as_u64().ok_or_else(|| invalid("Invalid JSON.")),
            Value::String(text) => {
                text.parse().map_err(|_| violated(format!("Policy Condition failed: [\"content-length-range\", {least}, {most}]")))
            }
            _ => Err(invalid("Invalid JSON.")),
        };
        let (least, most) = (number(least)?, number(most)?);
        self.lengths = Lengths { least: self.lengths.least.max(least), most: self.lengths.most.min(most) };
        Ok(())
    }

    /// Whether the form is one that the policy allows. How long the file may be is left to whoever reads it.
    pub(super) fn check(&self, form: &Form, bucket: &str, now_ms: u64) -> Result<Lengths, S3Error> {
        if now_ms > self.expires_ms {
            return Err(violated("Policy expired."));
        }
        if let Some(failed) = self.conditions.iter().find(|condition| !condition.is_met(form, bucket)) {
            return Err(violated(format!("Policy Condition failed: {}", failed.text)));
        }
        // The bucket counts as a field: a policy that names none would be good for all of them.
        let has_condition = |name: &str| self.conditions.iter().any(|condition| condition.field.as_deref() == Some(name));
        let mut names = form.names().chain(["bucket"]);
        match names.find(|name| !needs_no_condition(name) && !has_condition(name)) {
            Some(name) => Err(violated(format!("Extra input fields: {name}"))),
            None => Ok(self.lengths),
        }
    }
}
