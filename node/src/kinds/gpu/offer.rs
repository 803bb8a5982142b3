//! The offer of a GPU: its capacity, classes and dimensions.

use std::time::Duration;

use fabricbios_gpu::{Device, QUEUE_SLOTS};
use fabricbios_lease::{
    AllocationMode, COMPUTE_SLICES, ClassOffer, ClassState, Dimension, Durability, FenceScope,
    Offer, OfferedClass, Takes,
};
use fabricbios_wire::{
    GpuExclusivityClass, GpuInfo, InventoryExtension, NodeId, ResourceId, ResourceInventory,
    ResourceType,
};

use super::{GpuSettings, GpuShareMode};
use crate::inventory::{
    Described, ResourceStatus, describe, detection::Found, hardware::resource_id,
};

/// Names of a GPU's capacities, besides [`COMPUTE_SLICES`].
const VRAM: &str = "vram";
const SESSIONS: &str = "sessions";

/// Most leases of a shared GPU at once. Each session has a context, for which the driver takes some hundred megabytes.
const SESSION_SLOTS: u16 = 8;

/// The proof of a cut waits until the driver has torn down the context of a killed worker, which takes long if the
/// context has much memory, and until the files of the lease's users have been looked at. Access of the lease's own
/// processes ends at once.
const CUT_WITHIN: Duration = Duration::from_secs(10);

/// Most sessions of one GPU at once.
pub(super) fn session_slots(settings: &GpuSettings) -> u16 {
    match settings.gpu_share_mode.unwrap_or_default() {
        GpuShareMode::Exclusive => 1,
        GpuShareMode::Fractional => SESSION_SLOTS,
    }
}

/// The offer of the device. `not_owned`: why users without a lease may open its nodes.
pub(super) fn offer(
    settings: &GpuSettings,
    node_id: &NodeId,
    device: &Device,
    not_owned: Option<&str>,
) -> Offer {
    let dimension = |name: &str, capacity: u64, takes| Dimension {
        name: name.to_owned(),
        capacity,
        takes,
    };
    Offer {
        resource_id: resource_id(node_id, ResourceType::Gpu, &device.uuid),
        capacity: device.vram_bytes,
        align: 1,
        transports: Vec::new(),
        durability: Durability::Boot,
        // Memory that was not wiped may become part of any later lease of the device.
        fence_scope: FenceScope::Whole,
        cut_within: Some(CUT_WITHIN),
        allocation_mode: AllocationMode::Device(vec![
            dimension(VRAM, device.vram_bytes, Takes::Asked),
            dimension(
                COMPUTE_SLICES,
                device.compute_slices.into(),
                Takes::InProportion,
            ),
            dimension(SESSIONS, session_slots(settings).into(), Takes::Each(1)),
        ]),
        read_only: false,
        classes: Some(classes(settings, device, not_owned)),
        rate: None,
        needs_vlan: None,
    }
}

/// The classes under the operator's policy, which is an envelope (003 §4).
fn classes(settings: &GpuSettings, device: &Device, not_owned: Option<&str>) -> ClassOffer {
    let mode = settings.gpu_share_mode.unwrap_or_default();
    let class = |class: GpuExclusivityClass, state| OfferedClass {
        class: class as u8,
        state,
    };
    let exclusive = |state| match not_owned {
        None => state,
        Some(why) => ClassState::Refused(format!(
            "any user of the node may open its device nodes, as {why}"
        )),
    };
    let default = match mode {
        GpuShareMode::Exclusive => GpuExclusivityClass::DeviceExclusive,
        GpuShareMode::Fractional => GpuExclusivityClass::Shared,
    };
    ClassOffer {
        default: default as u8,
        classes: vec![
            class(
                GpuExclusivityClass::Shared,
                match mode {
                    GpuShareMode::Exclusive => {
                        ClassState::Forbidden("the node's gpu-share-mode is exclusive".into())
                    }
                    // Compute slices are only counted: nothing limits a lease to its own slices.
                    GpuShareMode::Fractional => ClassState::BestEffort,
                },
            ),
            class(
                GpuExclusivityClass::SessionExclusive,
                exclusive(ClassState::Enforced),
            ),
            class(
                GpuExclusivityClass::DeviceExclusive,
                exclusive(match &device.partition_of {
                    None => ClassState::Enforced,
                    Some(parent) => ClassState::Implied(format!(
                        "it is a partition of {parent}, and a lease of it cannot have that whole device: leave the class out"
                    )),
                }),
            ),
        ],
    }
}

/// A GPU on offer in inventories.
#[derive(Debug)]
pub(super) struct OfferedGpu {
    pub(super) device: Device,
    pub(super) resource_id: ResourceId,
    pub(super) sessions: u16,
    /// Why users without a lease may open its nodes.
    pub(super) not_owned: Option<String>,
}

impl Described for OfferedGpu {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, _: &Found) {
        let id = self.resource_id;
        inventory.gpus.retain(|it| it.resource_id != id);
        inventory.gpus.push(GpuInfo {
            health: status.health(),
            ..self.device.info(id)
        });
        let dimensions = status.available.free_dimensions.clone();
        let free = |name: &str| {
            let found = dimensions.iter().find(|it| it.name == name);
            found
                .and_then(|it| u16::try_from(it.amount).ok())
                .unwrap_or(0)
        };
        let mut name = format!("{} {}", self.device.name, self.device.uuid);
        if let Some(why) = &self.not_owned {
            name += &format!(" (shared leases only: {why})");
        }
        describe(inventory, status, &name, &[]);
        inventory.extensions.push(InventoryExtension::GpuSlots {
            resource_id: id,
            compute_slices: self.device.compute_slices,
            compute_slices_free: free(COMPUTE_SLICES),
            session_slots: self.sessions,
            session_slots_free: free(SESSIONS),
            queue_slots: QUEUE_SLOTS,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::gpu::wanted::tests::device;

    fn settings(mode: GpuShareMode) -> GpuSettings {
        GpuSettings {
            gpu_share_mode: Some(mode),
            ..GpuSettings::default()
        }
    }

    fn states(mode: GpuShareMode, partition_of: Option<&str>) -> (u8, Vec<(u8, String)>) {
        let offered = classes(&settings(mode), &device("GPU-1", partition_of, false), None);
        let state = |it: &OfferedClass| (it.class, format!("{:?}", it.state));
        (offered.default, offered.classes.iter().map(state).collect())
    }

    const SHARED: u8 = GpuExclusivityClass::Shared as u8;
    const SESSION: u8 = GpuExclusivityClass::SessionExclusive as u8;
    const DEVICE: u8 = GpuExclusivityClass::DeviceExclusive as u8;

    #[test]
    fn the_mode_decides_about_shared_leases_and_about_the_default() {
        let (default, classes) = states(GpuShareMode::Exclusive, None);
        assert_eq!(default, DEVICE);
        assert_eq!(classes[0].0, SHARED);
        assert!(classes[0].1.starts_with("Forbidden"), "{classes:?}");
        assert_eq!(
            classes[1..],
            [
                (SESSION, "Enforced".to_owned()),
                (DEVICE, "Enforced".to_owned())
            ]
        );
        let (default, classes) = states(GpuShareMode::Fractional, None);
        assert_eq!(default, SHARED);
        let states: Vec<&str> = classes.iter().map(|it| &*it.1).collect();
        assert_eq!(states, ["BestEffort", "Enforced", "Enforced"]);
    }

    #[test]
    fn a_lease_of_a_partition_does_not_name_the_device() {
        for mode in [GpuShareMode::Exclusive, GpuShareMode::Fractional] {
            let (_, classes) = states(mode, Some("GPU-1"));
            let (class, state) = &classes[2];
            assert_eq!(*class, DEVICE);
            assert!(
                state.starts_with("Implied") && state.contains("GPU-1"),
                "{state}"
            );
        }
    }

    #[test]
    fn a_device_whose_nodes_others_may_open_has_shared_leases_only() {
        for partition_of in [None, Some("GPU-1")] {
            let device = device("GPU-2", partition_of, false);
            let settings = settings(GpuShareMode::Fractional);
            let offered = classes(&settings, &device, Some("/dev/x: its mode is 0666"));
            let state = |it: &OfferedClass| (it.class, it.state.clone());
            let states: Vec<_> = offered.classes.iter().map(state).collect();
            assert_eq!(states[0], (SHARED, ClassState::BestEffort));
            for (_, state) in &states[1..] {
                let ClassState::Refused(why) = state else {
                    panic!("{state:?}");
                };
                assert!(why.ends_with("as /dev/x: its mode is 0666"), "{why}");
            }
        }
    }

    #[test]
    fn a_device_that_is_not_shared_has_one_session() {
        for (mode, sessions) in [
            (GpuShareMode::Exclusive, 1),
            (GpuShareMode::Fractional, SESSION_SLOTS),
        ] {
            let offer = offer(
                &settings(mode),
                &NodeId([7; 32]),
                &device("GPU-1", None, false),
                None,
            );
            assert_eq!(offer.capacity, 1 << 30);
            let AllocationMode::Device(dimensions) = &offer.allocation_mode else {
                panic!("{:?}", offer.allocation_mode)
            };
            let amounts: Vec<u64> = dimensions.iter().map(|it| it.capacity).collect();
            assert_eq!(amounts, [1 << 30, 1, sessions.into()]);
        }
    }
}
