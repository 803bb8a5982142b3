//! Lives of leases, told from outside: what is asked and reported, and what must follow.

#[path = "../support/mod.rs"]
mod support;

mod afterwards;
mod binding;
mod blocks;
mod ending;
mod fences;
mod fences_of_parts;
mod keys_and_terms;
mod reboots;
mod refusals;
mod restart;
mod standing;
mod told;
mod transports;
mod units;
