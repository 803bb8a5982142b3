//! The class of isolation of a lease: that of the request, or the default of the resource. A class is never weakened:
//! a lease that cannot get its class is refused.

use alloc::format;

use fabricbios_wire::{LeaseAllocRequest, LeaseTerms, ResourceType};

use crate::{
    ClassState, Holding, Need, Offered, OfferedClass, Refuses, Wordless,
    kinds::rules,
    resource::Resource,
    standing::{invalid, not_allowed},
};

impl dyn Offered + '_ {
    /// The class that a lease for this request gets. `None`: the resource has no classes.
    pub(crate) fn class<R: Refuses>(&self, request: &LeaseAllocRequest) -> Result<Option<u8>, R> {
        let (id, rules) = (self.id(), rules(&request.terms));
        let asked = rules.class();
        let Some(offer) = self.classes() else {
            return match asked {
                None => Ok(None),
                Some(class) => Err(R::with(invalid, || {
                    let name = rules.class_name(class);
                    format!("{name} cannot be had: resource {id} has no classes")
                })),
            };
        };
        let class = asked.unwrap_or(offer.default);
        let mut classes = offer.classes.iter();
        let by = match asked {
            Some(_) => "",
            None => " (this node's default)",
        };
        let name = || format!("{}{by}", rules.class_name(class));
        let cannot = |why: &str| {
            R::with(invalid, || {
                format!("{} cannot be enforced for resource {id}: {why}", name())
            })
        };
        match classes.find(|it| it.class == class).map(|it| &it.state) {
            Some(ClassState::Forbidden(why)) => Err(R::with(not_allowed, || {
                format!("{} is not allowed for resource {id}: {why}", name())
            })),
            Some(ClassState::Implied(why)) if asked.is_some() => Err(R::with(invalid, || {
                format!("{} cannot be named for resource {id}: {why}", name())
            })),
            Some(ClassState::Refused(why)) => Err(cannot(why)),
            None => Err(cannot("the resource does not know it")),
            Some(ClassState::Enforced | ClassState::BestEffort | ClassState::Implied(_)) => {
                rules.check_class(class)?;
                Ok(Some(class))
            }
        }
    }

    /// What a lease for this request takes.
    pub(crate) fn need(&self, request: &LeaseAllocRequest) -> Need {
        let (class, rules) = (self.class::<Wordless>(request), rules(&request.terms));
        Need {
            amount: request.capacity,
            holding: rules.holding(class.ok().flatten()),
            explicit: rules.explicit(),
        }
    }

    /// Whether a lease can have a class whose leases share the resource.
    pub(crate) fn can_be_shared(&self) -> bool {
        let holding = |it: &OfferedClass| Holding::of(self.kind(), Some(it.class));
        self.classes().is_some_and(|offer| {
            let mut given = offer.classes.iter().filter(|it| offer.gives(it));
            given.any(|it| holding(it) == Holding::Shared)
        })
    }
}

impl Holding {
    /// How leases of this kind and class hold their part.
    #[must_use]
    pub fn of(kind: ResourceType, class: Option<u8>) -> Self {
        rules(&LeaseTerms::plain(kind)).holding(class)
    }
}

impl Resource {
    fn most_of(&self, class: Option<u8>) -> u64 {
        self.free
            .most(Need::plain(0, Holding::of(self.kind, class)))
    }

    /// The most that a lease of the default class could get now. 0 if no lease gets that class.
    pub(crate) fn most_by_default(&self) -> u64 {
        let Some(offer) = &self.classes else {
            return self.most_of(None);
        };
        let mut classes = self.most_by_class();
        let default = classes.find(|(class, _)| *class == offer.default);
        default.map_or(0, |(_, most)| most)
    }

    /// The most that a lease of each class could get now. 0 for a class that no lease gets.
    pub(crate) fn most_by_class(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let classes = self.classes.iter().flat_map(|offer| &offer.classes);
        classes.map(|OfferedClass { class, state }| match state.can_be_had() {
            true => (*class, self.most_of(Some(*class))),
            false => (*class, 0),
        })
    }
}
