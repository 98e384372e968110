//! What a server is configured with: a file, over it the environment, over that the command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::access::users::{KeyConfig, UserConfig};
use crate::base::error::ErrorKind;
use crate::base::units::parse_bytes;
use crate::base::{Error, Result, Rng};

/// A number of bytes: `64M`, `4G`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Bytes(number)),
            Form::Text(text) => parse_bytes(&text).map(Bytes).map_err(serde::de::Error::custom),
        }
    }
}

/// The HTTP front.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names in front of which a host names a bucket: `bucket.s3.example.com`.
    pub domains: Vec<String>,
    /// Connections at once, over all cores.
    pub connections: usize,
}

impl Default for Http {
    fn default() -> Http {
        Http { listen: (Ipv4Addr::LOCALHOST, 9000).into(), domains: Vec::new(), connections: 10_000 }
    }
}

/// The store.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The device or file; without one a file is made in `./basin-data`.
    pub device: Option<PathBuf>,
    /// Of a file that is made: its bytes.
    pub size: Bytes,
    /// Cores that work on it.
    pub cores: usize,
    /// Bytes of memory for each core, those of the cache among them.
    pub memory: Bytes,
    /// Bytes of each core's memory for objects that are read often.
    pub cache: Bytes,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig { device: None, size: Bytes(4 << 30), cores: 1, memory: Bytes(512 << 20), cache: Bytes(256 << 20) }
    }
}

/// What a server is configured with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The HTTP front.
    pub http: Http,
    /// The store.
    pub store: StoreConfig,
    /// The region that signatures name and buckets are told to be in.
    pub region: Option<String>,
    /// Who may use it. Without any there is one, whose key is made and kept beside the store.
    pub users: Vec<UserConfig>,
}

/// The region where none is given: what clients without a region use.
pub const REGION: &str = "us-east-1";

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// `Unavailable`: it cannot be read. `Usage`: it is no configuration, and where.
    pub fn read(path: &Path) -> Result<Config> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(format!("reading {shown}"), &error))?;
        let wrong = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Usage, format!("{shown}: {error}"));
        toml::from_str(&text).map_err(|error| wrong(&error))
    }
}

/// The user of a server that has none configured: its key is made once and kept.
///
/// # Errors
/// The file cannot be read, made or understood.
pub fn own_user(path: &Path, rng: &mut Rng) -> Result<UserConfig> {
    #[derive(Deserialize, serde::Serialize)]
    struct Kept {
        access_key: String,
        secret_key: String,
    }
    let shown = path.display();
    let kept: Kept = match std::fs::read_to_string(path) {
        Ok(text) => {
            let unreadable = |error| {
                let error = Error::new(ErrorKind::Usage, format!("{shown}: {error}"));
                error.remedy("remove it, and a new key is made")
            };
            toml::from_str(&text).map_err(unreadable)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let kept = Kept { access_key: format!("BASIN{}", letters(rng, 15)), secret_key: letters(rng, 40) };
            let text = format!("access_key = \"{}\"\nsecret_key = \"{}\"\n", kept.access_key, kept.secret_key);
            write_secret(path, &text).map_err(|error| Error::io(format!("writing {shown}"), &error))?;
            kept
        }
        Err(error) => return Err(Error::io(format!("reading {shown}"), &error)),
    };
    Ok(UserConfig {
        name: "basin".into(),
        display_name: Some("basin".into()),
        email: None,
        account: None,
        id: None,
        access_keys: vec![KeyConfig { access_key: kept.access_key, secret_key: kept.secret_key }],
        policies: Vec::new(),
        admin: true,
    })
}

/// So many random letters and digits that are not mistaken for one another.
fn letters(rng: &mut Rng, count: usize) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
    (0..count).map(|_| char::from(LETTERS[rng.below(32) as usize])).collect()
}

/// Writes a file that nobody else may read.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read() {
        let text = r#"
            region = "here"
            [http]
            listen = "0.0.0.0:9001"
            domains = ["s3.example.com"]
            [store]
            device = "/dev/nvme0n1"
            memory = "1G"
            cache = 1048576
            [[users]]
            name = "main"
            access_keys = [{ access_key = "AKIAEXAMPLE", secret_key = "a secret of ours" }]
        "#;
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!((config.http.listen.port(), config.store.memory, config.store.cache), (9001, Bytes(1 << 30), Bytes(1 << 20)));
        assert_eq!(config.users[0].access_keys[0].access_key, "AKIAEXAMPLE");
        assert!(toml::from_str::<Config>("[http]\nport = 1").is_err());
    }

    #[test]
    fn the_key_of_a_server_without_users_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("credentials.toml");
        let mut rng = Rng::seeded(1);
        let made = own_user(&path, &mut rng).unwrap();
        let kept = own_user(&path, &mut rng).unwrap();
        assert_eq!(made.access_keys[0].secret_key, kept.access_keys[0].secret_key);
        assert_eq!((made.access_keys[0].access_key.len(), made.access_keys[0].secret_key.len()), (20, 40));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
