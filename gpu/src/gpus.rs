//! State that the stores and the path of all devices share: records, cgroups, helper processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_cgroup::{Root, allow_only, records::failed};
use fabricbios_helper::{CallError, Program, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use crate::{
    Device, Libraries, Node, STEPS,
    cut::Cutter,
    driver::Wiped,
    end::ROOT,
    limits::Limits,
    management::Scrub,
    owned,
    record::{Record, Records},
    sessions::{Sessions, user_of},
    steps::passed,
};

/// A vendor's library that is silent for this time counts as hung. Opening a context takes seconds without a report.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// Name prefix of the cgroups for processes that cannot die.
const STUCK: &str = "stuck-";

/// The users of this machine that belong to each tenant, by uid.
pub type Tenants = BTreeMap<String, BTreeSet<u32>>;

/// Directories of GPU leases, and the programs that make calls.
#[derive(Debug)]
pub struct GpuConfig {
    /// The directory of the records, which a reboot empties.
    pub records: PathBuf,
    /// The root cgroup of the leases. `None`: no cgroup v2 is mounted.
    pub cgroup: Option<PathBuf>,
    /// Memory limit, in bytes, of a lease's worker together with the lease's programs on the node.
    pub worker_memory_max: u64,
    /// The directory of CDI specifications.
    pub cdi: PathBuf,
    /// The users of this machine that belong to each tenant.
    pub tenants: Tenants,
    /// This node's program, in a file that container engines can execute as their hook.
    pub hook: PathBuf,
    /// Makes calls that may hang.
    pub supervisor: Supervisor,
    /// The program of workers.
    pub program: Program,
    /// The vendors' libraries.
    pub libraries: Libraries,
}

/// The GPUs of a node.
#[derive(Debug)]
pub struct Gpus {
    pub(crate) records: Records,
    /// `None`: this machine does not allow control groups for leases, so leases have no programs on the node.
    pub(crate) root: Option<Root>,
    /// The limits of a lease's control group, as far as this machine allows them.
    limits: Limits,
    pub(crate) cdi: PathBuf,
    tenants: Mutex<Tenants>,
    hook: PathBuf,
    pub(crate) cutter: Cutter,
    pub(crate) sessions: Sessions,
}

impl Gpus {
    /// Makes the directory of the records and the root cgroup.
    ///
    /// # Errors
    /// The directory cannot be made, or the root cgroup of an earlier run is no longer usable.
    pub fn open(config: GpuConfig) -> Result<Self, StepError> {
        let directory = config.records;
        let records = Records::at(&directory);
        records.make_directory()?;
        let named = directory.join(ROOT);
        let tried = match &config.cgroup {
            Some(path) => try_cgroup(path).map(|()| path),
            None => Err(StepError::new("make root", "no cgroup v2 is mounted")),
        };
        let root = match tried {
            Ok(path) => {
                // Every cgroup has freezer, kill and device controller; only the limits need more controllers.
                let written = fs::write(&named, path.as_os_str().as_bytes());
                written.map_err(|error| failed("make root", &named, &error))?;
                let root = root_at(path)?;
                passed("make root");
                Some(root)
            }
            // Leases of an earlier run may have programs in this cgroup.
            Err(mut error) if named.exists() => {
                error.detail.push_str(
                    "; an earlier run has leased GPUs with this control group, and what is left of them has to be looked after: \
                     start with the rights which that run had, or restart the machine",
                );
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "this machine does not allow control groups for leases of GPUs: they have sessions, and no programs or \
                     containers on the node; what a tenant sends can make its worker take any amount of the node's memory \
                     (no memory.max: gpu-worker-memory-max does not hold), and no pids.max limits its processes, only RLIMIT_NPROC"
                );
                None
            }
        };
        if let Some(root) = &root {
            Limits::enable(root);
        }
        Ok(Self {
            limits: Limits {
                memory_bytes: config.worker_memory_max,
            },
            sessions: Sessions {
                program: config.program,
                libraries: config.libraries,
                records: records.clone(),
            },
            cutter: Cutter {
                records: records.clone(),
                root: root.clone(),
                proc: Tree::new("/proc"),
                supervisor: config.supervisor,
            },
            records,
            root,
            cdi: config.cdi,
            tenants: Mutex::new(config.tenants),
            hook: config.hook,
        })
    }

    /// Has other users open the devices of leases that are bound from now on.
    pub fn change_tenants(&self, tenants: Tenants) {
        *self.tenants() = tenants;
    }

    fn tenants(&self) -> MutexGuard<'_, Tenants> {
        // They are replaced as a whole.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The users who may open the device for a lease: the worker's user, and the tenant's users if the lease may have
    /// programs on this node. Root may open it always.
    pub(crate) fn users(&self, lease: LeaseId, tenant: &str, has_programs: bool) -> BTreeSet<u32> {
        let tenants = self.tenants();
        let of_tenant = { tenants.get(tenant) }.filter(|_| has_programs);
        let of_tenant = of_tenant.into_iter().flatten().copied();
        let mut users: BTreeSet<u32> = of_tenant.chain([user_of(lease)]).collect();
        users.remove(&0);
        users
    }

    /// Restores owner, mode and list of these devices' nodes to the state before this node or an earlier run took them.
    pub fn give_nodes_back(&self, is_kept: impl Fn(&str) -> bool) {
        owned::give_back(&self.records, is_kept);
    }

    /// The command line of the hook that registers containers of a lease.
    pub(crate) fn hook(&self, lease: LeaseId) -> Vec<String> {
        fabricbios_cgroup::hook(&self.hook, self.records.directory(), lease)
    }

    /// Wipes the free memory of a device.
    pub(crate) fn scrub(&self, device: &Device, progress: &dyn Fn()) -> Result<Wiped, StepError> {
        let scrub = Scrub {
            device: device.clone(),
            libraries: self.sessions.libraries.clone(),
        };
        let wiped = scrub.twice(&self.cutter.supervisor, SILENCE, &|_| progress());
        wiped.map_err(|error| not_done("scrub", error))
    }

    /// Makes the cgroup of a lease; its processes can open only this device.
    pub(crate) fn make_cgroup(&self, lease: LeaseId, device: &Device) -> Result<(), StepError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let below = below(lease);
        root.mkdir("make lease", &below)?;
        self.limits.set(root, &below)?;
        let devices: Vec<_> = device.nodes.iter().map(Node::number).collect();
        allow_only("device controller", &root.path(&below), &devices)?;
        passed("device controller");
        Ok(())
    }

    /// Ends the worker of a lease and all its other processes, and closes the device's nodes to them.
    pub(crate) fn end(&self, lease: LeaseId, record: &Record) -> Result<(), StepError> {
        let stopped = self.cutter.stop(lease, record);
        // A part that cannot be ended must not delay the other parts.
        let ended = self.cutter.wait(lease, record);
        stopped.and(ended).map(drop)
    }

    /// Removes the cgroup of a lease, and the cgroup of processes that could not die, if these have ended.
    pub(crate) fn remove_cgroup(&self, lease: LeaseId) -> Result<(), StepError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let (below, aside) = (below(lease), aside(lease));
        if root.exists("remove lease", &below)? {
            root.remove("remove lease", &below)?;
        }
        if root.exists("remove aside", &aside)? {
            if root.is_populated("remove aside", &aside)? {
                let members = root.members("remove aside", &aside)?;
                let stuck = fabricbios_cgroup::described(&self.cutter.proc, &members);
                let why = format!("{stuck} was killed and does not die");
                return Err(StepError::new("remove aside", why));
            }
            root.remove("remove aside", &aside)?;
        }
        Ok(())
    }
}

/// Tests what leases need of this root cgroup, in a child cgroup that is removed again. The root may stay. `Err`: why
/// this machine cannot limit leases by control groups.
fn try_cgroup(root: &Path) -> Result<(), StepError> {
    let probe = root.join("probe");
    fs::create_dir_all(&probe).map_err(|error| failed("make root", &probe, &error))?;
    let tried = ["cgroup.freeze", "cgroup.kill"]
        .iter()
        .try_for_each(|name| fs::metadata(probe.join(name)).map(drop))
        .map_err(|error| failed("make root", &probe, &error))
        .and_then(|()| allow_only("device controller", &probe, &[]));
    let removed = fs::remove_dir(&probe).map_err(|error| failed("make root", &probe, &error));
    tried.and(removed)
}

pub(crate) fn not_done(step: &'static str, error: CallError) -> StepError {
    match error {
        CallError::Failed(failure) => {
            let errno = failure.errno;
            StepError::new(step, failure).with_errno(errno)
        }
        other => StepError::new(step, other),
    }
}

/// The cgroup of a lease.
pub(crate) fn below(lease: LeaseId) -> String {
    format!("{}{lease}", fabricbios_cgroup::LEASE)
}

pub(crate) fn aside(lease: LeaseId) -> String {
    format!("{STUCK}{lease}")
}

pub(crate) fn root_at(path: &Path) -> Result<Root, StepError> {
    let root = Root::at(path).map_err(|why| StepError::new("make root", why))?;
    Ok(root.with_steps(STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_the_kernels_files_is_no_cgroup() {
        let place = tempfile::tempdir().unwrap();
        let error = try_cgroup(place.path()).unwrap_err();
        assert!(error.detail.contains("probe"), "{error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let in_proc = try_cgroup(Path::new("/proc/self")).unwrap_err();
        assert!(in_proc.detail.contains("/proc/self/probe"), "{in_proc}");
    }
}
