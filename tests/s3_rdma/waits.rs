//! Who waits for an answer: how long, and what becomes of others when he does not any more.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use basin::base::Nanos;
use basin::reactor::Task;
use basin::s3::client::native::{Answered, Ask, Ground, Native};
use basin::wire::s3::frame::Method;

use super::server::Signals;
use super::{TERMS, ask, client, is_lab, pattern, put, room, run_of, server_on, signer};

const SHORT: Nanos = Nanos::from_millis(300);
/// What a request that takes as long as [`SHORT`] may take on a machine that is busy.
const SHORTLY: Duration = Duration::from_secs(15);

/// A server that stands still until this is dropped.
struct Stopped(Signals);

impl Stopped {
    fn new(signals: Signals) -> Stopped {
        signals.send("STOP");
        let stopped = Stopped(signals);
        let is_still = || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", signals.pid)).unwrap();
            threads.into_iter().all(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap().contains(") T "))
        };
        while !is_still() {
            std::thread::sleep(Duration::from_millis(1));
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.send("CONT");
    }
}

/// Runs with a session on a server of its own, which has the object `/waits/one`.
fn with_a_session<R: Future<Output = ()> + 'static>(main: impl FnOnce(Ground, Rc<Native>, Signals) -> R + 'static) {
    if is_lab() {
        return;
    }
    let server = server_on("soft");
    let (address, signals) = (server.address, server.signals());
    client("soft:shm", async move |ground| {
        let native = Rc::new(session(&ground, address).await);
        main(ground, native, signals).await;
    });
}

/// A session, and `/waits/one`.
async fn session(ground: &Ground, address: SocketAddr) -> Native {
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    assert_eq!(native.route(), "soft:shm");
    assert_eq!(put(&native, "/waits", "", run_of(ground, b"")).await.status, 200);
    assert_eq!(put(&native, "/waits/one", "", run_of(ground, &pattern(3000, 1))).await.status, 200);
    native
}

/// A GET of it that somebody waits for.
fn asking(ground: &Ground, native: &Rc<Native>) -> Task<basin::base::Result<Answered>> {
    let native = native.clone();
    let asked = async move || {
        let ask = Ask { method: Method::Get, target: "/waits/one", fields: "", body: vec![], crc: None, into: vec![] };
        native.ask(ask).await
    };
    ground.core.spawn(async move { asked().await })
}

/// A session in which it was looked for who waits too long while nobody did, and which is as good as before. On a machine that stands
/// still somebody may have waited too long: then another is made.
async fn looked_through(ground: &Ground, address: SocketAddr) -> Rc<Native> {
    for _ in 0..5 {
        let native = Rc::new(session(ground, address).await);
        native.set_patience(SHORT);
        let is_answered = asking(ground, &native).await.unwrap().is_ok_and(|answered| answered.status == 200);
        ground.core.sleep(Nanos(3 * SHORT.0)).await;
        if is_answered && asking(ground, &native).await.unwrap().is_ok_and(|answered| answered.status == 200) {
            return native;
        }
        native.close();
    }
    panic!("no session outlives a look while nobody waits");
}

#[test]
fn a_server_that_stands_still_is_given_up_in_time() {
    if is_lab() {
        return;
    }
    let server = server_on("soft");
    let (address, signals) = (server.address, server.signals());
    client("soft:shm", async move |ground| {
        let native = looked_through(&ground, address).await;
        native.set_patience(Nanos::from_secs(120));
        let stopped = Stopped::new(signals);
        let patient = asking(&ground, &native);
        ground.core.sleep(Nanos::from_millis(50)).await;
        // Who has less patience than those before him is told first.
        native.set_patience(SHORT);
        let began = Instant::now();
        let failed = asking(&ground, &native).await.unwrap().err().expect("nobody answers");
        let took = began.elapsed();
        assert!(took >= Duration::from_nanos(SHORT.0) && took < SHORTLY, "{took:?}: {failed}");
        assert!(failed.to_string().contains("waiting for a peer or device"), "{failed}");
        // And the session is over, which the other one is told at once.
        let failed = patient.await.unwrap().err().expect("nobody answers");
        assert!(failed.to_string().contains("the RDMA session is over") && native.is_over(), "{failed}");
        drop(stopped);
    });
}

/// Of those who wait one takes the messages of all. Whoever that is goes, and the others are answered.
#[test]
fn who_waits_no_longer_leaves_the_others_their_answers() {
    with_a_session(async |ground, native, signals| {
        // Who is woken by nothing else is by the end of it, and finds his answer then.
        native.set_patience(Nanos::from_secs(20));
        for goes in 0..3 {
            let stopped = Stopped::new(signals);
            let mut waiting = Vec::new();
            for _ in 0..3 {
                waiting.push(asking(&ground, &native));
                ground.core.sleep(Nanos::from_millis(5)).await;
            }
            let gone = waiting.remove(goes);
            gone.abort();
            assert!(gone.await.is_err());
            ground.core.sleep(Nanos::from_millis(5)).await;
            drop(stopped);
            let began = Instant::now();
            for waiting in waiting {
                let answered = waiting.await.unwrap().unwrap();
                assert!(answered.status == 200 && answered.bytes() == pattern(3000, 1), "without number {goes}");
            }
            assert!(began.elapsed() < SHORTLY, "without number {goes}: who waits is woken by his answer");
            assert_eq!(ask(&native, Method::Get, "/waits/one", "", None).await.status, 200);
        }
        // All go, and the session is as good as before.
        let waiting = asking(&ground, &native);
        ground.core.yield_now().await;
        waiting.abort();
        ground.core.sleep(Nanos::from_millis(5)).await;
        assert_eq!(ask(&native, Method::Get, "/waits/one", "", None).await.status, 200);
        assert!(!native.is_over());
        native.close();
    });
}

const BYTES: usize = 300_000;

/// What somebody asks who goes away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Put,
    PutWithItsSum,
    PutInTheMessage,
    Get,
    GetInTheMessage,
}

async fn do_it(ground: &Ground, native: &Native, what: What) {
    let (method, target, bytes) = match what {
        What::Put | What::PutWithItsSum => (Method::Put, "/waits/long", BYTES),
        What::PutInTheMessage => (Method::Put, "/waits/one", 3000),
        What::Get => (Method::Get, "/waits/long", BYTES),
        What::GetInTheMessage => (Method::Get, "/waits/one", 3000),
    };
    let content = pattern(bytes, bytes as u64);
    let body = if method == Method::Put { vec![run_of(ground, &content)] } else { vec![] };
    let into = if what == What::Get { vec![room(ground, bytes)] } else { vec![] };
    let crc = (what == What::PutWithItsSum).then(|| basin::mem::crc64(&content));
    let answered = native.ask(Ask { method, target, fields: "", body, crc, into }).await.unwrap();
    assert_eq!(answered.status, 200);
}

/// Polls it in so many turns, and drops it then. Whether it was done.
async fn begin(ground: &Ground, asked: impl Future<Output = ()>, turns: usize) -> bool {
    let mut asked = Box::pin(asked);
    for _ in 0..turns {
        if poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_ready())).await {
            return true;
        }
        ground.core.yield_now().await;
    }
    false
}

/// Who asks may go away in any turn: what he lent comes back, and the session takes as many requests as before. Only a sum that is owed
/// nobody else can give, and then it is over.
#[test]
fn who_goes_away_takes_nothing_with_him() {
    if is_lab() {
        return;
    }
    let server = server_on("soft");
    let address = server.address;
    client("soft:shm", async move |ground| {
        let mut native = session(&ground, address).await;
        for what in [What::Put, What::PutWithItsSum, What::PutInTheMessage, What::Get, What::GetInTheMessage] {
            let mut turns = 0;
            while !begin(&ground, do_it(&ground, &native, what), turns).await {
                turns += turns.div_ceil(8).max(1);
                assert!(turns < 1 << 20, "{what:?}: there is a slot");
                if native.is_over() {
                    assert_eq!(what, What::Put, "in turn {turns}");
                    native = session(&ground, address).await;
                }
            }
            assert!(turns > 1, "{what:?}: nobody has gone away");
            let began = Instant::now();
            while ground.slab.census().published > 0 {
                assert!(began.elapsed() < SHORTLY, "{what:?}: {}", ground.slab.census());
                ground.core.sleep(Nanos::from_millis(5)).await;
            }
            assert_eq!(ground.slab.census().quarantined, 0, "{what:?}");
            // As many as there are slots, at the same time.
            let all = (0..TERMS.depth).map(|_| {
                let (ground, native) = (ground.clone(), native.clone());
                ground.core.clone().spawn(async move { do_it(&ground, &native, What::Get).await })
            });
            for one in all.collect::<Vec<_>>() {
                ground.core.timeout(Nanos::from_secs(15), one).await.expect("a slot for each").unwrap();
            }
        }
        // A session that is to end with what is under way does, whoever waits for it.
        assert!(!begin(&ground, do_it(&ground, &native, What::GetInTheMessage), 1).await);
        native.retire();
        let began = Instant::now();
        while !native.is_over() {
            assert!(began.elapsed() < SHORTLY, "it ends");
            ground.core.sleep(Nanos::from_millis(5)).await;
        }
    });
}

/// That a server ends a session is seen where nobody waits for anything.
#[test]
fn the_end_of_a_server_is_seen_by_who_asks_nothing() {
    with_a_session(async |ground, native, signals| {
        assert_eq!(ask(&native, Method::Get, "/waits/one", "", None).await.status, 200);
        signals.send("KILL");
        let began = Instant::now();
        while !native.is_over() {
            assert!(began.elapsed() < SHORTLY, "it is over");
            ground.core.sleep(Nanos::from_millis(5)).await;
        }
    });
}

/// A client whose core stood still takes what the server has sent meanwhile, in as many turns as that needs.
#[test]
fn who_stood_still_himself_gives_nobody_up() {
    with_a_session(async |ground, native, _| {
        let content = pattern(1 << 20, 2);
        assert_eq!(put(&native, "/waits/long", "", run_of(&ground, &content)).await.status, 200);
        let patience = Nanos::from_secs(4);
        native.set_patience(patience);
        for _ in 0..2 {
            let asked = {
                let (native, into) = (native.clone(), room(&ground, content.len()));
                async move { ask(&native, Method::Get, "/waits/long", "", Some(into)).await }
            };
            let asked = ground.core.spawn(asked);
            ground.core.yield_now().await;
            std::thread::sleep(Duration::from_nanos(patience.0) + Duration::from_secs(1));
            let answered = asked.await.unwrap();
            assert_eq!(answered.status, 200);
            assert!(answered.bytes() == content, "what came is what was put");
        }
        assert!(!native.is_over());
    });
}
