//! Leases of network functions, with and without SR-IOV.
//!
//! [`netlink`] exchanges requests about links with the kernel; both kinds of parent use it. [`macvlan`] needs any
//! network card, [`vf`] a card with virtual functions. [`Claims`] keeps the addresses and functions of their leases apart.

mod claims;
mod given;
mod link;
pub mod macvlan;
pub mod netlink;
mod records;
pub mod vf;

pub use claims::Claims;

/// Interval at which a store checks that its interface exists.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
