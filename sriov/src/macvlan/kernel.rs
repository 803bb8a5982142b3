//! The calls to the kernel that macvlan leases need; tests implement them on their own kernel.

use std::{fmt, os::fd::BorrowedFd};

use fabricbios_wire::MacAddress;

use crate::netlink::{By, Error, Link, Netlink, Rule};

/// The links of the node's network namespace. Each call fails like the call of [`Netlink`] with the same name.
#[allow(
    clippy::missing_errors_doc,
    reason = "the errors are those of the calls of Netlink"
)]
pub trait Kernel: fmt::Debug + Send + Sync {
    /// See [`Netlink::link`].
    fn link(&self, by: By<'_>) -> Result<Option<Link>, Error>;
    /// See [`Netlink::links`].
    fn links(&self, kind: &str) -> Result<Vec<Link>, Error>;
    /// See [`Netlink::make_macvlan`]. The macvlan receives all multicast groups and gets no addresses.
    fn make_macvlan(&self, name: &str, parent: u32, mac: MacAddress) -> Result<(), Error>;
    /// See [`Netlink::make_veth`]. The first end gets no addresses.
    fn make_veth(&self, name: &str, peer: &str, mac: MacAddress, mtu: u32) -> Result<(), Error>;
    /// See [`Netlink::set_alias`].
    fn set_alias(&self, name: &str, alias: &str) -> Result<(), Error>;
    /// See [`Netlink::set_rules`].
    fn set_rules(&self, index: u32, rules: &[Rule]) -> Result<(), Error>;
    /// The index of the link with this name. This call, `delete_redirect` and `redirects` wait for no lock that a
    /// tenant can keep busy.
    fn index_of(&self, name: &str) -> Result<Option<u32>, Error>;
    /// See [`Netlink::delete_redirect`].
    fn delete_redirect(&self, index: u32) -> Result<bool, Error>;
    /// See [`Netlink::redirects`].
    fn redirects(&self, index: u32) -> Result<bool, Error>;
    /// See [`Netlink::rules`].
    fn rules(&self, index: u32) -> Result<Vec<Option<Rule>>, Error>;
    /// See [`Netlink::shape`].
    fn shape(&self, index: u32, rate: u64) -> Result<(), Error>;
    /// See [`Netlink::shaped`].
    fn shaped(&self, index: u32) -> Result<Option<u64>, Error>;
    /// See [`Netlink::set_up`].
    fn set_up(&self, name: &str) -> Result<(), Error>;
    /// See [`Netlink::move_to`].
    fn move_to(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), Error>;
    /// See [`Netlink::delete`].
    fn delete(&self, index: u32) -> Result<bool, Error>;
}

impl Kernel for Netlink {
    fn link(&self, by: By<'_>) -> Result<Option<Link>, Error> {
        self.link(by)
    }

    fn links(&self, kind: &str) -> Result<Vec<Link>, Error> {
        self.links(kind)
    }

    fn make_macvlan(&self, name: &str, parent: u32, mac: MacAddress) -> Result<(), Error> {
        self.make_macvlan(name, parent, mac)?;
        self.set_without_addresses(name)?;
        self.set_all_multicast(name)
    }

    fn make_veth(&self, name: &str, peer: &str, mac: MacAddress, mtu: u32) -> Result<(), Error> {
        self.make_veth(name, peer, mac, mtu)?;
        self.set_without_addresses(name)
    }

    fn set_alias(&self, name: &str, alias: &str) -> Result<(), Error> {
        self.set_alias(name, alias)
    }

    fn set_rules(&self, index: u32, rules: &[Rule]) -> Result<(), Error> {
        self.set_rules(index, rules)
    }

    fn index_of(&self, name: &str) -> Result<Option<u32>, Error> {
        Self::index_of(name)
    }

    fn delete_redirect(&self, index: u32) -> Result<bool, Error> {
        Self::delete_redirect(index)
    }

    fn redirects(&self, index: u32) -> Result<bool, Error> {
        Self::redirects(index)
    }

    fn rules(&self, index: u32) -> Result<Vec<Option<Rule>>, Error> {
        self.rules(index)
    }

    fn shape(&self, index: u32, rate: u64) -> Result<(), Error> {
        self.shape(index, rate)
    }

    fn shaped(&self, index: u32) -> Result<Option<u64>, Error> {
        self.shaped(index)
    }

    fn set_up(&self, name: &str) -> Result<(), Error> {
        self.set_up(name, true)
    }

    fn move_to(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), Error> {
        self.move_to(index, namespace, None)
    }

    fn delete(&self, index: u32) -> Result<bool, Error> {
        self.delete(index)
    }
}
