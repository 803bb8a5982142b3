//! The sessions of a lease, one for each program that uses the lease, each with its replay window.

use alloc::{boxed::Box, vec::Vec};
use core::{net::IpAddr, time::Duration};

use fabricbios_wire::DataStatus;

use crate::{
    parts::Parts,
    replay::{ReplayWindow, Window},
};

/// Most sessions that have had a request.
const USED: usize = 16;
/// Most sessions that were opened and have had no request yet.
const OPENED: usize = 4;
/// A session without a new request for this long may be replaced by another one.
const SILENCE: Duration = Duration::from_secs(10);

/// A write whose parts are not complete after this long is dropped, and its session is closed: otherwise a later part
/// would look like the first part of a new write.
const HALF_SENT: Duration = Duration::from_secs(10);

/// One program's use of a lease.
#[derive(Debug)]
pub(crate) struct Session {
    number: u32,
    /// Nonce of the HELLO that opened the session.
    hello: u64,
    /// Whether every request must have PAYLOAD_MAC.
    pub(crate) payload_mac: bool,
    /// Source address of the newest request.
    pub(crate) source: IpAddr,
    /// When a new request came last.
    pub(crate) heard: Duration,
    pub(crate) window: Box<Window>,
    pub(crate) parts: Parts,
    /// Writes of this session in flight.
    pub(crate) writes: u32,
}

/// The parts of a HELLO that concern sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) nonce: u64,
    /// Number of the session that the client closes. It may be any number: session numbers have 32 bits.
    pub(crate) closes: u64,
    pub(crate) payload_mac: bool,
    pub(crate) source: IpAddr,
    pub(crate) now: Duration,
}

/// All sessions of a lease.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Number of the newest session.
    last: u32,
    pub(crate) used: Vec<Session>,
    /// Oldest first.
    opened: Vec<Session>,
    /// Length of each session's window.
    pub(crate) window: ReplayWindow,
}

impl Sessions {
    /// Opens a session and returns its number. `None`: there are too many.
    pub(crate) fn hello(&mut self, hello: Hello) -> Option<u32> {
        self.close(hello.closes);
        if let Some(session) = self.opened.iter().find(|session| session.is_from(&hello)) {
            return Some(session.number);
        }
        if self.used.len() >= USED && self.most_silent(hello.now).is_none() {
            return None;
        }
        self.last = self.last.checked_add(1)?;
        if self.opened.len() >= OPENED {
            self.opened.remove(0);
        }
        self.opened
            .push(Session::new(self.last, &hello, self.window));
        Some(self.last)
    }

    /// Finds an open session.
    pub(crate) fn find(&self, number: u32) -> Option<&Session> {
        self.numbered(number).next()
    }

    /// How many open sessions have this number.
    pub(crate) fn count(&self, number: u32) -> usize {
        self.numbered(number).count()
    }

    fn numbered(&self, number: u32) -> impl Iterator<Item = &Session> {
        let all = self.used.iter().chain(&self.opened);
        all.filter(move |session| session.number == number)
    }

    /// Finds a session that has had a request.
    pub(crate) fn find_mut(&mut self, number: u32) -> Option<&mut Session> {
        let mut used = self.used.iter_mut();
        used.find(|session| session.number == number)
    }

    /// Writes in flight of open sessions.
    pub(crate) fn writes(&self) -> u32 {
        self.used.iter().map(|session| session.writes).sum()
    }

    /// Marks the session of a valid request as used. A used session makes room for another one only here: a request in
    /// an unused session cannot be a recorded request that an attacker sends again.
    pub(crate) fn enter(&mut self, number: u32, now: Duration) -> Result<(), DataStatus> {
        let is_it = |session: &Session| session.number == number;
        if self.used.iter().any(is_it) {
            return Ok(());
        }
        let at = self.opened.iter().position(is_it);
        let at = at.ok_or(DataStatus::TooOld)?;
        if self.used.len() >= USED {
            let silent = self.most_silent(now).ok_or(DataStatus::Busy)?;
            self.used.swap_remove(silent);
        }
        self.used.push(self.opened.remove(at));
        Ok(())
    }

    /// Closes the sessions with a write whose parts have been missing for too long. Only used sessions have parts.
    pub(crate) fn close_half_sent(&mut self, now: Duration) {
        let is_in_time = |since| now.saturating_sub(since) < HALF_SENT;
        self.used
            .retain(|session| session.parts.since().is_none_or(is_in_time));
    }

    /// Bytes that the half-sent blocks of all sessions hold of the lease's share.
    pub(crate) fn held(&self) -> usize {
        self.used.iter().map(|session| session.parts.held()).sum()
    }

    /// Whether there are no more sessions than a lease may have.
    pub(crate) fn are_within_limits(&self) -> bool {
        self.used.len() <= USED && self.opened.len() <= OPENED
    }

    fn close(&mut self, number: u64) {
        let stays = |session: &Session| u64::from(session.number) != number;
        self.used.retain(stays);
        self.opened.retain(stays);
    }

    /// Index of the used session that may be replaced, if there is one.
    fn most_silent(&self, now: Duration) -> Option<usize> {
        let all = self.used.iter().enumerate();
        let (at, session) = all.min_by_key(|(_, session)| session.heard)?;
        (now.saturating_sub(session.heard) >= SILENCE).then_some(at)
    }
}

impl Session {
    fn new(number: u32, hello: &Hello, window: ReplayWindow) -> Self {
        Self {
            number,
            hello: hello.nonce,
            payload_mac: hello.payload_mac,
            source: hello.source,
            heard: hello.now,
            window: Box::new(Window::new(window)),
            parts: Parts::default(),
            writes: 0,
        }
    }

    fn is_from(&self, hello: &Hello) -> bool {
        self.hello == hello.nonce && self.payload_mac == hello.payload_mac
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    const START: Duration = Duration::from_secs(1000);

    fn hello(nonce: u64) -> Hello {
        Hello {
            nonce,
            closes: 0,
            payload_mac: false,
            source: Ipv4Addr::LOCALHOST.into(),
            now: START,
        }
    }

    /// 16 sessions in use: 1 to 16.
    fn full() -> Sessions {
        let mut sessions = Sessions::default();
        for number in 1..=16 {
            assert_eq!(sessions.hello(hello(number.into())), Some(number));
            sessions.enter(number, START).unwrap();
        }
        sessions
    }

    #[test]
    fn the_session_that_is_given_up_is_closed_first() {
        let mut sessions = full();
        let closes = Hello {
            closes: 5,
            ..hello(99)
        };
        assert_eq!(sessions.hello(closes), Some(17));
        assert!(sessions.find(5).is_none());
        assert!(sessions.enter(17, START).is_ok());
        let nobody = Hello {
            closes: 1 << 32 | 6,
            ..hello(99)
        };
        assert_eq!(sessions.hello(nobody), None, "no such session");
        assert!(sessions.find(6).is_some());
    }

    #[test]
    fn an_opened_session_gives_way_to_a_newer_one() {
        let mut sessions = Sessions::default();
        for nonce in 1..=5 {
            sessions.hello(hello(nonce));
        }
        assert!(sessions.find(1).is_none());
        assert!(sessions.find(2).is_some());
        assert!(matches!(sessions.enter(1, START), Err(DataStatus::TooOld)));
    }

    #[test]
    fn the_seventeenth_in_use_waits() {
        let mut sessions = Sessions::default();
        for number in 1..=15 {
            sessions.hello(hello(number.into()));
            sessions.enter(number, START).unwrap();
        }
        sessions.hello(hello(16));
        sessions.hello(hello(17));
        assert!(sessions.enter(16, START).is_ok());
        assert!(matches!(sessions.enter(17, START), Err(DataStatus::Busy)));
        assert!(sessions.enter(17, START + SILENCE).is_ok());
    }
}
