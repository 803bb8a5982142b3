//! Finds the card of an interface, and its link.

use std::{thread, time::Duration};

use fabricbios_lease::StepError;
use fabricbios_wire::PciFunction;

use super::{
    card::MBPS,
    drivers::{self, Driver},
    pci::{Pci, file_of},
};

/// Pause between two looks at the link.
const LINK_LOOK_EVERY: Duration = Duration::from_millis(100);

/// The function of the card that has this interface, and the card's driver.
fn identify(pci: &Pci, name: &str) -> Result<(PciFunction, Driver), StepError> {
    let refuse = |why: &str| refused(name, why);
    if name.is_empty() || name.contains('/') || !pci.has(&format!("class/net/{name}"))? {
        return Err(refuse("there is no such interface"));
    }
    let device = format!("class/net/{name}/device");
    let address = pci.link_name(&device)?;
    let function = address.as_deref().and_then(PciFunction::parse);
    let function = function.ok_or_else(|| refuse("it is no PCI device"))?;
    if pci.has(&file_of(function, "physfn"))? {
        return Err(refuse(
            "it is a virtual function itself; name the physical one",
        ));
    }
    if pci
        .number::<u32>(&file_of(function, "sriov_totalvfs"))
        .unwrap_or(0)
        == 0
    {
        return Err(refuse(
            "the card or its driver has no virtual functions (sriov_totalvfs)",
        ));
    }
    let bound = pci.driver(function)?.unwrap_or_default();
    let driver = drivers::find(&bound).ok_or_else(|| {
        let known = drivers::names();
        refuse(&format!("its driver is {bound}; known are {known}"))
    })?;
    Ok((function, driver))
}

/// Like `identify`, with the largest number of functions of the card.
pub(super) fn identified(
    pci: &Pci,
    name: &str,
    count: Option<u32>,
) -> Result<(PciFunction, Driver, u32), StepError> {
    let (function, driver) = identify(pci, name)?;
    let total = pci
        .number(&file_of(function, "sriov_totalvfs"))
        .unwrap_or(0);
    check_count(name, count, total)?;
    Ok((function, driver, total))
}

fn check_count(name: &str, count: Option<u32>, total: u32) -> Result<(), StepError> {
    match count {
        Some(0) => Err(refused(name, "0 virtual functions are none to lease")),
        Some(count) if count > total => {
            let why = format!("{count} virtual functions were asked for, and the card has {total}");
            Err(refused(name, &why))
        }
        _ => Ok(()),
    }
}

/// Waits for the link. Returns its rate in bits per second; `None`: the link is down.
pub(super) fn wait_for_link(pci: &Pci, name: &str, looks: u32) -> Option<u64> {
    let [speed, carrier] = ["speed", "carrier"].map(|it| format!("class/net/{name}/{it}"));
    for look in 0..looks {
        if look > 0 {
            thread::sleep(LINK_LOOK_EVERY);
        }
        // The rate in megabits per second; while the link is down, -1 or no value.
        if let (Some(1), Some(mbps @ 1..)) = (pci.number::<u8>(&carrier), pci.number::<i64>(&speed))
        {
            return Some(mbps.unsigned_abs().saturating_mul(MBPS));
        }
    }
    None
}

pub(super) fn refused(name: &str, why: &str) -> StepError {
    StepError::new("open card", format_args!("{name}: {why}"))
}
