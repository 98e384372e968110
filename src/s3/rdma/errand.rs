//! What a core of a server has another do: the client has chosen where its session is to be, and the kernel which core its connection of
//! HTTP came to.
//!
//! An errand is connecting a queue pair, ending a session, or a request whose client has opened its memory to a session of that core. Each
//! core takes the errands of the others from an inbox, and answers; that of a core that has ended or panicked is that there is none.

use std::rc::Rc;
use std::sync::Arc;

use super::connect::{Connected, DISCONNECT, SESSION, Wanted, connect};
use super::native::Native;
use super::session::{Rdma, Signer, home};
use super::token;
use crate::reactor::Inbox;
use crate::s3::answer::{Answer, Content};
use crate::s3::body::Body;
use crate::s3::error::{Code, S3Error};
use crate::s3::http::connection::{Busy, Shared};
use crate::s3::metrics::counters::Kind;
use crate::s3::request::{Arrival, Request};
use crate::s3::service::told;
use crate::wire::http::head::Head;
use crate::wire::s3::token::SessionId;

/// Errands that wait for a core at most. Who finds no room is told to come again.
const WAITING_MAX: usize = 256;

/// The cores of a server, as one of them sees them. Clones are the same.
#[derive(Clone)]
pub struct Cores {
    inboxes: Arc<[Inbox<Errand>]>,
    /// How many of them have a device: all, the first, or none.
    with_rdma: usize,
    own: usize,
}

/// What another core is to do.
enum Errand {
    Connect(Box<Wanted>, Back<Result<Box<Connected>, S3Error>>),
    Disconnect(SessionId),
    Token(Box<(Head, Arrival)>, Back<Option<Done>>),
}

/// What came of a request that another core has answered.
struct Done {
    status: u16,
    headers: Vec<(std::borrow::Cow<'static, str>, String)>,
    document: Option<Vec<u8>>,
    code: Option<Code>,
    kind: Kind,
    signer: Option<String>,
    /// Bytes of the request's body.
    brought: u64,
}

/// The way back of an outcome; nothing where whoever had it is gone.
struct Back<T: Send> {
    to: Arc<Inbox<Option<T>>>,
    outcome: Option<T>,
}

impl<T: Send> Back<T> {
    fn give(mut self, outcome: T) {
        self.outcome = Some(outcome);
    }
}

impl<T: Send> Drop for Back<T> {
    fn drop(&mut self) {
        // There is room for one.
        let _ = self.to.try_send(self.outcome.take());
    }
}

impl Cores {
    /// As each of so many cores sees them, of which the first `with_rdma` have a device.
    pub fn all(cores: usize, with_rdma: usize) -> Vec<Cores> {
        let inboxes: Arc<[Inbox<Errand>]> = (0..cores).map(|_| Inbox::new(WAITING_MAX)).collect();
        (0..cores).map(|own| Cores { inboxes: inboxes.clone(), with_rdma, own }).collect()
    }

    /// Whether any has a device.
    pub fn have_rdma(&self) -> bool {
        self.with_rdma > 0
    }

    /// Where a session is made that is wanted on this core, or on any.
    fn place(&self, wanted: Option<u32>) -> Option<usize> {
        let has_device = |core: &usize| *core < self.with_rdma;
        wanted.map(|core| core as usize).into_iter().chain([self.own, 0]).find(has_device)
    }

    /// Has core `to` do something, and gives what came of it.
    ///
    /// # Errors
    /// `SlowDown`: it has too much to do. `InternalError`: it did not say; what was done is not known.
    async fn ask<T: Send>(&self, to: usize, errand: impl FnOnce(Back<T>) -> Errand) -> Result<T, Code> {
        let back = Arc::new(Inbox::new(1));
        let errand = errand(Back { to: back.clone(), outcome: None });
        self.inboxes[to].try_send(errand).map_err(|_| Code::SlowDown)?;
        back.recv().await.ok_or(Code::InternalError)
    }

    /// Has core `at` end a session. With a core its sessions have ended.
    ///
    /// # Errors
    /// `SlowDown`: it has too much to do.
    fn disconnect(&self, at: usize, id: SessionId) -> Result<(), Code> {
        let inbox = &self.inboxes[at];
        inbox.try_send(Errand::Disconnect(id)).or_else(|_| if inbox.is_closed() { Ok(()) } else { Err(Code::SlowDown) })
    }
}

/// Takes the errands of a core. Once this is dropped there is none that does, and those who have sent some are told.
struct Desk(Cores);

impl Desk {
    async fn next(&self) -> Errand {
        self.0.inboxes[self.0.own].recv().await
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.0.inboxes[self.0.own].close();
    }
}

/// Connects a queue pair, or ends a session, on whichever core that is.
///
/// # Errors
/// As for [`Wanted::read`] and [`connect`]; the core that is to do it has too much to do.
pub async fn session(shared: &Rc<Shared>, request: &Request, signer: Option<Signer>) -> Result<Answer, S3Error> {
    let cores = &shared.cores;
    if request.head.path() == DISCONNECT {
        // That there is none is as good.
        let id = request.text(SESSION).and_then(|text| SessionId::parse(text).ok());
        match (id.map(|id| (id, home(id))), &shared.rdma) {
            (Some((id, at)), Some(rdma)) if at == cores.own => rdma.close(id),
            (Some((id, at)), _) if at < cores.with_rdma => cores.disconnect(at, id)?,
            _ => {}
        }
        return Ok(Answer::new(204));
    }
    let wanted = Wanted::read(request, signer)?;
    let at = cores.place(wanted.core).ok_or(Code::NotImplemented)?;
    let connected = match &shared.rdma {
        Some(rdma) if at == cores.own => Box::new(connected(shared, rdma, wanted).await?),
        _ => cores.ask(at, |back| Errand::Connect(Box::new(wanted), back)).await??,
    };
    Ok(connected.answer())
}

async fn connected(shared: &Rc<Shared>, rdma: &Rdma, wanted: Wanted) -> Result<Connected, S3Error> {
    let peer = wanted.peer;
    connect(rdma, wanted, |session, terms, is_dealt| {
        let native = Native::new(rdma, session, (peer, is_dealt), terms, &shared.service)?;
        match rdma.core().try_spawn(native.serve(shared.clone())) {
            Ok(_) => Ok(()),
            Err(_) => Err(Code::ServiceUnavailable.into()),
        }
    })
    .await
}

/// The answer of the core that has the session of a request's token; nothing where that is this one, or it declines.
pub async fn by_token(shared: &Shared, request: &Request, id: SessionId, body: &mut Body<'_>) -> Option<Answer> {
    let (cores, at) = (&shared.cores, home(id));
    if at == cores.own || at >= cores.with_rdma {
        return None;
    }
    if let Err(error) = token::check_empty(body) {
        return Some(told(request, error));
    }
    let arrival = Arrival { id: request.id, now_ms: request.now_ms, peer: request.peer, tls_version: request.tls_version };
    let asked = cores.ask(at, |back| Errand::Token(Box::new((request.head.clone(), arrival)), back)).await;
    let done = match asked {
        Ok(done) => done?,
        Err(code) => return Some(told(request, code.into())),
    };
    request.kind.set(done.kind);
    if let Some(signer) = done.signer {
        let _ = request.signer.set(signer);
    }
    body.was_brought(done.brought);
    let content = done.document.map_or(Content::None, Content::Document);
    Some(Answer { status: done.status, headers: done.headers, content, code: done.code })
}

/// Does what other cores ask of this one, as long as the core lasts. From the call on, that this ends tells who asks.
pub fn serve(shared: Rc<Shared>, rdma: Rdma) -> impl Future<Output = ()> {
    let (desk, core) = (Desk(shared.cores.clone()), rdma.core().clone());
    async move {
        loop {
            match desk.next().await {
                // Without room for a task it is dropped, and that is the answer.
                Errand::Connect(wanted, back) => {
                    let (shared, rdma) = (shared.clone(), rdma.clone());
                    let connecting = async move { back.give(connected(&shared, &rdma, *wanted).await.map(Box::new)) };
                    drop(core.try_spawn(connecting));
                }
                Errand::Disconnect(id) => rdma.close(id),
                Errand::Token(request, back) => {
                    let (shared, rdma) = (shared.clone(), rdma.clone());
                    drop(core.try_spawn(async move { back.give(token_of_another(&shared, &rdma, *request).await) }));
                }
            }
        }
    }
}

/// Answers a request that came to another core; nothing where this one declines, too.
async fn token_of_another(shared: &Rc<Shared>, rdma: &Rdma, (head, arrival): (Head, Arrival)) -> Option<Done> {
    let _busy = Busy::begin(shared);
    let request = Request::new(head, &shared.domains, arrival).ok()?;
    let mut body = Body::apart(shared.service.hasher(), rdma.slab(), None);
    let answer = Box::pin(token::answer_here(rdma, &shared.service, &request, &mut body)).await?;
    let Answer { status, headers, content, code } = answer;
    let document = match content {
        Content::None => None,
        Content::Document(document) => Some(document),
        // The object itself, which goes by the connection: that core gets it for itself.
        Content::Object(_) | Content::Told(_) => return None,
    };
    let (brought, kind) = (body.received(), request.kind.get());
    Some(Done { status, headers, document, code, kind, signer: request.signer.into_inner(), brought })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Nanos;
    use crate::reactor::{Core, CoreConfig};

    #[test]
    fn what_a_core_that_has_ended_was_asked_is_answered() {
        let core = Core::new(CoreConfig::default()).unwrap();
        core.clone()
            .run(async move {
                let cores = Cores::all(2, 2);
                let (desk, asking) = (Desk(cores[1].clone()), cores[0].clone());
                let ask = {
                    let core = core.clone();
                    async move || {
                        let (head, _) = Head::parse(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").unwrap().unwrap();
                        let arrival = Arrival { id: 1, now_ms: 0, peer: [127, 0, 0, 1].into(), tls_version: None };
                        let asked = asking.ask(1, |back| Errand::Token(Box::new((head, arrival)), back));
                        core.timeout(Nanos::from_secs(5), asked).await.expect("it is answered").err()
                    }
                };
                let asked = core.spawn({
                    let ask = ask.clone();
                    async move { ask().await }
                });
                core.yield_now().await;
                // Where there is no room it was not done, and who asks is to come again.
                while cores[0].disconnect(1, SessionId(1)).is_ok() {}
                assert_eq!(cores[0].disconnect(1, SessionId(1)), Err(Code::SlowDown));
                assert!(!asked.is_done());
                drop(desk);
                assert_eq!(asked.await.unwrap(), Some(Code::InternalError));
                assert_eq!(ask().await, Some(Code::SlowDown));
                assert_eq!(cores[0].disconnect(1, SessionId(1)), Ok(()));
            })
            .unwrap();
    }
}
