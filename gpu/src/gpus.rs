//! What the stores and the path of all devices share: records, cgroups, helper processes.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fabricbios_cgroup::{Root, end_processes};
use fabricbios_helper::{Call, CallError, Program, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::{
    Device, Libraries, STEPS, containers,
    device_filter::allow_only,
    end::ROOT,
    record::{Record, Records, failed},
    sessions::{ENDS_WITHIN, Sessions},
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
    /// The root cgroup of the leases. `None`: this machine has no cgroup v2, and there are no programs on the node in leases.
    pub cgroup: Option<PathBuf>,
    /// The directory of CDI specifications.
    pub cdi: PathBuf,
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
    pub(crate) root: Option<Root>,
    pub(crate) cdi: PathBuf,
    pub(crate) proc: Tree,
    pub(crate) supervisor: Supervisor,
    pub(crate) sessions: Sessions,
}

impl Gpus {
    /// Makes the directory of the records and the root cgroup.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn open(config: GpuConfig) -> Result<Self, StepError> {
        let directory = config.records;
        let records = Records::at(&directory);
        records.make_directory()?;
        let root = config.cgroup.as_deref().map(root_at).transpose()?;
        if let Some(root) = &root {
            // The root needs no controller: freezer, kill and device controller are in every cgroup.
            if !root.exists("make root", "")? {
                root.mkdir("make root", "")?;
            }
            let (at, path) = (directory.join(ROOT), root.path(""));
            let named = fs::write(&at, path.as_os_str().as_bytes());
            named.map_err(|error| failed("make root", &at, &error))?;
        }
        Ok(Self {
            sessions: Sessions {
                program: config.program,
                libraries: config.libraries,
                records: records.clone(),
            },
            records,
            root,
            cdi: config.cdi,
            proc: Tree::new("/proc"),
            supervisor: config.supervisor,
        })
    }

    /// Makes a call of a vendor's library in a helper process.
    pub(crate) fn call<C: Call>(
        &self,
        step: &'static str,
        call: &C,
        progress: &dyn Fn(),
    ) -> Result<C::Answer, StepError> {
        let answer = self.supervisor.call(call, SILENCE, &|_| progress());
        answer.map_err(|error| match error {
            CallError::Failed(failure) => {
                let errno = failure.errno;
                StepError::new(step, failure).with_errno(errno)
            }
            other => StepError::new(step, other),
        })
    }

    /// Makes the cgroup of a lease, in which this device alone can be opened.
    pub(crate) fn make_cgroup(&self, lease: LeaseId, device: &Device) -> Result<(), StepError> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let below = below(lease);
        root.mkdir("make lease", &below)?;
        allow_only("device controller", &root.path(&below), &device.nodes)?;
        passed("device controller");
        Ok(())
    }

    /// Ends the worker of a lease and all other processes, and lets nothing open the device any more.
    pub(crate) fn end(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        end(self.root.as_ref(), &self.proc, lease, record, ENDS_WITHIN)
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

/// See [`Gpus::end`]; also without the daemon. Waits for each process that was killed, at most for `patience`.
pub(crate) fn end(
    root: Option<&Root>,
    proc: &Tree,
    lease: LeaseId,
    record: &Record,
    patience: Duration,
) -> Result<Proof, StepError> {
    let mut proof = Proof::default();
    let mut began = Instant::now();
    // A container that is started from now on does not get the device. If the file stays, the lease is ended nevertheless.
    let removed = record.cdi().remove(lease);
    passed("remove CDI spec");
    let below = below(lease);
    if let Some(root) = root
        && root.exists("find lease", &below)?
    {
        // What is moved into the cgroup from now on finds no device.
        allow_only("deny devices", &root.path(&below), &[])?;
        passed("deny devices");
        proof.add("deny devices", began.elapsed(), "");
        // A worker in the cgroup is killed with the others, and its end is waited for here.
        proof = proof.and(end_processes(root, proc, &below, &aside(lease), patience)?);
        began = Instant::now();
    }
    // It is in no cgroup if there are none here, or if it died before it was moved.
    if let Some(worker) = record.worker {
        worker.process.kill("kill worker", patience)?;
        passed("kill worker");
    }
    proof.add("kill worker", began.elapsed(), "");
    if !record.nodes.is_empty() {
        let began = Instant::now();
        let killed = containers::kill(lease, patience)?;
        passed("kill containers");
        proof.add(
            "kill containers",
            began.elapsed(),
            format_args!("{killed} processes"),
        );
    }
    removed?;
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
