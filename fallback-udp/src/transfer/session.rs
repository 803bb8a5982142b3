//! The sessions of a client: opening, giving up, closing, and the counters of requests in them.

use core::time::Duration;

use fabricbios_wire::{DATA_OVERHEAD, DataHeader, HelloReply};

use super::{
    Transmit,
    hello::{Hello, Opening, Path, ZEROS},
    piece::{Piece, Sizes},
    requester::{Requester, next_random},
};
use crate::DataKey;

/// First pause between sessions without progress.
const REOPEN_PAUSE: Duration = Duration::from_millis(25);

/// An open session.
#[derive(Debug)]
pub(super) struct OpenSession {
    parameters: HelloReply,
    /// The next request's counter; `None`: all are used.
    next: Option<u32>,
    sizes: Sizes,
}

impl Requester {
    /// The reply to the last HELLO, if a session is open.
    #[must_use]
    pub fn session_parameters(&self) -> Option<&HelloReply> {
        self.session.as_ref().map(|session| &session.parameters)
    }

    /// Sets another key. The session may have survived the change (a rotation) or not (a restart of the node). A HELLO
    /// that closes the session is right in both cases: either the server closes it, or the old key is dead with all
    /// requests that were made with it.
    pub fn set_key(&mut self, key: DataKey, now: Duration) {
        self.key = key;
        self.abandon_session();
        self.put_back();
        self.doubt = false;
        self.authentic = now;
        self.openings = 0;
    }

    /// A HELLO that closes the session of a client that ends. The client does not wait for its reply. The server then has
    /// room for another session and refuses delayed requests of this one. `None`: no session is open.
    pub fn close_session(&mut self, now: Duration) -> Option<Transmit<'static>> {
        self.abandon_session();
        let opening = self.opening();
        let shortest = Path::new(0, 0);
        let mut hello = Hello::new(opening, &shortest, now, Duration::ZERO);
        let random = &mut self.random;
        let nonce = &mut || next_random(random);
        let (prefix, length) = hello.poll(now, &self.key, nonce)?;
        let payload = &ZEROS[..length];
        (self.closing != 0).then_some(Transmit { prefix, payload })
    }

    /// Sets MTU and IP header of the route, as in [`Setup`](super::Setup).
    pub fn set_route(&mut self, mtu: usize, ip_header: usize, now: Duration) {
        if self.path.set_route(mtu, ip_header) {
            self.reopen(now);
        }
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Stops using the session; the next HELLO closes it.
    pub(super) fn abandon_session(&mut self) {
        if let Some(session) = self.session.take() {
            self.closing = session.parameters.session;
        }
        self.hello = None;
    }

    /// Gives up all outstanding requests; their pieces are sent again.
    fn put_back(&mut self) {
        let carried = self.requests.drain().map(|request| request.piece);
        self.unsent.put_back(carried);
    }

    /// Opens another session. Outstanding requests stay until the new session is open: late replies count.
    pub(super) fn reopen(&mut self, now: Duration) {
        self.abandon_session();
        let wait = match self.openings {
            0 | 1 => Duration::ZERO,
            more => REOPEN_PAUSE * (1 << more.min(6)),
        };
        self.start_hello(now + wait);
    }

    fn start_hello(&mut self, at: Duration) {
        let pause = self.flow.estimate();
        self.hello = Some(Hello::new(self.opening(), &self.path, at, pause));
    }

    fn opening(&self) -> Opening {
        Opening {
            service: self.service,
            lease_id: self.lease_id,
            flags: self.flags,
            closing: self.closing,
        }
    }

    pub(super) fn say_hello<'a>(&mut self, now: Duration) -> Option<Transmit<'a>> {
        if self.hello.is_none() {
            self.start_hello(now);
        }
        let random = &mut self.random;
        let hello = self.hello.as_mut()?;
        let (prefix, length) = hello.poll(now, &self.key, &mut || next_random(random))?;
        let payload = &ZEROS[..length];
        Some(Transmit { prefix, payload })
    }

    /// A session was opened by a HELLO of `datagram` bytes.
    pub(super) fn opened(&mut self, parameters: HelloReply, datagram: usize) {
        let path = datagram - DATA_OVERHEAD;
        let most = |bound: u32| usize::try_from(bound).map_or(path, |bound| bound.min(path));
        self.path.prove(datagram);
        self.flow.limit(parameters.window);
        self.put_back();
        self.hello = None;
        self.closing = 0;
        self.openings += 1;
        self.statistics.sessions += 1;
        self.unit = Some(parameters.unit);
        self.session = Some(OpenSession {
            sizes: Sizes {
                unit: usize::try_from(parameters.unit).unwrap_or(usize::MAX),
                max_read: most(parameters.max_read),
                max_write: most(parameters.max_write),
            },
            next: Some(1),
            parameters,
        });
    }

    /// The session of this request is closed or shared with another client: the result of the request is unknown.
    pub(super) fn session_lost(&mut self, request: &DataHeader, now: Duration) {
        let open = self
            .session_parameters()
            .map(|parameters| parameters.session);
        if open == Some(request.session()) {
            self.reopen(now);
        }
    }

    /// Takes a sample of the round-trip time, if only one HELLO was sent.
    pub(super) fn sample_hello(&mut self, now: Duration) {
        let sent = self.hello.as_ref().and_then(|hello| hello.sent_once);
        if let Some(sent) = sent {
            self.flow.answered(Some(now.saturating_sub(sent)));
        }
    }

    /// Nonce and piece of a new request in the session.
    pub(super) fn next_piece(&mut self, now: Duration) -> Option<(u64, Piece)> {
        if self.unsent.is_empty() {
            return None;
        }
        let session = self.session.as_mut()?;
        let last = |counter: u32| counter.checked_add(self.unsent.reserve(&session.sizes));
        let counters = session.next.and_then(|next| Some((next, last(next)?)));
        let Some((counter, last)) = counters else {
            self.reopen(now);
            return None;
        };
        let window = u32::from(session.parameters.window);
        if !self.requests.within(counter..=last, window) {
            return None;
        }
        let piece = self.unsent.take(&session.sizes)?;
        session.next = counter.checked_add(1);
        let nonce = u64::from(session.parameters.session) << 32 | u64::from(counter);
        Some((nonce, piece))
    }
}
