//! Who has the nodes of a device open.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::process::parent_id,
    time::{Duration, Instant},
};

use fabricbios_cgroup::{
    DeviceNumber, Process,
    holders::{Table, is_of, tables},
};
use fabricbios_helper::{Call, Caller, Failure};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, setresuid},
};
use serde::{Deserialize, Serialize};

/// Any user can make a look long, with open files. After so long it is given up.
const LOOK_MAX: Duration = Duration::from_secs(300);

const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Looks for the processes that have one of the devices open, or mapped. Those that end meanwhile are left out, and the helper
/// processes of this node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Holders {
    pub(crate) devices: BTreeSet<DeviceNumber>,
    /// A process of these users is also listed if it holds a socket or a ring with files on their way: the device may be one of
    /// them.
    pub(crate) users: BTreeSet<u32>,
}

/// A process that has a device open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) process: Process,
    /// 0 only if all of its user numbers are root's.
    pub(crate) user: u32,
}

impl Call for Holders {
    const NAME: &'static str = "gpu-holders";
    type Answer = Vec<Holder>;

    fn make(self, caller: &Caller) -> Result<Vec<Holder>, Failure> {
        let mut holders = self.look(&mut |what| caller.progress(what))?;
        // All helper processes are children of the supervisor.
        let supervisor = i32::try_from(parent_id()).unwrap_or_default();
        holders.retain(|it| !is_of(it.process.pid, &[supervisor]));
        Ok(holders)
    }
}

impl Holders {
    fn look(
        &self,
        report: &mut dyn FnMut(String) -> Result<(), Failure>,
    ) -> Result<Vec<Holder>, Failure> {
        let mut holders: Vec<Holder> = Vec::new();
        if self.devices.is_empty() {
            return Ok(holders);
        }
        let devices: Vec<DeviceNumber> = self.devices.iter().copied().collect();
        let began = Instant::now();
        let mut reported = began;
        let tables = tables();
        // Threads with a table of their own share the memory of their process.
        let mut looked_at = BTreeSet::new();
        for (done, table) in tables.iter().enumerate() {
            if holders.iter().any(|it| it.process.pid == table.pid) {
                continue;
            }
            let Some((process, user)) = process_of(table) else {
                continue;
            };
            let is_of_users = self.users.contains(&user);
            let mapped = looked_at.insert(table.pid).then(|| table.mapped());
            for file in table.files().chain(mapped.into_iter().flatten()) {
                if file.is_one_of(&devices) || is_of_users && file.carries_files() {
                    holders.push(Holder { process, user });
                    break;
                }
                if reported.elapsed() > REPORT_EVERY {
                    reported = Instant::now();
                    report(format!("{done} of {} tables of open files", tables.len()))?;
                    if began.elapsed() > LOOK_MAX {
                        return Err(too_many(&tables));
                    }
                }
            }
        }
        Ok(holders)
    }
}

fn too_many(tables: &[Table]) -> Failure {
    let most = tables.last().and_then(|it| Process::of(it.pid));
    let most = most.map_or_else(|| "?".to_owned(), Process::describe);
    Failure::from(format!(
        "{} s were not enough to look at the open files of {} processes; {most} has the most: end it",
        LOOK_MAX.as_secs(),
        tables.len()
    ))
}

/// The process of a table, and its user.
fn process_of(table: &Table) -> Option<(Process, u32)> {
    let process = Process::of(table.pid)?;
    let status = fs::read_to_string(format!("/proc/{}/status", table.pid)).ok()?;
    let users = status.lines().find_map(|it| it.strip_prefix("Uid:"))?;
    let mut users = users
        .split_whitespace()
        .filter_map(|it| it.parse::<u32>().ok());
    Some((process, users.find(|it| *it != 0).unwrap_or(0)))
}

/// Kills all processes of a user at once: no process of his can start another one meanwhile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndUser(pub(crate) u32);

impl Call for EndUser {
    const NAME: &'static str = "gpu-end-user";
    type Answer = ();

    fn make(self, _caller: &Caller) -> Result<(), Failure> {
        let user = Uid::from_raw(self.0);
        if user.is_root() {
            return Err(Failure::from("root's processes are not killed".to_owned()));
        }
        setresuid(user, user, user).map_err(io::Error::from)?;
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            // He has none.
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, OpenOptions},
        io::IoSlice,
        os::{
            fd::{AsRawFd, OwnedFd},
            unix::{
                fs::{MetadataExt, OpenOptionsExt},
                net::UnixStream,
                process::CommandExt,
            },
        },
        process::{Child, Command, id},
    };

    use nix::{
        fcntl::OFlag,
        pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
        sys::{
            socket::{ControlMessage, MsgFlags, sendmsg},
            stat::{major, minor},
        },
    };

    use super::*;

    /// A terminal that nobody else has.
    fn terminal() -> (PtyMaster, String) {
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname_r(&master).unwrap();
        (master, path)
    }

    fn open(path: &str) -> File {
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(OFlag::O_NOCTTY.bits());
        options.open(path).unwrap()
    }

    fn look(path: &str, users: &[u32]) -> Vec<Holder> {
        let number = fs::metadata(path).unwrap().rdev();
        let number = [major(number), minor(number)].map(|it| u32::try_from(it).unwrap());
        let call = Holders {
            devices: [number.into()].into(),
            users: users.iter().copied().collect(),
        };
        call.look(&mut |_| Ok(())).unwrap()
    }

    fn child(uid: u32, stdin: OwnedFd) -> Child {
        let mut command = Command::new("sleep");
        let command = command.arg("1000").stdin(stdin);
        command.uid(uid).gid(uid).spawn().unwrap()
    }

    #[test]
    fn who_opens_a_device_is_found_with_its_user_and_who_closes_it_is_not() {
        let (_master, path) = terminal();
        let found = || -> Vec<(u32, u32)> {
            let holders = look(&path, &[]).into_iter();
            let found = holders.map(|it| (it.process.pid.cast_unsigned(), it.user));
            found.collect()
        };
        let file = open(&path);
        let root = nix::unistd::geteuid().as_raw();
        assert_eq!(found(), [(id(), root)]);
        let mut child = child(4711, file.into());
        assert_eq!(found(), [(child.id(), 4711)]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found(), []);
        let nothing = Holders {
            devices: BTreeSet::new(),
            users: BTreeSet::new(),
        };
        assert_eq!(nothing.look(&mut |_| Ok(())).unwrap(), []);
    }

    /// The tables of processes do not have what was sent and not received.
    #[test]
    fn a_socket_of_a_leases_user_with_files_on_their_way_counts() {
        let (_master, path) = terminal();
        let (near, far) = UnixStream::pair().unwrap();
        let file = open(&path);
        let files = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        let bytes = [IoSlice::new(b"x")];
        sendmsg::<()>(near.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).unwrap();
        drop(file);
        let mut child = child(4712, far.into());
        let is_found = |users: &[u32]| look(&path, users).iter().any(|it| it.user == 4712);
        assert!(!is_found(&[]));
        assert!(!is_found(&[4713]));
        assert!(is_found(&[4712]));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
