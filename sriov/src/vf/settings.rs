//! What a card enforces of one virtual function.

use fabricbios_lease::StepError;
use fabricbios_wire::{MacAddress, VlanId};

use super::{links::Links, record::Record, steps};
use crate::netlink::{VfSetting, VfState};

/// The settings. Frames with another source address are always dropped, and the function is never trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    mac: MacAddress,
    vlan: Option<VlanId>,
    /// 0: without limit.
    rate_mbps: u32,
}

/// Of a function that nobody has.
pub(super) const NEUTRAL: Settings = Settings {
    mac: MacAddress([0; 6]),
    vlan: None,
    rate_mbps: 0,
};

impl From<&Record> for Settings {
    fn from(record: &Record) -> Self {
        Self {
            mac: record.mac,
            vlan: record.vlan,
            rate_mbps: record.rate_mbps,
        }
    }
}

impl Settings {
    /// Sets everything and reads it back.
    ///
    /// # Errors
    /// The card's driver refuses a setting, or tells another value afterwards.
    pub(super) fn apply(&self, links: &dyn Links, card: u32, number: u32) -> Result<(), StepError> {
        let settings = [
            ("set address", VfSetting::Mac(self.mac)),
            ("set VLAN", VfSetting::Vlan(self.vlan)),
            ("set spoof check", VfSetting::SpoofCheck(true)),
            ("set trust", VfSetting::Trust(false)),
            ("set rate", VfSetting::RateMbps(self.rate_mbps)),
        ];
        for (step, setting) in settings {
            links.set_function(card, number, setting)?;
            steps::passed(step);
        }
        self.check(links, card, number)
    }

    /// # Errors
    /// The card's driver tells another value.
    pub(super) fn check(&self, links: &dyn Links, card: u32, number: u32) -> Result<(), StepError> {
        let expected = VfState {
            number,
            mac: Some(self.mac),
            vlan: Some(self.vlan.map_or(0, |it| it.get().into())),
            rate_mbps: Some(self.rate_mbps),
            spoof_check: Some(true),
            trust: Some(false),
        };
        let found = links.functions(card)?;
        match found.into_iter().find(|it| it.number == number) {
            Some(found) if found == expected => Ok(()),
            found => {
                let why = format!("virtual function {number}: {found:?} instead of {expected:?}");
                Err(StepError::new("read settings back", why))
            }
        }
    }
}
