//! A server without memory for messages: answers under way go on, and what they hold comes back.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use basin::base::Nanos;
use basin::device::rdma::{Access, Qp, QpConfig};
use basin::mem::Window;
use basin::s3::client::http::{Ask as HttpAsk, Http};
use basin::s3::client::native::Ground;
use basin::wire::s3::Memory;
use basin::wire::s3::frame::{Answer, Body, Method, Request, Sum};

use super::raw::{connect_for, connect_of};
use super::server::Server;
use super::{client, free_address, http, is_lab, metric, pattern, room, run_of, signer};

/// Bytes of a message, and of an object whose answer fills one.
const MESSAGE: usize = 64 << 10;
const OBJECT: usize = 60_000;
/// Requests at once. Of the server's 64 MiB for messages half is for receives, of which each of two users has his share. The first one's
/// messages and answers take so much of the rest that there is room for the messages of the other one's tasks, and not for all of their
/// answers beside them.
const DEPTHS: [u32; 2] = [215, 187];
/// Answers that the other one has in messages that the session's own task is to let go of.
const AT_ONCE: u32 = 40;

#[test]
fn a_session_that_waits_for_memory_lets_go_of_what_it_has() {
    if is_lab() {
        return;
    }
    let metrics = free_address();
    let variables = [("BASIN_METRICS_LISTEN", metrics.to_string()), ("BASIN_RDMA_ENABLE_ZERO_COPY", "false".to_owned())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    for _ in 0..3 {
        let server = Server::start_at(1, "256M", "soft", &variables);
        let (address, was_quick) = (server.address, Rc::new(Cell::new(false)));
        let told = was_quick.clone();
        client("soft", async move |ground| told.set(exhausted(&ground, address, metrics).await));
        if was_quick.get() {
            return;
        }
        println!("a sum was sent too late: a slow machine");
    }
    panic!("never so quick that a sum comes in time");
}

/// A client's end, which has its answers when it posts receives for them.
struct End {
    qp: Qp,
    /// Of an object whose answer is known, and of the same one where it is not: then it is a task's, which has the message, too.
    targets: [&'static str; 2],
    asked: u32,
    answered: u32,
}

impl End {
    async fn new(ground: &Ground, front: &mut Http, (user, depth): (&str, u32), targets: [&'static str; 2]) -> End {
        let config = QpConfig { send_depth: 300, recv_depth: 300, ..QpConfig::default() };
        let qp = connect_of(ground, front, user, &config, &format!("1;receive={MESSAGE};depth={depth}")).await;
        End { qp, targets, asked: 0, answered: 0 }
    }

    async fn ask(&mut self, ground: &Ground, is_known: bool) {
        let target = self.targets[usize::from(!is_known)];
        let window = Memory { address: 0, bytes: 0, rkey: 0 };
        let id = self.asked;
        let request = Request {
            method: Method::Get,
            id,
            window,
            list: &[],
            crc: 0,
            is_summed_later: false,
            target: target.as_bytes(),
            fields: b"",
            body: Body::None,
        };
        let mut run = room(ground, request.frame_bytes());
        request.emit(run.as_mut_slice());
        drop(self.qp.submit_send(run, None).unwrap());
        self.asked += 1;
        // One message each.
        ground.core.sleep(Nanos::from_millis(2)).await;
    }

    /// Takes so many answers, each of which is right and alone in its message.
    async fn take(&mut self, ground: &Ground, count: u32, content: &[u8]) {
        for _ in 0..count {
            let receiving = self.qp.submit_recv(room(ground, MESSAGE)).unwrap();
            let message = receiving.await.into_result().unwrap_or_else(|failed| panic!("answer {}: {:?}", self.answered, failed.outcome));
            let (answer, _) = Answer::parse(message.as_slice()).unwrap();
            assert!(answer.status == 200 && matches!(answer.body, Body::Inline(bytes) if *bytes == *content), "{}", answer.status);
            self.answered += 1;
        }
    }
}

/// A client whose sums come behind their requests.
struct Late {
    qp: Qp,
    window: Window,
    crc: u64,
}

impl Late {
    async fn new(ground: &Ground, front: &mut Http, content: &[u8]) -> Late {
        let qp = connect_for(ground, front, &QpConfig::default(), &format!("1;receive={MESSAGE};depth=4")).await;
        let window = qp.grant(run_of(ground, content), Access::READ).await.unwrap();
        Late { qp, window, crc: basin::mem::crc64(content) }
    }

    /// One message: a request to put what is in the window, and sums.
    fn send(&self, ground: &Ground, id: Option<u32>, sums: &[u32]) {
        let window = Memory { address: self.window.address(), bytes: self.window.len().into(), rkey: self.window.rkey() };
        let (method, target, body) = (Method::Put, &b"/memory/late"[..], Body::Granted);
        let request = |id| Request { method, id, window, list: &[], crc: 0, is_summed_later: true, target, fields: b"", body };
        let mut message = vec![0; 1024];
        let mut at = id.map_or(0, |id| request(id).emit(&mut message));
        sums.iter().for_each(|&id| at += Sum { id, crc: self.crc }.emit(&mut message[at..]));
        drop(self.qp.submit_send(run_of(ground, &message[..at]), None).unwrap());
    }

    async fn answer(&self, ground: &Ground) -> (u32, u16) {
        let message = self.qp.submit_recv(room(ground, MESSAGE)).unwrap().await.into_result().unwrap();
        let (answer, _) = Answer::parse(message.as_slice()).unwrap();
        (answer.id, answer.status)
    }
}

/// A sum is waited for 10 s behind its request: `false` where the machine took longer.
async fn exhausted(ground: &Ground, address: SocketAddr, metrics: SocketAddr) -> bool {
    const QUICK: Duration = Duration::from_secs(9);
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/memory", &[], b"").await.0, 200);
    let content = pattern(OBJECT, 1);
    assert_eq!(http(&mut front, "PUT", "/memory/one", &[], &content).await.0, 200);
    for (path, body) in [("/memory-too", &[][..]), ("/memory-too/one", &content)] {
        let ask = HttpAsk { method: "PUT", path, query: "", fields: &[], body };
        assert_eq!(front.ask(&signer("alt"), ask).await.unwrap().0.status(), 200);
    }
    let late = Late::new(ground, &mut front, &content).await;
    let first = Instant::now();
    late.send(ground, Some(1), &[]);
    let mut hog = End::new(ground, &mut front, ("main", DEPTHS[0]), ["/memory/one", "/memory/one?x-id=GetObject"]).await;
    let mut end = End::new(ground, &mut front, ("alt", DEPTHS[1]), ["/memory-too/one", "/memory-too/one?x-id=GetObject"]).await;
    // From now on its answer is known.
    end.ask(ground, true).await;
    end.take(ground, 1, &content).await;
    for _ in 0..DEPTHS[0] {
        hog.ask(ground, false).await;
    }
    for at in 0..DEPTHS[1] {
        end.ask(ground, at < AT_ONCE).await;
    }
    let begun = || metric(metrics, "basin_s3_rdma_frames_total{way=\"received\"}");
    let mut stands_at = begun();
    loop {
        ground.core.sleep(Nanos::from_millis(200)).await;
        let now = begun();
        if now == stands_at {
            break;
        }
        stands_at = now;
    }
    assert!(stands_at < u64::from(hog.asked + end.asked), "{stands_at} requests were begun: there is memory for all");
    // A sum is taken behind a request that has to wait for memory: it sets some free.
    late.send(ground, Some(2), &[]);
    ground.core.sleep(Nanos::from_millis(20)).await;
    let is_in_time = first.elapsed() < QUICK;
    late.send(ground, None, &[1]);
    let said = late.answer(ground).await;
    if !is_in_time {
        return false;
    }
    // One that is not taken before its time is up is a 400.
    assert_eq!(said, (1, 200));
    stands_at = begun();
    // What is taken now was sent by the session's own task, and that it has memory again lets it go on.
    let since = Instant::now();
    end.take(ground, AT_ONCE, &content).await;
    while begun() == stands_at {
        assert!(since.elapsed() < Duration::from_secs(30), "a session waits for memory that it has itself");
        ground.core.sleep(Nanos::from_millis(10)).await;
    }
    end.take(ground, DEPTHS[1] - AT_ONCE, &content).await;
    hog.take(ground, DEPTHS[0], &content).await;
    late.send(ground, None, &[2]);
    assert_eq!(late.answer(ground).await, (2, 200));
    for id in 3..20 {
        late.send(ground, Some(id), &[id]);
        assert_eq!(late.answer(ground).await, (id, 200));
    }
    drop(ground.hca.revoke(late.window).await);
    // Both are as good as before.
    for end in [&mut hog, &mut end] {
        end.ask(ground, true).await;
        end.take(ground, 1, &content).await;
    }
    true
}
