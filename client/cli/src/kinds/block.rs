//! Block storage.

use clap::Args;
use fabricbios_client::{Node, Resource};
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, BlockTerms, Effective, HostId, LeaseAllocRequest, LeaseId,
    LeaseInfo, Nqn, NvmeofAddress, NvmeofBinding, Transport,
};

use super::{Face, words};
use crate::{
    args::{Grace, Term},
    commands::request_of,
    failure::Failure,
    json::{Field, field},
    lease_text::row,
    values,
};

/// Block storage
#[derive(Args, Debug)]
pub(crate) struct Alloc {
    /// The size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB: 1024 each) or KB, MB, GB, TB (1000
    /// each)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    bytes: u64,
    #[command(flatten)]
    term: Term,
    #[command(flatten)]
    grace: Grace,
    /// The transport: auto, nvme-tcp, nvme-rdma, udp, both
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Auto,
          value_parser = values::block_transport)]
    transport: Transport,
    /// The NQN of the host that will connect, such as that in /etc/nvme/hostnqn; the node makes one for this
    /// lease if not given
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<Nqn>,
    /// The identifier of that host, such as that in /etc/nvme/hostid; if not given, the UUID in the
    /// NQN, or one that the node makes
    #[arg(long, value_name = "UUID", requires = "hostnqn")]
    hostid: Option<HostId>,
    /// The node authenticates itself to the host, too
    #[arg(long)]
    mutual_auth: bool,
    /// Make the lease read-only
    #[arg(long)]
    read_only: bool,
    /// Renewal changes the keys, for the next connection; for clients that follow key changes
    #[arg(long)]
    rotate_on_renew: bool,
}

impl Alloc {
    pub(super) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
        let terms = BlockTerms {
            read_only: self.read_only,
            host_nqn: self.hostnqn,
            host_id: self.hostid,
            mutual_auth: self.mutual_auth,
        };
        if self.transport == Transport::Udp && terms.names_host() {
            return Err(Failure::usage(
                "--hostnqn, --hostid and --mutual-auth are for NVMe-oF; leave them out with --transport udp",
            ));
        }
        Ok(LeaseAllocRequest {
            transport: self.transport,
            rotate_on_renew: self.rotate_on_renew,
            grace_secs: self.grace.grace_secs,
            ..request_of(node, terms, self.bytes, self.term)?
        })
    }
}

pub(super) struct Block;

impl Face for Block {
    fn enforced(&self, effective: &Effective) -> Vec<Option<String>> {
        vec![
            effective.read_only.then(|| "read-only".to_owned()),
            { effective.mutual_auth }.then(|| "mutual authentication".to_owned()),
        ]
    }

    fn unit(&self) -> &'static str {
        "blocks"
    }

    fn rows(&self, info: &LeaseInfo) -> Vec<Vec<String>> {
        let nvmeof = info.binding.nvmeof();
        nvmeof.map_or_else(Vec::new, |nvmeof| rows(info.lease_id, nvmeof))
    }

    fn instead_of_run(&self) -> Option<&'static str> {
        Some("`fabricctl block` reads, writes and attaches the lease")
    }

    fn flags(&self, resource: &Resource) -> Vec<&'static str> {
        const FLAGS: [(u32, &str); 2] = [(BLOCK_RO, "read-only"), (BLOCK_REMOVABLE, "removable")];
        words(resource.blocks.map_or(0, |pool| pool.flags), &FLAGS)
    }

    fn capacity(&self, resource: &Resource) -> Vec<String> {
        let size = resource.blocks.map(|pool| pool.block_size);
        size.map(|bytes| format!("blocks of {bytes} B"))
            .into_iter()
            .collect()
    }

    fn is_in_stretches(&self) -> bool {
        true
    }

    /// The block size of leases of a pool.
    fn resource_json(&self, resource: &Resource) -> Vec<Field<'static>> {
        let size = resource.blocks.map(|pool| pool.block_size);
        vec![field("block_bytes", size)]
    }
}

fn rows(lease_id: LeaseId, nvmeof: &NvmeofBinding) -> Vec<Vec<String>> {
    let headings = std::iter::once("nvme-of").chain(std::iter::repeat(""));
    let place = |(heading, address): (&str, &NvmeofAddress)| {
        row(
            heading,
            format!("{} at {}", address.transport, address.endpoint),
        )
    };
    let mut rows: Vec<_> = headings.zip(&nvmeof.addresses).map(place).collect();
    let namespace = format!(
        "namespace {} of {}, blocks of {} bytes",
        nvmeof.nsid, nvmeof.subsystem, nvmeof.block_bytes
    );
    rows.push(row("", namespace));
    rows.push(row("", format!("for host {}", nvmeof.host_nqn)));
    let how = format!(
        "`fabricctl block attach {lease_id}` as root; only --json shows the nvme line with the secret"
    );
    rows.push(row("connect", how));
    rows
}
