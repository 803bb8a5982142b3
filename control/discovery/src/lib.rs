//! Who of a fabric is on this link (`docs/spec/discovery.md`): members announce themselves to a multicast group, and who
//! looks for one asks the group.
//!
//! What is found is a hint to dial: whoever connects verifies the certificate of the other side as always. Nothing is
//! granted, cut or ended because of a datagram.
//!
//! [`Speaker`] and [`Listener`] are pure: bytes and times in, bytes and decisions out. [`Link`] is a socket; [`Announcing`]
//! and [`Looking`] are the tasks around them.
//!
//! Never here: a connection to a member, or a decision about a lease.
//!
//! Read first: `listener.rs`, what is believed.
#![forbid(unsafe_code)]

mod announcing;
mod link;
mod listener;
mod looking;
mod pace;
mod places;
mod speaker;

pub use announcing::{Announcing, CannotAnnounce};
pub use link::{Arrived, Link, LinkError, multicast_interfaces};
pub use listener::{Found, Ignored, KNOWN_MAX, Listener, News};
pub use looking::Looking;
pub use speaker::{CannotSpeak, Speaker, Unanswered};

use std::time::{Duration, Instant, SystemTime};

use fabricbios_wire::{FlatEntry, ResourceType, Solicit};

/// The hop limit of every datagram: what arrives with another one has come through a router.
pub const HOP_LIMIT: u8 = 255;
/// The largest difference between the clocks of the machines of a fabric.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3_600);

/// Whether who has these entries is looked for with this type, or as a node.
fn is_wanted(wanted: ResourceType, entries: &[FlatEntry]) -> bool {
    let mut types = entries.iter().map(|it| it.resource_type);
    match wanted {
        // One that has nothing is a node too.
        Solicit::NODES => !types.any(|it| it == ResourceType::Scheduler),
        wanted => types.any(|it| it == wanted),
    }
}

/// A moment, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// For lifetimes and bounds.
    pub monotonic: Instant,
    /// For certificates, and for the age of a datagram.
    pub wall: SystemTime,
}

impl Moment {
    /// The present one.
    #[must_use]
    pub fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    fn unix_ms(self) -> u64 {
        let since = self.wall.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
    }
}
