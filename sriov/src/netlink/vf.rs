//! The settings that a physical function (PF) enforces on its virtual functions (VFs).

use fabricbios_wire::{MacAddress, VlanId};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkVfInfo, VfInfo, VfInfoMac, VfInfoRate, VfInfoSpoofCheck,
    VfInfoTrust, VfInfoVlan,
};

use super::{By, Error, Netlink};

/// Bytes of an Ethernet address, at the start of the kernel's field for longer addresses.
const MAC_BYTES: usize = 6;

/// One setting of a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfSetting {
    /// Its address; all zeros: none.
    Mac(MacAddress),
    /// The VLAN in which the card puts its frames; `None`: untagged.
    Vlan(Option<VlanId>),
    /// The largest rate at which it sends, in megabits per second; 0: no limit.
    RateMbps(u32),
    /// Whether the card drops frames with a foreign source address.
    SpoofCheck(bool),
    /// Whether the VF may change its address and become promiscuous.
    Trust(bool),
}

/// The settings of a VF, as the PF's driver reports them; `None` for a setting that the driver does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfState {
    /// The number of the VF.
    pub number: u32,
    /// Its address; all zeros: none.
    pub mac: Option<MacAddress>,
    /// The VLAN; 0: untagged.
    pub vlan: Option<u32>,
    /// The largest rate at which it sends, in megabits per second; 0: no limit.
    pub rate_mbps: Option<u32>,
    /// See [`VfSetting::SpoofCheck`].
    pub spoof_check: Option<bool>,
    /// See [`VfSetting::Trust`].
    pub trust: Option<bool>,
}

impl VfState {
    fn new(info: &LinkVfInfo) -> Self {
        let mut state = Self::default();
        for it in &info.0 {
            match it {
                VfInfo::Mac(it) => {
                    let mut mac = [0; MAC_BYTES];
                    mac.copy_from_slice(&it.mac[..MAC_BYTES]);
                    state.number = it.vf_id;
                    state.mac = Some(MacAddress(mac));
                }
                VfInfo::Vlan(it) => state.vlan = Some(it.vlan_id),
                VfInfo::Rate(it) => state.rate_mbps = Some(it.max_tx_rate),
                VfInfo::SpoofCheck(it) => state.spoof_check = Some(it.enabled),
                VfInfo::Trust(it) => state.trust = Some(it.enabled),
                _ => {}
            }
        }
        state
    }
}

impl VfSetting {
    fn step(self) -> &'static str {
        match self {
            Self::Mac(_) => "set address of a VF of",
            Self::Vlan(_) => "set VLAN of a VF of",
            Self::RateMbps(_) => "set rate of a VF of",
            Self::SpoofCheck(_) => "set spoof check of a VF of",
            Self::Trust(_) => "set trust of a VF of",
        }
    }

    fn info(self, vf: u32) -> VfInfo {
        match self {
            Self::Mac(mac) => VfInfo::Mac(VfInfoMac::new(vf, &mac.0)),
            Self::Vlan(vlan) => {
                let id = vlan.map_or(0, |it| it.get().into());
                VfInfo::Vlan(VfInfoVlan::new(vf, id, 0))
            }
            Self::RateMbps(rate) => VfInfo::Rate(VfInfoRate::new(vf, 0, rate)),
            Self::SpoofCheck(on) => VfInfo::SpoofCheck(VfInfoSpoofCheck::new(vf, on)),
            Self::Trust(on) => VfInfo::Trust(VfInfoTrust::new(vf, on)),
        }
    }
}

impl Netlink {
    /// Changes one setting of the VF with this number.
    ///
    /// # Errors
    /// The driver of the PF refuses the setting.
    pub fn set_vf<'a>(
        &self,
        pf: impl Into<By<'a>>,
        vf: u32,
        setting: VfSetting,
    ) -> Result<(), Error> {
        let pf = pf.into();
        let mut message = pf.message();
        let info = LinkVfInfo(vec![setting.info(vf)]);
        message
            .attributes
            .push(LinkAttribute::VfInfoList(vec![info]));
        self.change(setting.step(), pf, message)
    }

    /// The settings of all VFs of a PF.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses the request.
    pub fn vfs<'a>(&self, pf: impl Into<By<'a>>) -> Result<Vec<VfState>, Error> {
        let pf = pf.into();
        let mut message = pf.message();
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Vf]);
        message.attributes.push(mask);
        let found = self.link_message("get VFs of", pf, message)?;
        let lists = found.attributes.iter().filter_map(|it| match it {
            LinkAttribute::VfInfoList(list) => Some(list),
            _ => None,
        });
        Ok(lists.flatten().map(VfState::new).collect())
    }
}
