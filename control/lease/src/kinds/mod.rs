//! Rules of each kind of resource: the terms that it admits, the transports that fit, and the enforced terms. The
//! table asks the rules and names no kind. A new kind is a file here and its `mod`: its terms are in the list of
//! `fabricbios-wire`, and the compiler asks for their rules.

mod block;
mod cpu;
mod gpu;
mod mem;
mod net;

use alloc::{format, string::String};

use fabricbios_wire::{Effective, LeaseTerms, Refusal, ResourceType, Transport};

use crate::{
    Placement, Policy, Profile,
    room::{Explicit, Holding},
};

pub(crate) use mem::check_peers;

/// What a lease was granted, for [`Rules::enforced`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant<'a> {
    /// The class of the lease.
    pub(crate) class: Option<u8>,
    /// The resource cannot be written.
    pub(crate) read_only: bool,
    pub(crate) placement: &'a Placement,
}

/// The rules of one kind, for the terms of a request.
pub(crate) trait Rules {
    /// Why a lease of another kind cannot have these terms.
    fn foreign_to(&self, kind: ResourceType) -> String;

    /// Why a resource of that kind cannot be leased under these terms, if there is a reason beyond its kind.
    fn not_of(&self, _kind: ResourceType) -> Option<&'static str> {
        None
    }

    /// Refuses terms that are invalid for every resource, or not accepted under the profile. `capacity`: that of the
    /// request.
    fn check(&self, _capacity: u64, _profile: Profile) -> Result<(), Refusal> {
        Ok(())
    }

    /// Refuses terms that the operator does not allow this tenant, also at a renewal.
    fn check_tenant(&self, _tenant: &str, _policy: &Policy) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether a lease sends frames without a tag.
    fn is_untagged(&self) -> bool {
        false
    }

    /// Whether a lease needs a transport.
    fn needs_transport(&self) -> bool {
        false
    }

    /// Why a lease cannot go over this transport. `read_only`: the resource cannot be written.
    fn misfit(&self, _transport: Transport, _read_only: bool) -> Option<&'static str> {
        None
    }

    /// Whether queue pairs of the client belong to a lease over this transport.
    fn takes_peers(&self, _transport: Transport) -> bool {
        false
    }

    /// Whether the request asks for a read-only lease.
    fn asks_read_only(&self) -> bool {
        false
    }

    /// Whether a lease has contents that a grace time would keep. Without contents a grace time is refused.
    fn keeps_contents(&self) -> bool {
        true
    }

    /// The class of isolation that the request names.
    fn class(&self) -> Option<u8> {
        None
    }

    /// A class of the kind, for people.
    fn class_name(&self, class: u8) -> String {
        format!("class {class}")
    }

    /// Refuses terms that do not fit the class of the lease.
    fn check_class(&self, _class: u8) -> Result<(), Refusal> {
        Ok(())
    }

    /// How a lease of this class holds its cores or its device.
    fn holding(&self, _class: Option<u8>) -> Holding {
        Holding::Alone
    }

    /// The amount of a dimension that the request names.
    fn explicit(&self) -> Option<Explicit> {
        None
    }

    /// The fields of [`Effective`] that come from the terms.
    fn effective(&self) -> Effective {
        Effective::default()
    }

    /// The terms as they are enforced, without the data of one binding.
    fn enforced(&self, grant: &Grant<'_>) -> LeaseTerms;
}

macro_rules! rules {
    ($({ $code:literal $variant:ident $($rest:tt)* })*) => {
        /// The rules for these terms.
        pub(crate) fn rules(terms: &LeaseTerms) -> &dyn Rules {
            match terms {
                $(LeaseTerms::$variant(terms) => terms,)*
                LeaseTerms::Other(kind) => kind,
            }
        }
    };
}

fabricbios_wire::kinds!(rules);

/// The class of isolation that these terms name, as its byte.
#[must_use]
pub fn named_class(terms: &LeaseTerms) -> Option<u8> {
    rules(terms).class()
}

/// A type that is advertised and never leased.
impl Rules for ResourceType {
    fn foreign_to(&self, kind: ResourceType) -> String {
        format!("terms of {self} cannot be had for {kind}")
    }

    fn enforced(&self, _grant: &Grant<'_>) -> LeaseTerms {
        LeaseTerms::plain(*self)
    }
}
