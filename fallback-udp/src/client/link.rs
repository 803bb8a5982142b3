//! Drives a transfer: its datagrams through the socket, its doubts to who can settle them.

use std::{
    boxed::Box,
    io,
    string::{String, ToString},
    time::{Duration, Instant},
    vec::Vec,
};

use super::{
    ClientOptions, Coordinates, Refresh,
    socket::{BATCH, Inbox, Seen, Socket},
};
use crate::{
    DataKey,
    transfer::{Failure, Transfer, Transmit},
};

/// Pause between two questions for fresh coordinates; it doubles while they lead to nothing.
const REFRESH_FIRST: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(8);

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
    pub(super) fn open(coordinates: Coordinates, options: ClientOptions) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::connect(coordinates.endpoint)?,
            coordinates,
            options,
            inbox: Inbox::new(),
            refresh: None,
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

    pub(super) fn give_up(&self) -> Duration {
        self.options.give_up
    }

    /// What was seen when nothing answered, and what to look at.
    pub(super) fn hint(&self, doubtful: bool) -> String {
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
        let mut batch = Vec::with_capacity(BATCH);
        let mut told = 0;
        self.hint = None;
        self.refresh_pause = REFRESH_FIRST;
        self.follow(transfer)?;
        loop {
            self.send(transfer, &mut batch)?;
            if let Some(outcome) = transfer.outcome() {
                return Ok(outcome);
            }
            self.receive(transfer)?;
            if transfer.confirmed() != told {
                told = transfer.confirmed();
                progress(told);
            }
            self.ask(transfer)?;
            if self
                .refresh
                .as_ref()
                .is_some_and(|refresh| refresh.is_over())
            {
                return Ok(Err(Failure::NoLease));
            }
        }
    }

    fn send<'a>(
        &mut self,
        transfer: &mut Transfer<'a>,
        batch: &mut Vec<Transmit<'a>>,
    ) -> io::Result<()> {
        let now = self.now();
        loop {
            let room = BATCH - batch.len();
            batch.extend(core::iter::from_fn(|| transfer.poll_transmit(now)).take(room));
            if batch.is_empty() {
                return Ok(());
            }
            let seen = self.socket.send(batch)?;
            batch.clear();
            self.look(transfer, seen)?;
        }
    }

    /// One datagram that may get lost.
    pub(super) fn send_off(&self, datagram: Transmit<'_>) {
        drop(self.socket.send(&[datagram]));
    }

    fn receive(&mut self, transfer: &mut Transfer<'_>) -> io::Result<()> {
        let until = transfer.next_timeout().unwrap_or_default();
        let until = self.ask_at(transfer).map_or(until, |at| at.min(until));
        let timeout = until.saturating_sub(self.now());
        let seen = self.socket.receive(&mut self.inbox, timeout)?;
        let now = self.now();
        for datagram in self.inbox.datagrams(seen.came) {
            transfer.on_datagram(datagram, now);
        }
        self.look(transfer, seen)
    }

    /// What the kernel said about the path.
    fn look(&mut self, transfer: &mut Transfer<'_>, seen: Seen) -> io::Result<()> {
        if let Some(trouble) = seen.trouble {
            self.hint = Some(trouble.to_string());
        }
        if seen.too_long {
            let (mtu, ip_header) = self.route()?;
            transfer.set_route(mtu, ip_header, self.now());
        }
        Ok(())
    }

    fn ask_at(&self, transfer: &Transfer<'_>) -> Option<Duration> {
        let at = transfer.doubtful_at().max(self.refresh_at);
        self.refresh.is_some().then_some(at)
    }

    /// Asks for fresh coordinates, if it is time.
    fn ask(&mut self, transfer: &mut Transfer<'_>) -> io::Result<()> {
        let now = self.now();
        if self.ask_at(transfer).is_none_or(|at| at > now) {
            return Ok(());
        }
        match self.refresh.as_mut().map(|refresh| refresh.refresh()) {
            Some(Ok(fresh)) if self.is_news(&fresh) => {
                self.coordinates = fresh;
                self.refresh_pause = REFRESH_FIRST;
                let key = DataKey::new(&self.coordinates.dp_key);
                transfer.set_key(key, self.now());
                self.follow(transfer)?;
            }
            Some(Err(why)) => self.hint = Some(why),
            _ => (),
        }
        self.refresh_at = self.now() + self.refresh_pause;
        self.refresh_pause = (self.refresh_pause * 2).min(REFRESH_MAX);
        Ok(())
    }

    /// Whether coordinates are others, of the same lease.
    pub(super) fn is_news(&self, coordinates: &Coordinates) -> bool {
        coordinates.lease_id == self.coordinates.lease_id && *coordinates != self.coordinates
    }

    /// The socket goes where the coordinates say.
    fn follow(&mut self, transfer: &mut Transfer<'_>) -> io::Result<()> {
        if self.socket.peer() != self.coordinates.endpoint {
            self.connect(transfer)?;
        }
        Ok(())
    }

    /// A new socket has the address and the route of now: after a failure they may be others.
    fn connect(&mut self, transfer: &mut Transfer<'_>) -> io::Result<()> {
        self.socket = Socket::connect(self.coordinates.endpoint)?;
        let (mtu, ip_header) = self.route()?;
        transfer.set_route(mtu, ip_header, self.now());
        Ok(())
    }
}
