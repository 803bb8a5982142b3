//! Transfers over RDMA: the SDK connects a queue pair to the lease with LEASE_BIND.

use std::fmt;

use fabricbios_rdma::{RdmaRequester, RequestError};
use fabricbios_wire::{RdmaBinding, RdmaPeer, Request};

use super::{Failed, Job};
use crate::{Error, runtime::wait, shared::SharedLease};

/// Bytes of one request, and of the buffer that is registered with the device.
const BUFFER_BYTES: usize = 1 << 20;

/// See the module.
pub(crate) struct RdmaConnection {
    /// `None` only while this is dropped.
    requester: Option<RdmaRequester>,
    /// The node's queue pair number; a later binding has another queue pair.
    qp_num: u32,
}

impl fmt::Debug for RdmaConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaConnection")
            .field("qp_num", &self.qp_num)
            .finish_non_exhaustive()
    }
}

impl RdmaConnection {
    /// Opens a device before it changes the binding of the lease.
    pub(super) fn open(shared: &SharedLease) -> Result<Self, Error> {
        let requester = RdmaRequester::open(None, BUFFER_BYTES).map_err(cannot)?;
        let peer = requester.peer();
        let mut connection = Self {
            requester: Some(requester),
            qp_num: 0,
        };
        let binding = bind(shared, peer)?;
        connection.qp_num = binding.qp_num;
        if let Some(requester) = &connection.requester {
            requester.connect(&binding).map_err(cannot)?;
        }
        Ok(connection)
    }

    /// Whether the lease is still connected to this queue pair.
    pub(super) fn is_ours(&self, shared: &SharedLease) -> bool {
        self.binding(shared).is_some()
    }

    fn binding(&self, shared: &SharedLease) -> Option<RdmaBinding> {
        let info = shared.info();
        let rdma = info.binding.rdma().cloned();
        rdma.filter(|rdma| rdma.qp_num == self.qp_num)
    }

    pub(super) fn carry_out(
        &mut self,
        shared: &SharedLease,
        job: &mut Job<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Failed> {
        let mut done = 0;
        while done < job.length() {
            let moved = self.move_piece(shared, job, done);
            done += moved.map_err(|error| broken(shared, job, &error))?;
            progress(done);
        }
        Ok(())
    }

    /// Makes one request with the newest key; returns the number of its bytes.
    fn move_piece(
        &mut self,
        shared: &SharedLease,
        job: &mut Job<'_>,
        done: u64,
    ) -> Result<u64, RequestError> {
        let known = self.binding(shared);
        let key = known.and_then(|binding| Some((binding.rkey?, binding.remote_addr)));
        let (rkey, start) = key.ok_or(RequestError::Disconnected)?;
        let requester = self.requester.as_mut().ok_or(RequestError::Disconnected)?;
        let address = start + job.offset() + done;
        let from = usize::try_from(done).unwrap_or(usize::MAX);
        let moved = match job {
            Job::Read(_, into) => {
                let rest = into.get_mut(from..).unwrap_or_default();
                let piece = rest.len().min(BUFFER_BYTES);
                requester.read(rkey, address, &mut rest[..piece])?;
                piece
            }
            Job::Write(_, bytes) => {
                let rest = bytes.get(from..).unwrap_or_default();
                let piece = &rest[..rest.len().min(BUFFER_BYTES)];
                requester.write(rkey, address, piece)?;
                piece.len()
            }
        };
        Ok(moved as u64)
    }
}

/// Without this, the kernel keeps the queue pair and the buffer until the process ends.
impl Drop for RdmaConnection {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.requester.take().map(RdmaRequester::close) {
            tracing::warn!("a queue pair stays until this process ends: {error}");
        }
    }
}

/// Binds the lease to `peer`. A bind that fails or has no answer may have cut the earlier binding, so its keys are
/// forgotten.
fn bind(shared: &SharedLease, peer: RdmaPeer) -> Result<RdmaBinding, Error> {
    let bound = wait(shared.patient_node().lease_async(Request::LeaseBind {
        lease_id: shared.lease_id,
        peers: vec![peer],
    }));
    let bound = bound.inspect_err(|_| shared.forget_keys())?;
    shared.update(bound.clone());
    let rdma = bound.binding.rdma().cloned();
    rdma.filter(|rdma| rdma.rkey.is_some())
        .ok_or_else(|| Error::Protocol {
            node: shared.node.address().to_owned(),
            why: "the node bound the lease to a queue pair and gave no key".to_owned(),
        })
}

fn cannot(error: impl fmt::Display) -> Error {
    Error::Local {
        what: "use RDMA",
        why: error.to_string(),
    }
}

/// Any failed request puts the queue pair into the error state.
fn broken(shared: &SharedLease, job: &Job<'_>, error: &RequestError) -> Failed {
    Failed::Broken(Error::Unreachable {
        node: shared.node.address().to_owned(),
        why: format!("over RDMA: {error}"),
        may_have_happened: job.changes(),
    })
}
