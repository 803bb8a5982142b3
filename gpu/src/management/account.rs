//! The memory of a device and the processes that use it.

use fabricbios_helper::{Call, Caller, Failure};
use fabricbios_wire::GpuVendor;
use serde::{Deserialize, Serialize};

use super::{Roots, amd, nvidia};
use crate::{Device, Health, Libraries};

/// Reads the memory, the processes and the health of a device or partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// The device or partition.
    pub device: Device,
    /// The libraries to ask.
    pub libraries: Libraries,
}

/// A device's memory, processes and health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounted {
    /// Memory that can be allocated, bytes. 0 if the device no longer answers.
    pub free_bytes: u64,
    /// All memory, bytes. 0 if the device no longer answers.
    pub total_bytes: u64,
    /// The processes that the driver lists, ordered by number, without the asking process. The driver may still list a
    /// process that has ended.
    pub processes: Vec<Process>,
    /// For a partition, the health of its device counts too.
    pub health: Health,
}

/// A process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Memory of the device that the process has, bytes; 0 if the driver does not report it.
    pub bytes: u64,
}

impl Accounted {
    /// An account of a device of which only the health is known.
    pub(super) fn unknown(health: Health) -> Self {
        Self {
            free_bytes: 0,
            total_bytes: 0,
            processes: Vec::new(),
            health,
        }
    }

    /// Sorts the processes by number, keeps each once with its highest memory, and removes this process.
    pub(super) fn processes(mut all: Vec<Process>) -> Vec<Process> {
        let own = std::process::id();
        all.retain(|it| it.pid != own);
        all.sort_unstable_by(|a, b| a.pid.cmp(&b.pid).then(b.bytes.cmp(&a.bytes)));
        all.dedup_by_key(|it| it.pid);
        all
    }
}

impl Call for Account {
    const NAME: &'static str = "gpu-account";
    type Answer = Accounted;

    fn make(self, _caller: &Caller) -> Result<Accounted, Failure> {
        let account = match self.device.vendor {
            GpuVendor::Nvidia => nvidia::account,
            GpuVendor::Amd => amd::account,
        };
        account(&self.libraries, &Roots::real(), &self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_listed_once_and_the_asking_one_is_not() {
        let process = |pid, bytes| Process { pid, bytes };
        let own = std::process::id();
        let all = [
            (own + 2, 5),
            (own, 9),
            (own + 1, 0),
            (own + 2, 7),
            (own + 1, 0),
        ];
        let all = all.map(|(pid, bytes)| process(pid, bytes)).to_vec();
        let listed = Accounted::processes(all);
        assert_eq!(listed, [process(own + 1, 0), process(own + 2, 7)]);
    }
}
