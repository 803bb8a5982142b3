//! The node daemon: the only crate that knows all others.
//!
//! Start reading at [`service`] (what starts in which order), then [`driver`] (the
//! one owner of the lease table), then [`dispatcher`] (which threads carry out orders).

pub mod block;
mod cdi;
pub mod check;
pub mod clock;
pub mod config;
pub mod cpu;
mod descriptors;
mod detached;
pub mod detect;
pub mod detection;
pub mod dispatcher;
pub mod driver;
mod endpoint;
pub mod fair;
pub mod gpu;
pub mod helpers;
pub mod inventory;
pub mod journal;
mod local_socket;
pub mod log_format;
mod log_note;
pub mod mailbox;
pub mod memory;
pub mod net;
pub mod nvme_host;
pub mod nvmet_port;
pub mod past;
pub mod program;
mod program_memory;
pub mod providers;
mod ready;
mod records;
mod refusals;
mod release_retry;
pub mod request_router;
pub mod run;
pub mod service;
mod state_dir;
mod tenant_uid;
pub mod udp_listen;
pub mod vendor;
pub mod watchdog;
pub mod workers;
