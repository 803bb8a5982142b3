//! The task of a member that announces itself.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use fabricbios_fabric::Fabric;
use fabricbios_wire::{ANNOUNCED_ENTRIES_MAX, Announced, FlatEntry};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    Arrived, CannotSpeak, Link, LinkError, Moment, Speaker, link::Hears, places::Places,
    speaker::of_each_type_first,
};

/// How long an ANNOUNCE holds: two may be lost.
const LIFETIME_SECS: u16 = 30;
/// An ANNOUNCE at each of the first seconds, and then each so many.
const FIRST_SECS: u64 = 3;
const EVERY_SECS: u64 = 10;
/// Other resources are announced so long after the ANNOUNCE before.
const CHANGED_SECS: u64 = 3;
/// How long a stop waits for the WITHDRAW to be sent.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A member that announces itself until it is stopped.
#[derive(Debug)]
pub struct Announcing {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Why a member cannot announce itself.
#[derive(Debug, thiserror::Error)]
pub enum CannotAnnounce {
    /// There is no socket.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Nobody could connect to what would be announced.
    #[error(
        "discovery on interface {interfaces}: nobody there could connect to {listen}; listen on an address of this interface"
    )]
    Nowhere {
        /// The interfaces, with commas.
        interfaces: String,
        /// Where the member takes QUIC.
        listen: SocketAddr,
    },
    /// Nothing can be signed.
    #[error(transparent)]
    Speak(#[from] CannotSpeak),
}

impl Announcing {
    /// Announces these resources on these interfaces. `listen`: where the member takes QUIC; of a wildcard the address of
    /// each interface is announced. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If an interface has no socket, nobody there could connect, or the identity cannot sign.
    pub fn start(
        interfaces: &[String],
        fabric: Arc<Fabric>,
        listen: SocketAddr,
        entries: Vec<FlatEntry>,
    ) -> Result<Self, CannotAnnounce> {
        // They never change.
        let (_tell, entries) = watch::channel(entries);
        let places = Places::open_all(interfaces, &[Hears::Group])?;
        refuse_nowhere(&places, listen, true)?;
        Self::start_in(places, fabric, listen, entries)
    }

    /// The same with resources that change, which those who ask learn at once, and the others 3 s later. An interface that
    /// has no socket, or where nobody could connect, is told in the log, and tried again.
    ///
    /// # Errors
    /// If none of the interfaces has a socket, nobody could connect anywhere, or the identity cannot sign.
    pub fn follow(
        interfaces: &[String],
        fabric: Arc<Fabric>,
        listen: SocketAddr,
        entries: watch::Receiver<Vec<FlatEntry>>,
    ) -> Result<Self, CannotAnnounce> {
        let places = Places::open(interfaces, &[Hears::Group])?;
        refuse_nowhere(&places, listen, false)?;
        Self::start_in(places, fabric, listen, entries)
    }

    fn start_in(
        places: Places,
        fabric: Arc<Fabric>,
        listen: SocketAddr,
        entries: watch::Receiver<Vec<FlatEntry>>,
    ) -> Result<Self, CannotAnnounce> {
        let mut latest = entries.clone();
        let offer = offer(&latest.borrow_and_update(), listen);
        let mut speaker = Speaker::new(fabric, Moment::now());
        speaker.announce(&offer, Moment::now())?;
        let task = Task {
            places,
            speaker,
            listen,
            entries,
            latest,
            offer,
        };
        let (stop, stopped) = oneshot::channel();
        Ok(Self {
            stop,
            task: tokio::spawn(task.run(stopped)),
        })
    }

    /// Sends a WITHDRAW and ends.
    pub async fn stop(self) {
        // The task may have ended.
        self.stop.send(()).ok();
        let mut task = self.task;
        if timeout(STOP_TIMEOUT, &mut task).await.is_err() {
            task.abort();
        }
    }
}

struct Task {
    places: Places,
    speaker: Speaker,
    listen: SocketAddr,
    /// What the group does not know yet.
    entries: watch::Receiver<Vec<FlatEntry>>,
    /// What is not in the offer yet.
    latest: watch::Receiver<Vec<FlatEntry>>,
    /// Short, since each datagram that arrives needs one.
    offer: Announced,
}

impl Task {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut tick, mut last): (u64, u64) = (0, 0);
        loop {
            tokio::select! {
                // Also if whoever could stop it is gone.
                _ = &mut stopped => break,
                _ = ticks.tick() => {
                    let is_due = tick < FIRST_SECS || tick.is_multiple_of(EVERY_SECS);
                    // Whoever could change them may be gone.
                    let have_changed = self.entries.has_changed().unwrap_or(false);
                    if is_due || have_changed && tick - last >= CHANGED_SECS {
                        self.places.refresh();
                        self.announce().await;
                        last = tick;
                    }
                    tick += 1;
                }
                (link, arrived) = self.places.next() => self.answer(&link, &arrived).await,
            }
        }
        let speaker = &mut self.speaker;
        let withdraw = |_: &Link| speaker.withdraw(Moment::now()).ok();
        self.places.send(withdraw).await;
    }

    async fn announce(&mut self) {
        self.entries.mark_unchanged();
        self.take_latest();
        let Self {
            places,
            speaker,
            listen,
            offer,
            ..
        } = self;
        let why = format!("nobody there could connect to {listen}; listen on an address of it");
        let is_reachable = |link: &Link| reachable(*listen, link.address()).is_some();
        places.tell_without(is_reachable, &why);
        let announce = |link: &Link| {
            offer.endpoint = reachable(*listen, link.address())?.into();
            let announce = speaker.announce(offer, Moment::now());
            announce
                .inspect_err(|why| tracing::warn!(%why, "the ANNOUNCE"))
                .ok()
        };
        places.send(announce).await;
    }

    async fn answer(&mut self, link: &Link, arrived: &Arrived) {
        // Who writes a stranger's address into a question does not reach that stranger.
        let Some(from) = arrived.from.filter(|it| link.is_on_link(it.ip())) else {
            return;
        };
        let Some(endpoint) = reachable(self.listen, link.address()) else {
            return;
        };
        self.take_latest();
        self.offer.endpoint = endpoint.into();
        let (bytes, hop_limit) = (&arrived.bytes, arrived.hop_limit);
        let now = Moment::now();
        let answer = self.speaker.answer(bytes, hop_limit, &self.offer, now);
        if let Ok(answer) = answer {
            // Whoever asked asks again.
            link.send(&answer, from).await.ok();
        }
    }

    fn take_latest(&mut self) {
        // Whoever could change them may be gone.
        if self.latest.has_changed().unwrap_or(false) {
            self.offer = offer(&self.latest.borrow_and_update(), self.listen);
        }
    }
}

/// Where those on a link with this address connect. `None`: the member does not listen there.
fn reachable(listen: SocketAddr, of_link: IpAddr) -> Option<SocketAddr> {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() && of_link.is_ipv6() => None,
        ip if ip.is_loopback() && !of_link.is_loopback() => None,
        ip if ip.is_unspecified() => Some(SocketAddr::new(of_link, listen.port())),
        _ => Some(listen),
    }
}

/// `all`: on each of the interfaces somebody could connect, not only on one.
fn refuse_nowhere(places: &Places, listen: SocketAddr, all: bool) -> Result<(), CannotAnnounce> {
    let is_reachable = |link: &Link| reachable(listen, link.address()).is_some();
    let nowhere = places.without(is_reachable);
    match nowhere.is_empty() || !all && places.has(is_reachable) {
        true => Ok(()),
        false => Err(CannotAnnounce::Nowhere {
            interfaces: nowhere.join(", "),
            listen,
        }),
    }
}

/// As many of the entries as an ANNOUNCE may have.
fn offer(entries: &[FlatEntry], endpoint: SocketAddr) -> Announced {
    Announced {
        lifetime_secs: LIFETIME_SECS,
        endpoint: endpoint.into(),
        has_more: entries.len() > ANNOUNCED_ENTRIES_MAX,
        entries: of_each_type_first(entries, ANNOUNCED_ENTRIES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_interface_where_nobody_could_connect_does_not_silence_a_member_on_the_others() {
        let listen = "0.0.0.0:5704".parse().unwrap();
        let (eth0, eth1) = (("eth0", &["192.0.2.1"][..]), ("eth1", &["fe80::1"][..]));
        let eth2 = ("eth2", &["fe80::2"][..]);
        let refused = |interfaces: &[(&str, &[&str])], all| {
            let places = Places::of_addresses(interfaces);
            let refused = refuse_nowhere(&places, listen, all).err();
            refused.map(|it| it.to_string())
        };
        assert_eq!(refused(&[eth0, eth1], false), None);
        assert_eq!(refused(&[eth0], true), None);
        let one = refused(&[eth0, eth1], true).unwrap();
        assert!(one.contains("interface eth1: nobody"), "{one}");
        let both = refused(&[eth1, eth2], false).unwrap();
        assert!(both.contains("interface eth1, eth2: nobody"), "{both}");
    }

    #[test]
    fn what_is_announced_can_be_reached_on_the_link() {
        let at = |listen: &str, of_link: &str| {
            let found = reachable(listen.parse().unwrap(), of_link.parse().unwrap());
            found.map(|it| it.to_string())
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(at("[::]:5704", "fe80::1"), found("[fe80::1]:5704"));
        assert_eq!(at("[::]:5704", "192.0.2.1"), found("192.0.2.1:5704"));
        assert_eq!(at("0.0.0.0:5704", "192.0.2.1"), found("192.0.2.1:5704"));
        assert_eq!(at("0.0.0.0:5704", "fe80::1"), None);
        assert_eq!(at("192.0.2.9:5704", "fe80::1"), found("192.0.2.9:5704"));
        assert_eq!(at("127.0.0.1:5704", "192.0.2.1"), None);
        assert_eq!(at("127.0.0.1:5704", "127.0.0.1"), found("127.0.0.1:5704"));
    }
}
