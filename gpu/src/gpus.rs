//! What the stores and the path of all devices share: records, cgroups, helper processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fabricbios_cgroup::{Root, allow_only, end_processes};
use fabricbios_helper::{Call, CallError, Program, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::{
    Device, Libraries, Node, STEPS,
    driver::Wiped,
    end::ROOT,
    limits::Limits,
    management::Scrub,
    owned,
    record::{Record, Records, failed},
    sessions::{ENDS_WITHIN, Sessions, user_of},
    steps::passed,
};

/// A vendor's library that says nothing for so long hangs. Opening a context takes seconds, without a word.
const SILENCE: Duration = Duration::from_secs(30);

/// Cgroups of processes that cannot die begin so.
const STUCK: &str = "stuck-";

/// Where things are, and what makes calls.
#[derive(Debug)]
pub struct GpuConfig {
    /// The directory of the records, which a reboot empties.
    pub records: PathBuf,
    /// The root cgroup of the leases. `None`: no cgroup v2 is mounted.
    pub cgroup: Option<PathBuf>,
    /// The most memory that the worker of a lease, and the lease's programs on the node, can have together: bytes.
    pub worker_memory_max: u64,
    /// The directory of CDI specifications.
    pub cdi: PathBuf,
    /// The users of this machine that belong to each tenant.
    pub tenants: BTreeMap<String, BTreeSet<u32>>,
    /// The program of this node, in a file that container engines can execute: their hook.
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
    /// `None`: this machine allows no control groups for leases, so there are no programs on the node in leases.
    pub(crate) root: Option<Root>,
    /// What the control group of a lease is kept to, as far as this machine allows it.
    limits: Limits,
    pub(crate) cdi: PathBuf,
    tenants: BTreeMap<String, BTreeSet<u32>>,
    hook: PathBuf,
    pub(crate) proc: Tree,
    pub(crate) supervisor: Supervisor,
    pub(crate) sessions: Sessions,
}

impl Gpus {
    /// Makes the directory of the records and the root cgroup.
    ///
    /// # Errors
    /// The directory cannot be made, or the root cgroup of an earlier run cannot be used any more.
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
                // Freezer, kill and device controller are in every cgroup; the limits need more.
                let written = fs::write(&named, path.as_os_str().as_bytes());
                written.map_err(|error| failed("make root", &named, &error))?;
                let root = root_at(path)?;
                passed("make root");
                Some(root)
            }
            // Leases may have programs there.
            Err(error) if named.exists() => return Err(error),
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
            records,
            root,
            cdi: config.cdi,
            tenants: config.tenants,
            hook: config.hook,
            proc: Tree::new("/proc"),
            supervisor: config.supervisor,
        })
    }

    /// Those who may open the device for a lease: its worker's user, and those of the tenant if it may have programs on this
    /// node. Root may anyway.
    pub(crate) fn users(&self, lease: LeaseId, tenant: &str, has_programs: bool) -> BTreeSet<u32> {
        let of_tenant = { self.tenants.get(tenant) }.filter(|_| has_programs);
        let of_tenant = of_tenant.into_iter().flatten().copied();
        let mut users: BTreeSet<u32> = of_tenant.chain([user_of(lease)]).collect();
        users.remove(&0);
        users
    }

    /// Puts back what the nodes of these devices were before this node or an earlier run of it took them.
    pub fn give_nodes_back(&self, is_kept: impl Fn(&str) -> bool) {
        for uuid in owned::taken(&self.records).iter().filter(|it| !is_kept(it)) {
            if let Err(error) = owned::give_back(&self.records, uuid) {
                tracing::error!(%error, uuid, "the device's nodes stay root's");
            }
        }
    }

    /// The command line of the hook that registers containers of a lease.
    pub(crate) fn hook(&self, lease: LeaseId) -> Vec<String> {
        fabricbios_cgroup::hook(&self.hook, self.records.directory(), lease)
    }

    /// Makes a call of a vendor's library in a helper process.
    pub(crate) fn call<C: Call>(
        &self,
        step: &'static str,
        call: &C,
        progress: &dyn Fn(),
    ) -> Result<C::Answer, StepError> {
        let answer = self.supervisor.call(call, SILENCE, &|_| progress());
        answer.map_err(|error| not_done(step, error))
    }

    /// Wipes the free memory of a device.
    pub(crate) fn scrub(&self, device: &Device, progress: &dyn Fn()) -> Result<Wiped, StepError> {
        let scrub = Scrub {
            device: device.clone(),
            libraries: self.sessions.libraries.clone(),
        };
        let wiped = scrub.twice(&self.supervisor, SILENCE, &|_| progress());
        wiped.map_err(|error| not_done("scrub", error))
    }

    /// Makes the cgroup of a lease, in which this device alone can be opened.
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

    /// Ends the worker of a lease and all other processes, and lets nothing open the device any more.
    pub(crate) fn end(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let (root, proc) = (self.root.as_ref(), &self.proc);
        end(root, proc, &self.records, lease, record, ENDS_WITHIN)
    }

    /// Removes the cgroup of a lease, and that of processes that could not die, if these have ended.
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
                let stuck = fabricbios_cgroup::described(&self.proc, &members);
                let why = format!("{stuck} was killed and does not die");
                return Err(StepError::new("remove aside", why));
            }
            root.remove("remove aside", &aside)?;
        }
        Ok(())
    }
}

/// Tries what leases need of this root cgroup, in a cgroup below it that is removed again. The root may be left.
/// Else, why this machine cannot limit leases by control groups.
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

fn not_done(step: &'static str, error: CallError) -> StepError {
    match error {
        CallError::Failed(failure) => {
            let errno = failure.errno;
            StepError::new(step, failure).with_errno(errno)
        }
        other => StepError::new(step, other),
    }
}

/// See [`Gpus::end`]; also without the daemon. Waits for each process that was killed, at most for `patience`.
pub(crate) fn end(
    root: Option<&Root>,
    proc: &Tree,
    records: &Records,
    lease: LeaseId,
    record: &Record,
    patience: Duration,
) -> Result<Proof, StepError> {
    // A container that is started from now on does not get the device. If the file stays, the lease is ended nevertheless.
    let removed = record.cdi().remove(lease);
    passed("remove CDI spec");
    // What cannot be ended in one place holds up no other.
    let closed = owned::withdraw(&record.owned, &record.users);
    passed("close nodes");
    let containers = records.containers(lease);
    // Nothing of them runs on; those that do not end at once are waited for below.
    let stopped = containers.end(proc, Duration::ZERO);
    let in_cgroup = root.map_or(Ok(Proof::default()), |root| {
        end_cgroup(root, proc, lease, patience)
    });
    let began = Instant::now();
    // It is in no cgroup if there are none here, or if it died before it was moved.
    let worker = record.worker.map_or(Ok(()), |worker| {
        worker.process.kill("kill worker", patience)
    });
    passed("kill worker");
    let worker_took = began.elapsed();
    let ended = stopped.or_else(|_| containers.end(proc, patience));
    let mut proof = in_cgroup?;
    worker?;
    proof.add("kill worker", worker_took, "");
    let proof = proof.and(ended?);
    closed?;
    removed?;
    Ok(proof)
}

/// Ends what is in the cgroup of a lease, if there is one.
fn end_cgroup(
    root: &Root,
    proc: &Tree,
    lease: LeaseId,
    patience: Duration,
) -> Result<Proof, StepError> {
    let mut proof = Proof::default();
    let began = Instant::now();
    let below = below(lease);
    if root.exists("find lease", &below)? {
        // What is moved into the cgroup from now on finds no device.
        allow_only("deny devices", &root.path(&below), &[])?;
        passed("deny devices");
        proof.add("deny devices", began.elapsed(), "");
        // A worker in the cgroup is killed with the others, and its end is waited for here.
        proof = proof.and(end_processes(
            root,
            proc,
            &below,
            Some(&aside(lease)),
            patience,
        )?);
    }
    Ok(proof)
}

/// The cgroup of a lease.
pub(crate) fn below(lease: LeaseId) -> String {
    format!("{}{lease}", fabricbios_cgroup::LEASE)
}

fn aside(lease: LeaseId) -> String {
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
