//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// What a scheduler is started with.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// The scheduler's identity: scheduler.identity of `fabricctl fabric init`, or what `fabricctl fabric sign --role
    /// scheduler` has answered
    #[arg(long, value_name = "FILE", env = "FABRICBIOS_SCHEDULER_IDENTITY")]
    pub identity: PathBuf,
    /// Where nodes and clients connect (QUIC over UDP)
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:5704")]
    pub listen: SocketAddr,
}
