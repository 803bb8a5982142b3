//! SR-IOV leases: a lease is a virtual function of a network card.
//!
//! [`Card`] makes the functions at the start of the node, and keeps unused functions without driver and without
//! settings. [`VfStore`] records which lease has which function, and sets the limits of the function at the card.
//! [`VfPath`] hands the function over: as an interface of the node, as an interface in a network namespace that the
//! tenant gives, or as a device of vfio-pci. [`VfEnd`] ends access when the daemon cannot.

mod call;
mod card;
mod cut;
mod drivers;
mod endings;
mod holders;
mod identify;
mod links;
mod path;
mod pci;
mod record;
mod settings;
mod steps;
mod store;

pub use call::{Act, FunctionCall, calls};
pub(crate) use record::VfRecord;

pub use card::{Card, CardConfig, DIMENSION, Places};
pub use cut::VfEnd;
pub use holders::{EndHolders, Ended};
pub use links::Links;
pub use path::VfPath;
pub use steps::STEPS;
pub use store::VfStore;
