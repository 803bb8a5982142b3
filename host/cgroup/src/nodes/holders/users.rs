//! The processes of a lease's users that have the device of the lease, or hide it.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use fabricbios_helper::{Call, Caller, Failure, set_niceness};
use serde::{Deserialize, Serialize};

use super::{
    Holder, REPORT_EVERY,
    standstill::{Standstill, processes_of},
};
use crate::{
    DeviceNumber,
    holders::{has_lost_first_thread, tables_of},
};

/// A killed process has ended after this time.
const ENDS_WITHIN: Duration = Duration::from_secs(8);

/// Most killed processes in the answer, which has to fit into one message however many there are.
const TOLD_MAX: usize = 256;

/// The look at open files takes this time, in all rounds together. Processes with few files come first; one that has not
/// been looked at by then may hide the device among very many files. A proof waits for the search, so the time is short.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// Other users' processes do not hold up the proof.
const NICENESS: i32 = -20;

/// Most rounds: a process of another user may start new processes of these users meanwhile.
const ROUNDS: u32 = 8;

/// Kills the processes of some users that have one of the devices, or may have it: in a table of open files, mapped, in
/// a socket's queue, or in a ring. Meanwhile all processes of these users are stopped, so that none passes the device
/// on or starts another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndUsers {
    /// The devices.
    pub devices: BTreeSet<DeviceNumber>,
    /// The users whose processes end; never root.
    pub users: BTreeSet<u32>,
    /// The record of the lease. If it is gone, the lease is over, and these users may have the device by another lease:
    /// no process ends.
    pub record: PathBuf,
}

impl Call for EndUsers {
    const NAME: &'static str = "end-users";
    /// The killed processes, at most 256.
    type Answer = Vec<Holder>;

    /// First waits for earlier calls for these users: each of them lets the users' processes go on at its end.
    fn make(self, caller: &Caller) -> Result<Vec<Holder>, Failure> {
        for user in &self.users {
            caller.lock_telling(&format!("processes of user {user}"), |pid| {
                caller.progress(format!("process {pid} ends processes of user {user}"))
            })?;
        }
        // Without the privilege the search is as slow as other processes make it.
        set_niceness(NICENESS).ok();
        self.end(&mut |what| caller.progress(what))
    }
}

impl EndUsers {
    fn end(
        &self,
        report: &mut dyn FnMut(&'static str) -> Result<(), Failure>,
    ) -> Result<Vec<Holder>, Failure> {
        let mut killed = Vec::new();
        let mut look = Look::begin(report);
        for _ in 0..ROUNDS {
            let still = Standstill::of(&self.users)?;
            let mut processes = still.processes.clone();
            processes.sort_by_key(|it| open_files(it.process.pid));
            let mut found = Vec::new();
            look.began = Instant::now();
            for holder in &processes {
                if self.may_have_device(holder, &mut look)? {
                    found.push(*holder);
                }
            }
            look.spent += look.began.elapsed();
            // The lease is over, and these users may have the device by another lease.
            if !self.record.try_exists()? {
                return Ok(killed);
            }
            for Holder { process, .. } in &found {
                let killed = process.send_kill("end holders");
                killed.map_err(|error| Failure::from(error.to_string()))?;
            }
            for Holder { process, .. } in &found {
                let ended = process.kill("end holders", ENDS_WITHIN);
                ended.map_err(|error| Failure::from(error.to_string()))?;
                (look.report)("processes of the lease's users end")?;
            }
            let is_all = processes_of(&self.users).all(|it| still.has(&it));
            if found.is_empty() && is_all {
                return Ok(killed);
            }
            killed.extend(found);
            killed.truncate(TOLD_MAX);
        }
        Err(Failure::from(format!(
            "processes of the users {:?} were looked at {ROUNDS} times, and others were there each time: end them",
            self.users
        )))
    }

    fn may_have_device(&self, holder: &Holder, look: &mut Look<'_>) -> Result<bool, Failure> {
        let pid = holder.process.pid;
        if has_lost_first_thread(pid) {
            return Ok(true);
        }
        let devices: Vec<DeviceNumber> = self.devices.iter().copied().collect();
        let tables = tables_of(pid);
        let mapped = tables.first().map(|it| it.mapped()).into_iter().flatten();
        let open = { tables.iter() }.flat_map(|it| it.files().map(|file| (file, Some(*it))));
        let files = open.chain(mapped.map(|file| (file, None)));
        let mut rings = BTreeSet::new();
        for (file, table) in files {
            let ring = file.ring();
            let is_hidden = match table {
                Some(table) => {
                    rings.extend(ring);
                    file.may_carry(table, &devices)
                }
                // The files of a ring are only visible where the ring is open.
                None => ring.is_some_and(|it| !rings.contains(&it)),
            };
            if is_hidden || file.is_one_of(&devices) {
                return Ok(true);
            }
            if !look.goes_on()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The number of open files of a process; 0 before Linux 6.2.
fn open_files(pid: i32) -> u64 {
    fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |it| it.len())
}

/// The look at the files of all processes.
struct Look<'a> {
    /// In earlier rounds.
    spent: Duration,
    /// Of this round.
    began: Instant,
    reported: Instant,
    report: &'a mut dyn FnMut(&'static str) -> Result<(), Failure>,
}

impl<'a> Look<'a> {
    fn begin(report: &'a mut dyn FnMut(&'static str) -> Result<(), Failure>) -> Self {
        let began = Instant::now();
        Self {
            spent: Duration::ZERO,
            began,
            reported: began,
            report,
        }
    }

    /// False if the time is over.
    fn goes_on(&mut self) -> Result<bool, Failure> {
        if self.reported.elapsed() > REPORT_EVERY {
            self.reported = Instant::now();
            (self.report)("open files of the lease's users")?;
        }
        Ok(self.spent + self.began.elapsed() <= LOOK_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::process::ExitStatusExt, process::Child, thread};

    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };

    use super::{
        super::tests::{child, in_flight, number, open, terminal},
        *,
    };
    use crate::state_of;

    fn end(path: &str, users: &[u32]) -> Vec<u32> {
        let call = EndUsers {
            devices: [number(path)].into(),
            users: users.iter().copied().collect(),
            record: "/".into(),
        };
        let killed = call.end(&mut |_| Ok(())).unwrap();
        killed
            .iter()
            .map(|it| it.process.pid.cast_unsigned())
            .collect()
    }

    fn state(child: &Child) -> Option<char> {
        state_of(i32::try_from(child.id()).unwrap())
    }

    fn ended_by(mut child: Child) -> Option<i32> {
        child.kill().ok();
        child.wait().unwrap().signal()
    }

    #[test]
    fn who_has_the_device_or_hides_files_is_killed_and_the_others_go_on() {
        const USER: u32 = 4731;
        let (_master, path) = terminal();
        let of = |user, file: File| child(user, file.into());
        let nothing = || File::open("/dev/null").unwrap();
        let others = of(USER + 1, open(&path));
        let (innocent, stopped) = (of(USER, nothing()), of(USER, nothing()));
        kill(Pid::from_raw(stopped.id().cast_signed()), Signal::SIGSTOP).unwrap();
        while state(&stopped) != Some('T') {
            thread::yield_now();
        }
        let holder = of(USER, open(&path));
        let hides = child(USER, in_flight(open(&path)));
        let killed = end(&path, &[USER]);
        assert_eq!(
            BTreeSet::from_iter(killed),
            [holder.id(), hides.id()].into()
        );
        assert_eq!([holder, hides].map(ended_by), [Some(9), Some(9)]);
        assert!(end(&path, &[USER]).is_empty());
        assert_eq!(state(&others), Some('S'));
        assert_eq!(state(&stopped), Some('T'));
        while state(&innocent) != Some('S') {
            thread::yield_now();
        }
        for child in [others, innocent, stopped] {
            ended_by(child);
        }
    }

    /// A process whose first thread has ended while another thread lives: /proc shows no mapping of it.
    #[test]
    fn a_process_that_has_lost_its_first_thread_is_killed() {
        const USER: u32 = 4733;
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                      ctypes.CDLL(None).syscall(60, 0)\n";
        let (_master, path) = terminal();
        let mut command = std::process::Command::new("python3");
        let command = command.arg("-c").arg(script);
        let child = std::os::unix::process::CommandExt::uid(command, USER);
        let child = child.spawn().unwrap();
        while state(&child) != Some('Z') {
            thread::yield_now();
        }
        assert_eq!(end(&path, &[USER]), [child.id()]);
        assert_eq!(ended_by(child), Some(9));
    }
}
