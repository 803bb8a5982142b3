//! The hardware data plane: memory that remote clients use without this node's processor.
//!
//! Implements [`fabricbios_lease::Backend`]; what a lease is and when it ends is decided there.

pub mod rdma;
