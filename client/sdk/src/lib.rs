//! The SDK: ask a node for a lease, use it, give it back.
//!
//! ```no_run
//! use fabricbios_client::MemBuilder;
//!
//! # fn main() -> Result<(), fabricbios_client::Error> {
//! // The node and the identity come from FABRICBIOS_NODE and FABRICBIOS_IDENTITY.
//! let lease = MemBuilder::new().bytes(1 << 20).lease_secs(60).acquire()?;
//! lease.write(0, b"over RDMA where both ends can, else over UDP")?;
//! let mut bytes = [0; 9];
//! lease.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"over RDMA");
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
//! Every call that waits has two forms: `NAME` blocks, and `NAME_async` returns a future ([`MemLease::renew`] and
//! [`MemLease::renew_async`], [`Node::connect`] and [`Node::connect_async`]). Both work with and without a tokio runtime
//! around them, because the connection lives on a thread of its own. Programs that bring RDMA queue pairs of
//! their own give them to [`MemBuilder::rdma_peer`] or [`MemLease::bind`] and find the coordinates in
//! [`MemLease::binding`]; everybody else reads and writes with [`MemLease::read`] and
//! [`MemLease::write`]. The frames are those of `docs/spec/fabricbios-wire-encoding-v0.md` and
//! `docs/spec/data-plane-over-udp.md`.
//!
//! A node that is busy for a moment refuses the request ([`Error::Refused`], transient, ResourceBusy or Unavailable).
//! It does the same to a tenant that asks too much at once or has too many connections. A node that restarts loses its
//! connections. Builders and their leases then repeat the request for up to 10 seconds, or as long as
//! [`Builder::patience`] and [`Lease::set_patience`] say, and not beyond the end of the lease. A [`Node`] asks once,
//! unless it was made [patient](Node::patient); that page lists the repeated requests.
//!
//! All nodes of a fabric have certificates of one CA. A [`Node`] and its leases stay with the node that answered first, and
//! refuse another one at its address ([`Error::UntrustedNode`]); [`Builder::node_id`] and [`Node::connect_to`] name the node
//! beforehand.
//!
//! [`BlockBuilder`] requests block storage. [`connect_line()`] makes the lease a device of the kernel over NVMe-oF;
//! [`BlockLease::read_blocks`] and its siblings go over UDP and need no device.
//!
//! [`CpuBuilder`] and [`NetBuilder`] request CPU cores and network functions. Both are used on the node: their leases
//! have no reads and writes, and the binding describes what the holder finds on the node.
//!
//! ```no_run
//! use fabricbios_client::{CpuBuilder, IsolationPolicy, NetBuilder, wire::HandOver};
//!
//! # fn main() -> Result<(), fabricbios_client::Error> {
//! let core = CpuBuilder::new()
//!     .single_core()
//!     .isolation(IsolationPolicy::WholeCore)
//!     .lease_secs(60)
//!     .acquire()?;
//! println!("fabricctl run --lease {} -- COMMAND", core.lease_id());
//!
//! let port = NetBuilder::new()
//!     .mbps(100)
//!     .vlan(7)?
//!     .hand_over(HandOver::Netns)
//!     .acquire()?;
//! if !port.rate_is_enforced() {
//!     println!("this node does not prove the rate");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`GpuBuilder`] requests a GPU, and a [`GpuSession`] uses it, from anywhere:
//!
//! ```no_run
//! use fabricbios_client::{Argument, GpuBuilder, GpuExclusivityClass, GpuSession};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lease = GpuBuilder::new()
//!     .min_vram(8 << 30)
//!     .exclusivity(GpuExclusivityClass::DeviceExclusive)
//!     .acquire()?;
//! let session = GpuSession::new(&lease)?;
//! let numbers = session.mem_alloc(4096)?;
//! session.mem_write(&numbers, 0, &[1; 4096])?;
//! let module = session.module_load(&std::fs::read("scale.ptx")?)?;
//! let arguments = [Argument::Memory(&numbers), 2.5_f32.into(), 1024_u32.into()];
//! session.launch(&module, "scale", [4, 1, 1], [256, 1, 1], 0, &arguments)?;
//! session.sync()?;
//! let mut scaled = [0; 4096];
//! session.mem_read(&numbers, 0, &mut scaled)?;
//! println!("{} bytes were wiped", session.close()?.bytes);
//! lease.free()?;
//! # Ok(())
//! # }
//! ```
//!
//! On the node itself [`GpuSession::local`] reaches the session without the network.
//!
//! The feature `discover`, off by default, takes `discover:IFACE` in the place of an address: a scheduler of the identity's
//! fabric that announces itself on the link of this interface.
//!
//! The feature `rdma`, on by default, adds the transport RDMA. Its library is loaded at its first use, and a machine
//! without the library uses UDP.
//!
//! Never here: a decision of the node.
//!
//! Read first: `lease.rs`, the handle of a lease.
#![forbid(unsafe_code)]

mod address;
mod affinity;
mod alloc;
mod builder;
mod connect_line;
mod dial;
mod end_watch;
mod error;
mod error_class;
mod explain;
mod fleet;
mod fleet_leases;
mod gpu;
mod identity;
mod inventory;
pub mod json;
mod kinds;
mod lease;
mod lease_json;
mod link;
mod links;
mod node;
mod passed_over;
mod patience;
mod pin;
mod renewal;
mod routes;
mod runtime;
#[cfg(feature = "discover")]
mod search;
#[cfg(not(feature = "discover"))]
#[path = "search_absent.rs"]
mod search;
mod settle;
mod shared;
mod transfer;
mod tried;
mod unmet;

pub use affinity::{AffinityWords, affinity};
pub use alloc::Granted;
pub use builder::Builder;
pub use connect_line::{connect_line, connect_options};
pub use end_watch::EndWatch;
pub use error::Error;
pub use error_class::ErrorClass;
pub use explain::Explanation;
pub use fabricbios_fallback_udp::{
    BlockClient, ClientError, Completion, FailedCall, Geometry, transfer::Operation,
};
pub use fabricbios_local::SharedMemory;
pub use fabricbios_wire as wire;
pub use fabricbios_wire::{
    CpuIsolationClass as IsolationPolicy, EndCause, GpuExclusivityClass, GpuExecutionMode,
    LeaseEnd, NodeId,
};
pub use fleet::{AwayNode, FleetNode, Members};
pub use gpu::{
    Argument, GpuMemory, GpuModule, GpuSession, LocalOptions, MemoryHandle, Submission, Submitted,
    Wiped,
};
pub use identity::Identity;
pub use inventory::{Classes, Inventory, Resource, ResourceHealth};
pub use kinds::*;
pub use lease::{Health, Lease};
pub use lease_json::{lease_json, status};
pub use node::Node;
pub use renewal::Renewals;
pub use transfer::{DataTransport, Transfers};
pub use unmet::unmet;

/// Environment variable with the default node: `HOST`, `HOST:PORT`, `[IPV6]:PORT` or `discover:IFACE`.
pub const ENV_NODE: &str = "FABRICBIOS_NODE";
/// Environment variable with the id of the default node: 64 hexadecimal digits.
pub const ENV_NODE_ID: &str = "FABRICBIOS_NODE_ID";
/// Environment variable with the default identity file.
pub const ENV_IDENTITY: &str = "FABRICBIOS_IDENTITY";
/// Begins what is in the place of an address where a scheduler is looked for on a link: `discover:IFACE`.
const DISCOVER: &str = "discover:";
/// The default node.
pub const DEFAULT_NODE: &str = "127.0.0.1:5701";
/// The default port of the control plane.
pub const DEFAULT_PORT: u16 = 5701;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
enum Readme {}
