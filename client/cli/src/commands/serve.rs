//! What the commands share that answer other programs on behalf of leases: the listener, and the end of a lease.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::{Duration, Instant},
};

use fabricbios_client::Node;
use fabricbios_wire::{EndCause, LeaseId, LeaseInfo, LeasePhase, Request};

use crate::{failure::Failure, lease_text, signals};

/// How often the node is asked between known deadlines.
const POLL: Duration = Duration::from_secs(1);
/// How long the end of a lease whose term is over is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Most clients that are accepted and wait to be served.
const WAITING_MAX: usize = 64;
/// A node that has not answered for so long is lost. A daemon that is started again answers sooner.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// The pause before the next try while a lease is being ended, and after a connection that was not accepted.
const SOON: Duration = Duration::from_millis(100);

/// What a serving command waits for.
pub(super) enum Event {
    Client(TcpStream, SocketAddr),
    /// SIGINT or SIGTERM.
    Signal,
    /// What is served is over; a thread of the command says so.
    Over,
}

/// A listener, with the address that it has got.
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    pub(super) events: SyncSender<Event>,
    pub(super) happened: Receiver<Event>,
}

/// Listens at the address; port 0 is any free port. The caller has blocked SIGINT and SIGTERM.
pub(super) fn listen(address: SocketAddr) -> Result<Listening, Failure> {
    let cannot = |error| Failure::local(&format!("listen on {address} (--listen)"), &error);
    let listener = TcpListener::bind(address).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    // Bounded: further clients wait in the kernel.
    let (events, happened) = mpsc::sync_channel(WAITING_MAX);
    let (signal, clients) = (events.clone(), events.clone());
    thread::spawn(move || {
        if signals::ends().wait().is_ok() {
            signal.send(Event::Signal).ok();
        }
    });
    thread::spawn(move || {
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                // The client has gone, or this process has too many open files for the moment.
                thread::sleep(SOON);
                continue;
            };
            if clients.send(Event::Client(stream, peer)).is_err() {
                return;
            }
        }
    });
    Ok(Listening {
        address,
        events,
        happened,
    })
}

/// A lease that is followed until its end.
pub(super) struct Followed {
    node: Node,
    lease_id: LeaseId,
    /// The last answer of the node.
    info: LeaseInfo,
    look_at: Instant,
    /// The end of the term, by the last answer.
    ends: Instant,
    /// Since when the node does not answer, and why.
    silent: Option<(Instant, String)>,
}

/// What became of a lease.
pub(super) enum End {
    /// It was given back.
    Freed,
    /// It was over before, for this reason.
    Over(String),
    /// The node did not take it back, for this reason; it ends with its term.
    Unknown(String),
}

impl Followed {
    pub(super) fn new(node: &Node, info: &LeaseInfo) -> Self {
        let now = Instant::now();
        let mut followed = Self {
            node: node.clone(),
            lease_id: info.lease_id,
            info: info.clone(),
            look_at: now,
            ends: now,
            silent: None,
        };
        followed.goes_on(info.remaining_ms);
        followed
    }

    pub(super) fn lease_id(&self) -> LeaseId {
        self.lease_id
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The last answer of the node.
    pub(super) fn info(&self) -> &LeaseInfo {
        &self.info
    }

    /// Time until [`Followed::look`] is due.
    pub(super) fn due_in(&self) -> Duration {
        self.look_at.saturating_duration_since(Instant::now())
    }

    /// Asks the node, without patience, how the lease ended; `None`: it goes on.
    pub(super) fn look(&mut self) -> Option<String> {
        let node = self.node.patient(Duration::ZERO);
        let asked_at = Instant::now();
        let answer = node.lease(Request::LeaseQuery(self.lease_id));
        self.silent = match &answer {
            Err(error) if !error.is_over() => {
                let since = self.silent.take().map_or(asked_at, |(since, _)| since);
                Some((since, error.to_string()))
            }
            _ => None,
        };
        match answer {
            Ok(info) => {
                let how = how_it_ended(&info);
                if how.is_none() {
                    self.goes_on(info.remaining_ms);
                }
                self.info = info;
                how
            }
            Err(error) if error.is_over() => Some(error.to_string()),
            Err(error) => {
                self.look_at = Instant::now() + POLL;
                (self.ends < Instant::now()).then(|| format!("its term has ended; {error}"))
            }
        }
    }

    /// Why the node does not answer, if it has not for five seconds.
    pub(super) fn lost(&self) -> Option<&str> {
        let (since, why) = self.silent.as_ref()?;
        (since.elapsed() >= LOST_AFTER).then_some(why)
    }

    /// Gives the lease back.
    pub(super) fn give_back(&mut self) -> End {
        let mut over = self.look();
        // If it were freed while the node cuts it at its deadline, it would count as freed.
        let until = Instant::now() + ENDS_WITHIN;
        while over.is_none() && self.ends <= Instant::now() && Instant::now() < until {
            thread::sleep(SOON);
            over = self.look();
        }
        if let Some(how) = over {
            return End::Over(how);
        }
        match self.node.lease(Request::LeaseFree(self.lease_id)) {
            Ok(info) => {
                self.info = info;
                match self.info.end.as_deref().map(|end| end.cause) {
                    Some(EndCause::Freed) | None => End::Freed,
                    Some(_) => End::Over(how_it_ended(&self.info).unwrap_or_default()),
                }
            }
            // It ended meanwhile.
            Err(error) if error.is_over() => {
                End::Over(self.look().unwrap_or_else(|| error.to_string()))
            }
            Err(error) => End::Unknown(error.to_string()),
        }
    }

    fn goes_on(&mut self, remaining_ms: u64) {
        let now = Instant::now();
        let left = Duration::from_millis(remaining_ms);
        self.ends = now + left;
        // At the deadline the node begins the end, and it reports the end when access is proved gone.
        self.look_at = now + left.clamp(SOON, POLL);
    }
}

/// How a lease ended; `None`: it goes on, or its end is not proved yet.
pub(super) fn how_it_ended(info: &LeaseInfo) -> Option<String> {
    match (&info.end, info.phase) {
        (Some(end), _) => Some(lease_text::cause(end)),
        (None, LeasePhase::Binding | LeasePhase::Active) => None,
        (None, phase) => Some(phase.to_string()),
    }
}
