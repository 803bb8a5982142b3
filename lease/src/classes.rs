//! The class of isolation of a lease: that of the request, or the default of the resource. A class is never weakened:
//! a lease that cannot get its class is refused.

use alloc::format;

use fabricbios_wire::{LeaseAllocRequest, LeaseTerms, Refusal};

use crate::{
    ClassState, OfferedClass,
    kinds::rules,
    resource::Resource,
    room::{Holding, Need},
    standing::invalid,
};

impl Resource {
    /// The class that a lease for this request gets. `None`: the resource has no classes.
    pub(crate) fn class(&self, request: &LeaseAllocRequest) -> Result<Option<u8>, Refusal> {
        let (id, rules) = (self.id, rules(&request.terms));
        let asked = rules.class();
        let Some(offer) = &self.classes else {
            return match asked {
                None => Ok(None),
                Some(class) => Err(invalid(format!(
                    "{} cannot be had: resource {id} has no classes",
                    rules.class_name(class)
                ))),
            };
        };
        let class = asked.unwrap_or(offer.default);
        let mut classes = offer.classes.iter();
        let why = match classes.find(|it| it.class == class).map(|it| &it.state) {
            Some(ClassState::Enforced | ClassState::BestEffort) => {
                rules.check_class(class)?;
                return Ok(Some(class));
            }
            Some(ClassState::Refused(why)) => why,
            None => "the resource does not know it",
        };
        let by = match asked {
            Some(_) => "",
            None => " (this node's default)",
        };
        let name = rules.class_name(class);
        Err(invalid(format!(
            "{name}{by} cannot be enforced for resource {id}: {why}"
        )))
    }

    /// What a lease for this request takes.
    pub(crate) fn need(&self, request: &LeaseAllocRequest) -> Need {
        let class = self.class(request).ok().flatten();
        Need {
            amount: request.capacity,
            holding: rules(&request.terms).holding(class),
        }
    }

    /// How leases of this class hold their part.
    fn holding(&self, class: Option<u8>) -> Holding {
        rules(&LeaseTerms::plain(self.kind)).holding(class)
    }

    /// The most that a lease of the default class could get now.
    pub(crate) fn most_by_default(&self) -> u64 {
        let default = self.classes.as_ref().map(|offer| offer.default);
        self.free.most(self.holding(default))
    }

    /// The most that a lease of each class could get now. 0 for a class that is refused.
    pub(crate) fn most_by_class(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        let classes = self.classes.iter().flat_map(|offer| &offer.classes);
        classes.map(|OfferedClass { class, state }| match state {
            ClassState::Refused(_) => (*class, 0),
            _ => (*class, self.free.most(self.holding(Some(*class)))),
        })
    }
}
