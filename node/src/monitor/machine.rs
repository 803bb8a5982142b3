//! The figures that the driver does not have: data paths, the process, the log, certificates.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use fabricbios_control::Membership;
use fabricbios_fallback_udp::{Counters, Tally};
use fabricbios_helper::InFlight;
use fabricbios_http::process::{self, Process};
use fabricbios_wire::{NodeId, ResourceType};

/// The counters of the paths over UDP, by kind.
pub type DataPaths = Vec<(ResourceType, Arc<Counters>)>;

#[derive(Debug)]
pub(super) struct MachineFigures {
    pub(super) node_id: NodeId,
    pub(super) fabric: String,
    /// When the node's certificate ends, seconds since 1970.
    pub(super) certificate_ends: Option<u64>,
    pub(super) data_paths: Vec<(ResourceType, Tally)>,
    /// Calls of helper processes, by name.
    pub(super) helper_calls: Vec<(&'static str, u64)>,
    pub(super) log_lines_dropped: u64,
    pub(super) descriptors: u64,
    pub(super) descriptors_max: u64,
    /// `None`: /proc is not there.
    pub(super) process: Option<Process>,
}

impl MachineFigures {
    pub(super) fn now(
        membership: &Membership,
        data_paths: &DataPaths,
        helper_calls: &InFlight,
    ) -> Self {
        let fabric = membership.now();
        let since_1970 =
            |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        Self {
            node_id: fabric.node_id(),
            fabric: fabric.id().to_string(),
            certificate_ends: fabric.not_after().map(since_1970),
            data_paths: { data_paths.iter() }
                .map(|(kind, counters)| (*kind, counters.tally()))
                .collect(),
            helper_calls: helper_calls.now().collect(),
            log_lines_dropped: fabricbios_log::dropped_lines(),
            descriptors: process::descriptors().unwrap_or(0),
            descriptors_max: process::descriptors_max(),
            process: Process::now().ok(),
        }
    }
}
