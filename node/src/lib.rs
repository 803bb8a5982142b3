//! The node daemon: the only crate that knows all others.
//!
//! Start reading at [`process::service`] (the order in which the parts start), then [`driver`] (the only owner of the
//! lease table), then [`driver::dispatcher`] (the threads that carry out orders), then [`kinds`] (the resources that
//! can be leased).

pub mod driver;
pub mod inventory;
pub mod journal;
pub mod kinds;
pub mod monitor;
pub mod process;
pub mod settings;
pub mod watchdog;
