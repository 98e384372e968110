//! Every setting has its variable and its line in the documentation; wrong ones are told with their place and without secrets.

use serde::Deserialize;
use serde::de::value::{Error as Plain, MapDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::*;
use crate::s3::values::HIDDEN;

/// Learns the fields of what is deserialized from it.
struct Learn<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Learn<'_> {
    type Error = Plain;

    fn deserialize_struct<V: Visitor<'de>>(self, _: &'static str, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Plain> {
        self.0.extend(fields);
        visitor.visit_map(MapDeserializer::new(std::iter::empty::<(&str, &str)>()))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Plain> {
        Err(serde::de::Error::custom("no struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Plain> for Learn<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The names of all settings that there are in `Config`.
fn fields() -> Vec<String> {
    let mut sections = Vec::new();
    Config::deserialize(Learn(&mut sections)).unwrap();
    let mut names = Vec::new();
    for section in sections {
        let mut fields = Vec::new();
        // What is no section says so; what its fields are is learned all the same.
        let _ = Config::deserialize(MapDeserializer::new([(section, Learn(&mut fields))].into_iter()));
        match &fields[..] {
            [] => names.push(section.to_owned()),
            fields => names.extend(fields.iter().map(|field| format!("{section}.{field}"))),
        }
    }
    names.sort();
    names
}

/// Of each setting a value that is not the usual one, as text.
fn another(name: &str) -> String {
    match name {
        "log_level" => "warn,basin=debug".into(),
        "log_format" => "json".into(),
        "http.listen" | "https.listen" | "metrics.listen" => format!("127.0.0.1:{}", 19_100 + name.len()),
        "http.domains" => "s3.example.com,s3.example.org".into(),
        "store.memory" => "3G".into(),
        "store.size" | "store.cache" => "300M".into(),
        "store.etag" => "opaque".into(),
        "store.poll" => "busy".into(),
        "rdma.device_name" => "soft:xdp".into(),
        "rdma.ib_port" | "rdma.gid_index" | "rdma.max_sge" => "1".into(),
        "rdma.cq_size" => "2048".into(),
        "rdma.address" => "192.0.2.1".into(),
        "auth.access_key" => "AKIAEXAMPLE".into(),
        "auth.secret_key" => "a secret of the environment".into(),
        "users" => r#"[{"name":"a","access_keys":[{"access_key":"AKIAOTHER","secret_key":"another secret"}]}]"#.into(),
        name => {
            let usual = SETTINGS.iter().find(|setting| setting.name == name).unwrap().shown(&Config::default());
            match usual.as_deref().map(|text| (text, text.parse::<u64>())) {
                Some((_, Ok(number))) => (number + 3).to_string(),
                Some(("false", _)) => "true".into(),
                Some(("true", _)) => "false".into(),
                _ => format!("some-{}", name.replace(['.', '_'], "-")),
            }
        }
    }
}

fn variables(names: &[&str]) -> Vec<(String, String)> {
    let named = SETTINGS.iter().filter(|setting| names.contains(&setting.name));
    named.map(|setting| (setting.variable(), another(setting.name))).collect()
}

#[test]
fn every_field_is_in_the_table_and_has_its_variable() {
    let mut named: Vec<String> = SETTINGS.iter().map(|setting| setting.name.to_owned()).collect();
    named.sort();
    assert_eq!(named, fields());
    let port = "rdma.ib_port";
    let without = |left: &[&str]| SETTINGS.iter().map(|setting| setting.name).filter(|name| !left.contains(name)).collect::<Vec<_>>();
    // An interface and a UDP port are soft:xdp's, and a port of InfiniBand's a device of the kernel's.
    let mut of_kernel = variables(&without(&["rdma.interface", "rdma.udp_port"]));
    of_kernel.iter_mut().filter(|(name, _)| name == "BASIN_RDMA_DEVICE_NAME").for_each(|(_, value)| "mlx5_7".clone_into(value));
    assert_eq!(load(None, &of_kernel, &[]).unwrap().config.rdma.ib_port, Some(1));
    let all = without(&[port, "rdma.gid_index"]);
    let loaded = load(None, &variables(&all), &[]).unwrap();
    assert!(loaded.strays.is_empty(), "{:?}", loaded.strays);
    for (setting, origin) in SETTINGS.iter().zip(&loaded.origins).filter(|(setting, _)| all.contains(&setting.name)) {
        assert_eq!(*origin, Origin::Environment(setting.variable()));
        let (shown, usual) = (setting.shown(&loaded.config), setting.shown(&Config::default()));
        assert_ne!(shown, usual, "{} has another value", setting.name);
    }
    assert_eq!(SETTINGS.iter().find(|setting| setting.name == "http.unready_seconds").unwrap().variable(), "BASIN_HTTP_UNREADY_SECONDS");
}

/// What Kubernetes says of a service `basin-rdma` has the name of a setting.
#[test]
fn services_are_no_settings() {
    let links = [("BASIN_RDMA_PORT", "tcp://10.0.0.1:9100"), ("BASIN_RDMA_UDP_PORT", "udp://10.0.0.1:4791")];
    let links = links.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let loaded = load(None, &links, &[]).unwrap();
    assert_eq!((loaded.config.rdma.port, loaded.config.rdma.udp_port), (9100, 0));
    // Nothing else is passed over in silence.
    let address = [("BASIN_HTTP_LISTEN".to_owned(), "tcp://0.0.0.0:9000".to_owned())];
    assert!(load(None, &address, &[]).unwrap_err().to_string().contains("BASIN_HTTP_LISTEN"));
}

#[test]
fn every_setting_is_in_the_documentation() {
    let text = include_str!("../../../docs/OPERATING.md");
    for setting in SETTINGS {
        let usual = setting.shown(&Config::default()).unwrap_or_default();
        let option = setting.option.map_or_else(String::new, |option| format!("`{option}`"));
        let usual = if usual.is_empty() { String::new() } else { format!("`{usual}`") };
        let line = format!("| `{}` | `{}` | {option} | {usual} | {} |", setting.name, setting.variable(), setting.what);
        assert!(text.contains(&line), "docs/OPERATING.md lacks:\n{line}");
    }
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(name);
    std::fs::write(&path, text).unwrap();
    (place, path)
}

#[test]
fn the_command_line_is_over_the_environment_and_that_over_the_file() {
    let text = "region = \"here\"\n[http]\nlisten = \"127.0.0.1:1\"\nconnections = 11\n[store]\nsize = 73400320\n";
    let (_place, path) = file("basin.toml", text);
    let environment = [("BASIN_HTTP_LISTEN", "127.0.0.1:2"), ("BASIN_HTTP_CONNECTIONS", "22"), ("BASIN_REGION", "")];
    let environment: Vec<_> = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let loaded = load(Some(&path), &environment, &[("http.listen", "127.0.0.1:3".into())]).unwrap();
    let origin = |name: &str| &loaded.origins[SETTINGS.iter().position(|setting| setting.name == name).unwrap()];
    assert_eq!((loaded.config.http.listen.0.unwrap().port(), loaded.config.http.connections), (3, 22));
    assert_eq!(*origin("http.listen"), Origin::CommandLine("--listen"));
    assert_eq!(*origin("http.connections"), Origin::Environment("BASIN_HTTP_CONNECTIONS".into()));
    assert_eq!(*origin("region"), Origin::File(path.clone()), "an empty variable says nothing");
    assert_eq!(*origin("store.size"), Origin::File(path.clone()));
    assert_eq!(*origin("store.cores"), Origin::Usual);
    let text = loaded.text();
    assert!(text.contains("http.listen = \"127.0.0.1:3\"") && text.contains("# command line --listen"), "{text}");
    assert!(text.contains("store.size = \"70M\""), "{text}");
}

#[test]
fn toml_yaml_and_json_say_the_same() {
    let toml = "log_format = \"json\"\n[http]\nlisten = \"127.0.0.1:9001\"\ndomains = [\"s3.example.com\"]\n[store]\nmemory = \"1G\"\n\
        [[users]]\nname = \"main\"\naccess_keys = [{ access_key = \"AKIAEXAMPLE\", secret_key = \"12345678\" }]\n\
        policies = [{ Version = \"2012-10-17\", Statement = [{ Effect = \"Allow\", Action = \"s3:*\", Resource = \"*\" }] }]\n";
    let yaml = "# of us\nlog_format: json\nhttp:\n  listen: 127.0.0.1:9001\n  domains: [s3.example.com]\nstore:\n  memory: 1G\n\
        users:\n  - name: main\n    access_keys:\n      - access_key: AKIAEXAMPLE\n        secret_key: \"12345678\"\n    \
        policies:\n      - Version: \"2012-10-17\"\n        Statement:\n          - { Effect: Allow, Action: \"s3:*\", Resource: \"*\" }\n";
    let json = r#"{"log_format":"json","http":{"listen":"127.0.0.1:9001","domains":["s3.example.com"]},"store":{"memory":"1G"},
        "users":[{"name":"main","access_keys":[{"access_key":"AKIAEXAMPLE","secret_key":"12345678"}],"policies":[{"Version":"2012-10-17",
        "Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}]}]}"#;
    let text = |name: &str, text: &str| {
        let (_place, path) = file(name, text);
        let loaded = load(Some(&path), &[], &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(loaded.config.users[0].access_keys[0].secret_key, "12345678", "{name}");
        loaded.text().replace(path.to_str().unwrap(), "FILE")
    };
    let told = text("basin.toml", toml);
    assert_eq!(told, text("basin.yaml", yaml));
    assert_eq!(told, text("basin.YML", yaml));
    assert_eq!(told, text("basin.json", json));
    for nothing in ["", "# nothing\n\n"] {
        let (_place, path) = file("basin.yaml", nothing);
        assert!(load(Some(&path), &[], &[]).unwrap().origins.iter().all(|origin| *origin == Origin::Usual));
    }
}

#[test]
fn what_is_told_can_be_read_again_and_has_no_secret() {
    // A port and an index are for devices of the kernel, an interface for soft:xdp.
    let of_kernel = ["rdma.ib_port", "rdma.gid_index"];
    let all: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).filter(|name| !of_kernel.contains(name)).collect();
    for names in [&[][..], &all] {
        let loaded = load(None, &variables(names), &[]).unwrap();
        let text = loaded.text();
        assert!(!text.contains("secret of the environment") && !text.contains("another secret"), "{text}");
        // The secrets are to be filled in: what stands for them is none.
        let (_place, path) = file("told.toml", &text);
        assert_eq!(load(Some(&path), &[], &[]).is_err(), text.contains(HIDDEN), "{text}");
        let text = text.replace(HIDDEN, "a secret of its own");
        let (_place, path) = file("told.toml", &text);
        let again = load(Some(&path), &[], &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for setting in SETTINGS {
            assert_eq!(setting.shown(&again.config), setting.shown(&loaded.config), "{}", setting.name);
        }
    }
}

/// What is said of a file that is wrong.
fn refused(name: &str, text: &str) -> String {
    let (_place, path) = file(name, text);
    let error = load(Some(&path), &[], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    error.to_string().split_once(name).expect("the file is named").1.to_owned()
}

#[test]
fn wrong_files_are_refused_with_name_and_line() {
    for (name, text, place, what) in [
        ("a.toml", "[http]\nlisten = \"127.0.0.1:1\"\nport = 1\n", ":3:1:", "`port`"),
        ("a.yaml", "http:\n  listen: 127.0.0.1:1\n  port: 1\n", ":3:", "`port`"),
        ("a.toml", "\n[htpp]\n", ":2:", "`htpp`"),
        ("a.yaml", "\nhtpp: {}\n", ":2:", "`htpp`"),
        ("a.toml", "[http]\nlisten = \"nowhere\"\n", ":2:", "socket address"),
        ("a.yaml", "http:\n  listen: nowhere\n", ":2:", "socket address"),
        ("a.toml", "[store]\ncores = \"two\"\n", ":2:", "two"),
        ("a.yaml", "store:\n  cores: two\n", ":2:", ""),
        ("a.toml", "[store]\nmemory = \"much\"\n", ":2:", "'much'"),
        ("a.yaml", "store:\n  memory: much\n", ":2:", "'much'"),
        ("a.toml", "[store\n", ":1:", ""),
        ("a.yaml", "store: [\n", ":", ""),
        ("a.toml", "[store]\ncores = 1\ncores = 2\n", ":3:", "duplicate key"),
        ("a.yaml", "store:\n  cores: 1\n  cores: 2\n", ":3:", "cores"),
        ("a.toml", "log_format = \"xml\"\n", ":1:", "xml"),
    ] {
        let said = refused(name, text);
        assert!(said.starts_with(place) && said.contains(what), "{name} {text:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn no_error_repeats_a_secret() {
    for (name, text) in [
        ("a.toml", "[auth]\naccess_key = \"AKIAEXAMPLE\"\nsecret_key = 98765432109\n"),
        ("a.toml", "[auth]\naccess_key = \"AKIAEXAMPLE\"\nsecret_key = [\"98765432109\"]\n"),
        ("a.toml", "[auth]\nsecret_key = \"98765432109\" nonsense\n"),
        ("a.toml", "[auth]\nsecret_key = \"98765432109\n"),
        ("a.toml", "[[users]]\nname = \"a\"\naccess_keys = [{ access_key = \"A\", secret_key = \"98765432109\", c = 1 }]\n"),
        ("a.toml", "[[users]]\nname = \"a\"\naccess_keys = [{ access_key = \"AKIAEXAMPLE\", secret_key = 98765432109 }]\n"),
        ("a.yaml", "auth:\n  access_key: AKIAEXAMPLE\n  secret_key: [\"98765432109\"]\n"),
        ("a.yaml", "auth:\n  secret_key: \"98765432109\" nonsense\n"),
        ("a.yaml", "auth:\n  secret_key: \"98765432109\n"),
        ("a.yaml", "users:\n  - name: a\n    access_keys: [{ access_key: A, secret_key: \"98765432109\", c: 1 }]\n"),
        ("a.yaml", "users:\n  - name: a\n    access_keys: [{ access_key: A, secret_key: { a: \"98765432109\" } }]\n"),
    ] {
        let said = refused(name, text);
        assert!(!said.contains("98765432109"), "{said}");
    }
}

#[test]
fn a_server_without_http_is_told_so_that_it_can_be_read_again() {
    let text = "[http]\nlisten = \"none\"\n[https]\nlisten = \"[::]:9443\"\ncertificate = \"/etc/a.pem\"\nkey = \"/etc/b.pem\"\n";
    let (_place, path) = file("basin.toml", text);
    let told = load(Some(&path), &[], &[]).unwrap().text();
    assert!(told.contains("http.listen = \"none\"") && told.contains("https.key = \"/etc/b.pem\""), "{told}");
    let (_place, path) = file("told.toml", &told);
    let again = load(Some(&path), &[], &[]).unwrap();
    assert_eq!((again.config.http.listen.0, again.config.https.listen.0), (None, Some("[::]:9443".parse().unwrap())));
    let by_variable =
        load(Some(&path), &[("BASIN_HTTP_LISTEN".into(), "127.0.0.1:9001".into())], &[("https.listen", "none".into())]).unwrap();
    assert_eq!((by_variable.config.http.listen.to_string().as_str(), by_variable.config.https.listen.0), ("127.0.0.1:9001", None));
}

#[test]
fn a_wrong_variable_or_option_is_named() {
    let variable = [("BASIN_STORE_CORES".to_owned(), "many".to_owned())];
    let error = load(None, &variable, &[]).unwrap_err().to_string();
    assert!(error.contains("BASIN_STORE_CORES") && error.contains("'many'"), "{error}");
    let error = load(None, &[], &[("http.listen", "here".into())]).unwrap_err().to_string();
    assert!(error.contains("--listen") && error.contains("'here'"), "{error}");
    let error = load(Some(Path::new("/nowhere/basin.toml")), &[], &[]).unwrap_err();
    assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("/nowhere/basin.toml"), "{error}");
}

/// What is found when all values are together comes from somewhere, too.
#[test]
fn a_value_that_cannot_be_is_told_with_where_it_is_from() {
    let (_place, path) = file("basin.toml", "[store]\nmemory = \"65M\"\n");
    let of_file = path.display().to_string();
    let refused = |file: Option<&Path>, environment: &[(&str, &str)], options: &[(&'static str, &str)]| {
        let environment: Vec<_> = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let options: Vec<_> = options.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let error = load(file, &environment, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        error.to_string()
    };
    for (file, environment, options, says) in [
        (None, &[("RUST_LOG", "mycrate")][..], &[][..], "environment RUST_LOG: log_level: \"mycrate\" is no level".to_owned()),
        (Some(path.as_path()), &[], &[], format!("{of_file}: store.memory: ")),
        // Of two values one may be the usual one; otherwise both are named.
        (None, &[("BASIN_STORE_CACHE", "1G")], &[], "environment BASIN_STORE_CACHE: store.memory: ".to_owned()),
        (
            Some(path.as_path()),
            &[("BASIN_STORE_CACHE", "1G")],
            &[("http.listen", "127.0.0.1:1")],
            format!("{of_file}, environment BASIN_STORE_CACHE: store.memory: "),
        ),
        (None, &[], &[("store.cores", "0")], "command line --cores: store.cores: 0 cores".to_owned()),
        (None, &[("BASIN_RDMA_GID_INDEX", "1")], &[], "environment BASIN_RDMA_GID_INDEX: rdma.gid_index: ".to_owned()),
        (None, &[("BASIN_AUTH_ACCESS_KEY", "AKIA")], &[], "environment BASIN_AUTH_ACCESS_KEY: auth: ".to_owned()),
        (None, &[("BASIN_USERS", r#"[{"name":"a b"}]"#)], &[], "environment BASIN_USERS: users: ".to_owned()),
    ] {
        let said = refused(file, environment, options);
        assert!(said.starts_with(&says), "{says:?}: {said}");
    }
    assert!(names("https.key: x", "https.key") && names("of which store.cache takes", "store.cache"));
    assert!(!names("/etc/https.key", "https.key") && !names("rdma.port_number", "rdma.port") && !names("other users: x", "users"));
}

#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;
    let variable = |name: &str, value: &[u8]| (OsString::from(name), OsString::from_vec(value.to_vec()));
    let text = variable("BASIN_STORE_CORES", b"1");
    for name in ["BASIN_STORE_DEVICE", "BASIN_AUTH_SECRET_KEY", "RUST_LOG"] {
        let error = texts([text.clone(), variable(name, b"/data/st\xf6re.img")].into_iter()).unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains(name) && !error.to_string().contains("re.img"), "{error}");
    }
    let others = [variable("BASIN_HTTP_COLOUR", b"\xf6"), variable("HOME", b"\xf6"), text];
    let found = texts(others.into_iter()).unwrap();
    let expected = [("BASIN_HTTP_COLOUR", "\u{fffd}"), ("BASIN_STORE_CORES", "1")];
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn a_misspelt_variable_is_told_and_nothing_else() {
    let named = |name: &str| (name.to_owned(), "1".to_owned());
    let environment = ["BASIN_HTTP_LISTN", "BASIN_LOG_COLOUR", "BASIN_CONFIG", "BASIN_PORT", "BASIN_S3_ENDPOINT"].map(named);
    let loaded = load(None, &environment, &[]).unwrap();
    assert_eq!(loaded.strays, ["BASIN_HTTP_LISTN", "BASIN_LOG_COLOUR"]);
    assert!(loaded.text().contains("# BASIN_HTTP_LISTN in the environment is no setting"));
    let by_alias = load(None, &[("RUST_LOG".to_owned(), "debug".to_owned())], &[]).unwrap();
    assert_eq!(by_alias.config.log_level.0, "debug");
    assert_eq!(by_alias.origins[0], Origin::Environment("RUST_LOG".into()));
}
