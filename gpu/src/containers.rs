//! Processes of containers that a container engine gave the device of a lease. They are in the engine's cgroups, so they are
//! found by the variable that the lease's CDI specification sets.

use std::{fs, time::Duration};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    Node,
    holders::{holds, pids},
    process::Process,
};

/// So often the processes are looked for again: one may have started another one meanwhile.
const ROUNDS: u32 = 16;

/// The variable, with the value for the lease.
pub(crate) fn mark(lease: LeaseId) -> String {
    format!("FABRICBIOS_GPU_LEASE={lease}")
}

/// The processes with the variable that have one of the nodes open, or mapped. One that overwrites its own variables is not
/// found here; as a holder it fences the device.
pub(crate) fn of(lease: LeaseId, nodes: &[Node]) -> Vec<Process> {
    let mark = mark(lease);
    let is_marked = |pid: &i32| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        { variables.split(|byte| *byte == 0) }.any(|it| it == mark.as_bytes())
    };
    let found = pids().filter(is_marked).filter(|pid| holds(*pid, nodes));
    found.filter_map(Process::of).collect()
}

/// Kills them, until there is none. Returns how many there were.
///
/// # Errors
/// One has not ended within `patience`, or they start others all the time.
pub(crate) fn kill(lease: LeaseId, nodes: &[Node], patience: Duration) -> Result<usize, StepError> {
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let found = of(lease, nodes);
        if found.is_empty() {
            return Ok(killed);
        }
        for process in found {
            process.kill("kill containers", patience)?;
            killed += 1;
        }
    }
    Err(StepError::new(
        "kill containers",
        "the processes of a container that has the device start others all the time: end the container",
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// A process that has the device open.
    fn holder(lease: u128) -> Child {
        let mark = mark(LeaseId(lease));
        let (name, value) = mark.split_once('=').unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000").env(name, value);
        command.stdin(Stdio::from(File::open("/dev/full").unwrap()));
        command.spawn().unwrap()
    }

    #[test]
    fn the_processes_of_this_leases_containers_are_killed() {
        let nodes = [Node {
            path: "/dev/full".into(),
            major: 1,
            minor: 7,
        }];
        let (mut one, mut two, mut other) = (holder(0xc1), holder(0xc1), holder(0xc2));
        assert_eq!(kill(LeaseId(0xc1), &[], Duration::ZERO).unwrap(), 0);
        assert_eq!(
            kill(LeaseId(0xc1), &nodes, Duration::from_secs(60)).unwrap(),
            2
        );
        assert_eq!(of(LeaseId(0xc1), &nodes), []);
        assert_eq!(of(LeaseId(0xc2), &nodes).len(), 1);
        for child in [&mut one, &mut two, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
