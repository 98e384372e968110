//! A server of the program `basin` and scripts that are told of it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to make its store and to answer, and how long nothing may be seen of it meanwhile. What a store is made of is
/// written before that is so, and it is all of it: a disk may have much of what others wrote to do first.
const STARTED: Duration = Duration::from_secs(600);
const SILENT: Duration = Duration::from_secs(120);

/// How long a script may run: several times what the longest needs.
const SCRIPT_SECONDS: &str = "420";
/// With files of 5 GiB, or as many operations as somebody has asked for.
const LONG_SECONDS: &str = "7200";

const MAIN_ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// What stands behind the name of a bucket in a host.
const DOMAIN: &str = "s3.test";
const ALT_ID: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

/// Ports of servers: below those that the kernel gives to connections, one of which could have a server's while that is started anew.
const PORTS: std::ops::Range<u16> = 12_000..22_000;

/// An address of loopback where nobody listens now.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run side by side begin at different places.
    let first = std::process::id().wrapping_mul(101);
    loop {
        let next = first.wrapping_add(u32::from(NEXT.fetch_add(1, Ordering::Relaxed)));
        let port = PORTS.start + (next % PORTS.len() as u32) as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr().unwrap();
        }
    }
}

/// Whether somebody answers there. The kernel takes connections for a server that was killed until it has ended its rings, some time after
/// the process.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"HEAD / HTTP/1.1\r\nHost: basin\r\nConnection: close\r\n\r\n")?;
        stream.read(&mut [0; 16])
    };
    ask().is_ok_and(|bytes| bytes > 0)
}

/// Sends signals to a server.
#[derive(Clone, Copy)]
pub struct Signals {
    pub pid: u32,
}

impl Signals {
    /// Sends one by its name: `KILL`.
    pub fn send(self, signal: &str) {
        assert!(Command::new("kill").args(["-s", signal, &self.pid.to_string()]).status().unwrap().success());
    }
}

/// A server with two users, which ends with this.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub place: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Server {
    pub fn start(cores: usize) -> Server {
        Server::start_of(cores, "1G")
    }

    /// With a store of that size.
    pub fn start_of(cores: usize, size: &str) -> Server {
        Server::start_with(cores, size, "soft")
    }

    /// With that RDMA device.
    pub fn start_with(cores: usize, size: &str, rdma: &str) -> Server {
        Server::start_at(cores, size, rdma, &[])
    }

    /// With further settings, by their variables.
    pub fn start_at(cores: usize, size: &str, rdma: &str, more: &[(&str, &str)]) -> Server {
        // A guest of the VM lab has what is there over 9p, and memory at /tmp.
        let place = if std::env::var_os("BASIN_LAB").is_some() { "/tmp" } else { env!("CARGO_TARGET_TMPDIR") };
        let place = tempfile::tempdir_in(place).unwrap();
        let address = free_address();
        let user = |name: &str, id: &str, display: &str| {
            format!(
                "[[users]]\nname = \"{name}\"\nid = \"{id}\"\ndisplay_name = \"{display}\"\nemail = \"{name}@example.com\"\n\
                 access_keys = [{{ access_key = \"KEYOF{}\", secret_key = \"the secret of {name}/+=\" }}]\n",
                name.to_uppercase()
            )
        };
        let text = format!(
            "[http]\nlisten = \"{address}\"\ndomains = [\"{DOMAIN}\"]\n[store]\ndevice = \"{}\"\nsize = \"{size}\"\nmemory = \"192M\"\n\
             cache = \"32M\"\ncores = {cores}\n[lifecycle]\ninterval_seconds = 1\nday_seconds = 1\n{}{}",
            place.path().join("store.img").display(),
            user("main", MAIN_ID, "M. Tester"),
            user("alt", ALT_ID, "A. Tester")
        );
        let config = place.path().join("basin.toml");
        std::fs::write(&config, text).unwrap();
        // Queue pairs are connected at the port for HTTP alone: several of these run at once.
        let usual = [("BASIN_RDMA_PORT", "0"), ("BASIN_RDMA_DEVICE_NAME", rdma)];
        let variables = usual.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>();
        let mut server = Server { child: Server::run(&config, &variables), address, place, variables };
        server.wait();
        server
    }

    /// As from a shell with the usual limit of descriptors: more connections than that are the server's own business.
    fn run(config: &Path, variables: &[(String, String)]) -> Child {
        let mut command = Command::new("sh");
        // Its log goes where `SERVER_LOG` says.
        let script = "ulimit -S -n 1024; [ -z \"$SERVER_LOG\" ] || exec 2>>\"$SERVER_LOG\"; exec \"$0\" serve --config \"$1\"";
        command.args(["-c", script, env!("CARGO_BIN_EXE_basin")]).arg(config);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn wait(&mut self) {
        let begun = Instant::now();
        let (mut made, mut grown) = (0, begun);
        // It listens at one after the other.
        let of = |(name, value): &(String, String)| (name == "BASIN_METRICS_LISTEN").then(|| value.parse::<SocketAddr>().unwrap());
        let metrics = self.variables.iter().find_map(of);
        while !(answers(self.address) && metrics.is_none_or(answers)) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server for {} has ended: {ended:?}", self.address);
            let bytes = self.store_bytes();
            if bytes != made {
                (made, grown) = (bytes, Instant::now());
            }
            let goes_on = begun.elapsed() < STARTED && grown.elapsed() < SILENT;
            assert!(goes_on, "the server does not answer at {}, and its store is of {bytes} bytes", self.address);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Bytes of its store, or of what is being made one.
    fn store_bytes(&self) -> u64 {
        let of = |name: &str| std::fs::metadata(self.place.path().join(name)).map_or(0, |file| file.len());
        of("store.img") + of("store.img.new")
    }

    /// What sends it signals from wherever that is done.
    pub fn signals(&self) -> Signals {
        Signals { pid: self.child.id() }
    }

    /// Sends a signal, waits, and starts it again on the same store.
    pub fn restart(&mut self, signal: &str) {
        self.signals().send(signal);
        self.child.wait().unwrap();
        self.child = Server::run(&self.place.path().join("basin.toml"), &self.variables);
        self.wait();
    }

    /// A script of this directory that is told of it.
    pub fn command(&self, python: &Path, script: &str, options: &[&str]) -> Command {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s3").join(script);
        let mut command = bounded(python);
        command.arg(path).args(options).env("BASIN_S3_ENDPOINT", format!("http://{}", self.address));
        command.env("BASIN_S3_DOMAIN", DOMAIN).env("BASIN_S3_PID", self.child.id().to_string());
        for (name, id, display) in [("main", MAIN_ID, "M. Tester"), ("alt", ALT_ID, "A. Tester")] {
            let upper = name.to_uppercase();
            command.env(format!("BASIN_S3_{upper}_KEY"), format!("KEYOF{upper}"));
            command.env(format!("BASIN_S3_{upper}_SECRET"), format!("the secret of {name}/+="));
            command.env(format!("BASIN_S3_{upper}_ID"), id);
            command.env(format!("BASIN_S3_{upper}_NAME"), display);
            command.env(format!("BASIN_S3_{upper}_EMAIL"), format!("{name}@example.com"));
        }
        command
    }

    /// Runs a script of this directory against it.
    pub fn script(&self, python: &Path, script: &str, options: &[&str]) {
        let output = self.command(python, script, options).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script} failed:\n{}", failures(&text));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone where a test has ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that ends with an error before it holds everything up.
pub fn bounded(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    let seconds = if is_full_day() || std::env::var_os("BASIN_SOAK").is_some() { LONG_SECONDS } else { SCRIPT_SECONDS };
    command.args(["--kill-after=5", seconds]).arg(program);
    command
}

pub fn is_full_day() -> bool {
    std::env::var("BASIN_DAY").is_ok_and(|value| value == "full")
}

pub fn failures(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("ok ")).collect::<Vec<_>>().join("\n")
}
