//! A server and its client: started, watched, and judged by what the client says of each flow.

use super::table;
use crate::child::{Ended, Group, piped, shown};
use crate::packages::how;
use crate::step::Steps;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The server creates and zero-writes its file before it listens.
const LISTEN: Duration = Duration::from_secs(90);
const CLIENT: Duration = Duration::from_secs(300);
/// From the client's end to the server's, told to serve once.
const LAST: Duration = Duration::from_secs(20);
/// Lines of the server shown when something failed.
const TAIL: usize = 30;

pub struct Pair {
    pub server: Command,
    pub client: Command,
    /// TCP port the server listens on.
    pub port: u16,
}

/// What the client must say of the flows.
pub struct Expected<'a> {
    pub verified: &'a [&'a str],
    pub skipped: &'a [&'a str],
    /// Its exit code.
    pub code: i32,
}

impl Pair {
    /// Runs both to their end. Gives the names of the flows that were verified, or why it is not as expected.
    pub fn run(mut self, steps: &Steps, expected: &Expected) -> Result<Vec<String>, String> {
        println!("  {}", steps.paint("2", &format!("$ {} &", shown(&self.server))));
        let said = Arc::new(Mutex::new(String::new()));
        let result = self.watch(steps, expected, &said);
        if result.is_err() {
            let said = said.lock().expect("no holder of this lock panics");
            let lines: Vec<&str> = said.lines().collect();
            println!("  the server's last lines:");
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                println!("    {line}");
            }
        }
        result
    }

    fn watch(&mut self, steps: &Steps, expected: &Expected, said: &Arc<Mutex<String>>) -> Result<Vec<String>, String> {
        let (mut server, reader) = piped(&mut self.server)?;
        collect(reader, said.clone());
        listening(&mut server, self.port)?;

        println!("  {}", steps.paint("2", &format!("$ {}", shown(&self.client))));
        // Its progress goes straight to the terminal.
        let mut client = Group::spawn(self.client.stdout(Stdio::piped()).stderr(Stdio::inherit()))?;
        let json = Arc::new(Mutex::new(String::new()));
        let reading = client.child.stdout.take().map(|stdout| collect(stdout, json.clone()));
        let ended = client.wait(CLIENT)?;
        if let Some(reading) = reading {
            let _ = reading.join();
        }
        let json = json.lock().expect("no holder of this lock panics").clone();
        let flows = table::parse(&json);
        table::print(&flows);
        if matches!(ended, Ended::TimedOut) {
            return Err(format!("the client {}", how(&ended, CLIENT)));
        }
        judge(&flows, expected)?;
        if ended.code() != Some(expected.code) {
            return Err(format!("the client's exit code is {:?}, expected {}", ended.code(), expected.code));
        }
        let last = server.wait(LAST)?;
        if !last.success() {
            return Err(format!("the server {}", how(&last, LAST)));
        }
        Ok(expected.verified.iter().map(|flow| (*flow).to_owned()).collect())
    }
}

fn collect(mut stream: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            into.lock().expect("no holder of this lock panics").push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    })
}

/// Waits until the server's network namespace has a listener on `port`.
fn listening(server: &mut Group, port: u16) -> Result<(), String> {
    let deadline = Instant::now() + LISTEN;
    let pid = server.child.id();
    while Instant::now() < deadline {
        let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
        if tables.iter().flat_map(|table| table.lines()).any(|line| is_listener(line, port)) {
            return Ok(());
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("the server ended before it listened ({status})"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(format!("the server did not listen on TCP port {port} within {} s", LISTEN.as_secs()))
}

/// Whether a line of /proc/net/tcp is a listener on `port`: `sl local_address rem_address st …` with state 0A.
fn is_listener(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().and_then(|address| address.rsplit(':').next());
    local.and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port) && words.nth(1) == Some("0A")
}

fn judge(flows: &[Value], expected: &Expected) -> Result<(), String> {
    let of = |name: &str| flows.iter().find(|flow| table::name(flow) == name);
    let mut wrong = Vec::new();
    for name in expected.verified {
        match of(name) {
            Some(flow) if flow["verified"] == Value::Bool(true) && flow["skipped_reason"].is_null() => {}
            Some(flow) if !flow["skipped_reason"].is_null() => wrong.push(format!("{name} was skipped")),
            Some(_) => wrong.push(format!("{name} was not verified")),
            None => wrong.push(format!("{name} was not reported")),
        }
    }
    for name in expected.skipped {
        match of(name) {
            Some(flow) if flow["skipped_reason"].is_string() => {}
            Some(_) => wrong.push(format!("{name} was not skipped, though it needs AF_XDP")),
            None => wrong.push(format!("{name} was not reported as skipped")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_told_from_connections() {
        let listener = "   0: 00000000:270F 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1 0 100 0 0 10 0";
        assert!(is_listener(listener, 9999));
        assert!(!is_listener(listener, 9998));
        assert!(!is_listener(&listener.replace(" 0A ", " 01 "), 9999));
    }

    #[test]
    fn a_flow_must_be_verified_or_skipped_as_expected() {
        let flows = table::parse(
            "{\"flow\":\"rdma-to-storage\",\"verified\":true,\"skipped_reason\":null}\n\
             {\"flow\":\"network-to-storage\",\"verified\":false,\"skipped_reason\":\"needs CAP_NET_RAW\"}",
        );
        let judged = |verified: &[&str], skipped: &[&str]| judge(&flows, &Expected { verified, skipped, code: 0 });
        assert_eq!(judged(&["rdma-to-storage"], &["network-to-storage"]), Ok(()));
        assert!(judged(&["network-to-storage"], &[]).unwrap_err().contains("was skipped"));
        assert!(judged(&[], &["rdma-to-storage"]).unwrap_err().contains("was not skipped"));
        assert!(judged(&["rdma-to-rdma"], &[]).unwrap_err().contains("not reported"));
    }
}
