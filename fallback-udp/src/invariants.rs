//! The invariants of the data plane over UDP, by name.
//!
//! | name | what holds | checked at |
//! |---|---|---|
//! | **end** | no request is served and no I/O begins once the access of a binding has ended | each request, each I/O |
//! | **once** | a counter of a session belongs to one request, which is done once | each new request |
//! | **in flight** | only a request or an I/O that was begun finishes; the writes in flight of sessions are among those of their lease | each result, each write |
//! | **sessions** | a lease has no more sessions than it may have | each request |
//! | **numbers** | the session that a HELLO opens has a number that no other open session of its lease has | each HELLO |
//! | **rate** | no limit lends more than its burst | each request |
//! | **parts** | each part of a half-sent block arrives once and lies within the block | each part |
//! | **room** | half-sent blocks hold exactly the bytes that are counted for their lease, its tenant and the node; an ended lease holds none | each request, each second, each release |
//! | **generations** | a binding replaces only an older binding, and only after the older one has ended | each bind |
//! | **quiet** | the blocks of a lease are closed only when no I/O is in flight | each release |
//! | **bytes** | an operation of a client is done when each of its bytes was answered once | each end of an operation |
//!
//! Each invariant is checked where the state changes, with the data at hand there; only the sum of `room` looks at all
//! half-sent blocks of a lease, once a second. A failed invariant ends the access of its binding
//! ([`ServedLease::broken`]): the server answers with FENCED, refuses a new deadline, and fails the cut, so the lease
//! is fenced. All other bindings go on. In a client, the operation fails.
//!
//! [`ServedLease::broken`]: crate::ServedLease::broken

use core::fmt;

/// An invariant of the data plane over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// No request is served after the end of access.
    End,
    /// Each request is done once.
    Once,
    /// Only a request that was begun finishes.
    InFlight,
    /// No more sessions than there may be.
    Sessions,
    /// No two sessions have the same number.
    Numbers,
    /// No limit lends more than its burst.
    Rate,
    /// Parts come once and lie within their block.
    Parts,
    /// Half-sent blocks are counted correctly.
    Room,
    /// Only an ended, older binding is replaced.
    Generations,
    /// No blocks are closed while an I/O is in flight.
    Quiet,
    /// An operation is done when each of its bytes was answered once.
    Bytes,
}

/// An invariant that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The invariant.
    pub invariant: Invariant,
    /// The state that was found.
    pub detail: &'static str,
}

/// The first invariant that failed in the current step.
#[derive(Debug, Default)]
pub(crate) struct Findings(Option<Broken>);

impl Findings {
    /// Notes the invariant if it does not hold, and returns whether it holds.
    pub(crate) fn holds(
        &mut self,
        invariant: Invariant,
        holds: bool,
        detail: &'static str,
    ) -> bool {
        if !holds {
            self.0.get_or_insert(Broken { invariant, detail });
        }
        holds
    }

    /// The first finding since the last call.
    pub(crate) fn take(&mut self) -> Option<Broken> {
        self.0.take()
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::End => "end",
            Self::Once => "once",
            Self::InFlight => "in flight",
            Self::Sessions => "sessions",
            Self::Numbers => "numbers",
            Self::Rate => "rate",
            Self::Parts => "parts",
            Self::Room => "room",
            Self::Generations => "generations",
            Self::Quiet => "quiet",
            Self::Bytes => "bytes",
        })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, detail } = self;
        write!(
            f,
            "{invariant}: {detail}; this is a mistake in the node's program"
        )
    }
}

#[cfg(test)]
mod tests;
