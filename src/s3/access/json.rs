//! A JSON document whose objects have no name twice: of a policy that says something twice nobody would know what holds.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// As the policy language compares it: as text.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The text of a value that is none of others.
    pub(super) fn scalar(&self) -> Option<String> {
        match self {
            Json::Text(text) | Json::Number(text) => Some(text.clone()),
            Json::Bool(is_so) => Some(is_so.to_string()),
            Json::Null | Json::List(_) | Json::Object(_) => None,
        }
    }

    /// A value, or those of a list.
    pub(super) fn items(&self) -> &[Json] {
        match self {
            Json::List(items) => items,
            one => std::slice::from_ref(one),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, is_so: bool) -> Result<Json, E> {
        Ok(Json::Bool(is_so))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some((name, value)) = map.next_entry()? {
            members.push((name, value));
        }
        let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom("a name that is there twice"));
        }
        Ok(Json::Object(members))
    }
}

/// Bytes of a document without the white space between its tokens.
pub(super) fn normalized_bytes(document: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut is_escaped) = (0, false, false);
    for byte in document {
        bytes += usize::from(in_text || !byte.is_ascii_whitespace());
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            _ => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let json: Json = serde_json::from_str(r#"{"a": [1, -2, 0.5, true, null, "x"], "b": {}}"#).unwrap();
        let Json::Object(members) = json else { panic!("an object") };
        let scalars: Vec<_> = members[0].1.items().iter().map(Json::scalar).collect();
        assert_eq!(scalars, ["1", "-2", "0.5", "true", "", "x"].map(|text| Some(text.to_owned()).filter(|text| !text.is_empty())));
        assert_eq!(members[1].1.items(), [Json::Object(vec![])]);
        for twice in [r#"{"a": 1, "a": 1}"#, r#"[{"a": {"b": 1, "\u0062": 2}}]"#] {
            assert!(serde_json::from_str::<Json>(twice).is_err(), "{twice}");
        }
    }

    #[test]
    fn bytes_without_white_space() {
        assert_eq!(normalized_bytes(b" { \"a b\" :\n\t\"\\\" \\\\\" } "), "{\"a b\":\"\\\" \\\\\"}".len());
    }
}
