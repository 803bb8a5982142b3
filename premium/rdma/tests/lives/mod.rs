//! The life of a lease as its client sees it: the same whatever the lease is made of.

mod binding;
mod crash;
mod cutting;
pub(crate) mod faults;
mod guard;
mod keys;
mod remote;
mod several;
mod tracker;
mod using;
