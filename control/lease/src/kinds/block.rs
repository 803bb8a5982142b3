//! Block storage: read-only leases, and the host that connects over NVMe-oF.

use alloc::{format, string::String};

use fabricbios_wire::{BlockTerms, Effective, LeaseTerms, ResourceType, Transport};

use super::{Grant, Rules};

/// The kernel's target refuses to enable a namespace on a device that cannot be written, and has no
/// switch that makes a writable one read-only.
const READ_ONLY_TRANSPORT: &str = "a read-only lease goes over FBBU alone, ask for `--transport udp`: the \
     kernel's NVMe target does not open a read-only device and cannot protect a writable one";

const NO_HOST: &str = "a host NQN, a host identifier and mutual authentication belong to NVMe-oF: leave \
     them out, or ask for a transport that is NVMe-oF";

impl Rules for BlockTerms {
    fn foreign_to(&self, kind: ResourceType) -> String {
        let stated = [
            (self.read_only, "read-only"),
            (self.host_nqn.is_some(), "a host NQN"),
            (self.host_id.is_some(), "a host identifier"),
            (self.mutual_auth, "mutual authentication"),
        ];
        let what = stated.into_iter().find(|&(is_stated, _)| is_stated);
        let what = what.map_or("this", |(_, what)| what);
        format!("{what} is for leases of block storage and cannot be had for {kind}")
    }

    fn needs_transport(&self) -> bool {
        true
    }

    fn misfit(&self, transport: Transport, read_only: bool) -> Option<&'static str> {
        // `Both` is NVMe-oF and FBBU.
        let nvmeof = matches!(
            transport,
            Transport::NvmeTcp | Transport::NvmeRdma | Transport::Both
        );
        if nvmeof && (read_only || self.read_only) {
            Some(READ_ONLY_TRANSPORT)
        } else if !nvmeof && self.names_host() {
            Some(NO_HOST)
        } else {
            None
        }
    }

    fn asks_read_only(&self) -> bool {
        self.read_only
    }

    fn effective(&self) -> Effective {
        Effective {
            read_only: self.read_only,
            mutual_auth: self.mutual_auth,
            ..Effective::default()
        }
    }

    fn enforced(&self, grant: &Grant<'_>) -> LeaseTerms {
        let terms = Self {
            read_only: grant.read_only || self.read_only,
            ..self.clone()
        };
        terms.into()
    }
}
