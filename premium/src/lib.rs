//! The hardware data plane: memory and block storage that remote clients
//! use natively.
//!
//! Implements [`fabricbios_lease::Backend`]; what a lease is and when it ends is decided there.

pub mod nvmet;
pub mod rdma;
