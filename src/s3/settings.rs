//! The settings of a server, and where each value comes from: what is usual, over it a file, over that the environment, over that the
//! command line.
//!
//! [`SETTINGS`] is the one table of them: names, variables, options and the words of docs/OPERATING.md are made of it, and a test finds
//! what [`Config`] has and the table has not.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use super::config::Config;
use super::values::Value;
use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// A setting.
pub struct Setting {
    /// Its name: section and field.
    pub name: &'static str,
    /// The option of `basin serve`, where it has one.
    pub option: Option<&'static str>,
    /// What it says, for the table in the documentation.
    pub what: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    show: fn(&Config) -> Option<String>,
}

/// One line of the table.
macro_rules! setting {
    ($first:ident $(. $rest:ident)*, $option:expr, $what:literal) => {
        Setting {
            name: concat!(stringify!($first) $(, ".", stringify!($rest))*),
            option: $option,
            what: $what,
            set: |config, text| {
                config.$first$(.$rest)* = Value::read(text)?;
                Ok(())
            },
            show: |config| config.$first$(.$rest)*.show(),
        }
    };
}

/// All settings, in the order they are told.
pub const SETTINGS: &[Setting] = &[
    setting!(log_level, Some("--log-level"), "error, warn, info, debug or trace; or `level,target=level` as in `RUST_LOG`"),
    setting!(log_format, None, "`text`, or `json` for an object a line"),
    setting!(log_requests, None, "a line for each request, of target `basin::access`"),
    setting!(region, None, "the region that signatures name and buckets are in; us-east-1 where none is given"),
    setting!(http.listen, Some("--listen"), "where S3 is served; `none` for nowhere but by HTTPS"),
    setting!(http.domains, None, "names in front of which a host names a bucket; in the environment separated by commas"),
    setting!(http.connections, None, "connections at once, over all cores, of which each takes its share"),
    setting!(http.unready_seconds, None, "when asked to stop: seconds to go on while `/health` answers 503"),
    setting!(http.drain_seconds, None, "seconds that requests under way may take after that"),
    setting!(https.listen, Some("--https"), "where S3 is served by HTTPS, too; `none` for nowhere"),
    setting!(
        https.certificate,
        Some("--certificate"),
        "file in PEM: the server's certificate, and behind it those up to one that clients know"
    ),
    setting!(https.key, Some("--key"), "file in PEM: the private key of the first certificate, without a password"),
    setting!(rdma.enabled, Some("--rdma"), "whether objects go by RDMA, too: with `--rdma off` they do not, with any device they do"),
    setting!(rdma.port, Some("--rdma-port"), "the TCP port at which queue pairs are connected; 0: that of HTTP alone"),
    setting!(rdma.device_name, Some("--rdma"), "`soft`, `soft:udp`, `soft:shm`, `soft:xdp`, or an RDMA device of the kernel"),
    setting!(rdma.interface, Some("--rdma-interface"), "the network interface of `soft:xdp`; without it the one with the address"),
    setting!(rdma.ib_port, None, "the port of a device of the kernel"),
    setting!(rdma.gid_index, None, "the index of its address in its table"),
    setting!(rdma.address, None, "the soft HCA's address; that of HTTP without it, and where that is all of them, the loopback's"),
    setting!(
        rdma.udp_port,
        None,
        "the soft HCA's UDP port; 0: any, of `soft:xdp` 4791. Of `soft:udp` with a port only the first core has RDMA"
    ),
    setting!(rdma.max_send_wr, None, "requests in a send queue at most"),
    setting!(rdma.max_recv_wr, None, "receives in a receive queue at most: requests a client may have under way"),
    setting!(
        rdma.cq_size,
        None,
        "entries of each core's completion queue: a session whose queues find no room is refused. Without it the core's own bound"
    ),
    setting!(
        rdma.max_sge,
        None,
        "pieces of memory in a work request at most; without it what the device takes: soft 4, others up to 16. 1 will do"
    ),
    setting!(rdma.session_seconds, None, "seconds that a session of the native mode lasts; its client connects anew then"),
    setting!(rdma.idle_seconds, None, "seconds after which a session that nobody uses ends; that is looked at every 15"),
    setting!(rdma.enable_zero_copy, None, "whether the device has the store's memory; if not, what goes by RDMA is copied once more"),
    setting!(metrics.listen, Some("--metrics"), "where `/metrics` and `/health` are told, to anyone; `none` for nowhere"),
    setting!(store.device, Some("DEVICE"), "file or device with the store; without it ./basin-data/store.img"),
    setting!(store.size, Some("--size"), "bytes of a file that is made"),
    setting!(store.cores, Some("--cores"), "cores that work on it"),
    setting!(store.memory, Some("--memory"), "bytes of memory for each core, the cache among them"),
    setting!(store.cache, Some("--cache"), "bytes of each core's memory for what is read often"),
    setting!(
        store.poll,
        Some("--poll"),
        "what an idle core does: `adaptive` sleeps after a while, `busy` never does, for the least latency"
    ),
    setting!(store.etag, Some("--etag"), "what ETags of objects are in buckets made from now on: `md5`, or `opaque`, which costs nothing"),
    setting!(lifecycle.interval_seconds, None, "seconds from one round through all buckets with rules to the next"),
    setting!(lifecycle.day_seconds, None, "seconds of a day of a rule; other than 86400, nothing is rounded to midnight"),
    setting!(
        encryption.keys,
        None,
        "file with the keys that objects are encrypted under; without it one beside the store, made when a key is needed first"
    ),
    setting!(
        encryption.customer_keys_without_tls,
        None,
        "whether clients of other machines may send keys of theirs (SSE-C) without TLS; those of this one may"
    ),
    setting!(auth.access_key, None, "access key of an administrator"),
    setting!(auth.secret_key, None, "its secret"),
    setting!(users, None, "users; in the environment a JSON array of them"),
];

/// Another variable for a setting: what programs that log by `tracing` are used to.
const ALIASES: [(&str, &str); 1] = [("log_level", "RUST_LOG")];
/// Variables that are no settings.
const OTHERS: [&str; 1] = ["BASIN_CONFIG"];

impl Setting {
    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("BASIN_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// Its value as a configuration file would have it, secrets as asterisks; nothing where it has none.
    pub fn shown(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }

    /// The variable it is given by, and the value. An empty one says nothing.
    fn given<'a>(&self, environment: &'a [(String, String)]) -> Option<&'a (String, String)> {
        let alias = ALIASES.iter().filter(|(name, _)| *name == self.name).map(|(_, alias)| (*alias).to_owned());
        let mut variables = std::iter::once(self.variable()).chain(alias);
        // Kubernetes tells of a service `basin-rdma` in what is called as the setting of a port.
        let is_link = |name: &str, value: &str| name.ends_with("_PORT") && (value.starts_with("tcp://") || value.starts_with("udp://"));
        let says = |name: &str, value: &str| !value.is_empty() && !is_link(name, value);
        variables.find_map(|variable| environment.iter().find(|(name, value)| *name == variable && says(name, value)))
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Usual,
    /// A file.
    File(PathBuf),
    /// A variable of the environment.
    Environment(String),
    /// An option.
    CommandLine(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Usual => f.write_str("default"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::CommandLine(option) => write!(f, "command line {option}"),
        }
    }
}

/// A configuration, and where each of its values comes from.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// By setting, as in [`SETTINGS`].
    pub origins: Vec<Origin>,
    /// Variables that look like settings and are none.
    pub strays: Vec<String>,
}

/// The variables of this process that can be settings.
///
/// # Errors
/// `Usage`: the value of a setting is no text.
pub fn environment() -> Result<Vec<(String, String)>> {
    texts(std::env::vars_os())
}

fn texts(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>> {
    let is_alias = |name: &str| ALIASES.iter().any(|(_, alias)| *alias == name);
    let mut found = Vec::new();
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with("BASIN_") && !is_alias(&name) {
            continue;
        }
        // The value may be a secret: it is not repeated. What is no setting is only named.
        let value = value.into_string().or_else(|value| {
            let is_setting = is_alias(&name) || SETTINGS.iter().any(|setting| setting.variable() == name);
            let wrong = || Error::new(ErrorKind::Usage, format!("environment {name}: settings are text, and that is not"));
            if is_setting { Err(wrong().remedy("give it a value in UTF-8")) } else { Ok(value.to_string_lossy().into_owned()) }
        })?;
        found.push((name, value));
    }
    Ok(found)
}

/// Puts a configuration together and checks it. Of the command line there are values by name of setting.
///
/// # Errors
/// `Usage`: the file cannot be read; what is wrong, where it is said, and with which line.
pub fn load(file: Option<&Path>, environment: &[(String, String)], options: &[(&'static str, String)]) -> Result<Loaded> {
    let mut origins = vec![Origin::Usual; SETTINGS.len()];
    let mut config = Config::default();
    if let Some(path) = file {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::io(format!("reading {shown}"), &error)
                .with_kind(ErrorKind::Usage)
                .remedy("name a file that is there and this user may read: --config FILE, or BASIN_CONFIG")
        })?;
        let is_said;
        (config, is_said) = parse(&text, is_yaml(path)).map_err(|wrong| Error::new(ErrorKind::Usage, format!("{shown}{wrong}")))?;
        for (setting, origin) in SETTINGS.iter().zip(&mut origins) {
            if is_said.pointer(&format!("/{}", setting.name.replace('.', "/"))).is_some() {
                *origin = Origin::File(path.into());
            }
        }
    }
    for (setting, origin) in SETTINGS.iter().zip(&mut origins) {
        let option = options.iter().find(|(name, _)| *name == setting.name);
        let (from, text) = match (option, setting.given(environment)) {
            (Some((_, text)), _) => (Origin::CommandLine(setting.option.unwrap_or(setting.name)), text),
            (None, Some((name, text))) => (Origin::Environment(name.clone()), text),
            (None, None) => continue,
        };
        (setting.set)(&mut config, text).map_err(|wrong| Error::new(ErrorKind::Usage, format!("{from}: {wrong}")))?;
        *origin = from;
    }
    config.check().map_err(|error| placed(error, &origins))?;
    Ok(Loaded { config, origins, strays: strays(environment) })
}

/// The error behind where those values are from that it names.
fn placed(error: Error, origins: &[Origin]) -> Error {
    let text = error.to_string();
    let named = SETTINGS.iter().zip(origins).filter(|(setting, _)| names(&text, setting.name)).map(|(_, origin)| origin);
    let mut places: Vec<String> = named.filter(|origin| **origin != Origin::Usual).map(Origin::to_string).collect();
    // One file may have said both.
    let mut seen = std::collections::BTreeSet::new();
    places.retain(|place| seen.insert(place.clone()));
    if places.is_empty() { error } else { error.of(&places.join(", ")) }
}

/// Whether an error names a setting. A name without a section is a word as others, but where it begins.
fn names(text: &str, name: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || matches!(char, '_' | '.' | '/');
    text.match_indices(name).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + name.len()..]);
        let is_whole = !before.ends_with(is_part) && !behind.starts_with(|char: char| char.is_alphanumeric() || char == '_');
        is_whole && (name.contains('.') || at == 0 && behind.starts_with(':'))
    })
}

/// Variables in the sections of ours that are no settings: misspelt, or another's. They are told and not refused: Kubernetes makes
/// variables of the names of services.
fn strays(environment: &[(String, String)]) -> Vec<String> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).chain(OTHERS.map(str::to_owned)).collect();
    let sections = SETTINGS.iter().filter_map(|setting| setting.name.split_once('.'));
    let mut fronts: Vec<String> = sections.map(|(section, _)| format!("BASIN_{}_", section.to_uppercase())).collect();
    fronts.push("BASIN_LOG_".into());
    let names = environment.iter().map(|(name, _)| name);
    names.filter(|name| fronts.iter().any(|front| name.starts_with(front)) && !known.contains(name)).cloned().collect()
}

/// JSON is YAML, too. Whatever has another ending, or none, is TOML.
fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|yaml| ending.eq_ignore_ascii_case(yaml)))
}

/// Reads a file's text, and what it says anything of. An error begins with the place; lines are not repeated, for there are secrets in
/// them.
fn parse(text: &str, is_yaml: bool) -> Result<(Config, serde_json::Value), String> {
    if is_yaml {
        // Of an empty file there is nothing to be made, and it says nothing.
        if text.lines().all(|line| line.trim_start().starts_with('#') || line.trim().is_empty()) {
            return Ok((Config::default(), serde_json::Value::Null));
        }
        let options = || serde_saphyr::options! { with_snippet: false };
        let wrong = |error: serde_saphyr::Error| {
            let place = error.location().map_or_else(String::new, |place| format!(":{}:{}", place.line(), place.column()));
            let told = error.without_snippet().to_string();
            let told = first_line(&told);
            // What those could do about it who call the parser.
            let end = [", set DuplicateKeyPolicy", "; use from_str"].iter().find_map(|begin| told.find(begin));
            format!("{place}: {}", &told[..end.unwrap_or(told.len())])
        };
        let config = serde_saphyr::from_str_with_options(text, options()).map_err(wrong)?;
        return Ok((config, serde_saphyr::from_str_with_options(text, options()).map_err(wrong)?));
    }
    let wrong = |error: toml::de::Error| {
        let place = error.span().map_or_else(String::new, |span| {
            let before = text.get(..span.start).unwrap_or_default();
            let column = before.chars().rev().take_while(|&char| char != '\n').count() + 1;
            format!(":{}:{column}", before.matches('\n').count() + 1)
        });
        format!("{place}: {}", error.message())
    };
    Ok((toml::from_str(text).map_err(wrong)?, toml::from_str(text).map_err(wrong)?))
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl Loaded {
    /// The configuration as a file of TOML, with where each value comes from behind it, and secrets as asterisks.
    pub fn text(&self) -> String {
        let lines: Vec<(String, &Origin)> = SETTINGS
            .iter()
            .zip(&self.origins)
            .map(|(setting, origin)| match setting.shown(&self.config) {
                Some(value) => (format!("{} = {value}", setting.name), origin),
                None => (format!("# {} = none", setting.name), origin),
            })
            .collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|&width| width <= WIDTH_MAX).max().unwrap_or(0);
        let mut text = String::new();
        for (line, origin) in lines {
            let _ = writeln!(text, "{line:<width$}  # {origin}");
        }
        for stray in &self.strays {
            let _ = writeln!(text, "# {stray} in the environment is no setting");
        }
        text
    }
}

/// Longer lines have their origin right behind them, not below the others'.
const WIDTH_MAX: usize = 60;

#[cfg(test)]
mod tests;
