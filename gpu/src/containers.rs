//! Processes of containers that a container engine gave the device of a lease. They are in the engine's cgroups, so they are
//! found by the variable that the lease's CDI specification sets.

use std::{fs, time::Duration};

use fabricbios_cgroup::Process;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::holders::pids;

/// So often the processes are looked for again: one may have started another one meanwhile.
const ROUNDS: u32 = 16;

const VARIABLE: &str = "FABRICBIOS_GPU_LEASE=";

/// The variable, with the value for the lease.
pub(crate) fn mark(lease: LeaseId) -> String {
    format!("{VARIABLE}{lease}")
}

/// The processes with the variable. They may have the device open or open it later: the container's own device controller lets
/// them. One that overwrites its own variables is not found here; as a holder it fences the device.
pub(crate) fn of(lease: LeaseId) -> Vec<Process> {
    let mark = mark(lease);
    let is_marked = |pid: &i32| has_variable(*pid, |it| it == mark.as_bytes());
    pids().filter(is_marked).filter_map(Process::of).collect()
}

/// Whether the process is in a container of some lease.
pub(crate) fn is_in_one(process: Process) -> bool {
    has_variable(process.pid, |it| it.starts_with(VARIABLE.as_bytes()))
}

fn has_variable(pid: i32, is_it: impl Fn(&[u8]) -> bool) -> bool {
    let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.split(|byte| *byte == 0).any(is_it)
}

/// Kills them, until there is none. Returns how many there were.
///
/// # Errors
/// One has not ended within `patience`, or they start others all the time.
pub(crate) fn kill(lease: LeaseId, patience: Duration) -> Result<usize, StepError> {
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let found = of(lease);
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
        "the processes of a container of the lease start others all the time: end the container",
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command, id},
        thread,
    };

    use super::*;

    /// A process of a container of the lease.
    fn process(lease: u128) -> Child {
        let mark = mark(LeaseId(lease));
        let (name, value) = mark.split_once('=').unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000").env(name, value).spawn().unwrap()
    }

    #[test]
    fn the_processes_of_this_leases_containers_are_killed() {
        let [lease, another] = [1, 2].map(|it| u128::from(id()) << 64 | it);
        let (mut one, mut two, mut other) = (process(lease), process(lease), process(another));
        for child in [&one, &two, &other] {
            let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
            // The kernel sets the variables when it has almost started the program.
            while !is_in_one(process) {
                thread::yield_now();
            }
        }
        let killed = kill(LeaseId(lease), Duration::from_secs(60)).unwrap();
        assert_eq!(killed, 2);
        assert_eq!(of(LeaseId(lease)), []);
        assert_eq!(of(LeaseId(another)).len(), 1);
        for child in [&mut one, &mut two, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
