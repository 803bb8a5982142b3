//! The node daemon: the only crate that knows all others.
//!
//! Start reading at [`process::service`] (what starts in which order), then [`driver`] (the one owner of the lease
//! table), then [`driver::dispatcher`] (which threads carry out orders), then [`kinds`] (what can be leased).

pub mod driver;
pub mod inventory;
pub mod journal;
pub mod kinds;
pub mod process;
pub mod settings;
pub mod watchdog;
