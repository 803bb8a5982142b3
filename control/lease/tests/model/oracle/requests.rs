//! Requests.

use std::time::Duration;

use super::*;

const REPEATS_WAITING_MAX: usize = 8;

/// The terms for blocks.
fn block_of(wanted: &LeaseAllocRequest) -> BlockTerms {
    wanted.terms.block().cloned().unwrap_or_default()
}

/// Requests.
impl Oracle {
    /// The arena that the table should choose.
    pub(crate) fn place(&self, wanted: &LeaseAllocRequest) -> Result<usize, LeaseError> {
        let (secs, grace) = (wanted.lease_secs, wanted.grace_secs);
        if wanted.capacity == 0 || secs == 0 || secs > TERM_MAX_SECS || grace > TERM_MAX_SECS {
            return Err(LeaseError::InvalidArgs);
        }
        let mut peers = wanted.terms.rdma_peers().iter();
        if !peers.all(|&peer| names_one_port(peer)) {
            return Err(LeaseError::InvalidArgs);
        }
        let kind = wanted.resource_type();
        let of_kind = |arena: &Arena| arena.kind == kind;
        if !wanted.foreign.is_empty() || !self.arenas.iter().any(of_kind) {
            return Err(LeaseError::InvalidArgs);
        }
        // A partition is no class. A lease of a GPU has no contents to keep and no key to rotate.
        let gpu = wanted.terms.gpu();
        let partition = Some(GpuExclusivityClass::PartitionExclusive);
        let invalid =
            |gpu: &GpuTerms| gpu.exclusivity == partition || grace > 0 || wanted.rotate_on_renew;
        if gpu.is_some_and(invalid) {
            return Err(LeaseError::InvalidArgs);
        }
        let at = match wanted.resource_id {
            Some(id) => {
                let named = self.arenas.iter().position(|arena| arena.id == id);
                let named = named.ok_or(LeaseError::NotFound)?;
                match of_kind(&self.arenas[named]) {
                    true => named,
                    false => return Err(LeaseError::InvalidArgs),
                }
            }
            None => self.tightest(wanted),
        };
        let arena = &self.arenas[at];
        if arena.fenced() {
            Err(LeaseError::Fenced)
        } else if self.transport(at, wanted).is_none() {
            Err(LeaseError::InvalidArgs)
        } else if self.most(at, wanted) < wanted.capacity {
            let mut others = 0..self.arenas.len();
            let comes_back = others.any(|it| {
                let other = &self.arenas[it];
                let any = wanted.resource_id.is_none() && of_kind(other) && !other.fenced();
                let may = it == at || any && self.transport(it, wanted).is_some();
                // An arena that has room already was not chosen for another reason.
                let some_leave = self.leases.iter().any(|of| of.arena == it && of.leaves());
                may && some_leave && self.most_of(&self.when_clean(it), wanted) >= wanted.capacity
            });
            Err(match gpu {
                _ if comes_back => LeaseError::ResourceBusy,
                Some(gpu) => arena.no_room_on_device(wanted.capacity, gpu),
                None => LeaseError::CapacityExceeded,
            })
        } else {
            Ok(at)
        }
    }

    /// The most that this request could get of the arena now.
    fn most(&self, at: usize, wanted: &LeaseAllocRequest) -> u64 {
        self.most_of(&self.arenas[at], wanted)
    }

    fn most_of(&self, arena: &Arena, wanted: &LeaseAllocRequest) -> u64 {
        let Some(gpu) = wanted.terms.gpu() else {
            return arena.longest();
        };
        let shared = arena.alone(gpu) == Ok(false);
        arena.most_of_device(shared, gpu.compute_slices) * PAGE
    }

    /// The arena after the cleaning of all its leases that are over.
    fn when_clean(&self, at: usize) -> Arena {
        let mut arena = self.arenas[at].clone();
        let its = self.leases.iter().filter(|it| it.arena == at);
        its.filter(|it| it.leaves())
            .for_each(|it| arena.give_back(it.id));
        arena
    }

    /// The best arena: first those that fit tightest, then looser ones, then those without room now, then those that
    /// can never meet the request.
    pub(super) fn tightest(&self, wanted: &LeaseAllocRequest) -> usize {
        let mut left: Vec<usize> = (0..self.arenas.len()).collect();
        left.retain(|&at| self.arenas[at].kind == wanted.resource_type());
        let mut prefer = |good: &dyn Fn(usize) -> bool| {
            if left.iter().any(|&at| good(at)) {
                left.retain(|&at| good(at));
            }
        };
        prefer(&|at| self.arenas[at].usable() >= wanted.capacity);
        prefer(&|at| self.transport(at, wanted).is_some());
        prefer(&|at| !self.arenas[at].read_only || block_of(wanted).read_only);
        prefer(&|at| !self.arenas[at].fenced());
        prefer(&|at| self.most(at, wanted) >= wanted.capacity);
        let tight = left.into_iter();
        tight.min_by_key(|&at| (self.most(at, wanted), at)).unwrap()
    }

    pub(crate) fn transport(&self, at: usize, wanted: &LeaseAllocRequest) -> Option<Transport> {
        let arena = &self.arenas[at];
        if let Some(gpu) = wanted.terms.gpu() {
            return arena.alone(gpu).ok().map(|_| Transport::Auto);
        }
        let block = block_of(wanted);
        let read_only = arena.read_only || block.read_only;
        let fits = |transport: &&Transport| {
            let nvmeof = match transport {
                Transport::NvmeTcp | Transport::NvmeRdma => true,
                Transport::Both => arena.kind == ResourceType::Block,
                _ => false,
            };
            let peers = wanted.terms.rdma_peers();
            let peers = peers.is_empty() || takes_peers(arena.kind, **transport);
            let named = wanted.transport == Transport::Auto || wanted.transport == **transport;
            let host = !block.names_host() || nvmeof;
            named && peers && host && !(read_only && nvmeof)
        };
        arena.transports.iter().find(fits).copied()
    }

    /// `extent`: the table's choice; any free extent is right.
    pub(crate) fn alloc(
        &mut self,
        ticket: Ticket,
        tenant: &str,
        id: LeaseId,
        wanted: &LeaseAllocRequest,
        extent: Option<Extent>,
    ) {
        if let Some(at) = self.of_request(tenant, wanted) {
            return self.repeat(ticket, at, wanted);
        }
        let admitted = { self.room_for_a_lease(tenant, wanted) }
            .and_then(|()| self.turn_to_bind(tenant))
            .and_then(|()| self.place(wanted));
        let arena = match admitted {
            Ok(arena) => arena,
            Err(error) => return self.refuse(ticket, error),
        };
        let extent = extent.unwrap_or_else(|| panic!("there is room for {wanted:?}: {self:#?}"));
        let has = self.arenas[arena].has_of_device(wanted);
        let placement = has.map(Has::placement);
        let bytes = placement.map_or(wanted.capacity.div_ceil(PAGE) * PAGE, |it| it.amount());
        assert_eq!((extent.length, extent.offset % PAGE), (bytes, 0));
        self.arenas[arena].has.extend(has.map(|has| (id, has)));
        for page in self.arenas[arena].pages(extent) {
            let owner = &mut self.arenas[arena].owner[page];
            assert_eq!(owner.replace(id), None, "page {page} is somebody's");
        }
        let lease = Held {
            id,
            tenant: tenant.to_owned(),
            request: Some(wanted.clone()).filter(|it| it.request_token.is_some()),
            arena,
            extent,
            life: Life::Asked,
            generation: 1,
            bound: None,
            transport: self.transport(arena, wanted).unwrap(),
            peers: wanted.terms.rdma_peers().to_vec(),
            peers_before: None,
            pairs: vec![],
            rotate_on_renew: wanted.rotate_on_renew,
            terms: match (&wanted.terms, has) {
                (LeaseTerms::Block(block), _) => Some(LeaseTerms::Block(BlockTerms {
                    read_only: block.read_only || self.arenas[arena].read_only,
                    ..block.clone()
                })),
                (LeaseTerms::Gpu(gpu), Some(has)) => Some(has.terms(&self.arenas[arena], gpu)),
                _ => None,
            },
            term_secs: wanted.lease_secs,
            grace_ns: u64::from(wanted.grace_secs) * SEC,
            deadline: 0,
            expires_ms: 0,
            since: self.boot,
            cut_moved: None,
            ended_ms: 0,
            forget_at: 0,
            granted: false,
            ending: LeasePhase::Revoked,
            keys: Keys::NONE,
            old: OldKey::None,
            overlap_ms: 0,
            on_its_way: OnItsWay::Bind,
            extending: None,
            patience_over: false,
            release_ordered: false,
            release_moves: false,
            bound_before: false,
            again_at: None,
            in_vain: 0,
            told_over: false,
            revoked_at_a_restart: false,
            only_release_failed: false,
            waits: vec![(ticket, Waits::Grant)],
        };
        self.leases.push(lease);
        self.order_bind(self.leases.len() - 1);
    }

    /// The lease of an earlier request with the token of this one. A lease that was never granted is of no request once it
    /// is over.
    fn of_request(&self, tenant: &str, wanted: &LeaseAllocRequest) -> Option<usize> {
        let token = wanted.request_token?;
        let is_it = |lease: &Held| {
            let of = lease.request.as_ref().and_then(|it| it.request_token);
            lease.tenant == tenant && of == Some(token) && (lease.granted || !lease.is_over())
        };
        self.leases.iter().position(is_it)
    }

    fn repeat(&mut self, ticket: Ticket, at: usize, wanted: &LeaseAllocRequest) {
        let lease = &mut self.leases[at];
        let repeats = lease.waits.iter().filter(|(_, it)| *it == Waits::Repeat);
        let too_many = repeats.count() >= REPEATS_WAITING_MAX;
        let waits = match lease.life {
            Life::Asked | Life::BeingCut => true,
            Life::NewBinding | Life::NewKey => lease.bound.is_none(),
            _ => false,
        };
        if lease.request.as_ref() != Some(wanted) {
            self.refuse(ticket, LeaseError::InvalidArgs);
        } else if lease.is_over() {
            let over = lease.over();
            self.refuse(ticket, over);
        } else if waits && too_many {
            self.refuse(ticket, LeaseError::ResourceBusy);
        } else if waits {
            lease.waits.push((ticket, Waits::Repeat));
        } else {
            let said = self.lease_said(at, true);
            self.say(ticket, said);
        }
    }

    /// Checks the limits of leases. Ended leases do not count.
    fn room_for_a_lease(&self, tenant: &str, wanted: &LeaseAllocRequest) -> Result<(), LeaseError> {
        let alive = || self.leases.iter().filter(|lease| lease.alive());
        let its = || alive().filter(|lease| lease.tenant == tenant);
        let of_memory = its().filter(|lease| self.arenas[lease.arena].kind == ResourceType::Mem);
        let held: u64 = of_memory.map(|lease| lease.extent.length).sum();
        let most = self.limits.tenant_bytes;
        let memory = wanted.resource_type() == ResourceType::Mem;
        let leaving = || its().filter(|lease| lease.leaves());
        let leaving_memory =
            leaving().filter(|lease| self.arenas[lease.arena].kind == ResourceType::Mem);
        let comes_back: u64 = leaving_memory.map(|lease| lease.extent.length).sum();
        let over = |enough_comes_back| match enough_comes_back {
            true => Err(LeaseError::ResourceBusy),
            false => Err(LeaseError::CapacityExceeded),
        };
        if its().count() >= self.limits.tenant_leases {
            over(its().count() - leaving().count() < self.limits.tenant_leases)
        } else if alive().count() >= self.limits.leases {
            Err(LeaseError::Unavailable)
        } else if memory && held.saturating_add(wanted.capacity) > most {
            over((held - comes_back).saturating_add(wanted.capacity) <= most)
        } else {
            Ok(())
        }
    }

    pub(super) fn turn_to_bind(&self, tenant: &str) -> Result<(), LeaseError> {
        let on_their_way = |lease: &&Held| lease.on_its_way != OnItsWay::Nothing;
        let its = self.leases.iter().filter(|lease| lease.tenant == tenant);
        match its.filter(on_their_way).count() < self.limits.tenant_binds {
            true => Ok(()),
            false => Err(LeaseError::ResourceBusy),
        }
    }

    pub(super) fn order_bind(&mut self, at: usize) {
        let binding_id = self.binding_id(at);
        let lease = &self.leases[at];
        self.orders.push(Order::Bind(BindOrder {
            binding_id,
            placement: self.placement(at),
            transport: lease.transport,
            tenant: lease.tenant.as_str().into(),
            terms: match lease.terms.clone() {
                Some(terms) => terms,
                None => {
                    LeaseTerms::plain(self.arenas[lease.arena].kind).with_rdma_peers(&lease.peers)
                }
            },
            grace: Duration::from_nanos(lease.grace_ns),
            adopts: lease.bound_before,
        }));
    }

    /// The lease, if the asker may use it and it is not over.
    pub(super) fn mine(&self, asker: Asker, id: LeaseId) -> Result<usize, LeaseError> {
        let at = self.find(id).ok_or(LeaseError::NotFound)?;
        match asker {
            Asker::Stranger => Err(LeaseError::NotFound),
            Asker::Operator => Err(LeaseError::NotPermitted),
            Asker::Holder => Ok(at),
        }
    }

    pub(crate) fn renew(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, secs: u32) {
        if let Err(error) = self.try_renew(ticket, asker, id, secs) {
            self.refuse(ticket, error);
        }
    }

    pub(super) fn try_renew(
        &mut self,
        ticket: Ticket,
        asker: Asker,
        id: LeaseId,
        secs: u32,
    ) -> Result<(), LeaseError> {
        let at = self.mine(asker, id)?;
        let (now, unix_ms) = (self.boot, self.unix_ms());
        let lease = &mut self.leases[at];
        if !lease.alive() {
            return Err(lease.unfit());
        }
        if lease.life == Life::InUse && now < lease.renewable_at() {
            return Err(LeaseError::RenewTooEarly);
        }
        if secs > TERM_MAX_SECS {
            return Err(LeaseError::InvalidArgs);
        }
        // No rotation while the old key still works: the key is new already.
        let rotates = lease.rotate_on_renew
            && lease.life == Life::InUse
            && lease.keys != Keys::NONE
            && lease.old == OldKey::None;
        if rotates || lease.life == Life::Kept {
            let tenant = lease.tenant.clone();
            self.turn_to_bind(&tenant)?;
        }
        let lease = &mut self.leases[at];
        let kept = lease.life == Life::Kept && lease.on_its_way == OnItsWay::Nothing;
        if lease.extending.is_some() || lease.life != Life::InUse && !kept {
            return Err(lease.unfit());
        }
        let secs = if secs > 0 { secs } else { lease.term_secs };
        let to = now + u64::from(secs) * SEC;
        let expires_ms = unix_ms + u64::from(secs) * 1_000;
        lease.waits.push((ticket, Waits::Renew));
        if kept {
            (lease.term_secs, lease.deadline, lease.expires_ms) = (secs, to, expires_ms);
            self.bind_again(at);
            return Ok(());
        }
        let then = Then::Renew {
            secs,
            expires_ms,
            rotates,
        };
        self.prolong(at, to, then);
        Ok(())
    }

    fn ask_for_peers(&mut self, at: usize, peers: &[RdmaPeer]) {
        let lease = &mut self.leases[at];
        lease.peers_before = Some(std::mem::replace(&mut lease.peers, peers.to_vec()));
    }

    pub(super) fn bind_again(&mut self, at: usize) {
        let lease = &mut self.leases[at];
        lease.generation += 1;
        lease.again_at = None;
        lease.life = Life::NewBinding;
        lease.on_its_way = OnItsWay::Term;
        lease.patience_over = false;
        let deadline = lease.deadline;
        self.prolong(at, deadline, Then::Bind);
    }

    pub(super) fn new_key(&mut self, at: usize, overlap_ms: u32) {
        let lease = &mut self.leases[at];
        lease.life = Life::NewKey;
        lease.since = self.boot;
        lease.overlap_ms = overlap_ms;
        lease.on_its_way = OnItsWay::Rotate;
        lease.patience_over = false;
        let binding_id = self.binding_id(at);
        self.orders.push(Order::Rotate(binding_id));
    }

    pub(crate) fn bind(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, peers: &[RdmaPeer]) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            if !lease.alive() {
                return Err(lease.unfit());
            }
            let ports = peers.iter().all(|&peer| names_one_port(peer));
            let kind = self.arenas[lease.arena].kind;
            if !takes_peers(kind, lease.transport) || !ports {
                return Err(LeaseError::InvalidArgs);
            }
            self.turn_to_bind(&lease.tenant)?;
            lease.takes_a_change().map(|()| at)
        };
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            Ok(at) => {
                self.ask_for_peers(at, peers);
                self.leases[at].waits.push((ticket, Waits::Rebind));
                self.bind_again(at);
            }
        }
    }

    pub(crate) fn change_peers(
        &mut self,
        ticket: Ticket,
        asker: Asker,
        id: LeaseId,
        change: &PeerChange,
    ) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            if !lease.alive() {
                return Err(lease.unfit());
            }
            let kind = self.arenas[lease.arena].kind;
            let in_use = matches!(lease.life, Life::InUse | Life::NewBinding | Life::NewKey);
            let right = match change {
                _ if !takes_peers(kind, lease.transport) => false,
                PeerChange::Add(peers) => {
                    let ports = peers.iter().all(|&peer| names_one_port(peer));
                    ports && lease.pairs.len() + peers.len() <= RDMA_QUEUE_PAIRS_MAX
                }
                PeerChange::Remove(_) if !in_use => return Err(lease.unfit()),
                PeerChange::Remove(numbers) => {
                    let all = numbers.iter().all(|number| lease.pairs.contains(number));
                    all && lease.connected()
                }
            };
            if !right {
                return Err(LeaseError::InvalidArgs);
            }
            let empties = match change {
                PeerChange::Add(_) => false,
                PeerChange::Remove(numbers) => lease.pairs.iter().all(|it| numbers.contains(it)),
            };
            if empties && lease.old != OldKey::None {
                return Err(LeaseError::ResourceBusy);
            }
            self.turn_to_bind(&lease.tenant)?;
            lease.takes_a_change().map(|()| at)
        };
        if let (Ok(at), PeerChange::Add(peers)) = (self.mine(asker, id), change)
            && !self.leases[at].connected()
        {
            return self.bind(ticket, asker, id, peers);
        }
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            Ok(at) => {
                let lease = &mut self.leases[at];
                lease.waits.push((ticket, Waits::Rebind));
                lease.life = Life::NewKey;
                lease.since = self.boot;
                lease.on_its_way = OnItsWay::Peers;
                lease.patience_over = false;
                let order = Order::ChangePeers(self.binding_id(at), change.clone());
                self.orders.push(order);
            }
        }
    }

    pub(crate) fn rotate(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, overlap_ms: u32) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            match lease.life {
                Life::Clean => Err(lease.unfit()),
                _ if overlap_ms > OVERLAP_MS_MAX => Err(LeaseError::InvalidArgs),
                _ if lease.transport == Transport::Auto => Err(LeaseError::InvalidArgs),
                Life::InUse if lease.old != OldKey::None => Err(LeaseError::ResourceBusy),
                Life::InUse if lease.keys == Keys::NONE && lease.transport == Transport::Rdma => {
                    Err(LeaseError::InvalidArgs)
                }
                Life::InUse if lease.extending.is_some() => Err(LeaseError::ResourceBusy),
                Life::InUse => self.turn_to_bind(&lease.tenant).map(|()| at),
                _ => Err(self
                    .turn_to_bind(&lease.tenant)
                    .err()
                    .unwrap_or(lease.unfit())),
            }
        };
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            // There is no key to rotate and no queue pair to bind to: LEASE_BIND gives a key.
            Ok(at) if self.leases[at].keys == Keys::NONE => {
                self.ask_for_peers(at, &[]);
                self.leases[at].waits.push((ticket, Waits::Rebind));
                self.bind_again(at);
            }
            Ok(at) => {
                self.leases[at].waits.push((ticket, Waits::Rebind));
                self.new_key(at, overlap_ms);
            }
        }
    }

    pub(crate) fn free(&mut self, ticket: Ticket, asker: Asker, id: LeaseId) {
        let at = match self.mine(asker, id) {
            Ok(at) => at,
            Err(error) => return self.refuse(ticket, error),
        };
        match (self.leases[at].life, self.leases[at].phase()) {
            // Freeing twice is no error.
            (_, LeasePhase::Freed) => {
                let said = self.lease_said(at, false);
                self.say(ticket, said);
            }
            _ if self.leases[at].is_over() => {
                let error = self.leases[at].over();
                self.refuse(ticket, error);
            }
            _ => self.end_for(at, LeasePhase::Freed, ticket, Waits::Free),
        }
    }

    pub(super) fn end_for(&mut self, at: usize, phase: LeasePhase, ticket: Ticket, waits: Waits) {
        self.end(at, phase);
        self.leases[at].waits.push((ticket, waits));
        if self.leases[at].life == Life::Scrubbed {
            self.tell_end(at);
        }
    }

    pub(crate) fn revoke(&mut self, ticket: Ticket, asker: Asker, id: LeaseId) {
        if !matches!(asker, Asker::Operator) {
            return self.refuse(ticket, LeaseError::NotPermitted);
        }
        let Some(at) = self.find(id) else {
            return self.say(ticket, Said::revoked(RevokeOutcome::NotFound));
        };
        match (self.leases[at].life, self.leases[at].phase()) {
            (_, LeasePhase::Fenced) => self.say(ticket, Said::revoked(RevokeOutcome::Fenced)),
            _ if self.leases[at].is_over() => {
                self.say(ticket, Said::revoked(RevokeOutcome::TornDown));
            }
            _ => self.end_for(at, LeasePhase::Revoked, ticket, Waits::Revoke),
        }
    }

    pub(crate) fn clear_fence(&mut self, ticket: Ticket, asker: Asker, id: ResourceId) {
        if !matches!(asker, Asker::Operator) {
            return self.refuse(ticket, LeaseError::NotPermitted);
        }
        let named = self.arenas.iter().find(|arena| arena.id == id);
        let Some(arena) = named.filter(|arena| arena.fence.is_some()) else {
            return self.refuse(ticket, LeaseError::NotFound);
        };
        if arena.resetting.is_some() {
            return self.refuse(ticket, LeaseError::ResourceBusy);
        }
        let fenced = self.fenced_on(id);
        if fenced
            .iter()
            .any(|lease| lease.on_its_way != OnItsWay::Nothing)
        {
            return self.refuse(ticket, LeaseError::ResourceBusy);
        }
        self.reset(id, Some(ticket));
    }

    pub(super) fn reset(&mut self, id: ResourceId, asker: Option<Ticket>) {
        let by = self.boot + RESET_NS;
        let fenced = self.fenced_on(id);
        let leases = { fenced.iter() }
            .map(|lease| self.find(lease.id).unwrap())
            .map(|at| (self.binding_id(at), self.placement(at)))
            .collect();
        self.orders.push(Order::Reset(id, leases));
        let arena = self.arenas.iter_mut().find(|arena| arena.id == id).unwrap();
        arena.resetting = Some((asker, Some(by)));
        arena.overtaken = false;
    }

    pub(super) fn fenced_on(&self, id: ResourceId) -> Vec<&Held> {
        let fenced =
            |lease: &&Held| lease.life == Life::Fenced && self.arenas[lease.arena].id == id;
        self.leases.iter().filter(fenced).collect()
    }
}

pub(super) fn takes_peers(kind: ResourceType, transport: Transport) -> bool {
    kind == ResourceType::Mem && matches!(transport, Transport::Rdma | Transport::Both)
}

/// By the bytes of the GID: a multicast, unspecified or loopback address accepts no connection.
fn names_one_port(peer: RdmaPeer) -> bool {
    let (high, low) = peer.gid.split_at(12);
    if high == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
        let group = (224..240).contains(&low[0]);
        return !group && low[0] != 127 && low != [0; 4] && low != [255; 4];
    }
    let (first, last) = (peer.gid[0], u128::from_be_bytes(peer.gid));
    first != 0xff && last > 1
}
