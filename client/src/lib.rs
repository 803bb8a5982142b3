//! The SDK: ask a node for a lease, use it, give it back.
//!
//! ```no_run
//! use fabricbios_client::MemBuilder;
//!
//! # fn main() -> Result<(), fabricbios_client::Error> {
//! // The node and the identity come from FABRICBIOS_NODE and FABRICBIOS_IDENTITY.
//! let lease = MemBuilder::new().bytes(1 << 20).lease_secs(60).acquire()?;
//! println!("{:?}", lease.binding().rdma);
//! lease.free()?;
//! # Ok(())
//! # }
//! ```
//!
//! A lease that has been given back cannot be used any more:
//!
//! ```compile_fail,E0382
//! # fn main() -> Result<(), fabricbios_client::Error> {
//! let lease = fabricbios_client::MemBuilder::new().bytes(1 << 20).acquire()?;
//! lease.free()?;
//! lease.renew()?;
//! # Ok(())
//! # }
//! ```
//!
//! Every call has a blocking and an async form; both work with and without a tokio runtime around
//! them, because the connection lives on a thread of its own. This crate never reads certificates'
//! private keys for anything but TLS and never moves lease data; the frames are those of
//! `docs/spec/fabricbios-wire-encoding-v0.md`.
#![forbid(unsafe_code)]

mod address;
mod builder;
mod dial;
mod error;
mod identity;
mod lease;
mod link;
mod node;
mod renewal;
mod runtime;

pub use builder::MemBuilder;
pub use error::Error;
pub use fabricbios_wire as wire;
pub use identity::Identity;
pub use lease::{Health, MemLease};
pub use node::{Node, unmet};

/// The node to ask unless told otherwise: `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
pub const ENV_NODE: &str = "FABRICBIOS_NODE";
/// The identity file to use unless told otherwise.
pub const ENV_IDENTITY: &str = "FABRICBIOS_IDENTITY";
/// The node that is asked when nobody says.
pub const DEFAULT_NODE: &str = "127.0.0.1:5701";
/// The control plane's port.
pub const DEFAULT_PORT: u16 = 5701;
