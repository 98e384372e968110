//! Fetches Debian packages into a cache, with apt's lists and archives in directories of our own: the host's stay as they are.
//!
//! A directory of packages already fetched may be named by `BASIN_VM_PACKAGES`; then no archive is asked.

use super::index::{self, Offer, Wanted};
use super::pins::{Kernel, Pin, Suite};
use crate::child;
use crate::packages::quietly;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The variable that names a directory of packages.
const OFFLINE: &str = "BASIN_VM_PACKAGES";
/// One call of apt-get.
const LIMIT: Duration = Duration::from_secs(600);
/// Debian's archive keys, which apt checks the suites with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The cache, and what it said while working.
pub struct Store {
    cache: PathBuf,
    offline: Option<PathBuf>,
    updated: HashSet<Suite>,
}

/// A package on this machine.
#[derive(Debug)]
pub struct Package {
    pub wanted: Wanted,
    pub path: PathBuf,
}

impl Package {
    /// A line for the record of what a guest is made of.
    pub fn record(&self) -> String {
        let Wanted { suite, package, version, sha256, pinned } = &self.wanted;
        format!("{package} {version} {} {sha256} {}", suite.name(), if *pinned { "pinned" } else { "NOT-PINNED" })
    }
}

impl Store {
    pub fn new(cache: &Path) -> Store {
        Store { cache: cache.to_path_buf(), offline: std::env::var_os(OFFLINE).map(PathBuf::from), updated: HashSet::new() }
    }

    /// The packages of `pins`.
    pub fn tools(&mut self, pins: &[Pin]) -> Result<Vec<Package>, String> {
        pins.iter().map(|pin| self.pinned(pin)).collect()
    }

    /// The packages of a kernel: the pinned ones, or else the newest the suite has, said aloud.
    pub fn kernel(&mut self, kernel: &Kernel) -> Result<Vec<Package>, String> {
        let cached: Vec<Package> = kernel.pins.iter().map_while(|pin| self.cached(&pin.into())).collect();
        if cached.len() == kernel.pins.len() {
            return Ok(cached);
        }
        let image = &kernel.pins[0];
        if self.offline.is_some() || self.offers(image.suite, image.package)?.iter().any(|offer| offer.version == image.version) {
            return kernel.pins.iter().map(|pin| self.pinned(pin)).collect();
        }
        let suite = image.suite;
        let names = child::output(self.apt("apt-cache", suite).args(["pkgnames", "linux-image-"]))?;
        let names: Vec<&str> = names.lines().collect();
        let name = index::stand_in(kernel, &names)
            .ok_or_else(|| format!("{} has no kernel at all; is {} reachable?", suite.name(), suite.archive()))?;
        say(&format!("{} has left {}; taking its newest, {name}", image.package, suite.name()));
        let offers = self.offers(suite, name)?;
        let offer = offers.iter().max_by(|a, b| index::compare(&a.version, &b.version)).ok_or_else(|| format!("no package {name}"))?;
        let mut names = vec![name.to_owned()];
        names.extend(index::parts(offer).into_iter().map(str::to_owned));
        names
            .iter()
            .map(|name| {
                let offers = self.offers(suite, name)?;
                let wanted = Wanted::newest(suite, &offers).ok_or_else(|| format!("{} has no package {name}", suite.name()))?;
                self.fetched(wanted)
            })
            .collect()
    }

    fn pinned(&mut self, pin: &Pin) -> Result<Package, String> {
        if let Some(package) = self.cached(&pin.into()) {
            return Ok(package);
        }
        if let Some(directory) = &self.offline {
            return another(directory, pin);
        }
        let offers = self.offers(pin.suite, pin.package)?;
        let wanted = index::choose(pin, &offers)?;
        if !wanted.pinned {
            say(&format!("{} {} has left {}; taking {}", pin.package, pin.version, pin.suite.name(), wanted.version));
        }
        self.fetched(wanted)
    }

    /// What is here already, and is what it should be.
    fn cached(&self, wanted: &Wanted) -> Option<Package> {
        let start = format!("{}_{}_", wanted.package, wanted.version.replace(':', "%3a"));
        let places = [Some(self.debs()), self.offline.clone()];
        let path = places
            .iter()
            .flatten()
            .flat_map(|place| named(place, &start))
            .find(|path| sha256(path).is_ok_and(|sum| sum == wanted.sha256))?;
        Some(Package { wanted: wanted.clone(), path })
    }

    fn fetched(&mut self, wanted: Wanted) -> Result<Package, String> {
        if let Some(package) = self.cached(&wanted) {
            return Ok(package);
        }
        say(&format!("fetching {} {} from {}", wanted.package, wanted.version, wanted.suite.name()));
        fs::create_dir_all(self.debs()).map_err(|error| format!("cannot make {}: {error}", self.debs().display()))?;
        let mut command = self.apt("apt-get", wanted.suite);
        command.current_dir(self.debs()).args(["-q", "download", &format!("{}={}", wanted.package, wanted.version)]);
        quietly(&mut command, LIMIT, say)?;
        self.cached(&wanted)
            .ok_or_else(|| format!("what apt-get fetched as {} {} has not the SHA-256 {}", wanted.package, wanted.version, wanted.sha256))
    }

    /// What `suite` has of a package. Its lists are brought up to date once in a process.
    fn offers(&mut self, suite: Suite, package: &str) -> Result<Vec<Offer>, String> {
        if self.updated.insert(suite) {
            self.update(suite)?;
        }
        // apt-cache fails where it knows no such package: then there are no offers.
        Ok(child::output(self.apt("apt-cache", suite).args(["show", package])).map(|text| index::offers(&text)).unwrap_or_default())
    }

    fn update(&self, suite: Suite) -> Result<(), String> {
        if Command::new("apt-get").arg("--version").output().is_err() {
            return Err(format!(
                "the lab's packages are fetched by apt-get, which is not here; name a directory that has them by {OFFLINE}"
            ));
        }
        if !Path::new(KEYRING).exists() {
            return Err(format!("{KEYRING} is missing; install debian-archive-keyring, or name a directory of packages by {OFFLINE}"));
        }
        let state = self.state(suite);
        for directory in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(directory)).map_err(|error| format!("cannot make {}: {error}", state.display()))?;
        }
        let source = format!("deb [signed-by={KEYRING}] {} {} main\n", suite.archive(), suite.name());
        let files = [("sources.list", source.as_str()), ("status", "")];
        for (name, text) in files {
            fs::write(state.join(name), text).map_err(|error| format!("cannot write {}: {error}", state.join(name).display()))?;
        }
        quietly(self.apt("apt-get", suite).args(["-q", "update"]), LIMIT, say)
    }

    /// `program` of apt with everything it writes below our cache, and one suite to read.
    fn apt(&self, program: &str, suite: Suite) -> Command {
        let state = self.state(suite);
        let mut command = Command::new(program);
        for (name, value) in [
            ("Dir::State", state.join("state")),
            ("Dir::State::status", state.join("status")),
            ("Dir::Cache", state.join("cache")),
            ("Dir::Etc::sourcelist", state.join("sources.list")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
        ] {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        }
        // The sandbox user may not write into a user's cache; lists of translations and of desktop programs are of no use here.
        for option in [
            "APT::Architecture=amd64",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        ] {
            command.args(["-o", option]);
        }
        command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn state(&self, suite: Suite) -> PathBuf {
        self.cache.join("apt").join(suite.name())
    }

    fn debs(&self) -> PathBuf {
        self.cache.join("packages")
    }
}

/// Where the pinned file is not in `directory`: the newest version of the package that is.
fn another(directory: &Path, pin: &Pin) -> Result<Package, String> {
    let path = named(directory, &format!("{}_", pin.package))
        .into_iter()
        .max_by(|a, b| index::compare(&a.to_string_lossy(), &b.to_string_lossy()))
        .ok_or_else(|| format!("{} ({OFFLINE}) has no {} {}", directory.display(), pin.package, pin.version))?;
    let version = child::output(Command::new("dpkg-deb").arg("-f").arg(&path).arg("Version"))?.trim().to_owned();
    say(&format!("{} is not in {}; taking {version}", pin.version, directory.display()));
    let wanted = Wanted { suite: pin.suite, package: pin.package.into(), version, sha256: sha256(&path)?, pinned: false };
    Ok(Package { wanted, path })
}

/// Package files of a directory whose names begin with `start`.
fn named(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let fits = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)) && path.extension().is_some_and(|end| end == "deb")
    };
    entries.map(|entry| entry.path()).filter(fits).collect()
}

/// The file's SHA-256 in hexadecimal.
fn sha256(path: &Path) -> Result<String, String> {
    let text = child::output(Command::new("sha256sum").arg("--").arg(path))?;
    Ok(text.trim_start_matches('\\').split_whitespace().next().unwrap_or("").to_owned())
}

/// A word to the user, beside what the guest prints.
pub fn say(line: &str) {
    eprintln!("[vm] {line}");
}
