//! `mooncake`: a lease of memory for clients of Mooncake's Transfer Engine.

use std::net::SocketAddr;

use clap::Args;

use super::Term;
use crate::values;

#[derive(Args, Debug)]
pub(crate) struct Mooncake {
    /// The size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB: 1024 each) or KB, MB, GB, TB (1000
    /// each)
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) bytes: u64,
    #[command(flatten)]
    pub(crate) term: Term,
    /// Renew the lease in the last fifth of each term
    #[arg(long)]
    pub(crate) renew: bool,
    /// Where clients ask for the segment. The handshake has no authentication: who reaches this address gets
    /// into the lease
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = values::listen)]
    pub(crate) listen: SocketAddr,
    /// The path MTU of the clients, if it is less than the node's: the handshake does not tell it
    #[arg(long, value_name = "BYTES", value_parser = values::path_mtu)]
    pub(crate) mtu: Option<u16>,
}
