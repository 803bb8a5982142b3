//! Drives a [`Driven`] state machine with a socket, and asks for fresh coordinates when nothing answers.

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
    error::{Failed, FailedCall},
    socket::{BATCH, Inbox, Seen, Socket},
};
use crate::{
    DataKey,
    transfer::{Blocks, Driven, Failure, Requester, Setup, Transfer, Transmit},
};

/// Pause between two requests for fresh coordinates; it doubles while they do not help.
const REFRESH_FIRST: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(8);

pub(super) trait Sends: Driven {
    /// Sends datagrams that may be sent now; `None`: there are none.
    fn send(&mut self, socket: &mut Socket, now: Duration) -> io::Result<Option<Seen>>;
}

pub(super) struct Link {
    pub(super) coordinates: Coordinates,
    options: ClientOptions,
    socket: Socket,
    inbox: Inbox,
    pub(super) refresh: Option<Box<dyn Refresh>>,
    /// Earliest time of the next request for fresh coordinates.
    refresh_at: Duration,
    refresh_pause: Duration,
    /// Time 0 of the state machine.
    epoch: Instant,
    /// When the machine of the node first answered that the port is closed, with no datagram since.
    closed_since: Option<Duration>,
    /// Observations for the error message.
    hint: Option<String>,
    /// Whether the last transfer failed: local address and route may have changed.
    pub(super) failed: bool,
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
            closed_since: None,
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

    /// Initial settings of the requester.
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

    /// The observations while nothing answered, and a hint about the things to check.
    fn hint(&self, doubtful: bool) -> String {
        let doubt = "answers came that are not authenticated with the lease's key";
        let nothing = "is the node up, and does a firewall let this UDP port through?";
        match &self.hint {
            Some(hint) if doubtful => std::format!("{doubt} ({hint})"),
            Some(hint) => std::format!("{hint}; {nothing}"),
            None => if doubtful { doubt } else { nothing }.into(),
        }
    }

    /// Drives a transfer to its end; `progress` gets the number of confirmed bytes. `Err`: this machine failed.
    pub(super) fn drive(
        &mut self,
        transfer: &mut Transfer<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Result<(), Failure>> {
        let outcome = self.exchange(transfer, progress);
        self.failed = !matches!(outcome, Ok(Ok(())));
        outcome
    }

    fn exchange(
        &mut self,
        transfer: &mut Transfer<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<Result<(), Failure>> {
        let mut reported = 0;
        self.begin(transfer)?;
        loop {
            self.send(transfer)?;
            if let Some(outcome) = transfer.outcome() {
                return Ok(outcome);
            }
            self.receive(transfer, self.patience(transfer))?;
            if transfer.confirmed() != reported {
                reported = transfer.confirmed();
                progress(reported);
            }
            if let Some(failure) = self.ask(transfer)? {
                return Ok(Err(failure));
            }
        }
    }

    /// Checks the route before the first datagram after an idle time.
    pub(super) fn begin(&mut self, driven: &mut impl Driven) -> io::Result<()> {
        self.hint = None;
        self.closed_since = None;
        self.refresh_pause = REFRESH_FIRST;
        self.recover(driven)?;
        self.follow(driven)
    }

    /// Connects anew if the last transfer failed.
    pub(super) fn recover(&mut self, driven: &mut impl Driven) -> io::Result<()> {
        match core::mem::take(&mut self.failed) {
            true => self.connect(driven),
            false => Ok(()),
        }
    }

    /// Whether the port is closed, and has been for as long as the caller waits for it to open.
    fn is_closed(&self) -> bool {
        self.closed_at().is_some_and(|at| at <= self.now())
    }

    fn closed_at(&self) -> Option<Duration> {
        let since = self.closed_since?;
        Some(since.saturating_add(self.options.give_up_closed))
    }

    pub(super) fn send(&mut self, driven: &mut impl Sends) -> io::Result<()> {
        loop {
            let now = self.now();
            let Some(seen) = driven.send(&mut self.socket, now)? else {
                return Ok(());
            };
            self.look(driven, seen)?;
        }
    }

    /// Sends one datagram that may get lost.
    pub(super) fn send_off(&mut self, datagram: Transmit<'_>) {
        drop(self.socket.send(&[datagram]));
    }

    /// How long to wait for a datagram.
    pub(super) fn patience(&self, driven: &impl Driven) -> Duration {
        let until = driven.next_timeout().unwrap_or_default();
        let until = self.ask_at(driven).map_or(until, |at| at.min(until));
        let until = self.closed_at().map_or(until, |at| at.min(until));
        until.saturating_sub(self.now())
    }

    /// Receives datagrams and returns their number.
    pub(super) fn receive(
        &mut self,
        driven: &mut impl Driven,
        timeout: Duration,
    ) -> io::Result<usize> {
        let seen = self.socket.receive(&mut self.inbox, timeout)?;
        let (now, came) = (self.now(), seen.came);
        if came > 0 {
            self.closed_since = None;
        }
        for datagram in self.inbox.datagrams(came) {
            driven.on_datagram(datagram, now);
        }
        self.look(driven, seen)?;
        Ok(came)
    }

    /// Handles errors of the kernel about the path.
    fn look(&mut self, driven: &mut impl Driven, seen: Seen) -> io::Result<()> {
        if let Some(trouble) = seen.trouble {
            if trouble.kind() == io::ErrorKind::ConnectionRefused {
                let now = self.now();
                self.closed_since.get_or_insert(now);
            }
            self.hint = Some(trouble.to_string());
        }
        if seen.too_long {
            self.look_at_route(driven)?;
        }
        Ok(())
    }

    /// When to ask the node for coordinates. The node may have moved to another port, so the client asks once more
    /// before a closed port fails a call.
    fn ask_at(&self, driven: &impl Driven) -> Option<Duration> {
        let doubtful_at = driven.requester().doubtful_at().max(self.refresh_at);
        let at = self
            .closed_at()
            .map_or(doubtful_at, |at| at.min(doubtful_at));
        self.refresh.is_some().then_some(at)
    }

    /// Asks for fresh coordinates if the time for it has come. `Some`: the node has said that the lease has ended, or
    /// the port stays closed.
    pub(super) fn ask(&mut self, driven: &mut impl Driven) -> io::Result<Option<Failure>> {
        self.ask_if_due(driven)?;
        let refresh = self.refresh.as_ref();
        Ok(match refresh.is_some_and(|refresh| refresh.is_over()) {
            true => Some(Failure::NoLease),
            false => { self.is_closed() }.then_some(Failure::Silent { doubtful: false }),
        })
    }

    fn ask_if_due(&mut self, driven: &mut impl Driven) -> io::Result<()> {
        let now = self.now();
        if self.ask_at(driven).is_none_or(|at| at > now) {
            return Ok(());
        }
        let is_news = match self.refresh.as_mut().map(|refresh| refresh.refresh()) {
            Some(Ok(fresh)) => self.set_coordinates(driven.requester_mut(), fresh),
            Some(Err(why)) => {
                self.hint = Some(why.to_string());
                false
            }
            None => false,
        };
        if is_news {
            self.refresh_pause = REFRESH_FIRST;
            self.follow(driven)?;
        }
        self.refresh_at = self.now() + self.refresh_pause;
        self.refresh_pause = (self.refresh_pause * 2).min(REFRESH_MAX);
        Ok(())
    }

    /// Sets the coordinates. `false`: they are not new, or of another lease.
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
            self.closed_since = None;
        }
        is_news
    }

    /// Connects the socket to the endpoint of the coordinates.
    fn follow(&mut self, driven: &mut impl Driven) -> io::Result<()> {
        if self.socket.peer() != self.coordinates.endpoint {
            self.connect(driven)?;
        }
        Ok(())
    }

    /// Opens a new socket, which has the current local address and route: both may have changed after a failure.
    fn connect(&mut self, driven: &mut impl Driven) -> io::Result<()> {
        self.socket = Socket::connect(self.coordinates.endpoint)?;
        self.look_at_route(driven)
    }

    fn look_at_route(&self, driven: &mut impl Driven) -> io::Result<()> {
        let (mtu, ip_header) = self.route()?;
        let requester = driven.requester_mut();
        requester.set_route(mtu, ip_header, self.now());
        Ok(())
    }

    pub(super) fn explain(&self, failure: Failure, failed: Failed) -> ClientError {
        let call = self.failed_call(failed.confirmed);
        if matches!(failure, Failure::Silent { .. }) && self.is_closed() {
            return ClientError::PortClosed(call);
        }
        let hint = match failure {
            Failure::Silent { doubtful } => self.hint(doubtful),
            _ => String::new(),
        };
        failed.because(failure, call, self.options.give_up, hint)
    }

    /// The error of a system call that failed in the middle of a transfer.
    pub(super) fn local(&self, source: io::Error, confirmed: u64) -> ClientError {
        ClientError::Local {
            call: self.failed_call(confirmed),
            what: "exchange datagrams",
            source,
        }
    }

    fn failed_call(&self, confirmed: u64) -> FailedCall {
        FailedCall {
            lease_id: self.coordinates.lease_id,
            endpoint: self.coordinates.endpoint,
            confirmed,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Collects up to one batch; allocates nothing if there is no datagram.
fn batch_of<T>(mut next: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
    let first = next()?;
    let mut batch = Vec::with_capacity(BATCH);
    batch.push(first);
    batch.extend(core::iter::from_fn(next).take(BATCH - 1));
    Some(batch)
}

impl Sends for Transfer<'_> {
    fn send(&mut self, socket: &mut Socket, now: Duration) -> io::Result<Option<Seen>> {
        let batch = batch_of(|| self.poll_transmit(now));
        let batch = batch.map(|batch| socket.send(&batch));
        batch.transpose()
    }
}

impl Sends for Blocks {
    fn send(&mut self, socket: &mut Socket, now: Duration) -> io::Result<Option<Seen>> {
        let Some(batch) = batch_of(|| self.poll_transmit(now)) else {
            return Ok(None);
        };
        let batch: Vec<_> = batch.iter().map(|it| self.transmit(it)).collect();
        socket.send(&batch).map(Some)
    }
}
