//! Links: network interfaces of a namespace.

use std::{
    fmt, fs, io,
    os::fd::{AsRawFd, BorrowedFd},
};

use fabricbios_wire::MacAddress;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoMacVlan, InfoVeth,
        LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, MacVlanMode,
    },
};

use super::{Error, Netlink};

/// Selects an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By<'a> {
    /// The one with this index.
    Index(u32),
    /// The one with this name.
    Name(&'a str),
}

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "interface {index}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl From<u32> for By<'_> {
    fn from(index: u32) -> Self {
        Self::Index(index)
    }
}

impl<'a> From<&'a str> for By<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

impl By<'_> {
    pub(super) fn message(self) -> LinkMessage {
        let mut message = LinkMessage::default();
        match self {
            Self::Index(index) => message.header.index = index,
            Self::Name(name) => message.attributes.push(LinkAttribute::IfName(name.into())),
        }
        message
    }
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `veth`, `macvlan`, `vlan`; `None` for hardware.
    pub kind: Option<String>,
    /// Its address; `None` if the address does not have six bytes.
    pub mac: Option<MacAddress>,
    /// Whether an administrator has set it up.
    pub is_up: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// The index of the interface below, or of the other end of a veth pair. `parent_is_elsewhere`: that interface is
    /// in another namespace.
    pub parent: Option<u32>,
    /// Whether `parent` is in another namespace.
    pub parent_is_elsewhere: bool,
    /// The note on it (`ip link set alias`).
    pub alias: Option<String>,
    /// The mode of a macvlan; `None` for other kinds.
    pub macvlan_mode: Option<MacVlanMode>,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            is_up: message.header.flags.contains(LinkFlags::Up),
            ..Self::default()
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => {
                    link.mac = <[u8; 6]>::try_from(bytes).ok().map(MacAddress);
                }
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Link(index) => link.parent = Some(index),
                LinkAttribute::LinkNetNsId(_) => link.parent_is_elsewhere = true,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::LinkInfo(infos) => link.note(infos),
                _ => {}
            }
        }
        link
    }
}

impl Link {
    fn note(&mut self, infos: Vec<LinkInfo>) {
        for info in infos {
            match info {
                LinkInfo::Kind(kind) => self.kind = Some(kind.to_string()),
                LinkInfo::Data(InfoData::MacVlan(data)) => {
                    self.macvlan_mode = data.iter().find_map(|it| match it {
                        InfoMacVlan::Mode(mode) => Some(*mode),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
    }
}

impl Netlink {
    /// The interface; `None` if there is none.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn link<'a>(&self, by: impl Into<By<'a>>) -> Result<Option<Link>, Error> {
        let by = by.into();
        match self.link_message("get", by, by.message()) {
            Ok(message) => Ok(Some(message.into())),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The index of the interface with this name, from sysfs. Other ways may wait: rtnetlink for the kernel's lock of
    /// network devices (rtnl), and ioctl(2) for a module if there is no such interface.
    ///
    /// # Errors
    /// The file in sysfs cannot be read or has no number.
    pub fn index_of(name: &str) -> Result<Option<u32>, Error> {
        let step = "read the index of";
        match fs::read_to_string(format!("/sys/class/net/{name}/ifindex")) {
            Ok(text) => match text.trim().parse() {
                Ok(index) => Ok(Some(index)),
                Err(_) => Err(Error::new(step, &name, format_args!("`{}`", text.trim()))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::of_system(step, &name, &error)),
        }
    }

    pub(super) fn link_message(
        &self,
        step: &'static str,
        by: By<'_>,
        message: LinkMessage,
    ) -> Result<LinkMessage, Error> {
        let message = RouteNetlinkMessage::GetLink(message);
        let answers = self.request(step, &by, message, 0)?;
        let found = answers.into_iter().find_map(|it| match it {
            RouteNetlinkMessage::NewLink(message) => Some(message),
            _ => None,
        });
        found.ok_or_else(|| Error::new(step, &by, "the kernel gave no answer"))
    }

    /// All interfaces of a kind, such as `macvlan`, in the namespace.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn links(&self, kind: &str) -> Result<Vec<Link>, Error> {
        let mut message = LinkMessage::default();
        // The kernel leaves the other kinds out of its answer.
        message.attributes = vec![
            LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind.into())]),
        ];
        let message = RouteNetlinkMessage::GetLink(message);
        let answers = self.dump("list", &format_args!("{kind} interfaces"), &message)?;
        let links = answers.into_iter().filter_map(|it| match it {
            RouteNetlinkMessage::NewLink(message) => Some(Link::from(message)),
            _ => None,
        });
        Ok(links
            .filter(|it| it.kind.as_deref() == Some(kind))
            .collect())
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn set_up<'a>(&self, by: impl Into<By<'a>>, up: bool) -> Result<(), Error> {
        let by = by.into();
        let mut message = by.message();
        message.header.change_mask = LinkFlags::Up;
        if up {
            message.header.flags = LinkFlags::Up;
        }
        self.change(if up { "set up" } else { "set down" }, by, message)
    }

    /// Renames an interface.
    ///
    /// # Errors
    /// The kernel refuses; an old kernel does so while the interface is up.
    pub fn set_name(&self, index: u32, name: &str) -> Result<(), Error> {
        self.set("rename", index, LinkAttribute::IfName(name.into()))
    }

    /// Sets the note of an interface, up to 255 bytes.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn set_alias<'a>(&self, by: impl Into<By<'a>>, alias: &str) -> Result<(), Error> {
        self.set("set alias of", by, LinkAttribute::IfAlias(alias.into()))
    }

    /// Moves an interface to another network namespace, with a new name if one is given. The interface is down
    /// afterwards.
    ///
    /// # Errors
    /// The name exists there (EEXIST), or the kernel cannot move the interface.
    pub fn move_to(
        &self,
        index: u32,
        namespace: BorrowedFd<'_>,
        name: Option<&str>,
    ) -> Result<(), Error> {
        let mut message = By::Index(index).message();
        let fd = LinkAttribute::NetNsFd(namespace.as_raw_fd());
        message.attributes.push(fd);
        let name = name.map(|it| LinkAttribute::IfName(it.into()));
        message.attributes.extend(name);
        self.change("move to a namespace", By::Index(index), message)
    }

    /// Deletes an interface. For a veth pair, its other end goes too, in whichever namespace that is. `false`: there
    /// was no such interface.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn delete<'a>(&self, by: impl Into<By<'a>>) -> Result<bool, Error> {
        let by = by.into();
        let message = RouteNetlinkMessage::DelLink(by.message());
        match self.request("delete", &by, message, 0) {
            Ok(_) => Ok(true),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keeps the node's own network stack from giving the interface an IPv6 address, so that it sends nothing by
    /// itself.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn set_without_addresses<'a>(&self, by: impl Into<By<'a>>) -> Result<(), Error> {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let spec = LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]);
        match self.set("set address mode of", by, spec) {
            // This kernel has no IPv6.
            Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => Ok(()),
            set => set,
        }
    }

    /// Makes the interface receive the frames of every multicast group.
    ///
    /// # Errors
    /// The kernel refuses the request; the error has its errno and text.
    pub fn set_all_multicast<'a>(&self, by: impl Into<By<'a>>) -> Result<(), Error> {
        let by = by.into();
        let mut message = by.message();
        message.header.change_mask = LinkFlags::Allmulti;
        message.header.flags = LinkFlags::Allmulti;
        self.change("set multicast of", by, message)
    }

    /// Makes a veth pair, both ends down; `peer_mac` is the address of the second end.
    ///
    /// # Errors
    /// A name exists already (EEXIST), or the kernel refuses.
    pub fn make_veth(
        &self,
        name: &str,
        peer: &str,
        peer_mac: MacAddress,
        mtu: u32,
    ) -> Result<(), Error> {
        let mut other = By::Name(peer).message();
        let address = LinkAttribute::Address(peer_mac.0.into());
        other.attributes.extend([address, LinkAttribute::Mtu(mtu)]);
        let data = InfoData::Veth(InfoVeth::Peer(other));
        self.make(name, InfoKind::Veth, data, vec![LinkAttribute::Mtu(mtu)])
    }

    /// Makes a macvlan of mode `private`, down.
    ///
    /// # Errors
    /// The name exists already (EEXIST), the parent is part of a bridge (EBUSY), or the kernel refuses.
    pub fn make_macvlan(&self, name: &str, parent: u32, mac: MacAddress) -> Result<(), Error> {
        let data = InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Private)]);
        let address = LinkAttribute::Address(mac.0.into());
        let more = vec![LinkAttribute::Link(parent), address];
        self.make(name, InfoKind::MacVlan, data, more)
    }

    fn make(
        &self,
        name: &str,
        kind: InfoKind,
        data: InfoData,
        more: Vec<LinkAttribute>,
    ) -> Result<(), Error> {
        let mut message = By::Name(name).message();
        message.attributes.extend(more);
        let info = vec![LinkInfo::Kind(kind), LinkInfo::Data(data)];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let message = RouteNetlinkMessage::NewLink(message);
        self.request("make", &name, message, NLM_F_CREATE | NLM_F_EXCL)
            .map(|_| ())
    }

    fn set<'a>(
        &self,
        step: &'static str,
        by: impl Into<By<'a>>,
        attribute: LinkAttribute,
    ) -> Result<(), Error> {
        let by = by.into();
        let mut message = by.message();
        message.attributes.push(attribute);
        self.change(step, by, message)
    }

    pub(super) fn change(
        &self,
        step: &'static str,
        by: By<'_>,
        message: LinkMessage,
    ) -> Result<(), Error> {
        let message = RouteNetlinkMessage::SetLink(message);
        self.request(step, &by, message, 0).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn an_interface_is_found_by_name_and_index_and_an_absent_one_is_none() {
        let netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap().unwrap();
        assert_eq!((&*lo.name, lo.kind.as_deref()), ("lo", None));
        assert_eq!(netlink.link(lo.index).unwrap(), Some(lo));
        assert_eq!(netlink.link("fbnone0").unwrap(), None);
        assert_eq!(netlink.links("macvlan0").unwrap(), []);
    }

    #[test]
    fn an_error_names_step_interface_and_errno() {
        let netlink = Netlink::open().unwrap();
        let error = netlink.set_up("fbnone0", true).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("set up fbnone0: "), "{text}");
        assert!(error.errno().is_some());
    }
}
