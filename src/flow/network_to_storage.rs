//! Flow 1: UDP datagrams to the block device.
//!
//! The kernel puts a datagram into a UMEM chunk. Its record header goes into the head room in front of it, and the chunk itself
//! is handed to the disk in a gather with the chunks that came after it; when the write is durable, a cumulative
//! acknowledgement goes back through XSK transmit. Where datagrams flow they gather until a write is worth its while, for [`LINGER`] at
//! most; a lone one waits for nobody.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::base::error::ErrorKind;
use crate::base::{Error, Lba, Nanos, Result, limits};
use crate::device::block::Durability;
use crate::device::signal::Signal;
use crate::flow::commit::Committer;
use crate::flow::control::{Channel, Message, Plan, Tally};
use crate::flow::crew::{Crew, Either, either};
use crate::flow::datagrams::Datagrams;
use crate::flow::extent::Extent;
use crate::flow::hub::{Datagram, Hub, Pace, Reply};
use crate::flow::log::{self, Origin, Packed};
use crate::flow::node::Node;
use crate::flow::pattern::Pattern;
use crate::flow::report::{Meter, Row};
use crate::flow::window::{Credit, Inbox};
use crate::mem::{Gather, Ledger};
use crate::reactor::Task;
use crate::wire::native::datagram;

/// Writes on their way at once for one stream.
const WRITERS: usize = 6;

/// Datagrams in one write at most.
const BATCH: usize = limits::GATHER_MAX;

/// A stream that flows is written so much at a time: a write and its flush cost as much as two hundred datagrams, whatever is in it.
const ENOUGH_BYTES: u64 = 512 << 10;
/// Or so many datagrams: half of what the smallest rings hold.
const ENOUGH: usize = 2048;

/// The longest that a datagram waits for others to be written with it.
const LINGER: Nanos = Nanos::from_millis(5);

/// Datagrams a client may have unacknowledged for each unit of `--depth`: a window of 512 at the default depth of 32, which a
/// fill ring of 2048 holds four times over.
const WINDOW_PER_DEPTH: u32 = 16;

/// A stream being recorded.
pub struct Recorder {
    node: Node,
    hub: Rc<Hub>,
    inbox: Rc<Inbox<Datagram>>,
    stream: u32,
    pace: Pace,
    extent: Extent,
    committer: Committer,
    ledger: Ledger,
    state: Cell<State>,
    /// What is in the extent and not overwritten: place and length in blocks of the device, oldest first. Writes side by side are one,
    /// up to the largest I/O.
    written: RefCell<VecDeque<(u64, u64)>>,
    /// Gathers not in use, at most one for every writer and one to collect in: building a batch allocates nothing once warm.
    gathers: RefCell<Vec<Gather>>,
    /// Bytes in the log for a datagram of the last batch.
    record_bytes: Cell<u64>,
    /// Writes done, waiting for earlier ones, by batch number: the sequence number each reached.
    done: RefCell<VecDeque<Option<u64>>>,
    /// Where writes are under way: begin and end in blocks of the extent.
    under_way: RefCell<Vec<(u64, u64)>>,
    /// One of them is over.
    over: Signal,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// The next sequence number; all below it came or are lost.
    next: u64,
    lost: u64,
    /// Datagrams stored.
    stored: u64,
    /// Everything below is durable or lost.
    durable: u64,
    bytes_written: u64,
    /// The next free block of the extent.
    head: u64,
    /// Batches given to writers, and those whose durability was announced.
    begun: u64,
    announced: u64,
    /// Older writes of the extent were overwritten.
    wrapped: bool,
    reply: Option<Reply>,
    /// The sender has said that there is no more, and that it is all stored was told.
    ended: bool,
    told: bool,
}

struct Batch {
    number: u64,
    gather: Gather,
    /// Its first block in the extent.
    from: u64,
    /// The sequence number that is durable once this and all earlier batches are.
    reaches: u64,
}

/// The place of a write that is under way, until it is over, however that ends.
struct Placed {
    of: Rc<Recorder>,
    from: u64,
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.of.under_way.borrow_mut().retain(|&(begin, _)| begin != self.from);
        self.of.over.raise();
    }
}

/// The writers of a recording. Dropped with one that is given up: each ends after the write it has under way.
struct Writers(Vec<(Rc<Inbox<Batch>>, Task<()>)>);

impl Writers {
    fn close(&self) {
        self.0.iter().for_each(|(jobs, _)| jobs.close());
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.close();
    }
}

impl Recorder {
    /// A recorder of `stream`, whose datagrams come through `inbox`, into `extent`.
    pub fn new(node: &Node, hub: &Rc<Hub>, stream: u32, pace: Pace, inbox: Rc<Inbox<Datagram>>, extent: Extent) -> Result<Rc<Recorder>> {
        Ok(Rc::new(Recorder {
            node: node.clone(),
            hub: hub.clone(),
            inbox,
            stream,
            pace,
            extent,
            committer: node.committer()?.clone(),
            ledger: Ledger::new(),
            state: Cell::default(),
            written: RefCell::default(),
            gathers: RefCell::default(),
            record_bytes: Cell::new(u64::from(log::BLOCK)),
            done: RefCell::default(),
            under_way: RefCell::default(),
            over: Signal::new(node.core().ops()),
        }))
    }

    fn spare_gather(&self) -> Gather {
        self.gathers.borrow_mut().pop().unwrap_or_default()
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.get();
        change(&mut state);
        self.state.set(state);
    }

    /// Records until the inbox is closed and everything in it is durable.
    ///
    /// # Errors
    /// The device failed: nothing after the last acknowledgement is durable.
    pub async fn run(self: &Rc<Recorder>) -> Result<()> {
        let core = self.node.core();
        let idle: Rc<Inbox<usize>> = Rc::new(Inbox::new(core.ops(), WRITERS));
        let failure: Rc<RefCell<Option<Error>>> = Rc::default();
        let mut writers = Writers(Vec::with_capacity(WRITERS));
        for number in 0..WRITERS {
            let jobs: Rc<Inbox<Batch>> = Rc::new(Inbox::new(core.ops(), 1));
            let (this, mine, idle, failure) = (self.clone(), jobs.clone(), idle.clone(), failure.clone());
            idle.push(number).expect("there is room for every writer");
            let task = core.spawn(async move {
                while let Some(batch) = mine.pop().await {
                    let placed = Placed { of: this.clone(), from: batch.from };
                    let written = this.write(batch).await;
                    drop(placed);
                    if let Err(error) = written {
                        failure.borrow_mut().get_or_insert(error);
                        this.inbox.close();
                    }
                    let _ = idle.push(number);
                }
            });
            writers.0.push((jobs, task));
        }
        let outcome = loop {
            let Some(number) = idle.pop().await else { break Ok(()) };
            if failure.borrow().is_some() {
                // What is still in the inbox is not stored, and nobody was told that it is.
                break Ok(());
            }
            // Waiting for datagrams with a writer in hand: whatever came while all were busy goes in one write.
            self.gathered().await;
            let stays_idle = || idle.push(number).unwrap_or_else(|_| unreachable!("it was idle before"));
            if let Err(error) = self.hand_out(&writers.0[number].0, stays_idle).await {
                break Err(error);
            }
            if self.inbox.is_closed() && self.inbox.is_empty() {
                break Ok(());
            }
        };
        writers.close();
        for (_, task) in writers.0.drain(..) {
            task.await.map_err(|panic| Error::new(ErrorKind::Failed, panic.to_string()))?;
        }
        let failure = failure.borrow_mut().take();
        failure.map_or(outcome, Err)
    }

    /// Gives what has come to an idle writer, which stays idle if nothing has.
    async fn hand_out(&self, writer: &Inbox<Batch>, stays_idle: impl FnOnce()) -> Result<()> {
        self.has_place().await;
        let before = self.state.get().stored;
        let (gather, asked) = self.collect(self.spare_gather()).await?;
        if let Some(bytes) = u64::from(gather.len_bytes()).checked_div(self.state.get().stored - before) {
            self.record_bytes.set(bytes);
        }
        if gather.is_empty() {
            self.gathers.borrow_mut().push(gather);
            stays_idle();
        } else {
            let batch = self.place(gather)?;
            writer.push(batch).unwrap_or_else(|_| unreachable!("an idle writer has no job"));
        }
        if asked {
            // Only now: what was collected is counted as on its way, and is not announced before it is durable.
            self.announce();
        }
        Ok(())
    }

    /// Waits until there is enough for a write, or the stream pauses, or the first datagram has waited long enough. Where datagrams do
    /// not flow none waits.
    async fn gathered(&self) {
        self.inbox.readable().await;
        let core = self.node.core();
        if self.hub.is_flowing() {
            // What brings nothing for longer than packets gather has paused: what there is is written.
            let pause = self.pace.longest().0 * 3 / 2;
            let began = core.now();
            let enough = self.enough();
            while self.inbox.len() < enough && !self.inbox.is_closed() {
                let left = LINGER.0.saturating_sub(core.now().since(began).0);
                if left == 0 || core.timeout(Nanos(pause.min(left)), self.inbox.grown()).await.is_err() {
                    break;
                }
            }
        }
    }

    /// How many datagrams like the last ones are a good write.
    fn enough(&self) -> usize {
        let record = self.record_bytes.get();
        // Short ones share chunks; the others are a piece of the gather each.
        let most = if record < u64::from(log::BLOCK) { ENOUGH } else { BATCH };
        most.min((ENOUGH_BYTES / record) as usize)
    }

    /// Takes what is in the inbox, up to one write's worth, as records; and whether the sender asks what is durable.
    async fn collect(&self, mut gather: Gather) -> Result<(Gather, bool)> {
        let mut pack: Option<Packed> = None;
        let mut asked = false;
        let mut last = None;
        // Counted below only: while this waits for a chunk, what is durable may be told, and none of this is yet.
        let State { mut next, mut lost, mut stored, .. } = self.state.get();
        while gather.runs().len() + usize::from(pack.is_some()) < BATCH
            && gather.len_bytes() + 4 * limits::CHUNK_SIZES[1] <= limits::IO_MAX_BYTES
        {
            let Some(Datagram { buf, received_ns, header, reply }) = self.inbox.try_pop() else { break };
            last = Some(reply);
            let sequence = match header {
                datagram::Repr::Data { sequence, .. } => sequence,
                datagram::Repr::Fin { total, .. } => {
                    // The tail that never came is lost.
                    lost += total.saturating_sub(next);
                    next = next.max(total);
                    self.update(|state| state.ended = true);
                    asked = true;
                    continue;
                }
                datagram::Repr::Hello { .. } => {
                    asked = true;
                    continue;
                }
                // Ours to say.
                datagram::Repr::Ack(_) => continue,
            };
            if sequence < next {
                // Late or doubled: what is durable is said again.
                asked = true;
                continue;
            }
            let origin =
                Origin { stream: self.stream, sequence, source: reply.peer(), port: reply.port(), received_ns, epoch: self.node.epoch() };
            match log::record_in_place(buf, &origin) {
                Ok(buf) => gather.push(buf).unwrap_or_else(|_| unreachable!("the bounds were checked above")),
                Err(buf) => {
                    let room = match &mut pack {
                        Some(pack) => pack.push(buf.as_slice(), &origin, &self.ledger),
                        None => false,
                    };
                    if !room {
                        if let Some(full) = pack.take() {
                            gather.push(full.finish()).unwrap_or_else(|_| unreachable!("the bounds were checked above"));
                        }
                        let mut fresh = Packed::new(self.node.buf_while(|| !self.inbox.is_closed()).await?);
                        // A chunk has room for one of the largest datagrams a chunk can carry, less its headers.
                        assert!(fresh.push(buf.as_slice(), &origin, &self.ledger), "a datagram of {} bytes", buf.len());
                        pack = Some(fresh);
                    }
                }
            }
            lost += sequence - next;
            next = sequence + 1;
            stored += 1;
        }
        self.update(|state| (state.next, state.lost, state.stored, state.reply) = (next, lost, stored, last.or(state.reply)));
        if let Some(pack) = pack {
            gather.push(pack.finish()).unwrap_or_else(|_| unreachable!("one place was kept for the pack"));
        }
        Ok((gather, asked))
    }

    /// Waits until a write of any length has a place where none is under way. A device may carry out writes of one place in any order, and
    /// an extent that is small, or a write that takes long, has the ring come round to it.
    async fn has_place(&self) {
        let most = self.extent.most();
        loop {
            let head = self.state.get().head;
            let end = (head + most).min(self.extent.blocks);
            let wrapped = if head + most > self.extent.blocks { most } else { 0 };
            if !self.under_way.borrow().iter().any(|&(begin, to)| begin < wrapped || begin < end && head < to) {
                return;
            }
            self.over.wait().await;
        }
    }

    /// Gives a batch its place in the extent. Nothing is awaited between counting what was collected and counting the batch, so that
    /// it is not announced too early.
    fn place(&self, gather: Gather) -> Result<Batch> {
        let block = u64::from(self.node.disk()?.info().block_bytes);
        let blocks = u64::from(gather.len_bytes()) / block;
        let mut state = self.state.get();
        assert!(blocks <= self.extent.blocks, "an extent holds at least one write");
        let mut written = self.written.borrow_mut();
        if state.head + blocks > self.extent.blocks {
            // The extent is a ring: the oldest writes give way, and first of all those of the last lap behind its end.
            while written.front().is_some_and(|&(at, _)| at >= state.head) {
                written.pop_front();
            }
            state.head = 0;
            state.wrapped = true;
        }
        let (from, to) = (state.head, state.head + blocks);
        while written.front().is_some_and(|&(at, len)| at < to && from < at + len) {
            written.pop_front();
        }
        match written.back_mut() {
            Some((at, len)) if *at + *len == from && (*len + blocks) * block <= u64::from(limits::IO_MAX_BYTES) => *len += blocks,
            _ => written.push_back((from, blocks)),
        }
        self.under_way.borrow_mut().push((from, to));
        state.head = to;
        state.bytes_written += u64::from(gather.len_bytes());
        state.begun += 1;
        self.state.set(state);
        self.done.borrow_mut().push_back(None);
        Ok(Batch { number: state.begun - 1, gather, from, reaches: state.next })
    }

    async fn write(&self, batch: Batch) -> Result<()> {
        let Batch { number, gather, from, reaches } = batch;
        let lba = Lba(self.extent.start.0 + from);
        let disk = self.node.disk()?;
        // To be refused for want of it would look like a fault of the disk.
        self.node.core().ops().room_for(1).await;
        let written = disk.write_gather(lba, gather, Durability::AtFlush).await;
        let mut gather = written.map_err(|failed| disk.explain(&format!("stream {:#010x}: writing", self.stream), lba, failed))?;
        drop(gather.drain());
        self.gathers.borrow_mut().push(gather);
        self.committer.commit().await?;
        let mut done = self.done.borrow_mut();
        let first = self.state.get().announced;
        done[(number - first) as usize] = Some(reaches);
        // Durable is what every batch up to here has reached.
        while let Some(&Some(reaches)) = done.front() {
            done.pop_front();
            self.update(|state| {
                state.announced += 1;
                state.durable = reaches;
            });
        }
        drop(done);
        self.announce();
        Ok(())
    }

    /// Tells the sender what is durable.
    fn announce(&self) {
        let state = self.state.get();
        // With nothing on its way, what was lost at the end is settled too.
        let durable = if state.announced == state.begun { state.next } else { state.durable };
        if state.ended && !state.told && state.announced == state.begun {
            self.update(|state| state.told = true);
            self.tell();
        }
        let Some(reply) = state.reply else { return };
        let lost = state.lost.min(durable);
        self.hub.answer(&reply, datagram::Repr::Ack(datagram::Ack { stream: self.stream, durable, lost }));
    }

    fn tell(&self) {
        let State { stored, lost, bytes_written, begun: writes, .. } = self.state.get();
        let bytes_copied_user = self.ledger.copied_bytes();
        tracing::info!(stream = self.stream, stored, lost, writes, bytes_written, bytes_copied_user, "a stream was recorded");
    }

    /// Reads back what is in the extent and checks every record's place in the stream, and its content with `check`.
    /// Returns how many records there are.
    async fn read_back(&self, check: impl Fn(u64, &[u8]) -> std::result::Result<(), String>) -> Result<u64> {
        let disk = self.node.disk()?;
        let block = u64::from(disk.info().block_bytes);
        let writes: Vec<(u64, u64)> = self.written.borrow().iter().copied().collect();
        let mut records = 0;
        let mut last: Option<u64> = None;
        for (at, blocks) in writes {
            let lba = Lba(self.extent.start.0 + at);
            let run = self.node.run((blocks * block) as u32).await?;
            let run = disk.read(lba, run).await.map_err(|failed| disk.explain("reading back", lba, failed))?;
            let mut wrong: Option<String> = None;
            let walked = log::walk(run.as_slice(), 0, |header, payload| {
                records += 1;
                let mut fail = |what: String| {
                    wrong.get_or_insert(format!("record {} of stream {}: {what}", header.sequence, self.stream));
                };
                if header.stream != self.stream {
                    fail(format!("it says stream {}", header.stream));
                }
                if last.is_some_and(|last| header.sequence == last) {
                    fail("it is there twice".into());
                }
                last = Some(header.sequence);
                if let Err(what) = check(header.sequence, payload) {
                    fail(what);
                }
            });
            if let Err((at, error)) = walked {
                wrong.get_or_insert(format!("the record at byte {at} of block {lba}: {error}"));
            }
            if let Some(wrong) = wrong {
                return Err(Error::new(ErrorKind::Failed, wrong));
            }
        }
        Ok(records)
    }
}

/// Records a stream that began by itself, until it has been silent for a while.
pub async fn record_unknown(node: Node, hub: Rc<Hub>, stream: u32, inbox: Rc<Inbox<Datagram>>) {
    const SILENCE: Nanos = Nanos::from_secs(30);
    let recorded = async {
        let extent = node.allocate_for_stream(None)?;
        let recorder = Recorder::new(&node, &hub, stream, Pace::Free, inbox, extent)?;
        let watched = recorder.clone();
        let watch = node.core().spawn(async move {
            // A stream that says nothing more has ended, whether it said so or not.
            let mut seen = watched.state.get().next;
            loop {
                watched.node.core().sleep(SILENCE).await;
                let now = watched.state.get().next;
                if now == seen {
                    return watched.hub.close(stream);
                }
                seen = now;
            }
        });
        let ended = recorder.run().await;
        watch.abort();
        ended?;
        if !recorder.state.get().told {
            recorder.tell();
        }
        Ok::<(), Error>(())
    };
    if let Err(error) = recorded.await {
        hub.close(stream);
        tracing::error!(stream, %error, "a stream was not recorded");
    }
}

/// The server's side: records the client's stream until it says that it has finished, then reads everything back.
pub async fn serve(node: &Node, channel: &mut Channel, plan: &Plan) -> Result<Tally> {
    let hub = node.hub()?;
    let stream = node.new_stream();
    let expected = plan.count.map(|count| count.saturating_mul(log::stored_bytes(datagram::LEN as u32 + plan.size_bytes)));
    let extent = node.allocate_for_stream(expected)?;
    let opened = hub.open(stream, Pace::Answered);
    let recorder = Recorder::new(node, &hub, stream, Pace::Answered, opened.inbox(), extent)?;
    channel.send(&Message::Ready { stream, grants: Vec::new(), rank: 1 }).await?;
    let running = recorder.clone();
    let mut crew = Crew::new();
    crew.add(node.core(), async move { running.run().await })?;
    let finished = node.attend(channel, &mut crew, None).await;
    opened.close();
    crew.finish().await?;
    finished?;
    let State { stored, lost, bytes_written, wrapped, .. } = recorder.state.get();
    let seed = plan.seed;
    let checked = recorder
        .read_back(|sequence, payload| {
            let content = payload.get(datagram::LEN..).ok_or("it is shorter than a datagram header")?;
            Pattern::new(seed, sequence).check(content).map_err(|mismatch| mismatch.to_string())
        })
        .await;
    let mut tally = Tally { operations: stored, lost, bytes_written, bytes_copied_user: recorder.ledger.copied_bytes(), ..node.tally() };
    tally.packet_mode = Some(hub.mode());
    match checked {
        // What the ring of the extent still holds was checked; all of it, when it never wrapped.
        Ok(records) if records > 0 && (records == stored || wrapped && records < stored) => tally.verified = true,
        Ok(records) => tally.error = Some(format!("{records} records are on the disk, {stored} were stored")),
        Err(error) => tally.error = Some(error.to_string()),
    }
    Ok(tally)
}

/// The client's side: sends the stream, a window at a time, and measures each datagram until it is durable.
pub async fn request(node: &Node, channel: &mut Channel, plan: &Plan, server: SocketAddr) -> Result<Row> {
    let Message::Ready { stream, .. } = channel.answer().await? else {
        return Err(Error::new(ErrorKind::Protocol, "the server did not get ready"));
    };
    let (row, error) = match channel.heed(send_stream(node, plan, server, stream)).await? {
        Ok(row) => (row, None),
        Err(error) => (Row::new(plan.flow, plan.transport), Some(error.to_string())),
    };
    channel.send(&Message::Finished { operations: row.operations, error: error.clone() }).await?;
    let tally = match channel.receive().await? {
        Message::Result(tally) => tally,
        other => return Err(channel.unexpected(&other, "result")),
    };
    Ok(Row { error, ..row }.with_tally(&tally))
}

struct Window {
    /// How many were sent.
    sent: Cell<u64>,
    /// Every datagram below is durable or lost.
    durable: Cell<u64>,
    lost: Cell<u64>,
    /// When each datagram of the window was sent, by its number modulo the window.
    sent_at: RefCell<Vec<Nanos>>,
    /// Answers of any kind: a server that gives them is alive.
    answers: Cell<u64>,
    credit: Credit,
    meter: RefCell<Meter>,
}

async fn send_stream(node: &Node, plan: &Plan, server: SocketAddr, stream: u32) -> Result<Row> {
    let core = node.core();
    let link = Datagrams::open(node, plan, server, stream)?;
    let size = plan.window(WINDOW_PER_DEPTH);
    let window = Window {
        sent: Cell::new(0),
        durable: Cell::new(0),
        lost: Cell::new(0),
        sent_at: RefCell::new(vec![Nanos::ZERO; size as usize]),
        answers: Cell::new(0),
        credit: Credit::new(core.ops(), size),
        meter: RefCell::new(node.meter()),
    };
    let sending = async {
        let total = send_all(node, plan, &link, &window, stream).await?;
        settle(node, &link, &window, stream, total).await
    };
    match either(sending, listen(node, &link, &window, u64::from(plan.size_bytes))).await {
        Either::Left(sent) => sent?,
        Either::Right(never) => match never {},
    }
    let mut row = Row::new(plan.flow, plan.transport).measured(&window.meter.borrow());
    row.lost = window.lost.get();
    Ok(row)
}

/// Sends DATA until the count or the time is reached; returns how many.
async fn send_all(node: &Node, plan: &Plan, link: &Datagrams, window: &Window, stream: u32) -> Result<u64> {
    /// Sends handed to the kernel and not yet reaped.
    const SENDS: usize = 64;
    const STALL: Nanos = Nanos::from_millis(500);
    let core = node.core();
    let clock = plan.clock(core);
    let mut sends = VecDeque::with_capacity(SENDS);
    let mut sequence = 0;
    let (mut quiet, mut heard) = (0, 0);
    while clock.goes_on(sequence) {
        if !window.credit.try_take() && core.timeout(STALL, window.credit.take()).await.is_err() {
            // A whole window without an answer: the datagrams or the answers were lost, or the server is gone. Ask.
            let answers = window.answers.get();
            quiet = if answers == heard { quiet + 1 } else { 1 };
            heard = answers;
            if quiet > 10 {
                return Err(Error::new(ErrorKind::Failed, format!("{} has not acknowledged anything for 5 seconds", link.peer())));
            }
            let durable = window.durable.get();
            send_header(link, datagram::Repr::Hello { stream, total: 0 }).await?;
            core.sleep(Nanos::from_millis(20)).await;
            if window.durable.get() == durable {
                // It stands where it stood: what is outstanding will not come. Later datagrams show the gap.
                window.credit.give((sequence - durable) as u32);
                settle_gap(window, sequence);
            }
            continue;
        }
        let mut buf = link.buf(datagram::LEN as u32 + plan.size_bytes).await?;
        let (header, content) = buf.as_mut_slice().split_at_mut(datagram::LEN);
        header.copy_from_slice(&datagram::Repr::Data { stream, sequence, total: 0 }.encode());
        Pattern::new(plan.seed, sequence).fill(content);
        let slots = window.sent_at.borrow().len() as u64;
        window.sent_at.borrow_mut()[(sequence % slots) as usize] = core.now();
        window.sent.set(sequence + 1);
        if sends.len() == SENDS
            && let Some(sent) = sends.pop_front()
        {
            sent.await?;
        }
        sends.push_back(link.send(buf));
        sequence += 1;
    }
    for sent in sends {
        sent.await?;
    }
    Ok(sequence)
}

async fn send_header(link: &Datagrams, header: datagram::Repr) -> Result<()> {
    let mut buf = link.buf(datagram::LEN as u32).await?;
    buf.as_mut_slice().copy_from_slice(&header.encode());
    link.send(buf).await
}

/// What is outstanding counts as lost; the window is empty again.
fn settle_gap(window: &Window, sequence: u64) {
    window.lost.set(window.lost.get() + sequence - window.durable.get());
    window.durable.set(sequence);
}

/// Says that there is no more, until the server has answered for all of it.
async fn settle(node: &Node, link: &Datagrams, window: &Window, stream: u32, total: u64) -> Result<()> {
    for attempt in 0..50 {
        if window.durable.get() >= total {
            return Ok(());
        }
        // The first FIN waits for the last datagrams; it must not overtake what is still being written.
        send_header(link, datagram::Repr::Fin { stream, total }).await?;
        for _ in 0..20 {
            if window.durable.get() >= total {
                return Ok(());
            }
            node.core().sleep(Nanos::from_millis(1 + attempt)).await;
        }
    }
    let durable = window.durable.get();
    Err(Error::new(ErrorKind::Failed, format!("{} acknowledged {durable} of {total} datagrams and then nothing more", link.peer())))
}

/// Takes acknowledgements and measures what they cover.
async fn listen(node: &Node, link: &Datagrams, window: &Window, bytes: u64) -> Infallible {
    loop {
        let (datagram::Repr::Ack(ack), _) = link.receive().await else { continue };
        window.answers.set(window.answers.get() + 1);
        let before = window.durable.get();
        // Nor of what was not sent.
        if ack.durable <= before || ack.durable > window.sent.get() {
            continue;
        }
        let now = node.core().now();
        let fresh = ack.durable - before;
        let lost = ack.lost.saturating_sub(window.lost.get()).min(fresh);
        let sent_at = window.sent_at.borrow();
        let mut meter = window.meter.borrow_mut();
        for sequence in before..ack.durable - lost {
            meter.record(sent_at[(sequence % sent_at.len() as u64) as usize], now, bytes);
        }
        drop((sent_at, meter));
        window.durable.set(ack.durable);
        window.lost.set(window.lost.get() + lost);
        window.credit.give(fresh as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::device::block::Disk;
    use crate::device::sim::disk::{Image, SimDisk, SimDiskConfig};
    use crate::flow::extent::Extents;
    use crate::flow::hub::tests::datagram;
    use crate::flow::node::tests::node_of;
    use crate::reactor::{CoreConfig, PollMode};

    /// A ring of one largest write, on a disk some of whose writes take as long as many others.
    #[test]
    fn a_write_does_not_go_where_another_is_under_way() {
        (0..40).for_each(record);
    }

    fn record(seed: u64) {
        const PAYLOAD: u32 = 1400;
        const COUNT: u64 = 2000;
        // The simulated disk does not wake a core that sleeps.
        let Some(node) = node_of(4096, CoreConfig { poll: PollMode::Busy, ..CoreConfig::default() }) else { return };
        let (core, slab) = (node.core().clone(), node.slab().clone());
        let config = SimDiskConfig { slow_ppm: 300_000, slow: Nanos::from_millis(1), ..SimDiskConfig::new(4 << 20) };
        let disk = Disk::simulated(core.ops(), SimDisk::new(config, core.ops(), Image::default(), Rng::seeded(seed)));
        core.attach(disk.queue().unwrap());
        let extents = Extents::new(disk.info());
        node.set_disk(disk, 1, extents);
        let hub = Hub::new(&core, &slab, None, "by hand", 0, None).unwrap();
        let opened = hub.open(7, Pace::Free);
        let inbox = opened.inbox();
        let recorder = Recorder::new(&node, &hub, 7, Pace::Free, inbox.clone(), node.allocate_for_stream(None).unwrap()).unwrap();
        let main = {
            let (core, recorder) = (core.clone(), recorder.clone());
            async move {
                let recording = core.spawn({
                    let recorder = recorder.clone();
                    async move { recorder.run().await }
                });
                for sequence in 0..COUNT {
                    let mut buf = node.buf().await.unwrap();
                    buf.set_view(log::BLOCK + 64, PAYLOAD);
                    buf.as_mut_slice().fill(sequence as u8);
                    let header = datagram::Repr::Data { stream: 7, sequence, total: 0 };
                    inbox.push(datagram(buf, header)).unwrap_or_else(|_| panic!("a full inbox"));
                    if sequence % 512 == 511 {
                        core.sleep(Nanos::from_micros(100)).await;
                    }
                }
                inbox.close();
                recording.await.unwrap().unwrap();
                let next = Cell::new(None);
                let newest = |sequence, payload: &[u8]| match next.replace(Some(sequence + 1)) {
                    _ if payload.iter().any(|&byte| byte != sequence as u8) => Err("another one's bytes".into()),
                    Some(expected) if sequence != expected => Err(format!("an older one, in the place of {expected}")),
                    _ => Ok(()),
                };
                let records = recorder.read_back(newest).await.unwrap();
                assert_eq!(next.get(), Some(COUNT));
                records
            }
        };
        let records = core.run(main).unwrap();
        assert!(recorder.state.get().wrapped && records > 10, "{records} records");
        assert_eq!(recorder.state.get().durable, COUNT);
    }
}
