//! Finds the processes that have the nodes of a device open, or may have.

mod standstill;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::process::parent_id,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use fabricbios_helper::{Call, Caller, Failure};
use serde::{Deserialize, Serialize};

use crate::{
    DeviceNumber, Process,
    holders::{Table, is_of, tables},
};

pub use users::EndUsers;

/// The search fails after this time.
const LOOK_MAX: Duration = Duration::from_secs(300);

/// Any user can make the search long by opening many files. So each user's files get this much time.
const USER_LOOK_MAX: Duration = Duration::from_secs(30);

const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A process usually receives files that were sent to it soon. The search looks for such files again this many times,
/// with pauses.
const AGAIN: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// Searches for the processes that have one of the devices open or mapped, or have unreceived files in a socket, one of
/// which may be the device. Processes that end meanwhile and the helper processes of this node are left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holders {
    /// The devices to look for.
    pub devices: BTreeSet<DeviceNumber>,
    /// Processes of these users are left out: [`EndUsers`] looks at them.
    pub without: BTreeSet<u32>,
    /// True: a user with more open files than can be searched in time makes the search fail. False: the rest of this
    /// user's files is skipped.
    pub is_complete: bool,
}

/// A process that has a device open, or may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub process: Process,
    /// 0 only if all user ids of the process are root's.
    pub user: u32,
    /// The process is in the node's own user and PID namespaces.
    pub is_of_node: bool,
    /// False: the process has unreceived files in a socket, and the device may be one of them.
    pub has_device: bool,
}

impl Holder {
    /// True for a daemon of the node's root; false for root of a container.
    #[must_use]
    pub fn is_roots(&self) -> bool {
        self.user == 0 && self.is_of_node
    }

    /// For people.
    #[must_use]
    pub fn describe(&self) -> String {
        let what = match self.has_device {
            true => "has the device open",
            false => {
                "does not receive files that were sent to it, and the device is or may be one of them"
            }
        };
        let place = match self.is_of_node {
            true => "",
            false => " in a container",
        };
        let process = self.process.describe();
        format!("{process} of user {}{place} {what}", self.user)
    }
}

impl Call for Holders {
    const NAME: &'static str = "holders";
    type Answer = Vec<Holder>;

    fn make(self, caller: &Caller) -> Result<Vec<Holder>, Failure> {
        let mut holders = self.look(USER_LOOK_MAX, REPORT_EVERY, &mut |what| {
            caller.progress(what)
        })?;
        // All helper processes are children of the supervisor.
        let supervisor = i32::try_from(parent_id()).unwrap_or_default();
        holders.retain(|it| !is_of(it.process.pid, &[supervisor]));
        Ok(holders)
    }
}

impl Holders {
    /// `user_max`: the time for each user's files. The search reports, and checks the time, every `report_every`.
    fn look(
        &self,
        user_max: Duration,
        report_every: Duration,
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
        let mut carriers: Vec<(Table, PathBuf, Holder)> = Vec::new();
        // Threads with their own table of files still share the memory of their process.
        let mut looked_at = BTreeSet::new();
        let mut took: BTreeMap<u32, Duration> = BTreeMap::new();
        for (done, table) in tables.iter().enumerate() {
            if holders.iter().any(|it| it.process.pid == table.pid) {
                continue;
            }
            let Some(found) = holder_of(table.pid) else {
                continue;
            };
            if self.without.contains(&found.user) {
                continue;
            }
            let (began_table, earlier) = (Instant::now(), took.get(&found.user));
            let earlier = earlier.copied().unwrap_or_default();
            let mapped = looked_at.insert(table.pid).then(|| table.mapped());
            for file in table.files().chain(mapped.into_iter().flatten()) {
                if file.is_one_of(&devices) {
                    holders.push(found);
                    break;
                }
                if file.is_socket() && file.may_carry(*table, &devices) {
                    let has_device = false;
                    let holder = Holder {
                        has_device,
                        ..found
                    };
                    carriers.push((*table, file.name.clone(), holder));
                }
                if reported.elapsed() >= report_every {
                    reported = Instant::now();
                    report(format!("{done} of {} tables of open files", tables.len()))?;
                    if began.elapsed() > LOOK_MAX {
                        return Err(too_many(found, LOOK_MAX));
                    }
                    if found.user != 0 && earlier + began_table.elapsed() > user_max {
                        if self.is_complete {
                            return Err(too_many(found, user_max));
                        }
                        break;
                    }
                }
            }
            took.insert(found.user, earlier + began_table.elapsed());
        }
        for _ in 0..AGAIN {
            carriers.retain(|(table, socket, it)| {
                let mut files = table.files();
                Process::of(table.pid) == Some(it.process)
                    && files.any(|it| it.name == *socket && it.may_carry(*table, &devices))
            });
            if carriers.is_empty() {
                break;
            }
            thread::sleep(PAUSE);
        }
        holders.extend(carriers.into_iter().map(|(_, _, holder)| holder));
        Ok(holders)
    }
}

fn too_many(holder: Holder, limit: Duration) -> Failure {
    let Holder { process, user, .. } = holder;
    Failure::from(format!(
        "{} s were not enough to look at open files: {} has very many, or other processes of user {user} have: end them",
        limit.as_secs(),
        process.describe()
    ))
}

/// The first user id of the process that is not root's.
fn user_of(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|it| it.strip_prefix("Uid:"))?;
    let users = users.split_whitespace().map(str::parse);
    let mut users = users.filter_map(Result::ok);
    Some(users.find(|it| *it != 0).unwrap_or(0))
}

/// The process with this number, as a holder of the device.
fn holder_of(pid: i32) -> Option<Holder> {
    let process = Process::of(pid)?;
    let user = user_of(pid)?;
    let is_own = |name: &str| {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
        // A kernel thread or an ending process has no namespaces.
        of(&pid.to_string()).is_none_or(|it| Some(it) == of("self"))
    };
    Some(Holder {
        process,
        user,
        is_of_node: is_own("user") && is_own("pid"),
        has_device: true,
    })
}

#[cfg(test)]
mod tests;
