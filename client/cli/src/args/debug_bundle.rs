//! `debug-bundle`: what a report of a fault needs.

use std::path::PathBuf;

use clap::Args;

/// Collect into one tar file what a report of a fault needs: versions, settings, inventory, leases, fences, the last
/// lines of the log, what the kernel has, metrics
///
/// For the node itself, as the user of the daemon or root; from elsewhere the bundle has what the node tells. It has no
/// private key, no key of a lease and no token. What cannot be had is a line in its list. Its mode is 0600: it has the
/// names of tenants, addresses, and what the log says.
#[derive(Debug, Args)]
pub(crate) struct DebugBundle {
    /// The new file [default: fabricbios-debug-TIME.tar in the working directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The configuration file of the daemon
    #[arg(long, value_name = "FILE", default_value = "/etc/fabricbios/node.toml")]
    pub(crate) config: PathBuf,
    /// The daemon's state directory, whose files are listed and not read [default: that of the configuration file]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// The systemd unit whose log is taken
    #[arg(long, value_name = "NAME", default_value = "fabricbios-node")]
    pub(crate) unit: String,
    /// Where the daemon tells its metrics over HTTP [default: metrics-listen of the configuration file]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<String>,
}
