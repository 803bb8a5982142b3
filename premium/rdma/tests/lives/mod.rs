//! A lease from bind to release, as its client sees it. Runs the same tests with windows and with regions.

mod binding;
mod by_name;
mod crash;
mod cutting;
pub(crate) mod faults;
mod guard;
mod keys;
mod peers;
mod several;
mod suite;
mod tracker;
mod using;
