//! `mem …`: leased memory.

use clap::{Args, Subcommand};
use fabricbios_client::DataTransport;
use fabricbios_wire::LeaseId;

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum Mem {
    /// Copy bytes of a lease to standard output, unchanged also with --json
    Read {
        #[command(flatten)]
        place: Place,
        /// The length: bytes, or with K, M, G (1024 each); to the end of the lease if not given
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        len: Option<u64>,
    },
    /// Copy standard input, to its last byte, into a lease
    Write {
        #[command(flatten)]
        place: Place,
    },
}

/// Where to read or write, and over which transport.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The lease
    #[arg(value_name = "LEASE", value_parser = values::lease_id)]
    pub(crate) id: LeaseId,
    /// The first byte, counted from the start of the lease: bytes, or with K, M, G (1024 each)
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::offset)]
    pub(crate) offset: u64,
    /// auto, rdma or udp; auto is RDMA if the lease and this machine have it, unless another program's
    /// queue pair is connected to the lease. rdma disconnects that queue pair
    #[arg(long, value_name = "TRANSPORT", default_value = "auto", value_parser = values::transport)]
    pub(crate) transport: TransportChoice,
    /// Over UDP: authenticate every byte and not only the requests
    #[arg(long)]
    pub(crate) payload_mac: bool,
}

/// A named transport; `None`: the best one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransportChoice(pub(crate) Option<DataTransport>);
