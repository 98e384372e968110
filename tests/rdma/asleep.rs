//! Cores that sleep, and have no timer that ends soon: what their peer does wakes them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use basin::base::{Nanos, Rng};
use basin::device::WcStatus;
use basin::device::rdma::{Hca, HcaEnv, Qp, QpConfig, QpEndpoint};
use basin::mem::{PageKind, Region, RegionConfig, Slab};
use basin::reactor::{Core, CoreConfig};

use super::cases::status;

/// Messages, each to a core that sleeps.
const MESSAGES: usize = 20;
/// Long enough for a core to have fallen asleep, which is no matter of correctness.
const PAUSE: Nanos = Nanos::from_millis(5);
/// Whoever is not woken in this time never is.
const LOST: Nanos = Nanos::from_secs(60);

/// One end, on a core of its own that never looks for work before it sleeps.
struct End {
    core: Core,
    slab: Slab,
    qp: Qp,
}

impl End {
    fn connected(wire: &str, has_ring: bool, tell: &Sender<QpEndpoint>, told: &Receiver<QpEndpoint>) -> End {
        let core = Core::new(CoreConfig { spin: Nanos::ZERO, ..CoreConfig::default() }).unwrap();
        let region = Region::map(&RegionConfig { pages: vec![PageKind::Plain], ..RegionConfig::new(4 << 20) }).unwrap();
        let slab = Slab::new(&region, region.chunks()).unwrap();
        core.adopt_slab(&slab);
        let env = HcaEnv { uring: has_ring.then(|| core.uring().clone()), ..HcaEnv::new(core.ops().clone(), region, Rng::from_kernel()) };
        let hca = Hca::open(env, &wire.parse().unwrap()).unwrap();
        core.attach(hca.queue());
        let qp = hca.create_qp(&QpConfig::default()).unwrap();
        tell.send(qp.local()).unwrap();
        qp.connect(&told.recv().unwrap()).unwrap();
        End { core, slab, qp }
    }
}

/// The far end takes messages, and then sees that the near one is gone, if the wire tells. The core's ring polls the sockets, or does not.
fn messages_wake_who_sleeps(wire: &'static str, has_ring: bool, tells_of_death: bool) {
    let ((tell_far, told_far), (tell_near, told_near)) = (channel(), channel());
    let far = thread::spawn(move || {
        let End { core, slab, qp } = End::connected(wire, has_ring, &tell_near, &told_far);
        let sleeps = core.clone();
        core.clone()
            .run(async move {
                let received = async || {
                    let began = core.now();
                    let received = core.timeout(LOST, qp.recv(slab.run(64).unwrap())).await;
                    // What woke it is not the timer, at the end of which it would be found, too.
                    received.ok().filter(|_| core.now().since(began) < Nanos(LOST.0 / 2)).expect("a wake-up was lost")
                };
                for number in 0..MESSAGES {
                    let run = received().await.unwrap().run;
                    assert_eq!(run.as_slice(), [number as u8]);
                }
                if tells_of_death {
                    assert_eq!(status(&received().await.unwrap_err()), WcStatus::Flushed);
                }
            })
            .unwrap();
        sleeps.stats().sleeps
    });
    let End { core, slab, qp } = End::connected(wire, has_ring, &tell_far, &told_near);
    let waits = core.clone();
    core.run(async move {
        for number in 0..MESSAGES {
            waits.sleep(PAUSE).await;
            let mut run = slab.run(1).unwrap();
            run.as_mut_slice()[0] = number as u8;
            drop(qp.send(run, None).await.unwrap());
        }
        waits.sleep(PAUSE).await;
    })
    .unwrap();
    // This end goes, with its queue pair.
    drop(core);
    let slept = far.join().unwrap();
    assert!(slept >= MESSAGES as u64 / 2, "{wire}: slept {slept} times, where messages come to who sleeps");
}

#[test]
fn messages_over_links_wake_who_sleeps() {
    messages_wake_who_sleeps("soft:shm", true, true);
}

#[test]
fn datagrams_wake_who_sleeps() {
    messages_wake_who_sleeps("soft:udp", true, false);
}

#[test]
fn messages_wake_who_sleeps_with_two_wires() {
    messages_wake_who_sleeps("soft", true, true);
}

/// The descriptor alone wakes it.
#[test]
fn messages_wake_who_sleeps_without_a_ring_that_polls_sockets() {
    for (wire, tells_of_death) in [("soft:shm", true), ("soft:udp", false), ("soft", true)] {
        messages_wake_who_sleeps(wire, false, tells_of_death);
    }
}
