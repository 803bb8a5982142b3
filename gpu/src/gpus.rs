//! What the stores and the path of all devices share: records, cgroups, helper processes.

use std::{
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
    Device, Libraries, Node, STEPS, Wiped, containers,
    end::ROOT,
    limits::Limits,
    management::Scrub,
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
    /// The root cgroup of the leases. `None`: no cgroup v2 is mounted.
    pub cgroup: Option<PathBuf>,
    /// The most memory that the worker of a lease, and the lease's programs on the node, can have together: bytes.
    pub worker_memory_max: u64,
    /// The directory of CDI specifications.
    pub cdi: PathBuf,
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
                    "this machine does not allow control groups for leases of GPUs: they have sessions, whose workers can open \
                     other devices, and no programs on the node"
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
            hook: config.hook,
            proc: Tree::new("/proc"),
            supervisor: config.supervisor,
        })
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
    lease: LeaseId,
    record: &Record,
    patience: Duration,
) -> Result<Proof, StepError> {
    // A container that is started from now on does not get the device. If the file stays, the lease is ended nevertheless.
    let removed = record.cdi().remove(lease);
    passed("remove CDI spec");
    // What cannot be ended in one place holds up no other.
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
    let containers = match &record.nodes[..] {
        [] => Ok(None),
        _ => containers::kill(lease, patience).map(Some),
    };
    let mut proof = in_cgroup?;
    worker?;
    proof.add("kill worker", worker_took, "");
    if let Some(killed) = containers? {
        passed("kill containers");
        let took = began.elapsed() - worker_took;
        proof.add("kill containers", took, format_args!("{killed} processes"));
    }
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
    use std::{process::Command, sync::Arc, thread};

    use super::*;
    use crate::record::Baseline;

    #[test]
    fn a_directory_without_the_kernels_files_is_no_cgroup() {
        let place = tempfile::tempdir().unwrap();
        let error = try_cgroup(place.path()).unwrap_err();
        assert!(error.detail.contains("probe"), "{error}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        let in_proc = try_cgroup(Path::new("/proc/self")).unwrap_err();
        assert!(in_proc.detail.contains("/proc/self/probe"), "{in_proc}");
    }

    #[test]
    fn what_cannot_be_ended_in_the_cgroup_holds_up_no_container() {
        let lease = LeaseId(u128::from(std::process::id()) << 64 | 3);
        let place = tempfile::tempdir().unwrap();
        // No cgroup, so its devices cannot be denied.
        fs::create_dir_all(place.path().join("root").join(below(lease))).unwrap();
        let root = Root::of(Arc::new(Tree::new(place.path())), "root");
        let mark = containers::mark(lease);
        let (name, value) = mark.split_once('=').unwrap();
        let mut container = Command::new("sleep");
        let mut container = container.arg("1000").env(name, value).spawn().unwrap();
        while containers::of(lease).is_empty() {
            thread::yield_now();
        }
        let record = Record {
            uuid: String::new(),
            is_exclusive: true,
            nodes: vec![Node {
                path: "/dev/null".into(),
                major: 1,
                minor: 3,
                is_shared: false,
            }],
            cdi: place.path().into(),
            vram_bytes: 0,
            one_shot: false,
            scrub_at_close: false,
            baseline: Baseline::default(),
            worker: None,
            is_dirty: false,
            is_over: false,
        };
        let patience = Duration::from_secs(60);
        let error = end(Some(&root), &Tree::new("/proc"), lease, &record, patience).unwrap_err();
        assert_eq!(error.step, "deny devices".into());
        assert!(containers::of(lease).is_empty());
        container.kill().unwrap();
        container.wait().unwrap();
    }
}
