//! A resource and the limits of its node as inventories tell them to clients and schedulers.

use alloc::{vec, vec::Vec};

use fabricbios_wire::{
    Enforcement, InventoryExtension, Transport, admission_flags as flags, admission_most as ways,
};

use crate::{
    Availability, COMPUTE_SLICES, ClassState, Explicit, Holding, Need, NodeLimits, Offered,
    Profile, When, resource::Resource,
};

impl Availability {
    /// What inventories tell of the resource, besides its name and the entry of its kind.
    #[must_use]
    pub fn to_wire(&self, transports: &[Transport]) -> Vec<InventoryExtension> {
        let id = self.resource_id;
        let mut all = vec![
            InventoryExtension::Available(id, self.available),
            InventoryExtension::Transports(id, transports.to_vec()),
        ];
        all.extend(classes(self));
        all.push(self.admission.clone());
        let why = self.trouble.as_ref().map(|it| it.why().into());
        all.extend(why.map(|why| InventoryExtension::HealthReason(id, why)));
        let part = self.fenced_part;
        all.extend((part != 0).then_some(InventoryExtension::FencedPart(id, part)));
        all
    }
}

impl NodeLimits<'_> {
    /// What inventories tell of them. Kinds that were detected have their own entries.
    #[must_use]
    pub fn to_wire(&self) -> InventoryExtension {
        InventoryExtension::Limits {
            lease_secs_max: self.lease_secs_max,
            grace_secs_max: self.grace_secs_max,
            bare_metal: self.profile == Profile::BareMetal,
        }
    }
}

impl Resource {
    /// What else than the availability decides about a lease.
    pub(crate) fn admission(&self) -> InventoryExtension {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let offered = self.classes.iter().flat_map(|it| &it.classes);
        let forbidden = offered.filter(|it| matches!(it.state, ClassState::Forbidden(_)));
        InventoryExtension::Admission {
            resource_id: self.id,
            flags: flag(self.absence().is_some(), flags::ABSENT)
                | flag(self.is_impaired(), flags::IMPAIRED)
                | flag(self.read_only, flags::READ_ONLY)
                | flag(self.needs_vlan.is_some(), flags::NEEDS_VLAN)
                | flag(self.free.is_held_alone().is_some(), flags::DEVICE)
                | flag(self.free.is_held_alone() == Some(true), flags::HELD_ALONE),
            forbidden: forbidden.map(|it| it.class).collect(),
            most: self.most_by_way(),
        }
    }

    /// The most that one lease could get, now and when all is free, by the way in which it holds its part.
    fn most_by_way(&self) -> Vec<(u8, u64, u64)> {
        let most = |need: Need| [When::Now, When::Empty].map(|when| self.room(when).most(need));
        let alone = most(Need::plain(0, Holding::Alone));
        let others = [
            (ways::ALONE_IN_ONE_NODE, Holding::AloneInOneNode),
            (ways::SHARED, Holding::Shared),
        ];
        let mut all = vec![(ways::ALONE, alone)];
        let others = others.map(|(way, holding)| (way, most(Need::plain(0, holding))));
        all.extend(others.into_iter().filter(|(_, most)| *most != alone));
        let slices = [When::Now, When::Empty].map(|when| {
            let dimensions = self.room(when).free_dimensions();
            let slices = dimensions.iter().find(|it| it.name == COMPUTE_SLICES);
            slices.map(|it| it.amount)
        });
        if let [Some(now), Some(empty)] = slices {
            // As many as there are in any case: the number itself is compared apart.
            let explicit = Some(Explicit {
                dimension: COMPUTE_SLICES,
                amount: 0,
            });
            let named = Need {
                explicit,
                ..Need::plain(0, Holding::Shared)
            };
            all.push((ways::SLICES_NAMED, most(named)));
            all.push((ways::SLICES, [now, empty]));
        }
        let all = all.into_iter();
        all.map(|(way, [now, empty])| (way, now, empty)).collect()
    }
}

/// The classes that can be requested, whether each is enforced, and how much of each is available. A default class that
/// no request can name is in the last two lists only. A resource without classes has an empty list.
fn classes(of: &Availability) -> Vec<InventoryExtension> {
    let resource_id = of.resource_id;
    let Some(offer) = &of.classes else {
        let (default, supported) = (0, Vec::new());
        return vec![InventoryExtension::Classes {
            resource_id,
            default,
            supported,
        }];
    };
    let had = offer.classes.iter().filter_map(|it| match it.state {
        ClassState::Enforced => Some((it.class, Enforcement::Enforced)),
        ClassState::BestEffort => Some((it.class, Enforcement::BestEffort)),
        ClassState::Implied(_) if it.class == offer.default => {
            Some((it.class, Enforcement::Enforced))
        }
        ClassState::Refused(_) | ClassState::Forbidden(_) | ClassState::Implied(_) => None,
    });
    let had: Vec<(u8, Enforcement)> = had.collect();
    let named = offer.classes.iter().filter(|it| it.state.can_be_named());
    let supported: Vec<u8> = named.map(|it| it.class).collect();
    let mut available = of.available_by_class.clone();
    available.retain(|(class, _)| had.iter().any(|(it, _)| it == class));
    vec![
        InventoryExtension::Classes {
            resource_id,
            default: offer.default,
            supported,
        },
        InventoryExtension::ClassEnforcement(resource_id, had),
        InventoryExtension::ClassAvailable(resource_id, available),
    ]
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{ResourceId, ResourceType};

    use super::*;
    use crate::{ClassOffer, OfferedClass};

    fn extensions(classes: Option<ClassOffer>) -> Vec<InventoryExtension> {
        let id = ResourceId(7);
        let available = Availability {
            resource_id: id,
            resource_type: ResourceType::Cpu,
            capacity: 4,
            available: 4,
            classes,
            available_by_class: vec![(0, 8), (1, 4), (2, 0), (3, 0), (4, 4)],
            free_dimensions: vec![],
            fenced: false,
            trouble: None,
            fenced_part: 0,
            admission: InventoryExtension::Available(id, 0),
        };
        super::classes(&available)
    }

    #[test]
    fn classes_are_listed_that_can_be_had_with_what_is_available_of_each() {
        let class = |class, state| OfferedClass { class, state };
        let offer = ClassOffer {
            default: 1,
            classes: vec![
                class(0, ClassState::BestEffort),
                class(1, ClassState::Enforced),
                class(2, ClassState::Refused("two threads in a core".into())),
                class(3, ClassState::Forbidden("cores are shared".into())),
                class(4, ClassState::Implied("leave it out".into())),
            ],
        };
        let id = ResourceId(7);
        let enforced = vec![(0, Enforcement::BestEffort), (1, Enforcement::Enforced)];
        let expected = [
            InventoryExtension::Classes {
                resource_id: id,
                default: 1,
                supported: vec![0, 1],
            },
            InventoryExtension::ClassEnforcement(id, enforced),
            InventoryExtension::ClassAvailable(id, vec![(0, 8), (1, 4)]),
        ];
        assert_eq!(extensions(Some(offer)), expected);
    }

    /// A partition of a GPU: a lease without a class has all of it, and none can name the class of whole devices.
    #[test]
    fn a_default_that_no_request_can_name_is_told_with_what_is_available_of_it() {
        let class = |class, state| OfferedClass { class, state };
        let implied = || ClassState::Implied("leave it out".into());
        let classes = vec![class(1, ClassState::Enforced), class(4, implied())];
        let offer = |default| ClassOffer {
            default,
            classes: classes.clone(),
        };
        let told = |default| match &extensions(Some(offer(default)))[..] {
            [
                InventoryExtension::Classes { supported, .. },
                InventoryExtension::ClassEnforcement(_, enforced),
                InventoryExtension::ClassAvailable(_, available),
            ] => (supported.clone(), enforced.clone(), available.clone()),
            other => panic!("{other:?}"),
        };
        let enforced = Enforcement::Enforced;
        let both = vec![(1, enforced), (4, enforced)];
        assert_eq!(told(4), (vec![1], both, vec![(1, 4), (4, 4)]));
        let one = vec![(1, enforced)];
        assert_eq!(told(1), (vec![1], one, vec![(1, 4)]));
    }

    #[test]
    fn a_resource_without_classes_says_so() {
        let none = InventoryExtension::Classes {
            resource_id: ResourceId(7),
            default: 0,
            supported: vec![],
        };
        assert_eq!(extensions(None), [none]);
    }
}
