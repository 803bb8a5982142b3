//! The end of access to a lease, from its record alone: in the daemon, and without it.

use std::time::Instant;

use fabricbios_cgroup::{
    DeviceNumber, Root, allow_only, end_killed, freeze_and_kill,
    nodes::{self, EndUsers, Holder, Node},
};
use fabricbios_helper::{Call, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use crate::{
    gpus::{SILENCE, aside, below, not_done},
    record::{Record, Records},
    sessions::ENDS_WITHIN,
    steps::passed,
};

/// Ends the access of leases.
#[derive(Clone, Debug)]
pub(crate) struct Cutter {
    pub(crate) records: Records,
    /// `None`: the leases have no control groups.
    pub(crate) root: Option<Root>,
    pub(crate) proc: Tree,
    pub(crate) supervisor: Supervisor,
}

impl Cutter {
    /// Closes the device's nodes to the lease, and kills its worker, its programs and its containers. Waits for none of
    /// them: other leases are due.
    pub(crate) fn stop(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        // A container that starts from now on does not get the device. If the file stays, the lease is ended
        // nevertheless.
        let removed = record.cdi().remove(lease);
        passed("remove CDI spec");
        // A part that cannot be ended must not delay the other parts.
        let closed = nodes::withdraw(&record.owned, &record.users);
        passed("close nodes");
        let stopped = self.records.containers(lease).kill();
        let in_cgroup = self.stop_cgroup(lease);
        // The worker is in no cgroup if this machine has none, or if the worker died before it was moved.
        let worker = { record.worker }.map_or(Ok(()), |it| it.process.send_kill("kill worker"));
        let proof = in_cgroup?;
        worker?;
        stopped?;
        closed?;
        removed?;
        Ok(proof)
    }

    fn stop_cgroup(&self, lease: LeaseId) -> Result<Proof, StepError> {
        let below = below(lease);
        let Some(root) = &self.root else {
            return Ok(Proof::default());
        };
        if !root.exists("find lease", &below)? {
            return Ok(Proof::default());
        }
        let began = Instant::now();
        // A process that is moved into the cgroup from now on cannot open the device.
        allow_only("deny devices", &root.path(&below), &[])?;
        passed("deny devices");
        let denied = Proof::of("deny devices", began.elapsed(), "");
        Ok(denied.and(freeze_and_kill(root, &below)?))
    }

    /// Waits until the killed processes have ended, for each part at most [`ENDS_WITHIN`].
    pub(crate) fn wait(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let in_cgroup = self.wait_for_cgroup(lease);
        let began = Instant::now();
        let worker = { record.worker }.map_or(Ok(()), |worker| {
            worker.process.kill("kill worker", ENDS_WITHIN)
        });
        passed("kill worker");
        let worker_took = began.elapsed();
        let containers = { self.records.containers(lease) }.end(&self.proc, ENDS_WITHIN);
        let mut proof = in_cgroup?;
        worker?;
        proof.add("kill worker", worker_took, "");
        Ok(proof.and(containers?))
    }

    fn wait_for_cgroup(&self, lease: LeaseId) -> Result<Proof, StepError> {
        let below = below(lease);
        match &self.root {
            Some(root) if root.exists("find lease", &below)? => {
                end_killed(root, &self.proc, &below, Some(&aside(lease)), ENDS_WITHIN)
            }
            _ => Ok(Proof::default()),
        }
    }

    /// Waits for the killed processes, ends those of the lease's users that have the device open elsewhere, and proves
    /// that access has ended.
    pub(crate) fn finish(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let waited = self.wait(lease, record);
        let users = self.end_openers(lease, record);
        let proof = waited?.and(users?);
        Ok(proof.and(self.check(lease, record)?))
    }

    /// Ends the processes of the lease's users that have the device open, if the users could open it: they may have
    /// opened it outside of the lease's cgroup.
    fn end_openers(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let own = record.nodes.iter().filter(|it| !it.is_shared);
        let devices: Vec<DeviceNumber> = own.map(Node::number).collect();
        if devices.is_empty() {
            return Ok(Proof::default());
        }
        let began = Instant::now();
        let killed = self.end_users(lease, record, devices, &|| ())?;
        let killed: Vec<String> = { killed.iter() }
            .map(|it| format!("pid {} of user {}", it.process.pid, it.user))
            .collect();
        let found = match &*killed {
            [] => "no process of the lease's users has its node open".to_owned(),
            killed => format!(
                "killed, had its node open or may hide it: {}",
                killed.join(", ")
            ),
        };
        Ok(Proof::of("end holders", began.elapsed(), found))
    }

    /// Ends the processes of the lease's users that have one of the devices, or hide files. Returns them.
    pub(crate) fn end_users(
        &self,
        lease: LeaseId,
        record: &Record,
        devices: impl IntoIterator<Item = DeviceNumber>,
        progress: &dyn Fn(),
    ) -> Result<Vec<Holder>, StepError> {
        let end = EndUsers {
            devices: devices.into_iter().collect(),
            users: record.users.clone(),
            record: self.records.of_lease(lease),
        };
        let killed = self.call("end holders", &end, progress)?;
        if !killed.is_empty() {
            tracing::warn!(
                lease_id = %lease,
                device = record.uuid,
                users = ?record.users,
                "killed {:?}, which had the device open after their lease, or hid files",
                killed.iter().map(|it| it.process.pid).collect::<Vec<_>>()
            );
        }
        passed("end holders");
        Ok(killed)
    }

    /// Makes a call that may hang in a helper process.
    pub(crate) fn call<C: Call>(
        &self,
        step: &'static str,
        call: &C,
        progress: &dyn Fn(),
    ) -> Result<C::Answer, StepError> {
        let answer = self.supervisor.call(call, SILENCE, &|_| progress());
        answer.map_err(|error| not_done(step, error))
    }

    /// Reads the proof from the kernel. The cgroup stays frozen, and no process in it can open a device.
    pub(crate) fn check(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let began = Instant::now();
        if let Some(worker) = record.worker
            && worker.process.is_there()
        {
            let why = format!("the worker, {}, is there", worker.process.describe());
            return Err(StepError::new("verify", why));
        }
        let below = below(lease);
        if let Some(root) = &self.root
            && root.exists("verify", &below)?
        {
            let frozen = root.read("verify", &format!("{below}/cgroup.freeze"))?;
            if frozen != "1" || root.is_populated("verify", &below)? {
                let members = root.members("verify", &below)?;
                let at = root.path(&below);
                let why = format!(
                    "{}: cgroup.freeze is {frozen}, processes {members:?}",
                    at.display()
                );
                return Err(StepError::new("verify", why));
            }
        }
        self.records.containers(lease).check_ended("verify")?;
        nodes::check_withdrawn(&record.owned, &record.users)?;
        let found = "no worker, 0 processes";
        Ok(Proof::of("look for processes", began.elapsed(), found))
    }
}
