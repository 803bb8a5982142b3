//! The kinds of resource that `fabricctl` knows: each has a file and a line in `kinds!`.

mod block;
mod cpu;
mod gpu;
mod mem;
mod net;

use clap::Subcommand;
use fabricbios_client::{Node, Resource};
use fabricbios_wire::{
    Binding, Effective, KindBinding, LeaseAllocRequest, LeaseInfo, ResourceType,
};

pub(crate) use gpu::{GpuClass, gpu_request};

use crate::{failure::Failure, json::Field};

/// What `fabricctl` shows of one kind. The defaults are those of a kind that it does not know.
pub(crate) trait Face: Sync {
    /// The enforced terms that only this kind has, as words.
    fn enforced(&self, _effective: &Effective) -> Vec<Option<String>> {
        Vec::new()
    }

    /// The terms that the node has set and does not enforce.
    fn best_effort(&self, _effective: &Effective) -> Option<&'static str> {
        None
    }

    /// What the limits of a lease count.
    fn unit(&self) -> &'static str {
        "bytes"
    }

    /// The coordinates of a lease, as rows of text.
    fn rows(&self, _info: &LeaseInfo) -> Vec<Vec<String>> {
        Vec::new()
    }

    /// How the holder uses an active lease that has no bytes to read and write.
    fn how_to_use(&self, _info: &LeaseInfo) -> Option<String> {
        None
    }

    /// Why a lease has more than was asked for.
    fn rounding(&self) -> &'static str {
        "this node gives out whole pieces only"
    }

    /// Whether `fabricctl run` runs commands in leases of the kind.
    fn runs_commands(&self) -> bool {
        false
    }

    /// What uses a lease of the kind in place of `fabricctl run`.
    fn instead_of_run(&self) -> Option<&'static str> {
        None
    }

    /// The word of a class.
    fn class(&self, _byte: u8) -> Option<&'static str> {
        None
    }

    /// The flags of a resource that only this kind has.
    fn flags(&self, _resource: &Resource) -> Vec<&'static str> {
        Vec::new()
    }

    /// What follows the amount of a resource in its line `capacity`.
    fn capacity(&self, _resource: &Resource) -> Vec<String> {
        Vec::new()
    }

    /// Whether the amount of this resource is not known.
    fn is_unknown(&self, _resource: &Resource) -> bool {
        false
    }

    /// Whether a lease is one stretch of its resource: more may be free in total than one lease could get.
    fn is_in_stretches(&self) -> bool {
        false
    }

    /// Further lines of a resource: label and value.
    fn lines(&self, _resource: &Resource) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What only this kind has in inventories, as JSON.
    fn resource_json(&self, _resource: &Resource) -> Vec<Field<'static>> {
        Vec::new()
    }
}

/// A kind without a line in `kinds!`.
struct Unknown;

impl Face for Unknown {}

/// Each line: file and kind. Their order is that of `lease alloc --help`.
macro_rules! kinds {
    ($($file:ident $kind:ident;)*) => {
        /// `lease alloc …`: what can be asked for.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Alloc {
            $($kind($file::Alloc),)*
        }

        impl Alloc {
            /// The request that the arguments describe.
            pub(crate) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
                match self {
                    $(Self::$kind(arguments) => arguments.request(node),)*
                }
            }
        }

        /// The kinds that have a line.
        const KINDS: &[ResourceType] = &[$(ResourceType::$kind),*];

        /// What `fabricctl` shows of this kind.
        pub(crate) fn face(kind: ResourceType) -> &'static dyn Face {
            // A kind with coordinates and without a line does not compile.
            match Binding::plain(kind).kind {
                $(KindBinding::$kind(_) => &$file::$kind,)*
                KindBinding::Other(_) => &Unknown,
            }
        }
    };
}

kinds! {
    mem Mem;
    block Block;
    net Net;
    cpu Cpu;
    gpu Gpu;
}

/// The names of the kinds in whose leases `fabricctl run` runs commands.
pub(crate) fn that_run_commands() -> Vec<String> {
    let kinds = KINDS.iter().filter(|kind| face(**kind).runs_commands());
    kinds.map(ResourceType::to_string).collect()
}

/// The words of the bits that are set.
fn words(bits: u32, names: &[(u32, &'static str)]) -> Vec<&'static str> {
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect()
}
