//! Leases of network functions, without and with SR-IOV.
//!
//! [`netlink`] talks to the kernel about links; both kinds of parent use it.

pub mod macvlan;
pub mod netlink;
pub mod vf;
