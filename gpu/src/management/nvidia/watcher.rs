//! Watches the health of devices with NVML.

use std::{collections::BTreeMap, thread, time::Duration};

use fabricbios_helper::Failure;
use nvml_wrapper::{
    EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError,
};

use super::{health, open, xid};
use crate::{
    Device, Health, Libraries,
    management::{Roots, watch::Watcher, worst},
};

/// A watcher of these devices, and of the devices of these partitions.
pub(in crate::management) fn watcher(
    libraries: &Libraries,
    _roots: Roots,
    devices: &[Device],
) -> Result<Box<dyn Watcher>, Failure> {
    // The process keeps NVML until it ends.
    let nvml: &'static Nvml = Box::leak(Box::new(open(libraries)?));
    let mut uuids: Vec<&str> = devices.iter().map(whole).collect();
    uuids.sort_unstable();
    uuids.dedup();
    // One set for each device: a device that cannot be registered does not affect the others, and an event names its
    // device.
    let sets = uuids.into_iter().filter_map(|uuid| {
        let set = registered(nvml, uuid).ok()?;
        Some((uuid.to_owned(), set))
    });
    Ok(Box::new(NvmlWatcher {
        nvml,
        sets: sets.collect(),
        errors: BTreeMap::new(),
    }))
}

/// The UUID of the device; for a partition, of its device.
fn whole(device: &Device) -> &str {
    device.partition_of.as_ref().unwrap_or(&device.uuid)
}

fn registered(nvml: &'static Nvml, uuid: &str) -> Result<EventSet<'static>, NvmlError> {
    let handle = nvml.device_by_uuid(uuid)?;
    let set = nvml.create_event_set()?;
    let registered = handle.register_events(EventTypes::CRITICAL_XID_ERROR, set);
    registered.map_err(|failure| failure.error)
}

struct NvmlWatcher {
    nvml: &'static Nvml,
    /// The event sets of the devices that report errors when they happen.
    sets: Vec<(String, EventSet<'static>)>,
    /// The health that errors have implied, by device. Only a reset clears it, and no process watches during a reset.
    errors: BTreeMap<String, Vec<Health>>,
}

impl NvmlWatcher {
    fn note(&mut self, uuid: &str, error: Option<XidError>) {
        let number = match error {
            Some(XidError::Value(number)) => number,
            Some(XidError::Unknown) | None => 999,
        };
        if let Some(health) = xid::health(number) {
            let known = self.errors.entry(uuid.to_owned()).or_default();
            if !known.contains(&health) {
                known.push(health);
            }
        }
    }
}

impl Watcher for NvmlWatcher {
    fn wait(&mut self, patience: Duration) -> bool {
        let sets = std::mem::take(&mut self.sets);
        let count = u32::try_from(sets.len()).unwrap_or(u32::MAX);
        if count == 0 {
            thread::sleep(patience);
            return false;
        }
        let each = u32::try_from((patience / count).as_millis()).unwrap_or(u32::MAX);
        let mut is_any = false;
        for (uuid, set) in sets {
            match set.wait(each) {
                Ok(event) => {
                    is_any = true;
                    self.note(&uuid, event.event_data);
                    self.sets.push((uuid, set));
                }
                Err(NvmlError::Timeout) => self.sets.push((uuid, set)),
                // The device is gone. Its health will show that.
                Err(_) => is_any = true,
            }
        }
        is_any
    }

    fn health(&self, device: &Device) -> Health {
        let errors = self.errors.get(whole(device)).into_iter().flatten();
        let now = health::of_uuid(self.nvml, &device.uuid);
        worst(errors.cloned().chain([now]))
    }
}
