//! Connection management without I/O: both roles of `rdma_cm`'s handshake, with retransmission.
//!
//! ```text
//! active   Asked ── Reply ──▶ Answered ── ready() ──▶ Established ── disconnect() ──▶ Leaving ──▶ Over
//! passive  Requested ── accept() ──▶ Agreed ── Ready ──▶ Established
//! ```
//!
//! A queue pair is the caller's: it connects it between the peer's message and its own answer. Messages repeat until they are
//! answered; a message that repeats is answered again and has no other effect. A connection that is over is remembered for a while,
//! so that the peer's last message still finds an answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::rc::Transmit;
use super::rc::wr::Sge;
use crate::base::{Nanos, Psn, Qpn};
use crate::wire::cm::{self, LEN, Mad, Message, Reply, Request, reason};
use crate::wire::roce::{Deth, Ext, Opcode, Repr};

/// How long an answer may take before a message is sent again: what rdma_cm gives its peers, 4 s, is told in the messages.
const RESEND: Nanos = Nanos::from_millis(1000);
/// Times a message is sent.
const TRIES: u8 = 12;
/// How long a connection that is over is remembered.
const REMEMBER: Nanos = Nanos::from_secs(16);
/// Connections at once, those that are over included: about 700 bytes each.
const CONNECTIONS_MAX: usize = 4096;
/// Requests that wait for the program's decision.
const WAITING_MAX: usize = 128;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection: [`Cm::accept`] or [`Cm::reject`] it.
    Requested(u32, Box<Request>),
    /// The peer agrees: connect the queue pair, then say [`Cm::ready`].
    Agreed(u32, Box<Reply>),
    /// The peer that was accepted is ready.
    Established(u32),
    /// The peer refuses, with this reason.
    Refused(u32, u16),
    /// The peer does not answer.
    Silent(u32),
    /// The connection ended, by whichever side.
    Ended(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Answered,
    Requested,
    Agreed,
    Established,
    Leaving,
    Over,
}

#[derive(Debug)]
struct Connection {
    state: State,
    peer: IpAddr,
    /// The peer's communication id; 0 until it told.
    remote: u32,
    remote_qpn: Qpn,
    transaction: u64,
    /// The last message, for the peer that did not hear it.
    last: Option<Mad>,
    /// When it is sent again, or the connection forgotten.
    deadline: Nanos,
    tries: u8,
}

/// The communication manager of one device.
#[derive(Debug, Default)]
pub struct Cm {
    connections: BTreeMap<u32, Connection>,
    listeners: BTreeSet<u16>,
    events: VecDeque<Event>,
    out: VecDeque<(IpAddr, Mad)>,
}

impl Cm {
    /// Takes requests for `port` from now on; false if it did already.
    pub fn listen(&mut self, port: u16) -> bool {
        self.listeners.insert(port)
    }

    /// Takes no more of them.
    pub fn unlisten(&mut self, port: u16) {
        self.listeners.remove(&port);
    }

    /// Asks `peer` for a connection. `request.local` is its communication id, drawn at random by the caller; false if it is taken,
    /// or there are too many connections.
    pub fn connect(&mut self, now: Nanos, peer: IpAddr, request: Request, transaction: u64) -> bool {
        let id = request.local;
        if id == 0 || self.connections.contains_key(&id) || self.connections.len() >= CONNECTIONS_MAX {
            return false;
        }
        let (state, remote_qpn) = (State::Asked, Qpn(0));
        let (last, deadline) = (None, Nanos::MAX);
        self.connections.insert(id, Connection { state, peer, remote: 0, remote_qpn, transaction, last, deadline, tries: 0 });
        self.say(now, id, Message::Request(request));
        true
    }

    /// Whether a peer still waits for the answer to its request.
    pub fn is_asked(&self, id: u32) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.state == State::Requested)
    }

    /// Agrees to a request. `reply`'s ids are filled in.
    pub fn accept(&mut self, now: Nanos, id: u32, reply: Reply) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.state == State::Requested) else { return };
        connection.state = State::Agreed;
        let reply = Reply { local: id, remote: connection.remote, ..reply };
        self.say(now, id, Message::Reply(reply));
    }

    /// Refuses a request.
    pub fn reject(&mut self, id: u32, reason: u16) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let message = Message::Reject { local: id, remote: connection.remote, reason };
        self.out.push_back((connection.peer, Mad { transaction: connection.transaction, message }));
    }

    /// The queue pair of a connection that was agreed upon is connected.
    pub fn ready(&mut self, now: Nanos, id: u32) {
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.state == State::Answered) else { return };
        connection.state = State::Established;
        let remote = connection.remote;
        self.say(now, id, Message::Ready { local: id, remote });
        // Nothing answers it: it is sent again when the peer's reply comes again.
        self.rest(id, Nanos::MAX);
    }

    /// Ends a connection, in whatever state.
    pub fn disconnect(&mut self, now: Nanos, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.state {
            State::Agreed | State::Established => {
                connection.state = State::Leaving;
                let (remote, remote_qpn) = (connection.remote, connection.remote_qpn);
                self.say(now, id, Message::Disconnect { local: id, remote, remote_qpn });
            }
            State::Requested | State::Answered => self.reject(id, reason::CONSUMER),
            State::Asked => drop(self.connections.remove(&id)),
            State::Leaving | State::Over => {}
        }
    }

    /// Takes a management datagram that came from `from`. `fresh` is a communication id for a new connection, drawn at random.
    pub fn handle(&mut self, now: Nanos, from: IpAddr, bytes: &[u8; LEN], fresh: u32) {
        let Ok(Mad { transaction, message }) = Mad::parse(bytes) else { return };
        match message {
            Message::Request(request) => self.on_request(now, from, transaction, request, fresh),
            Message::Reply(reply) => self.on_reply(from, reply),
            Message::Ready { local, remote } => {
                if let Some(connection) = self.known(from, remote, local)
                    && connection.state == State::Agreed
                {
                    connection.state = State::Established;
                    self.rest(remote, Nanos::MAX);
                    self.events.push_back(Event::Established(remote));
                }
            }
            Message::Wait { remote, .. } => {
                let asked = |connection: &&mut Connection| connection.peer == from && connection.state == State::Asked;
                if let Some(connection) = self.connections.get_mut(&remote).filter(asked) {
                    // It will answer; but not for ever.
                    connection.deadline = now.saturating_add(Nanos(4 * RESEND.0));
                }
            }
            Message::Reject { remote, reason, .. } => {
                let open = |connection: &&Connection| {
                    connection.peer == from && matches!(connection.state, State::Asked | State::Answered | State::Agreed)
                };
                if self.connections.get(&remote).filter(open).is_some() {
                    self.connections.remove(&remote);
                    self.events.push_back(Event::Refused(remote, reason));
                }
            }
            Message::Disconnect { local, remote, .. } => {
                // Whoever leaves is told that it was heard, also by one who has forgotten.
                let answer = Message::Disconnected { local: remote, remote: local };
                self.out.push_back((from, Mad { transaction, message: answer }));
                if let Some(connection) = self.known(from, remote, local)
                    && connection.state != State::Over
                {
                    self.end(now, remote);
                }
            }
            Message::Disconnected { local, remote } => {
                if let Some(connection) = self.known(from, remote, local)
                    && connection.state == State::Leaving
                {
                    self.end(now, remote);
                }
            }
        }
    }

    fn on_request(&mut self, now: Nanos, from: IpAddr, transaction: u64, request: Request, fresh: u32) {
        let same = |connection: &Connection| connection.peer == from && connection.remote == request.local;
        if let Some((&id, connection)) = self.connections.iter().find(|(_, connection)| same(connection)) {
            if connection.state == State::Agreed {
                self.repeat(id);
            }
            return;
        }
        let refuse = |why| Mad { transaction, message: Message::Reject { local: 0, remote: request.local, reason: why } };
        if !self.listeners.contains(&request.port) {
            self.out.push_back((from, refuse(reason::INVALID_SERVICE_ID)));
            return;
        }
        if request.service != 0 {
            self.out.push_back((from, refuse(reason::INVALID_TRANSPORT)));
            return;
        }
        let waiting = self.connections.values().filter(|connection| connection.state == State::Requested).count();
        let room = self.connections.len() < CONNECTIONS_MAX && waiting < WAITING_MAX;
        // Who claims another address than it has is not answered; who finds no room asks again.
        if request.from.ip() != from || !room || fresh == 0 || self.connections.contains_key(&fresh) {
            return;
        }
        let (state, deadline) = (State::Requested, now.saturating_add(Nanos(RESEND.0 * u64::from(TRIES))));
        let (remote, remote_qpn) = (request.local, request.qpn);
        let connection = Connection { state, peer: from, remote, remote_qpn, transaction, last: None, deadline, tries: TRIES };
        self.connections.insert(fresh, connection);
        self.events.push_back(Event::Requested(fresh, Box::new(request)));
    }

    fn on_reply(&mut self, from: IpAddr, reply: Reply) {
        let id = reply.remote;
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.peer == from) else { return };
        match connection.state {
            State::Asked => {
                connection.state = State::Answered;
                (connection.remote, connection.remote_qpn) = (reply.local, reply.qpn);
                self.rest(id, Nanos::MAX);
                self.events.push_back(Event::Agreed(id, Box::new(reply)));
            }
            // It has not heard that we are ready.
            State::Established if connection.remote == reply.local => self.repeat(id),
            _ => {}
        }
    }

    /// The connection `id` of ours, if the message is its peer's.
    fn known(&mut self, from: IpAddr, id: u32, remote: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id).filter(|connection| connection.peer == from && connection.remote == remote)
    }

    fn end(&mut self, now: Nanos, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = State::Over;
        }
        self.rest(id, now.saturating_add(REMEMBER));
        self.events.push_back(Event::Ended(id));
    }

    /// Sends a message, and again until it is answered.
    fn say(&mut self, now: Nanos, id: u32, message: Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mad = Mad { transaction: connection.transaction, message };
        connection.last = Some(mad.clone());
        connection.tries = 1;
        connection.deadline = now.saturating_add(RESEND);
        self.out.push_back((connection.peer, mad));
    }

    fn repeat(&mut self, id: u32) {
        if let Some(connection) = self.connections.get(&id)
            && let Some(last) = &connection.last
        {
            self.out.push_back((connection.peer, last.clone()));
        }
    }

    /// No message is to be answered; at `deadline` the connection is looked at.
    fn rest(&mut self, id: u32, deadline: Nanos) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.deadline = deadline;
        }
    }

    /// The next datagram to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(IpAddr, [u8; LEN])> {
        self.out.pop_front().map(|(to, mad)| (to, mad.encode()))
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Whether there are connections, or something to send.
    #[inline]
    pub fn is_at_work(&self) -> bool {
        !self.connections.is_empty() || self.has_output()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); [`Nanos::MAX`] if never.
    pub fn next_timeout(&self) -> Nanos {
        self.connections.values().map(|connection| connection.deadline).min().unwrap_or(Nanos::MAX)
    }

    /// Acts on deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        let due: Vec<u32> = self.connections.iter().filter(|(_, connection)| connection.deadline <= now).map(|(&id, _)| id).collect();
        for id in due {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match connection.state {
                State::Over => drop(self.connections.remove(&id)),
                State::Asked | State::Agreed | State::Leaving if connection.tries < TRIES => {
                    connection.tries += 1;
                    connection.deadline = now.saturating_add(RESEND);
                    self.repeat(id);
                }
                // Who leaves does not wait for ever to be heard.
                State::Leaving => self.end(now, id),
                State::Established => connection.deadline = Nanos::MAX,
                State::Requested | State::Asked | State::Agreed | State::Answered => {
                    self.connections.remove(&id);
                    self.events.push_back(Event::Silent(id));
                }
            }
        }
    }
}

/// A management datagram as a packet. Its bytes must stay until it is sent.
pub fn packet(psn: Psn, mad: &[u8; LEN]) -> Transmit {
    let mut repr = Repr::new(Opcode::UdSendOnly, cm::QPN, psn);
    repr.ext = Ext::Deth(Deth { qkey: cm::QKEY, src_qp: cm::QPN });
    repr.payload_len = LEN as u32;
    Transmit::new(&repr, &[Sge { addr: mad.as_ptr() as u64, len: LEN as u32 }])
}

/// Whether a packet is a management datagram.
pub fn is_management(packet: &Repr) -> bool {
    let keyed = matches!(packet.ext, Ext::Deth(Deth { qkey: cm::QKEY, .. }));
    packet.opcode == Opcode::UdSendOnly && packet.dest_qp == cm::QPN && packet.payload_len == LEN as u32 && keyed
}
