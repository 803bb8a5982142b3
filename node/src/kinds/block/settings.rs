//! The operator's settings of block storage.

use std::{collections::HashSet, net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use clap::Args;
use fabricbios_fallback_udp::FbbuConfig;
use fabricbios_wire::Size;

use super::{nvme_host::NvmeHost, nvmet_port::NvmetPort};
use crate::kinds::settings::{
    Conflicts, KindSettings, SharedSettings, UdpListen, real_path, values,
};

/// The port of FBBU (published facts §3).
const FBBU_PORT: u16 = 5703;

/// Memory for half-sent blocks. One lease gets a 128th, which must have room for one block of the largest size.
const HALF_SENT: RangeInclusive<Size> = Size(128 * 4096)..=values::MOST;

/// The settings of block storage.
#[derive(Args, Clone, Debug, Default)]
pub struct BlockSettings {
    /// Block storage to offer for lease: a directory, or a raw block device [repeatable; default: none].
    #[arg(long, value_name = "PATH")]
    pub block_pool: Vec<PathBuf>,

    /// Start without this pool, which the last run offered and whose leases live: they end [repeatable; for one start, so never in
    /// the file].
    #[arg(long, value_name = "PATH")]
    pub without_pool: Vec<PathBuf>,

    /// Where the kernel's NVMe target serves block leases: tcp:ADDR:PORT or rdma:ADDR:PORT
    /// [repeatable; default: nowhere].
    #[arg(long, value_name = "TRANSPORT:ADDR:PORT")]
    pub nvmet: Vec<NvmetPort>,

    /// Only TENANT may name the NVMe host NQN, by that or by the host id in it [repeatable; default: who
    /// names a host first has it, as long as a lease of it lives].
    #[arg(long, value_name = "NQN=TENANT")]
    pub nvme_host: Vec<NvmeHost>,

    /// Take block devices for --block-pool although they have a partition table or a file system, pools
    /// of any kind that were another node's, and pools that know of leases that are not on record here. What
    /// is on them is lost; the log says of each pool what that was. For one start, so never in the file.
    #[arg(long)]
    pub force: bool,

    /// Address of the data plane of blocks over UDP, or `none` [default: the IP of --listen, port 5703].
    #[arg(long, value_name = "IP:PORT")]
    pub fbbu_listen: Option<UdpListen>,

    /// Most memory for blocks of which some parts have come over UDP and others not (a block of 4096 bytes takes
    /// four datagrams where the MTU is 1500): of all leases; of those of one tenant an eighth, of one lease a
    /// 128th. More are answered BUSY [default: 64MiB].
    #[arg(long, value_name = "SIZE", value_parser = values::size(HALF_SENT, "64MiB"))]
    pub fbbu_half_sent_max: Option<Size>,

    /// Most block storage that the leases of one tenant may hold [default: all that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "1TiB"))]
    pub block_per_tenant_max: Option<Size>,
}

impl BlockSettings {
    /// The listen address of FBBU; `None`: not offered.
    pub(super) fn fbbu_listen(&self, shared: &SharedSettings) -> Option<SocketAddr> {
        shared.udp_listen(self.fbbu_listen, FBBU_PORT)
    }

    /// Most bytes for half-sent blocks.
    pub(super) fn fbbu_half_sent_max(&self) -> usize {
        let set = self
            .fbbu_half_sent_max
            .map(|Size(bytes)| usize::try_from(bytes));
        set.map_or(FbbuConfig::HALF_SENT_MAX, |bytes| {
            bytes.unwrap_or(usize::MAX)
        })
    }
}

/// See [`crate::kinds::Kind::datagrams`].
pub(super) fn datagrams(settings: &KindSettings) -> Option<(&'static str, SocketAddr)> {
    let KindSettings { shared, block, .. } = settings;
    let address = block.fbbu_listen(shared);
    Some(("fbbu-listen", address?)).filter(|_| !block.block_pool.is_empty())
}

/// See [`crate::kinds::Kind::conflicts`].
pub(super) fn conflicts(settings: &KindSettings, conflicts: &mut Conflicts<'_>) {
    let it = &settings.block;
    conflicts.needs(
        &[
            ("nvmet", !it.nvmet.is_empty()),
            ("nvme-host", !it.nvme_host.is_empty()),
            ("fbbu-half-sent-max", it.fbbu_half_sent_max.is_some()),
            ("block-per-tenant-max", it.block_per_tenant_max.is_some()),
        ],
        !it.block_pool.is_empty(),
        "--block-pool PATH",
        "there is nothing to serve",
    );
    let pools = it.block_pool.iter().map(PathBuf::as_path);
    conflicts.in_state_dir("block-pool", pools, settings.shared.state_dir());
    let offered = || it.block_pool.iter().map(|path| real_path(path));
    conflicts.once("block-pool", "path", offered());
    let offered: HashSet<_> = offered().collect();
    let without = it.without_pool.iter();
    for path in without.filter(|path| offered.contains(&real_path(path))) {
        let path = path.display();
        let block_pool = conflicts.named("block-pool");
        conflicts.both(
            format!("--without-pool {path}"),
            format!("{block_pool} {path}"),
            "leave one of the two out",
        );
    }
}

#[cfg(test)]
pub(super) mod tests;
