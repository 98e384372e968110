//! The cores of an open store: each asks the others to do something with their part of it, and hears what came of it.
//!
//! A request is a closure that goes by mailbox to the core that has the shard, is run there as a task, and whose outcome comes back the
//! same way. Payload travels as [`Parcel`]s and is not moved. A caller who gives up leaves the request running; nobody waits for a core
//! that has ended.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::rc::{Rc, Weak};

use super::engine::{Engine, Inner};
use super::failure::{Failure, Outcome};
use super::open::Delivery;
use crate::base::error::ErrorKind;
use crate::base::{Error, Nanos};
use crate::device::{Ops, Signal};
use crate::mem::{Guests, Parcel, Run};
use crate::reactor::{Core, Mailboxes};

/// How often a request that is not answered looks whether the core it went to is there.
pub(super) const ALIVE: Nanos = Nanos::from_millis(200);
/// Letters taken in one go before the core looks at its queues again.
const BATCH: usize = 64;

/// What is done with a core's part of the store.
pub(super) type Job = Box<dyn FnOnce(&Engine) + Send>;

/// What the cores of a store write to one another.
pub struct Letter(pub(super) Content);

pub(super) enum Content {
    /// A core's part of the store that core 0 has opened.
    Delivery(Box<Delivery>),
    /// It could not be opened.
    NotOpened(Error),
    Job(Job),
}

/// A core's ways to all others.
pub(super) struct Crew {
    index: usize,
    cores: usize,
    way: Way,
    next: Cell<u64>,
    /// Requests that are not answered.
    asked: RefCell<HashMap<u64, Rc<Slot>>>,
    /// What other cores have here.
    rooms: RefCell<HashMap<RoomId, Rc<dyn Any>>>,
    guests: Guests,
}

/// The core that a thing is kept for, and the number it gave it.
type RoomId = (usize, u64);

enum Way {
    /// All engines are on this thread: one core, or a simulation of several.
    Near(RefCell<Vec<Weak<Inner>>>),
    Far(Rc<Mail>),
}

/// An answer, or the place of one.
struct Slot {
    signal: Signal,
    outcome: RefCell<Option<Box<dyn Any>>>,
}

impl Crew {
    /// Of engine `index` of `cores` on one thread; [`Crew::meet`] tells it of the others.
    pub fn near(index: usize, cores: usize) -> Crew {
        Crew::new(index, cores, Way::Near(RefCell::default()))
    }

    /// Of the core that these mailboxes are of.
    pub fn far(mail: &Rc<Mail>) -> Crew {
        Crew::new(mail.mail.index(), mail.mail.cores(), Way::Far(mail.clone()))
    }

    fn new(index: usize, cores: usize, way: Way) -> Crew {
        let (next, asked, rooms) = (Cell::new(0), RefCell::default(), RefCell::default());
        Crew { index, cores, way, next, asked, rooms, guests: Guests::default() }
    }

    /// The engines of this thread, by number.
    pub fn meet(&self, engines: &[Engine]) {
        if let Way::Near(others) = &self.way {
            *others.borrow_mut() = engines.iter().map(|engine| Rc::downgrade(&engine.inner)).collect();
        }
    }

    /// Forgets what other cores have here: nobody asks for it any more.
    pub fn clear(&self) {
        let rooms = self.rooms.take();
        drop(rooms);
    }

    /// This core's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// A number that no other request or room of this core has.
    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Whether core `to` has ended.
    pub fn has_ended(&self, to: usize) -> bool {
        match &self.way {
            Way::Near(engines) => engines.borrow().get(to).is_none_or(|engine| engine.strong_count() == 0),
            Way::Far(mail) => mail.mail.has_ended(to),
        }
    }

    fn send(&self, to: usize, job: Job) {
        match &self.way {
            Way::Near(engines) => {
                if let Some(inner) = engines.borrow().get(to).and_then(Weak::upgrade) {
                    let engine = Engine { inner };
                    let core = engine.inner.core.clone();
                    drop(core.go_on(async move { engine.perform(job) }));
                }
            }
            Way::Far(mail) => mail.send(to, Letter(Content::Job(job))),
        }
    }
}

/// What a request comes to.
pub(super) struct Reply<T> {
    engine: Engine,
    to: usize,
    number: u64,
    slot: Rc<Slot>,
    what: PhantomData<fn() -> T>,
}

impl<T: 'static> Reply<T> {
    /// Waits for it. May be asked again by who gave up waiting.
    pub async fn wait(&self) -> Outcome<T> {
        let inner = &self.engine.inner;
        loop {
            if let Some(outcome) = self.slot.outcome.borrow_mut().take() {
                return *outcome.downcast::<Outcome<T>>().expect("a request is answered with what it asks for");
            }
            if inner.core.timeout(ALIVE, self.slot.signal.wait()).await.is_err() && inner.crew.has_ended(self.to) {
                return Err(ended(self.to));
            }
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.engine.inner.crew.asked.borrow_mut().remove(&self.number);
    }
}

fn ended(core: usize) -> Failure {
    Error::new(ErrorKind::Failed, format!("core {core} of the store has ended")).remedy("open the store anew").into()
}

fn unanswered(core: usize) -> Failure {
    let what = format!("core {core} of the store did not answer: it has too much to do, or failed at it");
    Error::new(ErrorKind::Busy, what).remedy("try again with less at once").into()
}

/// The way back of an answer. Without one there is an error: the task that was to give it has ended.
pub(super) struct Answer<T: Send + 'static> {
    engine: Engine,
    to: usize,
    number: u64,
    outcome: Option<Outcome<T>>,
}

impl<T: Send + 'static> Answer<T> {
    fn give(mut self, outcome: Outcome<T>) {
        self.outcome = Some(outcome);
    }
}

impl<T: Send + 'static> Drop for Answer<T> {
    fn drop(&mut self) {
        let (number, from) = (self.number, self.engine.inner.crew.index);
        let outcome = self.outcome.take().unwrap_or_else(|| Err(unanswered(from)));
        let settle = move |home: &Engine| {
            // Nobody waits any more: what it carries goes home.
            let Some(slot) = home.inner.crew.asked.borrow_mut().remove(&number) else { return };
            *slot.outcome.borrow_mut() = Some(Box::new(outcome));
            slot.signal.raise();
        };
        self.engine.inner.crew.send(self.to, Box::new(settle));
    }
}

impl Engine {
    /// Has core `to` do `job` with its part of the store.
    pub(super) fn ask<T, R>(&self, to: usize, job: impl FnOnce(Engine) -> R + Send + 'static) -> Reply<T>
    where
        T: Send + 'static,
        R: Future<Output = Outcome<T>> + 'static,
    {
        self.ask_for(to, move |engine, answer| {
            let engine = engine.clone();
            let core = engine.inner.core.clone();
            // Without room for the task it is dropped, and that is the answer.
            drop(core.try_spawn(async move { answer.give(job(engine).await) }));
        })
    }

    /// Has core `to` do `job`, which gives the answer at some time.
    pub(super) fn ask_for<T: Send + 'static>(&self, to: usize, job: impl FnOnce(&Engine, Answer<T>) + Send + 'static) -> Reply<T> {
        let crew = &self.inner.crew;
        let (number, back) = (crew.number(), crew.index);
        let slot = Rc::new(Slot { signal: Signal::new(self.inner.core.ops()), outcome: RefCell::new(None) });
        crew.asked.borrow_mut().insert(number, slot.clone());
        let job = move |engine: &Engine| job(engine, Answer { engine: engine.clone(), to: back, number, outcome: None });
        crew.send(to, Box::new(job));
        Reply { engine: self.clone(), to, number, slot, what: PhantomData }
    }

    /// Has core `to` do `job`, or does it here, and gives what it came to.
    pub(super) async fn at<T, R>(&self, to: usize, job: impl FnOnce(Engine) -> R + Send + 'static) -> Outcome<T>
    where
        T: Send + 'static,
        R: Future<Output = Outcome<T>> + 'static,
    {
        if to == self.inner.crew.index { job(self.clone()).await } else { self.ask(to, job).wait().await }
    }

    /// Has every core do `job`, at the same time, and gives what it came to, by core.
    pub(super) async fn all<T, R>(&self, job: impl FnOnce(Engine) -> R + Clone + Send + 'static) -> Outcome<Vec<T>>
    where
        T: Send + 'static,
        R: Future<Output = Outcome<T>> + 'static,
    {
        let crew = &self.inner.crew;
        if crew.cores == 1 {
            return Ok(vec![job(self.clone()).await?]);
        }
        let replies: Vec<Reply<T>> = (0..crew.cores).map(|core| self.ask(core, job.clone())).collect();
        let mut outcomes = Vec::new();
        for reply in replies {
            outcomes.push(reply.wait().await);
        }
        outcomes.into_iter().collect()
    }

    /// Has every core do what does not wait, and knows then that it is done. There need be no room for a task: what all cores are to know
    /// of reaches those, too, that have no more.
    pub(super) async fn all_hear(&self, job: impl FnOnce(&Engine) + Clone + Send + 'static) -> Outcome<()> {
        let crew = &self.inner.crew;
        let replies: Vec<Reply<()>> = (0..crew.cores)
            .filter(|&core| core != crew.index)
            .map(|core| {
                let job = job.clone();
                self.ask_for(core, move |engine, answer| {
                    job(engine);
                    answer.give(Ok(()));
                })
            })
            .collect();
        let mut outcome = Ok(());
        for reply in replies {
            outcome = outcome.and(reply.wait().await);
        }
        // Who hears of it here may ask any of them.
        job(self);
        outcome
    }

    /// Has core `to` do something that does not wait, at some time.
    pub(super) fn tell_core(&self, to: usize, job: impl FnOnce(&Engine) + Send + 'static) {
        self.inner.crew.send(to, Box::new(job));
    }

    /// Has every other core do something that does not wait, at some time.
    pub(super) fn tell_others(&self, job: impl FnOnce(&Engine) + Clone + Send + 'static) {
        let crew = &self.inner.crew;
        (0..crew.cores).filter(|&core| core != crew.index).for_each(|core| crew.send(core, Box::new(job.clone())));
    }

    /// Makes a parcel of another core a lease of this one.
    pub(super) fn welcome(&self, parcel: Parcel) -> Run {
        match parcel.attach(self.slab()) {
            Ok(run) => run,
            Err(parcel) => self.inner.crew.guests.welcome(parcel, |slab| self.inner.core.adopt_slab(slab)),
        }
    }
}

/// A thing that lives on another core, and ends there when this is dropped.
pub(super) struct Remote<T> {
    engine: Engine,
    at: usize,
    id: RoomId,
    what: PhantomData<fn() -> T>,
}

/// The thing, while nobody works with it.
type Lodger<T> = RefCell<Option<T>>;

impl<T: 'static> Remote<T> {
    /// Has core `at` make a thing and keep it. There is room for it before it is made: who gives up waiting leaves nothing there.
    pub fn make<A, R>(engine: &Engine, at: usize, work: impl FnOnce(Engine) -> R + Send + 'static) -> (Remote<T>, Reply<A>)
    where
        A: Send + 'static,
        R: Future<Output = (Option<T>, Outcome<A>)> + 'static,
    {
        let crew = &engine.inner.crew;
        let id = (crew.index, crew.number());
        let prepare = move |engine: &Engine| {
            let room: Rc<Lodger<T>> = Rc::default();
            engine.inner.crew.rooms.borrow_mut().insert(id, room);
        };
        crew.send(at, Box::new(prepare));
        let reply = engine.ask(at, async move |engine: Engine| {
            let lodger = engine.lodger::<T>(id);
            let (thing, outcome) = work(engine).await;
            // Nobody may want it any more.
            if let Some(lodger) = lodger {
                *lodger.borrow_mut() = thing;
            }
            outcome
        });
        (Remote { engine: engine.clone(), at, id, what: PhantomData }, reply)
    }

    /// Has its core work with it.
    pub fn ask<A, R>(&self, work: impl FnOnce(Engine, T) -> R + Send + 'static) -> Reply<A>
    where
        A: Send + 'static,
        R: Future<Output = (Option<T>, Outcome<A>)> + 'static,
    {
        let id = self.id;
        self.engine.ask(self.at, async move |engine: Engine| {
            let lodger = engine.lodger::<T>(id);
            let thing = lodger.as_ref().and_then(|lodger| lodger.borrow_mut().take());
            let (Some(lodger), Some(thing)) = (lodger, thing) else {
                return Err(Error::new(ErrorKind::Failed, "what was begun is not to be gone on with: a step of it was given up").into());
            };
            let (thing, outcome) = work(engine, thing).await;
            *lodger.borrow_mut() = thing;
            outcome
        })
    }
}

impl Engine {
    /// The place of a thing that is kept for another core, which may have gone.
    fn lodger<T: 'static>(&self, id: RoomId) -> Option<Rc<Lodger<T>>> {
        self.inner.crew.rooms.borrow().get(&id)?.clone().downcast().ok()
    }
}

impl<T> Drop for Remote<T> {
    fn drop(&mut self) {
        let id = self.id;
        let end = move |engine: &Engine| {
            // What ends may ask for something itself: outside the borrow.
            let lodger = engine.inner.crew.rooms.borrow_mut().remove(&id);
            drop(lodger);
        };
        self.engine.inner.crew.send(self.at, Box::new(end));
    }
}

/// A core's mailboxes, and what waits for room in them.
pub(super) struct Mail {
    mail: Mailboxes<Letter>,
    /// By core, in order.
    waiting: Vec<RefCell<VecDeque<Letter>>>,
    signal: Signal,
}

impl Mail {
    pub fn new(mail: Mailboxes<Letter>, ops: &Ops) -> Rc<Mail> {
        let waiting = (0..mail.cores()).map(|_| RefCell::default()).collect();
        Rc::new(Mail { mail, waiting, signal: Signal::new(ops) })
    }

    pub fn cores(&self) -> usize {
        self.mail.cores()
    }

    /// Whether core `to` has ended.
    pub fn has_ended(&self, to: usize) -> bool {
        self.mail.has_ended(to)
    }

    /// Sends a letter, now or when there is room for it.
    pub fn send(&self, to: usize, letter: Letter) {
        let mut waiting = self.waiting[to].borrow_mut();
        let left = if waiting.is_empty() { self.mail.try_send(to, letter).err() } else { Some(letter) };
        if let Some(letter) = left {
            waiting.push_back(letter);
            self.signal.raise();
        }
    }

    /// Whether letters wait for room.
    pub fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.borrow().is_empty())
    }

    /// Sends what waits, for ever.
    pub async fn deliver(self: Rc<Self>, core: Core) {
        loop {
            self.signal.wait().await;
            while self.is_waiting() {
                for (to, waiting) in self.waiting.iter().enumerate() {
                    let mut waiting = waiting.borrow_mut();
                    while let Some(letter) = waiting.pop_front() {
                        if let Err(letter) = self.mail.try_send(to, letter) {
                            // What was sent to a core that has ended is lost, and who waits for an answer finds out.
                            if !self.mail.has_ended(to) {
                                waiting.push_front(letter);
                            }
                            break;
                        }
                    }
                }
                core.yield_now().await;
            }
        }
    }

    /// The next letter.
    pub async fn receive(&self) -> Content {
        self.mail.recv().await.1.0
    }

    /// Does what the other cores ask for, for ever.
    pub async fn serve(self: Rc<Self>, engine: Engine) {
        loop {
            let mut next = Some(self.receive().await);
            for _ in 0..BATCH {
                match next {
                    Some(Content::Job(job)) => engine.perform(job),
                    // The store is open.
                    Some(Content::Delivery(_) | Content::NotOpened(_)) => {}
                    None => break,
                }
                next = self.mail.try_recv().map(|(_, letter)| letter.0);
            }
            if let Some(Content::Job(job)) = next {
                engine.perform(job);
            }
            engine.inner.core.yield_now().await;
        }
    }
}
