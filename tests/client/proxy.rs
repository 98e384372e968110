//! What stands between a client and a server, and does what it is told to what passes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is done to a connection.
#[derive(Clone, Debug)]
pub enum Evil {
    /// The byte at this place behind the head of each answer is changed.
    FlipAnswer(u64),
    /// The byte at this place of all that a client says.
    FlipRequest(u64),
    /// So many connections end after this many bytes of answers.
    CutAnswers(u64, u64),
    /// So many bytes of answers pass in each connection, and nothing behind them; the connection stays.
    HoldAnswers(u64),
    /// So many requests whose first line has this in it arrive, and nobody hears of it.
    Swallow(&'static str, u64),
}

/// Where it listens, and how often it has done it.
pub struct Proxy {
    pub address: SocketAddr,
    pub done: Arc<AtomicU64>,
}

impl Proxy {
    pub fn begin(server: SocketAddr, evil: Evil) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, done) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let counted = done.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
                let (evil, done) = (evil.clone(), counted.clone());
                std::thread::spawn(move || pass(&client, &server, &evil, &done));
            }
        });
        Proxy { address, done }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn count(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }
}

/// Whether it is one of the first so many, and counts it then.
fn is_one_of(most: u64, done: &AtomicU64) -> bool {
    done.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| (count < most).then_some(count + 1)).is_ok()
}

fn pass(client: &TcpStream, server: &TcpStream, evil: &Evil, done: &Arc<AtomicU64>) {
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (there, there_done) = (evil.clone(), done.clone());
    // Whether what was said is to be answered.
    let deaf = Arc::new(AtomicU64::new(0));
    let told = deaf.clone();
    std::thread::spawn(move || {
        let (mut room, mut passed) = (vec![0; 64 << 10], 0u64);
        while let Ok(count @ 1..) = from.read(&mut room) {
            let bytes = &mut room[..count];
            match &there {
                Evil::FlipRequest(at) if (passed..passed + count as u64).contains(at) => {
                    bytes[(at - passed) as usize] ^= 1;
                    there_done.fetch_add(1, Ordering::SeqCst);
                }
                Evil::Swallow(word, most) => {
                    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
                    let is_it = String::from_utf8_lossy(line).contains(word);
                    if is_it && is_one_of(*most, &there_done) {
                        told.store(1, Ordering::SeqCst);
                    }
                }
                _ => {}
            }
            passed += count as u64;
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let (mut room, mut passed, mut body) = (vec![0; 64 << 10], 0u64, 0u64);
    while let Ok(count @ 1..) = from.read(&mut room) {
        let bytes = &mut room[..count];
        if deaf.load(Ordering::SeqCst) == 1 {
            // It was done: the answer is here. Nobody hears of it.
            break;
        }
        if let Evil::FlipAnswer(at) = evil {
            // An answer begins a read, as this server writes them.
            let begins = if bytes.starts_with(b"HTTP/1.1") {
                bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|end| end + 4)
            } else {
                None
            };
            let start = if let Some(start) = begins {
                body = 0;
                start
            } else {
                0
            };
            let here = (count - start) as u64;
            if (body..body + here).contains(at) {
                bytes[start + (at - body) as usize] ^= 1;
                done.fetch_add(1, Ordering::SeqCst);
            }
            body += here;
        }
        passed += count as u64;
        if let Evil::CutAnswers(times, after) = evil
            && passed > *after
            && is_one_of(*times, done)
        {
            let _ = to.write_all(&bytes[..count / 2]);
            break;
        }
        if let Evil::HoldAnswers(most) = evil
            && passed > *most
        {
            continue;
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
