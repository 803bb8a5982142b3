//! A lease as the engine of the UDP transport sees it.

use std::{cell::RefCell, time::Duration};

use fabricbios_fallback_udp::{AccessState, Broken, Rate, ServedLease, SessionState, Space};

use crate::script::Script;

pub struct Lease<S> {
    pub state: AccessState,
    pub deadline: Duration,
    pub space: S,
    sessions: RefCell<SessionState>,
}

impl<S> Lease<S> {
    pub fn new(space: S) -> Self {
        Self {
            state: AccessState::Live,
            deadline: Duration::from_secs(60),
            space,
            sessions: RefCell::new(SessionState::new(Rate::new(1000, 200))),
        }
    }

    /// Ends the lease if the script says so; an ended lease never comes back.
    pub fn stand(&mut self, script: &mut Script<'_>) {
        if self.state == AccessState::Live {
            self.state = match script.byte() {
                Some(255) => AccessState::Over,
                Some(254) => AccessState::Fenced,
                _ => AccessState::Live,
            };
        }
    }

    pub fn is_over(&self, now: Duration) -> bool {
        self.state != AccessState::Live || self.deadline <= now
    }
}

impl<S: Space> ServedLease for Lease<S> {
    type Space = S;

    fn state(&self) -> AccessState {
        self.state
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn space(&self) -> &S {
        &self.space
    }

    fn with_sessions<R>(&self, work: impl FnOnce(&mut SessionState) -> R) -> R {
        work(&mut self.sessions.borrow_mut())
    }

    fn broken(&self, broken: Broken) {
        panic!("{broken}");
    }
}
