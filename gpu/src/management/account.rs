//! Who uses a device, and how much of its memory.

use fabricbios_helper::{Call, Caller, Failure};
use fabricbios_wire::GpuVendor;
use serde::{Deserialize, Serialize};

use super::{Roots, amd, nvidia};
use crate::{Device, Health, Libraries};

/// Asks for the memory, the processes and the health of a device or partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// The device or partition.
    pub device: Device,
    /// Those that are asked.
    pub libraries: Libraries,
}

/// A device's memory, processes and health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounted {
    /// Memory that can be allocated, bytes. 0 if the device does not answer any more.
    pub free_bytes: u64,
    /// All memory, bytes. 0 if the device does not answer any more.
    pub total_bytes: u64,
    /// Those that the driver lists, in the order of their numbers, without the process that asks. A process that has ended may
    /// still be listed.
    pub processes: Vec<Process>,
    /// Of a partition: that of its device too.
    pub health: Health,
}

/// A process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Memory of the device that it has; 0 if the driver does not tell.
    pub bytes: u64,
}

impl Accounted {
    /// A device of which nothing but its health is known.
    pub(super) fn unknown(health: Health) -> Self {
        Self {
            free_bytes: 0,
            total_bytes: 0,
            processes: Vec::new(),
            health,
        }
    }

    /// The same processes in the order of their numbers, each once, with the most bytes, and without this process.
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
