//! `block …`: leased block storage.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fabricbios_wire::{LeaseId, Transport};

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum Block {
    /// Copy blocks of a lease over UDP to standard output, unchanged also with --json
    Read {
        #[command(flatten)]
        place: BlockPlace,
        /// The length, in whole blocks: bytes, or with K, M, G (1024 each); to the end of the lease if not given
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        len: Option<u64>,
    },
    /// Copy standard input, to its last byte, into the blocks of a lease over UDP
    Write {
        #[command(flatten)]
        place: BlockPlace,
    },
    /// Make a lease a block device and print the path of the device (root). The device is detached
    /// shortly before the lease ends
    Attach(AttachPlace),
    /// Detach the block device of a lease (root)
    Detach(RecordedLease),
    /// The process that `attach` leaves behind
    #[command(hide = true)]
    Keep(AttachPlace),
}

/// Where to read or write blocks.
#[derive(Debug, Args)]
pub(crate) struct BlockPlace {
    /// The lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: LeaseId,
    /// The first byte, counted from the start of the lease, in whole blocks: bytes, or
    /// with K, M, G (1024 each)
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::offset)]
    pub(crate) offset: u64,
    /// Authenticate every byte and not only the requests
    #[arg(long)]
    pub(crate) payload_mac: bool,
}

/// Which lease, and how.
#[derive(Debug, Args)]
pub(crate) struct AttachPlace {
    #[command(flatten)]
    pub(crate) recorded: RecordedLease,
    /// The transport: auto, nvme-tcp, nvme-rdma or udp; auto is NVMe-oF where the lease has it
    #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Auto,
          value_parser = values::attach_transport)]
    pub(crate) transport: Transport,
}

/// Which lease, and where attached leases are recorded.
#[derive(Debug, Args)]
pub(crate) struct RecordedLease {
    /// The lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: LeaseId,
    /// The directory for the records and logs of attached leases
    #[arg(long, value_name = "DIR", default_value = "/run/fabricbios-attach")]
    pub(crate) attach_dir: PathBuf,
}
