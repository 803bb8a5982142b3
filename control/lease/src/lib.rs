//! The lease table of fabricBIOS: who holds which resource until when, and what must happen next.
//!
//! Pure: time is an argument, the table decides, drivers act. This crate performs no I/O, reads no clock, starts no
//! thread and takes no lock. Start reading at [`State`] (the life of a lease), then [`LeaseTable`] (requests), then
//! [`Order`] and [`Report`] (orders to the hardware and their results).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod admission;
mod attach;
mod bindings;
mod change_log;
mod classes;
mod config;
mod cores;
mod custody;
mod device;
mod effect;
mod ending;
mod extending;
mod extents;
mod fencing;
mod figures;
mod format;
mod gate;
mod invariants;
mod keys;
mod kinds;
mod lease;
mod leaving;
mod life;
mod list;
mod network;
mod no_room;
mod note;
mod offer;
mod offered;
mod orders;
mod parts;
mod paths;
mod peers;
mod placement;
#[cfg(test)]
mod planted;
mod proof;
mod rate;
mod record;
mod recovery;
mod repeats;
mod reported;
mod reports;
mod requests;
mod resource;
mod restart;
mod room;
mod standing;
mod step;
mod table;
mod tenants;
mod time;
mod timers;
mod verdict;
mod wordless;

pub use change_log::{Changes, LeaseSummary, LogPosition};
pub use config::{Policy, Profile};
pub use custody::{Custody, Lookup, NotFree};
pub use effect::*;
pub use figures::{Histogram, StateFigures};
pub use format::{FORMAT, OtherFormat};
pub use gate::{Gate, MovedOn, NotOpened};
pub use invariants::Invariant;
pub use kinds::named_class;
pub(crate) use life::Event;
pub use life::State;
pub use network::{NetworkRights, ParseVlansError, VlanList};
pub use note::{CutTime, Note, Wanted};
pub use offer::*;
pub use offered::{Offered, When};
pub use orders::*;
pub use parts::Shortage;
pub use placement::{Placement, Quantity};
pub use proof::{Proof, ProofLine};
pub use record::{LeaseRecord, Requested};
pub use recovery::EarlierRun;
pub use resource::{Availability, Trouble};
pub use room::{Explicit, Holding, Need};
pub use step::{Step, StepError};
pub use table::{Asked, LeaseTable};
pub use time::*;
pub use verdict::{Chosen, Filter, NodeLimits, Removed, Sight};
pub use wordless::{Refuses, Wordless};
