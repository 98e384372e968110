//! Which packages the lab is made of: Debian's own, pinned by suite, version and SHA-256.
//!
//! To move a pin, take the version and hash from `apt-cache show PACKAGE` of that suite; both change together.

/// One package at one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub suite: Suite,
    pub package: &'static str,
    pub version: &'static str,
    pub sha256: &'static str,
}

/// Where a package comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    Bookworm,
    BookwormSecurity,
    TrixieBackports,
}

impl Suite {
    pub fn name(self) -> &'static str {
        match self {
            Suite::Bookworm => "bookworm",
            Suite::BookwormSecurity => "bookworm-security",
            Suite::TrixieBackports => "trixie-backports",
        }
    }

    /// The archive the suite belongs to.
    pub fn archive(self) -> &'static str {
        match self {
            Suite::BookwormSecurity => "http://deb.debian.org/debian-security",
            Suite::Bookworm | Suite::TrixieBackports => "http://deb.debian.org/debian",
        }
    }
}

/// A kernel of the lab.
#[derive(Debug)]
pub struct Kernel {
    /// What the user calls it.
    pub name: &'static str,
    /// Why it is here.
    pub about: &'static str,
    /// The image first, then what Debian splits off it.
    pub pins: &'static [Pin],
}

/// The kernels, the oldest first.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        name: "6.12",
        about: "the floor: Debian 12's security kernel",
        pins: &[Pin {
            suite: Suite::BookwormSecurity,
            package: "linux-image-6.12.117+deb12-amd64",
            version: "6.12.117-1~deb12u1",
            sha256: "803d36a7cda13355ae8152122470288b2636f19f1cb58162dd9d8b408af9b1b4",
        }],
    },
    Kernel {
        name: "6.18",
        about: "the default: zero-copy AF_XDP on virtio-net, io_uring zero-copy receive",
        pins: &[Pin {
            suite: Suite::TrixieBackports,
            package: "linux-image-6.18.15+deb13-amd64",
            version: "6.18.15-1~bpo13+1",
            sha256: "d38a7af6260782a47cd615ad717347a528b45f076245b4deabb3f1ecf8459186",
        }],
    },
    Kernel {
        name: "7.2",
        about: "the newest: rxe across network namespaces",
        pins: &[
            Pin {
                suite: Suite::TrixieBackports,
                package: "linux-image-7.2.12+deb13-amd64",
                version: "7.2.12-1~bpo13+1",
                sha256: "0efc0802eb386957afb023b58838d6af58bd3fdf7d2ae22be7a55bf0877a9275",
            },
            Pin {
                suite: Suite::TrixieBackports,
                package: "linux-base-7.2.12+deb13-amd64",
                version: "7.2.12-1~bpo13+1",
                sha256: "51c6a66bf190239492b16354c6212969d597220c3dbec1deacdab9dc151916f0",
            },
            Pin {
                suite: Suite::TrixieBackports,
                package: "linux-binary-7.2.12+deb13-amd64",
                version: "7.2.12-1~bpo13+1",
                sha256: "0d916c7f1310a7cb0567f235785d1c4511d894eb95e9810a2bc1f67e7ec18c2f",
            },
            Pin {
                suite: Suite::TrixieBackports,
                package: "linux-modules-7.2.12+deb13-amd64",
                version: "7.2.12-1~bpo13+1",
                sha256: "abd8aad34e82ae541ec596eafa9ac84bbcddf943c5de051d330516c3dff395d6",
            },
        ],
    },
];

/// The kernel that runs when none is named.
pub const DEFAULT_KERNEL: &str = "6.18";

/// The kernel the user names.
pub fn kernel(name: &str) -> Result<&'static Kernel, String> {
    KERNELS.iter().find(|kernel| kernel.name == name).ok_or_else(|| {
        let known: Vec<String> = KERNELS.iter().map(|kernel| format!("{} ({})", kernel.name, kernel.about)).collect();
        format!("the lab has no kernel '{name}'; it has {}", known.join(", "))
    })
}

const fn bookworm(package: &'static str, version: &'static str, sha256: &'static str) -> Pin {
    Pin { suite: Suite::Bookworm, package, version, sha256 }
}

/// What the guest runs beside the host's own programs, and what builds its initramfs (busybox-static, kmod).
pub const TOOLS: &[Pin] = &[
    bookworm("busybox-static", "1:1.35.0-4+deb12u1+b1", "3d3fdbe91d4660c873e14b092c213fe81c1da6362daa236eb25d0171eb108744"),
    bookworm("kmod", "30+20221128-1", "e21ae247204fe8a14ac29a5f510227d45b41cd3c41059cc942f2502d25765165"),
    bookworm("rdma-core", "44.0-2", "c2451f269d558cc92f05d8280b08b25cd3e03a6a4916c4c91005cb9618458439"),
    bookworm("ibverbs-utils", "44.0-2", "610423d011908d21d8bbda185af96d63cd8b3b8a90ab187e0992253eae249049"),
    bookworm("rdmacm-utils", "44.0-2", "5f1a69772052fe5df1730a7511d069fda506a395cd5defd744d9c5626f22d57b"),
    bookworm("perftest", "4.5+0.17-1", "d5bb8f968762295021e89548b983953787047676a406cc38f98559cc5332fcdb"),
    bookworm("ibverbs-providers", "44.0-2", "3c9907fd96a4ae7effb5faa178bd3648344a521f6bcca2c23c9f2dd214cf1192"),
    bookworm("libibverbs1", "44.0-2", "35054815259fee46173240254246d03b673a5cd5c528aaac96fd15ac428a8d59"),
    bookworm("librdmacm1", "44.0-2", "16b18625834371d023b81477823074ea0d34c478d58dbef3f01107984f47d034"),
    bookworm("libibumad3", "44.0-2", "0297f4f6a29d7870ea3c8c85b2b2bddce2b665a6e7b17114dce82a5087442a32"),
    bookworm("libnl-3-200", "3.7.0-0.2+b1", "d1fc3e9eb8e79b4c96b0a64c3d8c9e068ae2f665cab71bd19f417ffd0453a890"),
    bookworm("libnl-route-3-200", "3.7.0-0.2+b1", "0fdcc425ae2982788c085c76a7cb0eda3e3db99d41bd1ce56082ee18e9f1e21f"),
    bookworm("libnl-genl-3-200", "3.7.0-0.2+b1", "1f7b198f5d87659f815140ed41c1517b2fe41ba62c5b15b0bafdcc2d61801871"),
    bookworm("libpci3", "1:3.9.0-4", "75519023eb1f0cdc556709b109765e2ea36f6e5c66b8ca94cec45843b3e3bee7"),
    bookworm("pci.ids", "0.0~2023.04.11-1", "eac5f889128f3f53100be7f16f9a7dd5aade7499fa9571f53a6c1cfa0bf4565d"),
    bookworm("nvme-cli", "2.4+really2.3-3", "2ccd90667466894f13b343818a64b47af72ce905cfe34ef583763f1d4877a4b2"),
    bookworm("libnvme1", "1.3-1+deb12u1", "5f64622b7d8024293bc07919abcd554ed7c62110c1fac5fcc4f595275153e8de"),
    bookworm("uuid-runtime", "2.38.1-5+deb12u3", "23ca0bb9bd4793fae15fc001e1f0daa765b83f3cb80e331602c1592cb9d80d1b"),
    bookworm("libjson-c5", "0.16-2", "d0e1ed8637d1c26b9720f6057d6355f18378bba5cc2553e459d1632783c00d70"),
    bookworm("libdbus-1-3", "1.14.10-1~deb12u1", "18ee0ce5fab9f7b671e87da1e9fa18660e36e04a3402f24bdb8635e0ba1d35f6"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_whole() {
        for pin in KERNELS.iter().flat_map(|kernel| kernel.pins).chain(TOOLS) {
            assert!(pin.sha256.len() == 64 && pin.sha256.bytes().all(|b| b.is_ascii_hexdigit()), "{}", pin.package);
            assert!(!pin.version.is_empty() && !pin.package.contains('_'), "{}", pin.package);
        }
        for kernel in KERNELS {
            assert!(kernel.pins[0].package.starts_with(&format!("linux-image-{}.", kernel.name)), "{}", kernel.name);
        }
    }

    #[test]
    fn kernels_are_found_by_name() {
        assert_eq!(kernel(DEFAULT_KERNEL).expect("the default is one of them").name, DEFAULT_KERNEL);
        let error = kernel("5.4").expect_err("far too old");
        assert!(error.contains("6.12") && error.contains("7.2"), "{error}");
    }
}
