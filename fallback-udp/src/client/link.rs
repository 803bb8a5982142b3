//! Drives what asks: its datagrams through the socket, its doubts to who can settle them.

use std::{
    boxed::Box,
    io,
    os::fd::{AsFd, BorrowedFd},
    string::{String, ToString},
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    ClientError, ClientOptions, Coordinates, Refresh,
    error::Failed,
    socket::{BATCH, Inbox, Seen, Socket},
};
use crate::{
    DataKey,
    transfer::{Asks, Blocks, Failure, Requester, Setup, Transfer, Transmit},
};

/// Pause between two questions for fresh coordinates; it doubles while they lead to nothing.
const REFRESH_FIRST: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(8);

pub(super) trait Sends: Asks {
    /// Sends some of what may be sent now; `None`: there is nothing.
    fn send(&mut self, socket: &Socket, now: Duration) -> io::Result<Option<Seen>>;
}

pub(super) struct Link {
    pub(super) coordinates: Coordinates,
    options: ClientOptions,
    socket: Socket,
    inbox: Inbox,
    pub(super) refresh: Option<Box<dyn Refresh>>,
    /// Not before this is it asked again.
    refresh_at: Duration,
    refresh_pause: Duration,
    /// When the transfers' time began.
    epoch: Instant,
    /// What was seen of the trouble.
    hint: Option<String>,
    /// The last transfer did not end well.
    failed: bool,
}

impl Link {
    pub(super) fn open(
        coordinates: Coordinates,
        options: ClientOptions,
        refresh: Option<Box<dyn Refresh>>,
    ) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::connect(coordinates.endpoint)?,
            coordinates,
            options,
            inbox: Inbox::new(),
            refresh,
            refresh_at: Duration::ZERO,
            refresh_pause: REFRESH_FIRST,
            epoch: Instant::now(),
            hint: None,
            failed: false,
        })
    }

    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// MTU and length of the IP header.
    pub(super) fn route(&self) -> io::Result<(usize, usize)> {
        let mtu = self.socket.mtu()?;
        let mtu = self.options.mtu_max.map_or(mtu, |most| mtu.min(most));
        Ok((mtu, self.socket.ip_header()))
    }

    /// What is asked with starts from this.
    pub(super) fn setup(&self) -> io::Result<Setup> {
        let (route_mtu, ip_header) = self.route()?;
        Ok(Setup {
            lease_id: self.coordinates.lease_id,
            key: DataKey::new(&self.coordinates.dp_key),
            payload_mac: self.options.payload_mac,
            give_up: self.options.give_up,
            seed: getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?,
            route_mtu,
            ip_header,
        })
    }

    /// What was seen when nothing answered, and what to look at.
    fn hint(&self, doubtful: bool) -> String {
        let doubt = "what answered, if anything still does, did not accept the key";
        let nothing = "is the node up, and does a firewall let this UDP port through?";
        match &self.hint {
            Some(hint) if doubtful => std::format!("{doubt} ({hint})"),
            Some(hint) => std::format!("{hint}; {nothing}"),
            None => if doubtful { doubt } else { nothing }.into(),
        }
    }

    /// Until the transfer is over; `progress` gets the bytes confirmed. An error is this machine's.
    pub(super) fn drive(
        &mut self,
        transfer: &mut Transfer<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Result<(), Failure>> {
        if core::mem::replace(&mut self.failed, true) {
            self.connect(transfer)?;
        }
        let outcome = self.exchange(transfer, progress)?;
        self.failed = outcome.is_err();
        Ok(outcome)
    }

    fn exchange(
        &mut self,
        transfer: &mut Transfer<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Result<(), Failure>> {
        let mut told = 0;
        self.begin(transfer)?;
        loop {
            self.send(transfer)?;
            if let Some(outcome) = transfer.outcome() {
                return Ok(outcome);
            }
            self.receive(transfer, self.patience(transfer))?;
            if transfer.confirmed() != told {
                told = transfer.confirmed();
                progress(told);
            }
            self.ask(transfer)?;
            if self.is_over() {
                return Ok(Err(Failure::NoLease));
            }
        }
    }

    /// There is something to do, after some time in which there was nothing.
    pub(super) fn begin(&mut self, asks: &mut impl Asks) -> io::Result<()> {
        self.hint = None;
        self.refresh_pause = REFRESH_FIRST;
        self.follow(asks)
    }

    /// Whether the node has said that the lease is over.
    pub(super) fn is_over(&self) -> bool {
        let refresh = self.refresh.as_ref();
        refresh.is_some_and(|refresh| refresh.is_over())
    }

    pub(super) fn send(&mut self, asks: &mut impl Sends) -> io::Result<()> {
        while let Some(seen) = asks.send(&self.socket, self.now())? {
            self.look(asks, seen)?;
        }
        Ok(())
    }

    /// One datagram that may get lost.
    pub(super) fn send_off(&self, datagram: Transmit<'_>) {
        drop(self.socket.send(&[datagram]));
    }

    /// How long nothing has to be done if nothing arrives.
    pub(super) fn patience(&self, asks: &impl Asks) -> Duration {
        let until = asks.next_timeout().unwrap_or_default();
        let until = self.ask_at(asks).map_or(until, |at| at.min(until));
        until.saturating_sub(self.now())
    }

    /// Takes what came: so many datagrams.
    pub(super) fn receive(&mut self, asks: &mut impl Asks, timeout: Duration) -> io::Result<usize> {
        let seen = self.socket.receive(&mut self.inbox, timeout)?;
        let (now, came) = (self.now(), seen.came);
        for datagram in self.inbox.datagrams(came) {
            asks.on_datagram(datagram, now);
        }
        self.look(asks, seen)?;
        Ok(came)
    }

    /// What the kernel said about the path.
    fn look(&mut self, asks: &mut impl Asks, seen: Seen) -> io::Result<()> {
        if let Some(trouble) = seen.trouble {
            self.hint = Some(trouble.to_string());
        }
        if seen.too_long {
            self.look_at_route(asks)?;
        }
        Ok(())
    }

    fn ask_at(&self, asks: &impl Asks) -> Option<Duration> {
        let at = asks.requester().doubtful_at().max(self.refresh_at);
        self.refresh.is_some().then_some(at)
    }

    /// Asks for fresh coordinates, if it is time.
    pub(super) fn ask(&mut self, asks: &mut impl Asks) -> io::Result<()> {
        let now = self.now();
        if self.ask_at(asks).is_none_or(|at| at > now) {
            return Ok(());
        }
        let is_news = match self.refresh.as_mut().map(|refresh| refresh.refresh()) {
            Some(Ok(fresh)) => self.set_coordinates(asks.requester_mut(), fresh),
            Some(Err(why)) => {
                self.hint = Some(why);
                false
            }
            None => false,
        };
        if is_news {
            self.refresh_pause = REFRESH_FIRST;
            self.follow(asks)?;
        }
        self.refresh_at = self.now() + self.refresh_pause;
        self.refresh_pause = (self.refresh_pause * 2).min(REFRESH_MAX);
        Ok(())
    }

    /// What is valid from now on. False: nothing new, or coordinates of another lease.
    pub(super) fn set_coordinates(
        &mut self,
        requester: &mut Requester,
        coordinates: Coordinates,
    ) -> bool {
        let is_news =
            coordinates.lease_id == self.coordinates.lease_id && coordinates != self.coordinates;
        if is_news {
            requester.set_key(DataKey::new(&coordinates.dp_key), self.now());
            self.coordinates = coordinates;
        }
        is_news
    }

    /// The socket goes where the coordinates say.
    fn follow(&mut self, asks: &mut impl Asks) -> io::Result<()> {
        if self.socket.peer() != self.coordinates.endpoint {
            self.connect(asks)?;
        }
        Ok(())
    }

    /// A new socket has the address and the route of now: after a failure they may be others.
    pub(super) fn connect(&mut self, asks: &mut impl Asks) -> io::Result<()> {
        self.socket = Socket::connect(self.coordinates.endpoint)?;
        self.look_at_route(asks)
    }

    fn look_at_route(&self, asks: &mut impl Asks) -> io::Result<()> {
        let (mtu, ip_header) = self.route()?;
        let requester = asks.requester_mut();
        requester.set_route(mtu, ip_header, self.now());
        Ok(())
    }

    pub(super) fn explain(&self, failure: Failure, failed: Failed) -> ClientError {
        let hint = match failure {
            Failure::Silent { doubtful } => self.hint(doubtful),
            _ => String::new(),
        };
        failed.because(failure, &self.coordinates, self.options.give_up, hint)
    }

    /// This machine's own trouble.
    pub(super) fn local(
        &self,
        what: &'static str,
        source: io::Error,
        confirmed: u64,
    ) -> ClientError {
        ClientError::Local {
            what,
            endpoint: self.coordinates.endpoint,
            source,
            confirmed,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// As many as go out in one call; nothing is allocated where there is none.
fn batch_of<T>(mut next: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
    let first = next()?;
    let mut batch = Vec::with_capacity(BATCH);
    batch.push(first);
    batch.extend(core::iter::from_fn(next).take(BATCH - 1));
    Some(batch)
}

impl Sends for Transfer<'_> {
    fn send(&mut self, socket: &Socket, now: Duration) -> io::Result<Option<Seen>> {
        let batch = batch_of(|| self.poll_transmit(now));
        let batch = batch.map(|batch| socket.send(&batch));
        batch.transpose()
    }
}

impl Sends for Blocks {
    fn send(&mut self, socket: &Socket, now: Duration) -> io::Result<Option<Seen>> {
        let Some(batch) = batch_of(|| self.poll_transmit(now)) else {
            return Ok(None);
        };
        let batch: Vec<_> = batch.iter().map(|it| self.transmit(it)).collect();
        socket.send(&batch).map(Some)
    }
}
