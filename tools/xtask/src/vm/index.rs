//! What a package index says, and the choice of one version from it. Pure: `apt-cache` prints, this reads.

use super::pins::{Kernel, Pin, Suite};
use std::cmp::Ordering;

/// A version an index offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub package: String,
    pub version: String,
    pub sha256: String,
    /// Names of the packages it depends on.
    pub depends: Vec<String>,
}

/// A package to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub suite: Suite,
    pub package: String,
    pub version: String,
    pub sha256: String,
    /// Whether this is what the pin says, or what the suite has instead.
    pub pinned: bool,
}

impl From<&Pin> for Wanted {
    fn from(pin: &Pin) -> Wanted {
        let Pin { suite, package, version, sha256 } = *pin;
        Wanted { suite, package: package.into(), version: version.into(), sha256: sha256.into(), pinned: true }
    }
}

impl Wanted {
    /// The newest of `offers`, which no pin names.
    pub fn newest(suite: Suite, offers: &[Offer]) -> Option<Wanted> {
        let offer = offers.iter().max_by(|a, b| compare(&a.version, &b.version))?.clone();
        Some(Wanted { suite, package: offer.package, version: offer.version, sha256: offer.sha256, pinned: false })
    }
}

/// Reads the stanzas `apt-cache show` prints (deb-control(5)).
pub fn offers(text: &str) -> Vec<Offer> {
    text.split("\n\n")
        .filter_map(|stanza| {
            let field = |name: &str| {
                stanza.lines().find_map(|line| line.split_once(':').filter(|(key, _)| *key == name).map(|(_, value)| value.trim()))
            };
            let depends = field("Depends").unwrap_or("").split([',', '|']);
            Some(Offer {
                package: field("Package")?.to_owned(),
                version: field("Version")?.to_owned(),
                sha256: field("SHA256")?.to_owned(),
                depends: depends.filter_map(|part| part.split_whitespace().next()).map(str::to_owned).collect(),
            })
        })
        .collect()
}

/// The pinned version if the suite still has it, else its newest. A pinned version with another hash is an error: it was replaced.
pub fn choose(pin: &Pin, offers: &[Offer]) -> Result<Wanted, String> {
    let ours: Vec<Offer> = offers.iter().filter(|offer| offer.package == pin.package).cloned().collect();
    match ours.iter().find(|offer| offer.version == pin.version) {
        Some(offer) if offer.sha256 == pin.sha256 => Ok(pin.into()),
        Some(offer) => Err(format!(
            "{} {} in {} has the SHA-256 {}, the pin says {}: find out why before you change tools/xtask/src/vm/pins.rs",
            pin.package,
            pin.version,
            pin.suite.name(),
            offer.sha256,
            pin.sha256
        )),
        None => Wanted::newest(pin.suite, &ours).ok_or_else(|| format!("{} has no package {}", pin.suite.name(), pin.package)),
    }
}

/// The image package that stands in for a kernel whose pinned one has left the suite: the newest of its series, else the newest of all.
pub fn stand_in<'a>(kernel: &Kernel, names: &[&'a str]) -> Option<&'a str> {
    let newest = |series: &str| {
        let prefix = format!("linux-image-{series}");
        names.iter().copied().filter(|name| name.starts_with(&prefix) && is_image(name)).max_by(|a, b| compare(a, b))
    };
    newest(&format!("{}.", kernel.name)).or_else(|| newest(""))
}

/// Whether this is a signed image of the general flavour: `linux-image-6.18.15+deb13-amd64`, and no cloud, rt, unsigned or debug one.
fn is_image(name: &str) -> bool {
    let numbers = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    name.strip_prefix("linux-image-")
        .and_then(|rest| rest.strip_suffix("-amd64"))
        .and_then(|rest| rest.split_once("+deb"))
        .is_some_and(|(version, release)| numbers(version) && numbers(release))
}

/// What an image package is split into, beside itself.
pub fn parts(image: &Offer) -> Vec<&str> {
    let part = |name: &&str| ["linux-base-", "linux-binary-", "linux-modules-"].iter().any(|start| name.starts_with(start));
    image.depends.iter().map(String::as_str).filter(part).collect()
}

/// Debian's order of versions (deb-version(7)), for versions whose epochs are written alike.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (letters_a, letters_b) = (run(&mut a, |c| !c.is_ascii_digit()), run(&mut b, |c| !c.is_ascii_digit()));
        // '~' sorts before the end, the end before letters, letters before everything else.
        let weight = |c: Option<char>| match c {
            Some('~') => -1,
            None => 0,
            Some(c) if c.is_ascii_alphabetic() => c as i32,
            Some(c) => c as i32 + 256,
        };
        for at in 0..letters_a.len().max(letters_b.len()) {
            let order = weight(letters_a.chars().nth(at)).cmp(&weight(letters_b.chars().nth(at)));
            if order != Ordering::Equal {
                return order;
            }
        }
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let order = number(run(&mut a, |c| c.is_ascii_digit())).cmp(&number(run(&mut b, |c| c.is_ascii_digit())));
        if order != Ordering::Equal || (a.is_empty() && b.is_empty()) {
            return order;
        }
    }
}

/// Takes the longest start of `text` that holds only what `belongs`.
fn run<'a>(text: &mut &'a str, belongs: impl Fn(char) -> bool) -> &'a str {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    let (taken, rest) = text.split_at(end);
    *text = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::super::pins;
    use super::*;

    const SHOWN: &str = "Package: kmod\nVersion: 30-1\nDepends: libc6 (>= 2.34), liblzma5 | liblzma4,\n libx\nSHA256: aa\n\
                         Description: x\n y\n\n\
                         Package: kmod\nVersion: 30-2~bpo1\nSHA256: bb\n";

    const PIN: Pin = Pin { suite: Suite::Bookworm, package: "kmod", version: "30-1", sha256: "aa" };

    #[test]
    fn stanzas_are_read() {
        let offers = offers(SHOWN);
        assert_eq!(offers.len(), 2);
        assert_eq!((offers[0].package.as_str(), offers[0].version.as_str(), offers[0].sha256.as_str()), ("kmod", "30-1", "aa"));
        assert_eq!(offers[0].depends, ["libc6", "liblzma5", "liblzma4"]);
        assert!(super::offers("Package: broken\n").is_empty());
    }

    #[test]
    fn the_pin_wins_over_newer_versions() {
        let chosen = choose(&PIN, &offers(SHOWN)).expect("it is there");
        assert_eq!((chosen.version.as_str(), chosen.pinned), ("30-1", true));
    }

    #[test]
    fn without_the_pin_the_newest_is_taken() {
        let chosen = choose(&Pin { version: "29-1", ..PIN }, &offers(SHOWN)).expect("there are others");
        assert_eq!((chosen.version.as_str(), chosen.sha256.as_str(), chosen.pinned), ("30-2~bpo1", "bb", false));
        assert!(choose(&Pin { package: "other", ..PIN }, &offers(SHOWN)).is_err());
    }

    #[test]
    fn a_replaced_package_is_refused() {
        let error = choose(&Pin { sha256: "cc", ..PIN }, &offers(SHOWN)).expect_err("the hash differs");
        assert!(error.contains("kmod 30-1") && error.contains("aa"), "{error}");
    }

    #[test]
    fn versions_sort_as_in_debian() {
        for (less, more) in [
            ("6.18.9-1", "6.18.15-1"),
            ("6.18.15-1~bpo13+1", "6.18.15-1"),
            ("30-2~bpo1", "30-2"),
            ("1.0", "1.0a"),
            ("1.0a", "1.0+b1"),
            ("6.12.90+deb12", "6.12.90+deb12.1"),
        ] {
            assert_eq!((compare(less, more), compare(more, less)), (Ordering::Less, Ordering::Greater), "{less} {more}");
        }
        assert_eq!(compare("1:2.0-1", "1:2.0-1"), Ordering::Equal);
    }

    #[test]
    fn a_kernel_has_a_stand_in() {
        let names = [
            "linux-image-6.18.9+deb13-amd64",
            "linux-image-6.18.16+deb13-amd64",
            "linux-image-6.18.17+deb13-cloud-amd64",
            "linux-image-6.18.17+deb13-amd64-dbg",
            "linux-image-6.18.17+deb13-amd64-unsigned",
            "linux-image-7.2.6+deb13-amd64",
            "linux-image-amd64",
        ];
        let kernel = |name| pins::kernel(name).expect("it is in the list");
        assert_eq!(stand_in(kernel("6.18"), &names), Some("linux-image-6.18.16+deb13-amd64"));
        assert_eq!(stand_in(kernel("6.12"), &names), Some("linux-image-7.2.6+deb13-amd64"));
        assert_eq!(stand_in(kernel("6.12"), &["linux-image-amd64"]), None);
    }

    #[test]
    fn a_split_kernel_names_its_parts() {
        let text = "Package: linux-image-7\nVersion: 7\nSHA256: aa\n\
                    Depends: kmod, linux-base-7 (= 7), linux-binary-7 (= 7), linux-modules-7 (= 7)";
        assert_eq!(parts(&offers(text)[0]), ["linux-base-7", "linux-binary-7", "linux-modules-7"]);
    }
}
