//! Finds and kills the processes that have a vfio group open.
//!
//! Any user of the machine can make the search long, and the kernel may delay a process that opens a group. So a helper
//! process searches, within a time limit, and only while the group is busy.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::{
    Containers,
    holders::{Identity, Table, identity_at, is_of, tables},
};
use fabricbios_helper::{Call, Caller, Failure, Pidfd, set_niceness};
use fabricbios_wire::LeaseId;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};
use serde::{Deserialize, Serialize};

use super::{record::Records, steps::STEPS};

/// Pause between two passes over the tables, and longest single wait for a killed process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The highest priority of a normal process.
const NICENESS: i32 = -20;

/// If a group stays busy this long and no process has it, a process holds it through a device alone. Before that the
/// kernel may just be closing the group.
const CLOSES_WITHIN: Duration = Duration::from_millis(100);

/// Most killed processes in the report, which has to fit into one message however many there are.
const TOLD_MAX: usize = 256;

/// Most programs have at most this many files. Processes with only a device are killed before larger tables are read.
const FEW_FILES: u64 = 1024;

/// The kernel's name for the descriptor of a device that came from a group. Such a descriptor keeps the group open by
/// itself.
const DEVICE: &str = "anon_inode:[vfio-device]";

/// Opens the vfio group of a lease; the kernel lets only one process do so. While the group is busy, the processes that
/// hold it, by the group itself or by a device that came from it, are found and killed. The kernel does not show from
/// which group a device came: a device in a container of another lease counts as that lease's. Tables with few files
/// come first, and each pass reads a table once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndHolders {
    /// The directory of the records. While this process holds the record, no other lease gets the function.
    pub(super) records: PathBuf,
    /// The directory of vfio groups.
    pub(super) groups: PathBuf,
    pub(super) lease: LeaseId,
    /// Processes of the node: they and their descendants are never killed.
    pub(super) owners: Vec<i32>,
    /// The time limit.
    pub(super) within: Duration,
}

/// The report of [`EndHolders`] when the group could be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    killed: Vec<i32>,
    tables: u64,
    files: u64,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tables == 0 {
            return f.write_str("nobody has the vfio group open");
        }
        write!(
            f,
            "killed {:?}; looked at {} tables with {} files",
            self.killed, self.tables, self.files
        )
    }
}

impl Call for EndHolders {
    const NAME: &'static str = "vfio-end";
    type Answer = Ended;

    fn make(self, _caller: &Caller) -> Result<Ended, Failure> {
        // Programs that keep all processors busy must not delay a cut. Only root may raise the priority; otherwise the
        // search takes longer.
        set_niceness(NICENESS).ok();
        let owners = self.owners.clone();
        self.make_by(&open, &|pid| is_of(pid, &owners))
    }
}

fn open(group: &Path) -> io::Result<()> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(group);
    opened.map(drop)
}

impl EndHolders {
    /// For tests, which replace the kernel and the node.
    ///
    /// # Errors
    /// The group is not free within the time limit; the text names the holders that were found.
    #[doc(hidden)]
    pub fn make_by(
        self,
        open: &dyn Fn(&Path) -> io::Result<()>,
        is_ours: &dyn Fn(i32) -> bool,
    ) -> Result<Ended, Failure> {
        let held = Records::at(&self.records).hold(self.lease);
        let held = held.map_err(|error| Failure::from(error.to_string()))?;
        let group = held.as_ref().and_then(|it| it.record.group(&self.groups));
        let Some(group) = group else {
            return Ok(Ended::default());
        };
        Search {
            group: &group,
            is: identity_at(&group),
            until: Instant::now() + self.within,
            open,
            is_ours,
            tables: &tables,
            killed: Vec::new(),
            ours: BTreeSet::new(),
            others: Containers::of(&self.records, self.lease, STEPS).others()?,
            refused: Vec::new(),
            ended: Ended::default(),
        }
        .run()
    }
}

/// What the process with a table holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Group,
    /// A device, and no group from which the device could have come.
    OnlyDevice,
    Nothing,
}

struct Search<'a> {
    group: &'a Path,
    is: Option<Identity>,
    until: Instant,
    open: &'a dyn Fn(&Path) -> io::Result<()>,
    is_ours: &'a dyn Fn(i32) -> bool,
    tables: &'a dyn Fn() -> Vec<Table>,
    killed: Vec<(i32, Pidfd)>,
    /// Processes of the node that have the group open.
    ours: BTreeSet<i32>,
    /// The containers of other leases.
    others: Vec<Containers>,
    /// The processes that could not be killed, and why.
    refused: Vec<String>,
    ended: Ended,
}

impl<'a> Search<'a> {
    fn run(mut self) -> Result<Ended, Failure> {
        while !self.is_free()? {
            if !self.pass()? {
                thread::sleep(CLOSES_WITHIN);
                self.pass_mapped()?;
            }
            self.wait()?;
            thread::sleep(LOOK_EVERY);
        }
        let killed = self.killed.iter().map(|(pid, _)| *pid);
        self.ended.killed = killed.take(TOLD_MAX).collect();
        Ok(self.ended)
    }

    /// Reads all tables and kills each process that has the group. If no process has it, kills those with only a
    /// device. `true`: a process was found, or the group is free.
    fn pass(&mut self) -> Result<bool, Failure> {
        let began = Instant::now();
        let (mut found, mut suspects) = (false, Vec::new());
        for table in (self.tables)() {
            if table.has_more_than(FEW_FILES) && !found && !suspects.is_empty() {
                return self.kill_suspects(&suspects, began);
            }
            self.ended.tables += 1;
            match self.look_at(table)? {
                Has::Group => {
                    found = true;
                    self.kill(table, Self::look_at)?;
                }
                Has::OnlyDevice => suspects.push(table),
                Has::Nothing => {}
            }
            self.check_time()?;
            if self.is_free()? {
                return Ok(true);
            }
        }
        Ok(found || self.kill_suspects(&suspects, began)?)
    }

    fn kill_suspects(&mut self, suspects: &[Table], began: Instant) -> Result<bool, Failure> {
        if suspects.is_empty() {
            return Ok(false);
        }
        thread::sleep(CLOSES_WITHIN.saturating_sub(began.elapsed()));
        for table in suspects {
            if self.is_free()? {
                return Ok(true);
            }
            self.kill(*table, Self::look_at)?;
        }
        Ok(true)
    }

    /// Kills processes that have only mapped a device.
    fn pass_mapped(&mut self) -> Result<(), Failure> {
        for table in (self.tables)() {
            if self.is_free()? {
                return Ok(());
            }
            if self.look_at_mapped(table)? != Has::Nothing {
                self.kill(table, Self::look_at_mapped)?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, table: Table) -> Result<Has, Failure> {
        let (mut has_device, mut has_other) = (false, false);
        for file in table.files() {
            self.look()?;
            let identity = file.identity();
            if self.is.is_some() && identity == self.is {
                return Ok(Has::Group);
            }
            has_other |= is_group(identity, self.is);
            has_device |= file.name == Path::new(DEVICE);
        }
        Ok(
            match has_device && !has_other && !self.is_of_another(table.pid) {
                true => Has::OnlyDevice,
                false => Has::Nothing,
            },
        )
    }

    fn is_of_another(&self, pid: i32) -> bool {
        self.others.iter().any(|it| it.has(pid))
    }

    fn look_at_mapped(&mut self, table: Table) -> Result<Has, Failure> {
        for file in table.mapped() {
            self.look()?;
            if file.name == Path::new(DEVICE) {
                let has_group = table.files().any(|it| is_group(it.identity(), self.is));
                return Ok(if has_group || self.is_of_another(table.pid) {
                    Has::Nothing
                } else {
                    Has::OnlyDevice
                });
            }
        }
        Ok(Has::Nothing)
    }

    fn look(&mut self) -> Result<(), Failure> {
        self.ended.files += 1;
        self.check_time()
    }

    fn check_time(&self) -> Result<(), Failure> {
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(self.still_open()),
        }
    }

    fn kill(
        &mut self,
        table: Table,
        look_at: fn(&mut Self, Table) -> Result<Has, Failure>,
    ) -> Result<(), Failure> {
        let pid = table.pid;
        if self.killed.iter().any(|(it, _)| *it == pid) {
            return Ok(());
        }
        if (self.is_ours)(pid) {
            self.ours.insert(pid);
            return Ok(());
        }
        let process = match Pidfd::open(Pid::from_raw(pid)) {
            Err(Errno::ESRCH) => return Ok(()),
            Err(errno) => return self.refuse(pid, errno),
            Ok(process) => process,
        };
        // Between the search and pidfd_open(2) another process may have got the number.
        if look_at(self, table)? == Has::Nothing {
            return Ok(());
        }
        match process.signal(Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return self.refuse(pid, errno),
        }
        // Most processes end at once; the remaining tables then need no look.
        process.ends_within(LOOK_EVERY)?;
        self.killed.push((pid, process));
        Ok(())
    }

    fn refuse(&mut self, pid: i32, errno: Errno) -> Result<(), Failure> {
        self.refused.push(format!("process {pid}: {errno}"));
        Ok(())
    }

    /// Waits until the killed processes have ended or the group is free.
    fn wait(&self) -> Result<(), Failure> {
        for (_, process) in &self.killed {
            while !process.ends_within(Duration::ZERO)? {
                self.check_time()?;
                if self.is_free()? {
                    return Ok(());
                }
                process.ends_within(LOOK_EVERY)?;
            }
        }
        self.check_time()
    }

    /// Whether the group is free: the kernel lets only one process open it. A group that does not exist counts as free.
    fn is_free(&self) -> Result<bool, Failure> {
        match (self.open)(self.group) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EBUSY) => Ok(false),
                Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Ok(true),
                _ => Err(Failure {
                    errno: error.raw_os_error(),
                    detail: format!("open {}: {error}", self.group.display()),
                }),
            },
        }
    }

    fn still_open(&self) -> Failure {
        let mut who = self.refused.clone();
        for (pid, process) in &self.killed {
            if !process.ends_within(Duration::ZERO).unwrap_or(false) {
                let place = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
                who.push(format!(
                    "process {pid} was killed and has not ended (it waits in {})",
                    place.trim()
                ));
            }
        }
        if !self.ours.is_empty() {
            who.push(format!(
                "processes {:?} of this node have it open: stop the daemon and its watchdog, and start the daemon again",
                self.ours
            ));
        }
        if who.is_empty() {
            who.push(match &*self.killed {
                [] => "who has it was not found (a process may have sent its descriptor away, or was not looked at yet); find and end it".to_owned(),
                killed => {
                    let killed: Vec<i32> = killed.iter().map(|(pid, _)| *pid).collect();
                    format!("processes {killed:?} were killed, and others open it all the time: end what starts them")
                }
            });
        }
        Failure::from(format!(
            "{} is still open after {} tables with {} files were looked at: {}",
            self.group.display(),
            self.ended.tables,
            self.ended.files,
            who.join("; ")
        ))
    }
}

/// Whether a file is a vfio group, under any name: all groups have the same major number.
fn is_group(file: Option<Identity>, group: Option<Identity>) -> bool {
    match (file, group) {
        (Some(Identity::Device((its, _))), Some(Identity::Device((major, _)))) => its == major,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
