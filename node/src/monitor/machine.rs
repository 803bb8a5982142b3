//! The figures that the driver does not have: data paths, the process, the log, certificates.

use std::{
    fs, io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_control::Membership;
use fabricbios_fallback_udp::{Counters, Tally};
use fabricbios_helper::InFlight;
use fabricbios_wire::{NodeId, ResourceType};
use nix::unistd::{SysconfVar, sysconf};

use crate::process::descriptors;

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

/// The daemon's own process, of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) cpu: Duration,
    pub(super) resident_bytes: u64,
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
            descriptors: descriptors::used().unwrap_or(0),
            descriptors_max: descriptors::limit(),
            process: Process::now().ok(),
        }
    }
}

impl Process {
    fn now() -> io::Result<Self> {
        let number = |name| {
            let number = sysconf(name)?.unwrap_or(0);
            u64::try_from(number).map_err(io::Error::other)
        };
        let ticks_per_second = number(SysconfVar::CLK_TCK)?;
        let page = number(SysconfVar::PAGE_SIZE)?;
        Self::parse(
            &fs::read_to_string("/proc/self/stat")?,
            ticks_per_second,
            page,
        )
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The name in parentheses may have blanks and parentheses.
    fn parse(stat: &str, ticks_per_second: u64, page: u64) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // The first of these is the third field of the file.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let (user, system, resident) = (field(14)?, field(15)?, field(24)?);
        let ticks = user.checked_add(system)?;
        let millis = ticks.checked_mul(1000)?.checked_div(ticks_per_second)?;
        Some(Self {
            cpu: Duration::from_millis(millis),
            resident_bytes: resident.checked_mul(page)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_read_whatever_its_name() {
        let text = "7 (a) b ( c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 5000 1000000 300 \
                    18446744073709551615 1 1 0";
        let read = Process::parse(text, 100, 4096);
        let expected = Process {
            cpu: Duration::from_secs(2),
            resident_bytes: 300 * 4096,
        };
        assert_eq!(read, Some(expected));
        for bad in ["", "7 (a) S", "7 (a) S x y z"] {
            assert_eq!(Process::parse(bad, 100, 4096), None);
        }
        assert!(Process::now().unwrap().resident_bytes > 0);
    }
}
