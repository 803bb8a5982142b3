//! Lives of leases seen from outside: requests, reports and their effects.

#[path = "../support/mod.rs"]
mod support;

mod afterwards;
mod attach;
mod being_cleaned;
mod binding;
mod blocks;
mod change_log;
mod classes;
mod cores;
mod device_classes;
mod device_lives;
mod devices;
mod ending;
mod fences;
mod fences_of_parts;
mod figures;
mod functions;
mod intents;
mod keys_and_terms;
mod limits;
mod peers;
mod reboots;
mod refusals;
mod repeats;
mod restart;
mod standing;
mod told;
mod transports;
mod without_transport;
