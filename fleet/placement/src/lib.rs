//! What the nodes of a fabric have, and which of them may grant a request.
//!
//! Pure: no I/O, no clock, no thread. A [`View`] takes the reports of nodes; [`View::place`] names candidates for a
//! request, and [`View::find`] the node that has a lease. It advises only: a node's own table decides, so a view that is late costs a refusal and never a second grant.
//!
//! Read first: `view.rs`, then `shadow.rs`, `place.rs`, `score.rs`, `affinity.rs` and `leases.rs`.
#![forbid(unsafe_code)]

mod affinity;
mod explain;
mod leases;
mod left_out;
mod members;
mod offer;
mod place;
mod score;
mod seen;
mod shadow;
mod tried;
mod view;

pub use leases::Whose;
pub use offer::Offer;
pub use score::{Asking, Policy, UnknownPolicy};
pub use seen::Seen;
pub use shadow::Shadow;
pub use view::{NotTaken, Reporter, View};
