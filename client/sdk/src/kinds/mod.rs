//! The kinds of lease, as types: each has a file and a line in [`kinds`](macro@kinds).
//!
//! What is `pub` in the file of a kind is part of the SDK.

mod blocks;
mod cores;
mod gpu;
mod memory;
mod network_function;

use fabricbios_wire::{
    Binding, Effective, InventoryExtension, KindBinding, LeaseAllocRequest, LeaseInfo, LeaseTerms,
    ResourceInventory, ResourceType,
};

use crate::{
    inventory::{Entries, Resource},
    json::Field,
    unmet::Missing,
};

/// [`Memory`], [`Blocks`], [`Cores`], [`NetworkFunction`] or [`Gpu`].
pub trait Kind: sealed::Sealed {
    /// The resource type on the wire.
    const TYPE: ResourceType;
}

/// A kind whose leases keep bytes: they have a transport, keys and a grace time.
pub trait Storage: Kind {}

/// Each line: file, kind, resource type, and the extensions of inventories that are about this kind only.
macro_rules! kinds {
    ($($file:ident $kind:ident $resource_type:ident [$($extension:ident)*];)*) => {
        $(
            pub use $file::*;

            impl Kind for $kind {
                const TYPE: ResourceType = ResourceType::$resource_type;
            }
        )*

        /// Collects what a lease lacks of the terms that only its kind has.
        pub(crate) fn unmet(request: &LeaseAllocRequest, info: &LeaseInfo, missing: &mut Missing) {
            match &request.terms {
                $(LeaseTerms::$resource_type(terms) => {
                    <$kind as sealed::Sealed>::unmet(terms, request.capacity, info, missing);
                })*
                LeaseTerms::Other(_) => {}
            }
        }

        /// The enforced terms that only this kind has, as JSON.
        pub(crate) fn terms_json(binding: &Binding, effective: &Effective) -> Vec<Field<'static>> {
            match &binding.kind {
                $(KindBinding::$resource_type(_) => <$kind as sealed::Sealed>::terms_json(effective),)*
                KindBinding::Other(_) => Vec::new(),
            }
        }

        /// The coordinates that only this kind has, as JSON.
        pub(crate) fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
            match &binding.kind {
                $(KindBinding::$resource_type(_) => <$kind as sealed::Sealed>::binding_json(binding),)*
                KindBinding::Other(_) => Vec::new(),
            }
        }

        /// Adds the entries of all kinds in a structured inventory.
        pub(crate) fn entries(structured: &ResourceInventory, entries: &mut Entries) {
            $(<$kind as sealed::Sealed>::entries(structured, entries);)*
        }

        /// Adds an extension that is about one kind only to its resource.
        pub(crate) fn extend(resource: &mut Resource, extension: &InventoryExtension) {
            use InventoryExtension as E;
            match extension {
                $($(E::$extension { .. } => {
                    <$kind as sealed::Sealed>::extend(resource, extension);
                })*)*
                // Those of every kind: `Resource::extend` reads them.
                E::Name(..) | E::Available(..) | E::Classes { .. } | E::Transports(..)
                | E::FencedPart(..) | E::ClassEnforcement(..) | E::ClassAvailable(..)
                | E::HealthReason(..) => {}
                // For schedulers.
                E::Limits { .. } | E::Admission { .. } => {}
            }
        }
    };
}

kinds! {
    memory Memory Mem [];
    blocks Blocks Block [];
    cores Cores Cpu [];
    network_function NetworkFunction Net [VirtualFunctions];
    gpu Gpu Gpu [GpuSlots];
}

pub(crate) mod sealed {
    use std::fmt::Debug;

    use fabricbios_wire::{
        Binding, Effective, InventoryExtension, LeaseInfo, LeaseTerms, ResourceInventory,
    };

    use crate::{
        Error,
        inventory::{Entries, Resource},
        json::Field,
        unmet::Missing,
    };

    /// What the SDK knows of a kind.
    pub trait Sealed {
        /// The terms of a request that only this kind has.
        type Terms: Clone + Debug + Default + Into<LeaseTerms> + Send;
        /// The call of the builder that sets the capacity.
        const SIZED_BY: &'static str;

        /// Refuses terms that no node would accept.
        ///
        /// # Errors
        /// [`Error::Usage`]: the text says what is wrong.
        fn check(_terms: &Self::Terms) -> Result<(), Error> {
            Ok(())
        }

        /// Collects what a lease lacks of its terms.
        fn unmet(terms: &Self::Terms, capacity: u64, info: &LeaseInfo, missing: &mut Missing);

        /// Adds the entries of the kind in a structured inventory, each with the health of its resource.
        fn entries(_structured: &ResourceInventory, _entries: &mut Entries) {}

        /// The enforced terms that only this kind has, as JSON.
        fn terms_json(_effective: &Effective) -> Vec<Field<'static>> {
            Vec::new()
        }

        /// The coordinates that only this kind has, as JSON.
        fn binding_json(_binding: &Binding) -> Vec<Field<'_>> {
            Vec::new()
        }

        /// Adds an extension that the line of the kind in `kinds!` names.
        fn extend(_resource: &mut Resource, _extension: &InventoryExtension) {}
    }
}
