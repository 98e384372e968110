//! `cargo xtask vm pair`: two guests on one wire, raw frames over a pair of sockets, so that no privileges are needed. Where a guest does
//! not take its frames the other one waits: over UDP what was more than the host's buffer for a socket was lost, which on a busy host is
//! some fifth of a burst of 200.

use super::devices::{Kind, Net};
use super::{MachineOptions, build, code, fetch, guest, image, pins, tell_of_stand_ins};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

#[derive(clap::Args)]
pub struct Options {
    /// The kernel of both guests.
    #[arg(long, default_value = pins::DEFAULT_KERNEL)]
    kernel: String,
    /// Another kernel for the client.
    #[arg(long)]
    client_kernel: Option<String>,
    #[command(flatten)]
    machine: MachineOptions,
    /// Shell text for the server, which must make the file $BASIN_PAIR/ready; it may wait for $BASIN_PAIR/done, made after the client.
    #[arg(long)]
    server: String,
    /// Shell text for the client, started when the server is ready.
    #[arg(long)]
    client: String,
}

/// Addresses of the two, server first; the same prefix lengths for both.
const ADDRESSES: [[&str; 2]; 2] = [["10.77.0.1", "fd77::1"], ["10.77.0.2", "fd77::2"]];
/// Where the guests see the shared directory.
const SHARED: &str = "/run/pair";

pub fn run(root: &Path, options: &Options) -> Result<ExitCode, String> {
    if !options.machine.net.is_empty() {
        return Err("the wire of a pair is its own; leave --net out".into());
    }
    let client_kernel = options.client_kernel.as_ref().unwrap_or(&options.kernel);
    build(root, &format!("{} {}", options.server, options.client), &options.machine)?;
    let images = [image::image(root, pins::kernel(&options.kernel)?)?, image::image(root, pins::kernel(client_kernel)?)?];
    images.iter().for_each(|image| tell_of_stand_ins(&image.record));

    let shared = root.join("target/vm").join(format!("pair-{}", std::process::id()));
    fs::create_dir_all(&shared).map_err(|error| format!("cannot make {}: {error}", shared.display()))?;
    let gone = shared.clone();
    let _undo = crate::undo::Undo::with(move || drop(fs::remove_dir_all(gone)));

    let (server_end, client_end) = UnixDatagram::pair().map_err(|error| format!("cannot make the wire: {error}"))?;
    // The client boots beside the server and waits inside.
    let wait = format!(
        "until [ -e {SHARED}/ready ]; do\n\
         [ -e {SHARED}/gone ] && echo 'the server has ended without being ready' && exit 1\n\
         sleep 0.1\ndone\n{}",
        options.client
    );
    let commands = [options.server.clone(), wait];
    let names = ["server", "client"];
    // An end is held here no longer than its guest runs: the other one is not to wait for a guest that is gone.
    let run = |side: usize, end: UnixDatagram| {
        let other = 1 - side;
        let mut boot = options.machine.boot(root, commands[side].clone());
        boot.net = vec![Net {
            kind: Kind::Wire,
            mac: Some(format!("52:54:00:ba:51:1{side}")),
            addresses: vec![format!("{}/24", ADDRESSES[side][0]), format!("{}/64", ADDRESSES[side][1])],
            mtu: None,
            model: "virtio-net-pci".into(),
        }];
        boot.pair = Some(shared.clone());
        boot.wire = Some(Arc::new(end));
        let variables = [
            ("BASIN_PAIR", SHARED),
            ("BASIN_SELF", ADDRESSES[side][0]),
            ("BASIN_PEER", ADDRESSES[other][0]),
            ("BASIN_SELF6", ADDRESSES[side][1]),
            ("BASIN_PEER6", ADDRESSES[other][1]),
        ];
        boot.environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let verdict = guest::run(root, &images[side], &boot, |line| println!("{}| {line}", names[side]));
        drop(boot);
        // If it cannot be written, the other end waits for its time-out.
        let _ = fs::write(shared.join(["gone", "done"][side]), "");
        verdict
    };
    let (server, client) = thread::scope(|scope| {
        let server = scope.spawn(|| run(0, server_end));
        let client = run(1, client_end);
        (server.join(), client)
    });
    let server = server.map_err(|_| "the server's thread panicked".to_owned())??;
    let client = client?;
    fetch::say(&format!("server: {}, client: {}", server.code, client.code));
    Ok(code(if client.code != 0 { client.code } else { server.code }))
}
