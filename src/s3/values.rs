//! Values of settings as text: how the environment and the command line give them, and how they are told.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use super::access::users::{PolicyConfig, UserConfig};
use super::bucket::Etags;
use super::config::{Bytes, Hidden, Listen, LogFormat, LogLevel, Poll};
use crate::base::units::parse_bytes;

/// What stands where a secret would.
pub const HIDDEN: &str = "********";

/// A value of a setting.
pub trait Value: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, without the value where that is a secret.
    fn read(text: &str) -> Result<Self, String>;

    /// As TOML has it, secrets as asterisks; nothing where there is none.
    fn show(&self) -> Option<String>;
}

/// Text as TOML has it.
pub fn quoted(text: &str) -> String {
    // JSON's escapes are TOML's.
    serde_json::Value::from(text).to_string()
}

/// Those that are read by their `FromStr` and written as they show themselves.
macro_rules! plain {
    ($($type:ty, $what:literal, $shown:expr;)*) => {
        $(impl Value for $type {
            fn read(text: &str) -> Result<$type, String> {
                text.trim().parse().map_err(|_| format!("'{text}' is not {}", $what))
            }

            fn show(&self) -> Option<String> {
                let shown: fn(&str) -> String = $shown;
                Some(shown(&self.to_string()))
            }
        })*
    };
}

plain! {
    SocketAddr, "an address and a port, such as 127.0.0.1:9000 or [::]:9000", quoted;
    IpAddr, "an address", quoted;
    u64, "a whole number", str::to_owned;
    u32, "a whole number", str::to_owned;
    NonZeroU32, "a whole number, and more than 0", str::to_owned;
    u16, "a whole number up to 65535", str::to_owned;
    u8, "a whole number up to 255", str::to_owned;
    usize, "a whole number", str::to_owned;
    bool, "true or false", str::to_owned;
}

impl Value for Listen {
    fn read(text: &str) -> Result<Listen, String> {
        text.parse()
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string()))
    }
}

impl Value for String {
    fn read(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<PathBuf, String> {
        Ok(text.into())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.to_string_lossy()))
    }
}

impl Value for Bytes {
    fn read(text: &str) -> Result<Bytes, String> {
        parse_bytes(text).map(Bytes)
    }

    fn show(&self) -> Option<String> {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let unit = units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        Some(unit.map_or_else(|| self.0.to_string(), |(shift, unit)| quoted(&format!("{}{unit}", self.0 >> shift))))
    }
}

impl Value for Hidden {
    fn read(text: &str) -> Result<Hidden, String> {
        Ok(Hidden(text.to_owned()))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(HIDDEN))
    }
}

impl Value for LogLevel {
    fn read(text: &str) -> Result<LogLevel, String> {
        Ok(LogLevel(text.to_owned()))
    }

    fn show(&self) -> Option<String> {
        self.0.show()
    }
}

impl Value for LogFormat {
    fn read(text: &str) -> Result<LogFormat, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("'{text}' is neither text nor json")),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }))
    }
}

impl Value for Poll {
    fn read(text: &str) -> Result<Poll, String> {
        Poll::parse(text).ok_or_else(|| format!("'{text}' is neither adaptive nor busy"))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.name()))
    }
}

impl Value for Etags {
    fn read(text: &str) -> Result<Etags, String> {
        Etags::parse(text).ok_or_else(|| format!("'{text}' is neither md5 nor opaque"))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.name()))
    }
}

/// `none` is none.
impl<T: Value> Value for Option<T> {
    fn read(text: &str) -> Result<Option<T>, String> {
        if text == "none" { Ok(None) } else { T::read(text).map(Some) }
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(T::show)
    }
}

/// Separated by commas.
impl Value for Vec<String> {
    fn read(text: &str) -> Result<Vec<String>, String> {
        Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }

    fn show(&self) -> Option<String> {
        let parts: Vec<String> = self.iter().map(|part| quoted(part)).collect();
        Some(format!("[{}]", parts.join(", ")))
    }
}

/// JSON.
impl Value for Vec<UserConfig> {
    fn read(text: &str) -> Result<Vec<UserConfig>, String> {
        serde_json::from_str(text).map_err(|error| format!("no JSON array of users: {error}"))
    }

    fn show(&self) -> Option<String> {
        let users: Vec<String> = self.iter().map(user).collect();
        Some(format!("[{}]", users.join(", ")))
    }
}

fn user(user: &UserConfig) -> String {
    let UserConfig { name, display_name, email, account, id, access_keys, policies, admin } = user;
    let mut fields = vec![format!("name = {}", quoted(name))];
    let id = id.as_ref().map(ToString::to_string);
    for (name, value) in [("display_name", display_name), ("email", email), ("account", account), ("id", &id)] {
        fields.extend(value.as_ref().map(|value| format!("{name} = {}", quoted(value))));
    }
    let key = |key: &str| format!("{{ access_key = {}, secret_key = {} }}", quoted(key), quoted(HIDDEN));
    let keys: Vec<String> = access_keys.iter().map(|one| key(&one.access_key)).collect();
    fields.push(format!("access_keys = [{}]", keys.join(", ")));
    let policies: Vec<String> = policies
        .iter()
        .map(|policy| match policy {
            PolicyConfig::Text(text) => quoted(text),
            PolicyConfig::Document(document) => quoted(&document.to_string()),
        })
        .collect();
    if !policies.is_empty() {
        fields.push(format!("policies = [{}]", policies.join(", ")));
    }
    fields.push(format!("admin = {admin}"));
    format!("{{ {} }}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: Value>(text: &str) -> Option<String> {
        T::read(text).unwrap().show()
    }

    #[test]
    fn values_are_told_as_they_can_be_read() {
        assert_eq!(round::<Bytes>("64M").as_deref(), Some("\"64M\""));
        assert_eq!(round::<Bytes>("1536M").as_deref(), Some("\"1536M\""));
        assert_eq!(round::<Bytes>("2048M").as_deref(), Some("\"2G\""));
        assert_eq!(round::<Bytes>("1000").as_deref(), Some("1000"));
        assert_eq!(round::<Bytes>("0").as_deref(), Some("0"));
        assert_eq!(round::<Option<SocketAddr>>("none"), None);
        assert_eq!(round::<Listen>("none").as_deref(), Some("\"none\""));
        assert_eq!(round::<Listen>("[::1]:9090").as_deref(), Some("\"[::1]:9090\""));
        assert_eq!(round::<Option<SocketAddr>>("[::1]:9090").as_deref(), Some("\"[::1]:9090\""));
        assert_eq!(round::<Vec<String>>(" a.b, c.d,").as_deref(), Some("[\"a.b\", \"c.d\"]"));
        assert_eq!(round::<PathBuf>("/dev/a \"b\"").as_deref(), Some("\"/dev/a \\\"b\\\"\""));
        assert_eq!(round::<LogFormat>("json").as_deref(), Some("\"json\""));
        assert_eq!(round::<Poll>("busy").as_deref(), Some("\"busy\""));
        assert_eq!(round::<Etags>("opaque").as_deref(), Some("\"opaque\""));
        assert_eq!(round::<bool>("true").as_deref(), Some("true"));
    }

    #[test]
    fn what_is_wrong_names_the_value_but_for_secrets() {
        for wrong in [
            SocketAddr::read("localhost").unwrap_err(),
            Listen::read("localhost").unwrap_err(),
            u64::read("localhost").unwrap_err(),
            bool::read("localhost").unwrap_err(),
            Bytes::read("localhost").unwrap_err(),
            LogFormat::read("localhost").unwrap_err(),
            Etags::read("localhost").unwrap_err(),
        ] {
            assert!(wrong.contains("'localhost'"), "{wrong}");
        }
        let secret = "a secret of nobody";
        assert_eq!(round::<Hidden>(secret), Some(quoted(HIDDEN)));
        for wrong in [
            format!(r#"[{{"name":"a","access_keys":[{{"access_key":"AKIA","secret_key":["{secret}"]}}]}}]"#),
            format!(r#"[{{"name":"a","access_keys":[{{"access_key":"AKIA","secret_key":{{"a":"{secret}"}}}}]}}]"#),
            format!(r#"[{{"name":"a","access_keys":[{{"access_key":"AKIA","secret_key":"{secret}","more":1}}]}}]"#),
        ] {
            let error = Vec::<UserConfig>::read(&wrong).unwrap_err();
            assert!(error.contains("line 1") && !error.contains(secret), "{error}");
        }
        let users = format!(r#"[{{"name":"a","access_keys":[{{"access_key":"AKIA","secret_key":"{secret}"}}]}}]"#);
        let shown = round::<Vec<UserConfig>>(&users).unwrap();
        assert!(shown.contains("AKIA") && !shown.contains(secret), "{shown}");
    }
}
