//! The limits that a card enforces on one virtual function.

use fabricbios_lease::StepError;
use fabricbios_wire::{MacAddress, VlanId};

use super::{links::Links, record::VfRecord, steps};
use crate::netlink::{VfSetting, VfState};

/// The settings of a function. Every setting drops frames with another source address and never trusts the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    mac: MacAddress,
    vlan: Option<VlanId>,
    /// The rate in megabits per second; 0: no limit.
    rate_mbps: u32,
}

/// The settings of an unused function.
pub(super) const NEUTRAL: Settings = Settings {
    mac: MacAddress([0; 6]),
    vlan: None,
    rate_mbps: 0,
};

impl From<&VfRecord> for Settings {
    fn from(record: &VfRecord) -> Self {
        Self {
            mac: record.mac,
            vlan: record.vlan,
            rate_mbps: record.rate_mbps,
        }
    }
}

impl Settings {
    /// Sets the settings that differ, and reads all of them back. (A driver may refuse a rate while the link of its
    /// card is down.)
    ///
    /// # Errors
    /// The card's driver refuses a setting, or reports another value afterwards.
    pub(super) fn apply(&self, links: &dyn Links, card: u32, number: u32) -> Result<(), StepError> {
        let (is, wanted) = (read(links, card, number)?, self.state(number));
        let settings = [
            (
                "set address",
                is.mac == wanted.mac,
                VfSetting::Mac(self.mac),
            ),
            (
                "set VLAN",
                is.vlan == wanted.vlan,
                VfSetting::Vlan(self.vlan),
            ),
            (
                "set spoof check",
                is.spoof_check == wanted.spoof_check,
                VfSetting::SpoofCheck(true),
            ),
            (
                "set trust",
                is.trust == wanted.trust,
                VfSetting::Trust(false),
            ),
            (
                "set rate",
                is.rate_mbps == wanted.rate_mbps,
                VfSetting::RateMbps(self.rate_mbps),
            ),
        ];
        for (step, _, setting) in settings.into_iter().filter(|(_, is_set, _)| !is_set) {
            links.set_function(card, number, setting)?;
            steps::passed(step);
        }
        match read(links, card, number)? {
            found if found == wanted => Ok(()),
            found => {
                let why = format!("virtual function {number}: {found:?} instead of {wanted:?}");
                Err(StepError::new("read settings back", why))
            }
        }
    }

    fn state(&self, number: u32) -> VfState {
        VfState {
            number,
            mac: Some(self.mac),
            vlan: Some(self.vlan.map_or(0, |it| it.get().into())),
            rate_mbps: Some(self.rate_mbps),
            spoof_check: Some(true),
            trust: Some(false),
        }
    }
}

fn read(links: &dyn Links, card: u32, number: u32) -> Result<VfState, StepError> {
    let found = links.functions(card)?;
    let found = found.into_iter().find(|it| it.number == number);
    found.ok_or_else(|| {
        let why = format!("the card has no virtual function {number} any more");
        StepError::new("read settings", why)
    })
}
