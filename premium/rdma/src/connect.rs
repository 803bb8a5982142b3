//! Makes queue pairs and connects them.
//!
//! The objects made here give no access yet: windows are bound later, and queue pairs with a region of the lease have
//! no rights before they are opened. So after a failure or a cancellation the objects need only be destroyed.

use std::{net::Ipv6Addr, sync::Arc};

use fabricbios_arena::ALIGN;
use fabricbios_lease::{BindError, BindingId, Extent, Linger, StepError};
use fabricbios_verbs::{
    Access, CompletionQueue, Connection, Local, ProtectionDomain, QueuePair, QueueSizes, Remote,
    Rights,
};
use fabricbios_wire::RdmaPeer;
use nix::errno::Errno;

use super::{
    hardware::Hardware,
    keys::random_psn,
    memory::{self, Bytes},
    parts::{BindingParts, Pair, Parts},
    strategy::Shared,
};

/// Depths of a lease's queue pairs. This side posts only binds and invalidations, one at a time.
const SIZES: QueueSizes = QueueSizes {
    send: 4,
    receive: 1,
};
/// Entries of the completion queue, for all queue pairs of a lease. One piece of work is outstanding at a time, unless a device
/// that does not answer leaves some behind: at most one for each of two windows of 64 queue pairs.
const COMPLETIONS: u8 = 160;

/// The extent that tests at the start use.
pub(super) const FIRST_PAGE: Extent = Extent {
    offset: 0,
    length: ALIGN,
};

impl Hardware {
    /// Makes queue pairs in INIT. An error returns the objects made so far too.
    pub(super) fn prepare(
        &self,
        binding_id: BindingId,
        bytes: Bytes,
        count: usize,
    ) -> Result<Parts, (Parts, StepError)> {
        let mut parts = BindingParts::new(bytes, self.device.state.mtu_bytes);
        let made = self.make_shared_objects(&mut parts, binding_id);
        match made.and_then(|()| self.add_pairs(&mut parts, binding_id, count)) {
            Ok(()) => Ok(parts),
            Err(error) => Err((parts, error)),
        }
    }

    /// Makes a queue pair for the first page of a resource, runs a test of the device with the pair, and destroys it.
    pub(super) fn test_pair<T>(
        &self,
        binding_id: BindingId,
        test: impl FnOnce(&mut Parts) -> T,
    ) -> Result<T, StepError> {
        let page = self.bytes(binding_id.resource_id, FIRST_PAGE)?;
        let prepared = self.prepare(binding_id, page, 1);
        let mut parts = prepared.map_err(|(_, error)| error)?;
        let result = test(&mut parts);
        let ended = self.dismantle(parts, binding_id, Linger::None);
        ended.map_err(|(_, error)| error)?;
        Ok(result)
    }

    /// Makes the objects that all queue pairs of the binding share. Regions are made before queue pairs, and windows
    /// after them. The kernel destroys the objects of a dead process newest first, and in that order no object stalls
    /// another one.
    fn make_shared_objects(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        match &self.shared {
            Shared::Windows {
                domain,
                have_bounds: false,
                ..
            } => {
                let region = parts.bytes.register(domain, Access::UnderWindows);
                let region = region.map_err(|errno| self.not_registered(binding_id, errno))?;
                parts.extent_mr = Some(region);
            }
            Shared::Windows { .. } => {}
            Shared::Regions => {
                let domain = ProtectionDomain::alloc(&self.device.context)
                    .map_err(|errno| self.refused("alloc_pd", binding_id, errno))?;
                let domain = parts.domain.insert(domain);
                self.register_key(domain, &parts.bytes, binding_id, &mut parts.regions)?;
            }
        }
        let completions = CompletionQueue::create(&self.device.context, COMPLETIONS)
            .map_err(|errno| self.refused("create_cq", binding_id, errno))?;
        parts.completions = Some(Arc::new(completions));
        Ok(())
    }

    /// Adds queue pairs up to `count` in all.
    pub(super) fn add_pairs(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
        count: usize,
    ) -> Result<(), StepError> {
        while parts.pairs.len() < count {
            self.add_pair(parts, binding_id)?;
        }
        Ok(())
    }

    fn add_pair(&self, parts: &mut BindingParts, binding_id: BindingId) -> Result<(), StepError> {
        let failed = |step: &'static str| move |errno: Errno| self.refused(step, binding_id, errno);
        let psn = random_psn()?;
        let (Some(domain), Some(completions)) = (self.domain_of(parts), &parts.completions) else {
            return Err(failed("create_qp")(Errno::EINVAL));
        };
        let create = || QueuePair::create(domain, completions, SIZES);
        let created = self.faults.or("create_qp", create);
        let queue_pair = created.map_err(failed("create_qp"))?;
        let number = queue_pair.number();
        let made = queue_pair.init(self.device.port, self.first_rights());
        self.queue_pairs.add(number, binding_id.lease_id);
        parts.pairs.push(Pair {
            queue_pair: Some(queue_pair),
            windows: Vec::new(),
            unbound_windows: Vec::new(),
            number,
            proven_gone: false,
            psn,
            peer: 0,
        });
        made.map_err(failed("modify_qp INIT"))
    }

    fn domain_of<'a>(&'a self, parts: &'a BindingParts) -> Option<&'a Arc<ProtectionDomain>> {
        match &self.shared {
            Shared::Windows { domain, .. } => Some(domain),
            Shared::Regions => parts.domain.as_ref(),
        }
    }

    /// The rights of a new queue pair. With windows, the bind opens access. A region works at once, so its queue pairs
    /// begin without rights.
    fn first_rights(&self) -> Rights {
        match &self.shared {
            Shared::Windows { .. } => self.rights(),
            Shared::Regions => Rights::Nothing,
        }
    }

    /// Checks the fields of a peer.
    pub(super) fn check_peer(&self, peer: &RdmaPeer) -> Result<(), StepError> {
        let wrong = |detail: String| Err(StepError::new("check peer", detail));
        if peer.qpn > 0x00ff_ffff || peer.psn > 0x00ff_ffff {
            return wrong(format!(
                "qpn {} and psn {} must fit 24 bits",
                peer.qpn, peer.psn
            ));
        }
        if !peer.names_one_port() {
            return wrong(format!(
                "GID {} names no single port: give the one that the client's port has",
                Ipv6Addr::from(peer.gid)
            ));
        }
        match choose_mtu(self.device.state.mtu_bytes, peer.path_mtu) {
            Some(_) => Ok(()),
            None => wrong(format!(
                "path MTU {} is none of 256, 512, 1024, 2048, 4096, or 0 for no wish",
                peer.path_mtu
            )),
        }
    }

    /// Connects every queue pair to its peer (RTS). The first one is connected last: the client knows the number of a
    /// prepared queue pair, and the pair stays unchanged if another peer cannot be reached. The kernel may take
    /// seconds, so no lock is held; `give_up` is checked before each queue pair.
    pub(super) fn bring_up(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
        peers: &[RdmaPeer],
        give_up: impl Fn() -> bool,
    ) -> Result<(), BindError> {
        let port_bytes = self.device.state.mtu_bytes;
        let wishes = peers
            .iter()
            .filter_map(|peer| choose_mtu(port_bytes, peer.path_mtu));
        parts.mtu_bytes = wishes.min().unwrap_or(port_bytes);
        self.connect_all(parts, binding_id, peers, give_up)
    }

    /// As [`Hardware::bring_up`], with the path MTU that the binding has.
    pub(super) fn connect_all(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
        peers: &[RdmaPeer],
        give_up: impl Fn() -> bool,
    ) -> Result<(), BindError> {
        for (pair, peer) in parts.pairs.iter_mut().zip(peers).rev() {
            if give_up() {
                return Err(BindError::Cancelled);
            }
            pair.peer = peer.qpn;
            self.connect_pair(pair, parts.mtu_bytes, binding_id, peer)?;
        }
        Ok(())
    }

    fn connect_pair(
        &self,
        pair: &Pair,
        mtu_bytes: u16,
        binding_id: BindingId,
        peer: &RdmaPeer,
    ) -> Result<(), BindError> {
        let connection = self.connection(pair, mtu_bytes, peer);
        let failed = |step, errno| BindError::Failed(self.refused(step, binding_id, errno));
        let queue_pair = pair
            .queue_pair
            .as_ref()
            .ok_or_else(|| failed("modify_qp RTR", Errno::EINVAL))?;
        let receive = || queue_pair.ready_to_receive(&connection);
        let received = self.faults.or("modify_qp RTR", receive);
        received.map_err(|errno| self.unreachable(binding_id, peer, errno))?;
        let send = || queue_pair.ready_to_send(&connection);
        let sent = self.faults.or("modify_qp RTS", send);
        sent.map_err(|errno| failed("modify_qp RTS", errno))
    }

    fn connection(&self, pair: &Pair, mtu_bytes: u16, peer: &RdmaPeer) -> Connection {
        Connection {
            local: Local {
                port: self.device.port,
                gid_index: self.device.gid.index,
                psn: pair.psn,
            },
            remote: Remote {
                qp_num: peer.qpn,
                psn: peer.psn,
                gid: peer.gid,
            },
            mtu_bytes,
            responder_reads: self.responder_reads(),
            initiator_reads: 1,
        }
    }

    /// The error of a failed RTR. An address that cannot be reached is the client's fault; any other failure is not.
    fn unreachable(&self, binding_id: BindingId, peer: &RdmaPeer, errno: Errno) -> BindError {
        const STEP: &str = "modify_qp RTR";
        match errno {
            Errno::EINVAL | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ETIMEDOUT => {
                let gid = Ipv6Addr::from(peer.gid);
                let from = self.device.describe();
                BindError::Refused(StepError::new(
                    STEP,
                    format_args!(
                        "{binding_id}: GID {gid} cannot be reached from {from}: is the address right and \
                         is there a route? ({errno})"
                    ),
                ))
            }
            errno => BindError::Failed(self.refused(STEP, binding_id, errno)),
        }
    }

    /// The error of a failed registration, with a hint for the operator.
    pub(super) fn not_registered(&self, binding_id: BindingId, errno: Errno) -> StepError {
        let hint = memory::hint(errno);
        self.error("reg_mr extent", binding_id, format_args!("{errno}{hint}"))
            .with_errno(errno as i32)
    }
}

/// The smaller of the MTU of the port and the MTU that the peer asks for; `None`: the peer asks for no valid MTU.
fn choose_mtu(port_bytes: u16, peer_bytes: u16) -> Option<u16> {
    match peer_bytes {
        0 => Some(port_bytes),
        256 | 512 | 1024 | 2048 | 4096 => Some(port_bytes.min(peer_bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_wins_and_zero_is_no_wish() {
        assert_eq!(choose_mtu(1024, 4096), Some(1024));
        assert_eq!(choose_mtu(4096, 1024), Some(1024));
        assert_eq!(choose_mtu(2048, 0), Some(2048));
    }

    #[test]
    fn an_mtu_that_does_not_exist_is_not_rounded() {
        assert_eq!(choose_mtu(4096, 1500), None);
        assert_eq!(choose_mtu(4096, 1), None);
    }
}
