//! Connection management between two managers.

use std::net::{IpAddr, SocketAddr};

use crate::base::{Nanos, Psn, Qpn, Rng};
use crate::proto::cm::{Cm, Event};
use crate::wire::cm::{LEN, Mad, Message, Reply, Request, reason};

const PORT: u16 = 7174;

struct Pair {
    ends: [Cm; 2],
    addresses: [IpAddr; 2],
    now: Nanos,
    rng: Rng,
    /// Datagrams lost, in parts per million.
    loss: u32,
    sent: Vec<(usize, Message)>,
}

impl Pair {
    fn new(seed: u64, loss: u32) -> Pair {
        let addresses = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        Pair { ends: Default::default(), addresses, now: Nanos::ZERO, rng: Rng::seeded(seed), loss, sent: Vec::new() }
    }

    fn connect(&mut self, id: u32) {
        let request = Request {
            local: id,
            port: PORT,
            qpn: Qpn(0x100 + id),
            psn: Psn::new(id),
            responder_resources: 1,
            initiator_depth: 1,
            service: 0,
            mtu: 3,
            retries: 7,
            rnr_retries: 7,
            ack_timeout: 14,
            from: SocketAddr::new(self.addresses[0], 0),
            to: self.addresses[1],
            data: vec![1, 2, 3],
        };
        assert!(self.ends[0].connect(self.now, self.addresses[1], request, u64::from(id)));
    }

    /// Carries datagrams, time and events until `done` says so of an event, or nothing happens any more.
    fn run(&mut self, mut react: impl FnMut(&mut Pair, usize, Event) -> bool) -> bool {
        loop {
            let mut idle = true;
            for side in 0..2 {
                while let Some((to, bytes)) = self.ends[side].poll_transmit() {
                    assert_eq!(to, self.addresses[1 - side]);
                    idle = false;
                    self.sent.push((side, Mad::parse(&bytes).unwrap().message));
                    if !self.rng.chance(self.loss) {
                        self.give(1 - side, &bytes);
                    }
                }
                while let Some(event) = self.ends[side].poll_event() {
                    idle = false;
                    if react(self, side, event) {
                        return true;
                    }
                }
            }
            if idle {
                let next = self.ends.iter().map(Cm::next_timeout).min().unwrap();
                if next == Nanos::MAX {
                    return false;
                }
                self.now = next;
                self.ends.iter_mut().for_each(|end| end.handle_timeout(next));
            }
        }
    }

    fn give(&mut self, side: usize, bytes: &[u8; LEN]) {
        let fresh = self.rng.u32();
        self.ends[side].handle(self.now, self.addresses[1 - side], bytes, fresh);
    }
}

fn reply() -> Reply {
    Reply {
        local: 0,
        remote: 0,
        qpn: Qpn(0x77),
        psn: Psn::new(9),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retries: 7,
        data: vec![4, 5],
    }
}

/// The passive end says yes, the active end that it is ready.
fn agree(pair: &mut Pair, side: usize, event: &Event) {
    match (side, event) {
        (1, Event::Requested(id, request)) => {
            assert_eq!((request.qpn, &request.data[..4]), (Qpn(0x105), &[1, 2, 3, 0][..]));
            pair.ends[1].accept(pair.now, *id, reply());
        }
        (0, Event::Agreed(5, reply)) => {
            assert_eq!((reply.qpn, &reply.data[..3]), (Qpn(0x77), &[4, 5, 0][..]));
            pair.ends[0].ready(pair.now, 5);
        }
        _ => {}
    }
}

#[test]
fn two_ends_meet_and_part() {
    let mut pair = Pair::new(1, 0);
    assert!(pair.ends[1].listen(PORT) && !pair.ends[1].listen(PORT));
    pair.connect(5);
    let met = pair.run(|pair, side, event| {
        agree(pair, side, &event);
        matches!((side, event), (1, Event::Established(_)))
    });
    assert!(met && pair.sent.len() == 3, "{:?}", pair.sent);
    pair.ends[0].disconnect(pair.now, 5);
    let mut ended = 0;
    assert!(!pair.run(|_, _, event| {
        ended += u32::from(matches!(event, Event::Ended(_)));
        false
    }));
    assert_eq!((ended, pair.sent.len()), (2, 5), "each is told once, and all is forgotten: {:?}", pair.sent);
}

/// A third of the datagrams is lost; each end is told of everything once all the same.
#[test]
fn seeds_with_loss() {
    for seed in 0..super::seeds() {
        let mut pair = Pair::new(seed, 330_000);
        pair.ends[1].listen(PORT);
        pair.connect(5);
        let (mut requested, mut established) = (0, None);
        let met = pair.run(|pair, side, event| {
            agree(pair, side, &event);
            match event {
                Event::Requested(..) => requested += 1,
                Event::Established(id) => established = Some(id),
                Event::Silent(_) => return true,
                _ => {}
            }
            established.is_some()
        });
        assert!(met && requested == 1, "seed {seed}");
        // Twelve losses in a row are not to be expected in so few seeds.
        let id = established.unwrap_or_else(|| panic!("seed {seed} gave up"));
        pair.ends[1].disconnect(pair.now, id);
        let mut ended = [0; 2];
        pair.run(|_, side, event| {
            ended[side] += u32::from(matches!(event, Event::Ended(_)));
            false
        });
        assert_eq!(ended[1], 1, "seed {seed}");
        assert!(ended[0] <= 1, "seed {seed}");
        assert_eq!(pair.ends.each_ref().map(Cm::next_timeout), [Nanos::MAX; 2], "seed {seed}: a clock still runs");
    }
}

#[test]
fn nobody_there() {
    // Nobody listens.
    let mut pair = Pair::new(1, 0);
    pair.connect(5);
    assert!(pair.run(|_, _, event| event == Event::Refused(5, reason::INVALID_SERVICE_ID)));
    // Nobody hears.
    let mut pair = Pair::new(1, 1_000_000);
    pair.connect(5);
    assert!(pair.run(|_, _, event| event == Event::Silent(5)));
    assert_eq!(pair.sent.len(), 12);
    // The program does not want it.
    let mut pair = Pair::new(1, 0);
    pair.ends[1].listen(PORT);
    pair.connect(5);
    assert!(pair.run(|pair, _, event| {
        if let Event::Requested(id, _) = event {
            pair.ends[1].reject(id, reason::CONSUMER);
        }
        event == Event::Refused(5, reason::CONSUMER)
    }));
}

/// A stranger's messages, with right ids or wrong ones, move no connection.
#[test]
fn a_stranger_is_not_heard() {
    let mut pair = Pair::new(1, 0);
    pair.ends[1].listen(PORT);
    pair.connect(5);
    let mut id = 0;
    pair.run(|pair, side, event| {
        agree(pair, side, &event);
        if let Event::Established(established) = event {
            id = established;
        }
        id != 0
    });
    let stranger: IpAddr = "10.0.0.3".parse().unwrap();
    let (local, remote) = (5, id);
    for message in [
        Message::Disconnect { local, remote, remote_qpn: Qpn(0x77) },
        Message::Reject { local, remote, reason: 1 },
        Message::Disconnected { local, remote },
    ] {
        pair.ends[1].handle(pair.now, stranger, &Mad { transaction: 5, message: message.clone() }.encode(), 99);
        assert_eq!(pair.ends[1].poll_event(), None, "{message:?}");
    }
    // The peer itself, under another id.
    let message = Message::Disconnect { local: 6, remote, remote_qpn: Qpn(0x77) };
    let bytes = Mad { transaction: 5, message }.encode();
    pair.give(1, &bytes);
    assert_eq!(pair.ends[1].poll_event(), None);
    // And noise.
    let mut noise = [0; LEN];
    for _ in 0..2000 {
        pair.rng.fill(&mut noise);
        noise[..4].copy_from_slice(&[1, 7, 2, 3]);
        noise[16..18].copy_from_slice(&(0x10 + pair.rng.below(7) as u16).to_be_bytes());
        pair.give(1, &noise);
        assert_eq!(pair.ends[1].poll_event(), None);
    }
}
