//! Leases of network functions, without and with SR-IOV.
//!
//! [`netlink`] talks to the kernel about links; both kinds of parent use it. [`macvlan`] needs only a network card, [`vf`]
//! one with virtual functions.

mod link;
pub mod macvlan;
pub mod netlink;
mod records;
pub mod vf;

/// How often a store looks whether its interface is there.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
