//! The task of somebody who looks for members.

use std::time::Duration;

use fabricbios_fabric::Verifier;
use fabricbios_wire::ResourceType;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::{Found, LinkError, Listener, Moment, News, link::Hears, places::Places};

/// A SOLICIT at each of the first seconds, then each so many while nobody is found, and more rarely all the time: the answer
/// of a member counts even if its clock was set back when it started anew. Who only asks, and so not for long, does so each
/// second: of many members the answers that were too many come again.
const FIRST_SECS: u64 = 3;
const EVERY_SECS: u64 = 10;
const ALWAYS_SECS: u64 = 60;

/// Somebody who looks for members with resources of one type, or for nodes ([`fabricbios_wire::Solicit::NODES`]), until
/// this is dropped.
#[derive(Debug)]
pub struct Looking {
    found: watch::Receiver<Vec<Found>>,
    task: JoinHandle<()>,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Looking {
    /// Asks on these interfaces, and listens to what members announce. Must be called within a tokio runtime. An interface
    /// that has no socket is told in the log, and tried again.
    ///
    /// # Errors
    /// If none of them has a socket.
    pub fn start(
        interfaces: &[String],
        verifier: Verifier,
        wanted: ResourceType,
    ) -> Result<Self, LinkError> {
        let listener = Listener::new(verifier, wanted);
        let places = Places::open(interfaces, &[Hears::Group, Hears::Own])?;
        Ok(Self::start_in(places, listener, FIRST_SECS))
    }

    /// Asks on these interfaces each second, and takes only answers to its own questions: of many on one machine each gets its own, and
    /// what was said before to somebody else is none.
    ///
    /// # Errors
    /// If an interface has no socket.
    pub fn ask(
        interfaces: &[String],
        verifier: Verifier,
        wanted: ResourceType,
    ) -> Result<Self, LinkError> {
        let listener = Listener::new(verifier, wanted).only_answers();
        let places = Places::open_all(interfaces, &[Hears::Own])?;
        Ok(Self::start_in(places, listener, u64::MAX))
    }

    fn start_in(places: Places, listener: Listener, first_secs: u64) -> Self {
        let (tell, found) = watch::channel(Vec::new());
        Self {
            found,
            task: tokio::spawn(run(places, listener, first_secs, tell)),
        }
    }

    /// Who is there now.
    #[must_use]
    pub fn now(&self) -> Vec<Found> {
        self.found.borrow().clone()
    }

    /// Tells of each change of who is there.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Vec<Found>> {
        self.found.clone()
    }
}

async fn run(
    mut places: Places,
    mut listener: Listener,
    first_secs: u64,
    tell: watch::Sender<Vec<Found>>,
) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tick: u64 = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let is_due = tick.is_multiple_of(EVERY_SECS);
                if is_due {
                    places.refresh();
                }
                let asks = is_due && tell.borrow().is_empty() || tick.is_multiple_of(ALWAYS_SECS);
                if tick < first_secs || asks {
                    let solicit = nonce().map(|it| listener.solicit(it));
                    places.send(|_| solicit.clone()).await;
                }
                tick += 1;
            }
            (_, arrived) = places.next() => {
                let heard = listener.hear(&arrived, Moment::now());
                tracing::debug!(?heard, from = ?arrived.from, "a datagram of discovery");
                if !matches!(heard, Ok(News::Came(_) | News::Went(_))) {
                    continue;
                }
            }
        }
        let now = listener.found(Moment::now().monotonic);
        tell.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }
}

/// `None`: the kernel has no randomness yet, and nobody is asked.
fn nonce() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes).max(1))
}
