//! The programs behind `cargo xtask bench net`: a sender, the peer that stores what it sends the ordinary way, and a sink. Basin's
//! side is `unified-rdma-test … server` itself. `cargo xtask bench net` starts them in network namespaces and compares.

mod receiver;
mod sender;
mod sink;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "The programs behind `cargo xtask bench net`")]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Subcommand)]
enum Role {
    /// Send numbered datagrams at a rate and say what became of them.
    Send(sender::Options),
    /// Receive with recvmmsg and store with io_uring.
    Receive(receiver::Options),
    /// Drop everything that arrives on an interface.
    Sink(sink::Options),
}

fn main() -> Result<(), String> {
    match Arguments::parse().role {
        Some(Role::Send(options)) => sender::run(&options),
        Some(Role::Receive(options)) => receiver::run(&options),
        Some(Role::Sink(options)) => sink::run(&options),
        None => {
            println!("SKIPPED: `cargo xtask bench net` runs it");
            Ok(())
        }
    }
}

/// The error of the system call that just failed.
fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}
