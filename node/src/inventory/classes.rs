//! The classes of a resource as inventories list them.

use fabricbios_lease::{Availability, ClassState};
use fabricbios_wire::{Enforcement, InventoryExtension};

/// The classes that can be requested, whether each is enforced, and how much of each is available. A default class that
/// no request can name is in the last two lists only. A resource without classes has an empty list.
pub(super) fn told(of: &Availability) -> Vec<InventoryExtension> {
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
    use fabricbios_lease::{ClassOffer, OfferedClass};
    use fabricbios_wire::{ResourceId, ResourceType};

    use super::*;

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
        };
        told(&available)
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
