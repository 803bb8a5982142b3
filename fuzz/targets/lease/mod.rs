//! A lease as an engine of the UDP road is shown it.

use std::{cell::RefCell, time::Duration};

use fabricbios_fallback_udp::{Desk, Leased, Rate, Space, Standing};

use crate::script::Script;

pub struct Lease<S> {
    pub standing: Standing,
    pub deadline: Duration,
    pub space: S,
    desk: RefCell<Desk>,
}

impl<S> Lease<S> {
    pub fn new(space: S) -> Self {
        Self {
            standing: Standing::Live,
            deadline: Duration::from_secs(60),
            space,
            desk: RefCell::new(Desk::new(Rate::new(1000, 200))),
        }
    }

    /// An end is for ever.
    pub fn stand(&mut self, script: &mut Script<'_>) {
        if self.standing == Standing::Live {
            self.standing = match script.byte() {
                Some(255) => Standing::Over,
                Some(254) => Standing::Fenced,
                _ => Standing::Live,
            };
        }
    }

    pub fn is_over(&self, now: Duration) -> bool {
        self.standing != Standing::Live || self.deadline <= now
    }
}

impl<S: Space> Leased for Lease<S> {
    type Space = S;

    fn standing(&self) -> Standing {
        self.standing
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn space(&self) -> &S {
        &self.space
    }

    fn at_desk<R>(&self, work: impl FnOnce(&mut Desk) -> R) -> R {
        work(&mut self.desk.borrow_mut())
    }
}
