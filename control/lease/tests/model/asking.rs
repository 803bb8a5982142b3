//! Requests, sent to both the table and the model.

use super::*;

/// Requests.
impl Pair {
    pub(super) fn ask(
        &mut self,
        tenant: &str,
        asker: Asker,
        fresh_id: LeaseId,
        request: Request,
    ) -> Ticket {
        let ticket = Ticket(self.number().into());
        self.seen.asked.insert(ticket, about(&request));
        let role = match asker {
            Asker::Operator => Role::Operator,
            _ => Role::Tenant,
        };
        let asked = Asked {
            ticket,
            tenant: Arc::from(tenant),
            role,
            fresh_id,
            request,
        };
        self.table.on_request(self.now, &asked);
        ticket
    }

    pub(super) fn alloc(&mut self, wish: Wish) {
        let named = wish.arena.map(|arena| self.world.resource(arena));
        let wanted = LeaseAllocRequest {
            request_token: match wish.token {
                Token::None => None,
                Token::Fresh => Some(RequestToken(u128::from(self.number()))),
                Token::Used(which) => self.earlier(which).and_then(|(_, it)| it.request_token),
            },
            ..wanted(wish, named, self.numbers)
        };
        self.requests.push((wish.tenant, wanted.clone()));
        self.ask_for_a_lease(wish.tenant, wanted);
    }

    fn earlier(&self, which: usize) -> Option<&(usize, LeaseAllocRequest)> {
        self.requests.iter().rev().nth(which)
    }

    pub(super) fn repeat(&mut self, which: usize, shift: usize) {
        if let Some((tenant, wanted)) = self.earlier(which).cloned() {
            self.ask_for_a_lease((tenant + shift) % TENANTS.len(), wanted);
        }
    }

    fn ask_for_a_lease(&mut self, tenant: usize, wanted: LeaseAllocRequest) {
        let tenant = TENANTS[tenant];
        // Ids are random: their order is not the order of time.
        let id = LeaseId(u128::from(self.number().reverse_bits()));
        let request = Request::LeaseAlloc(wanted.clone());
        self.ids.push((id, tenant));
        let ticket = self.ask(tenant, Asker::Holder, id, request);
        let effects = self.effects();
        let extent = effects.iter().find_map(|effect| match effect {
            Effect::Order {
                order: Order::Bind(order),
                ..
            } if order.binding_id.lease_id == id => Some(order.extent()),
            _ => None,
        });
        for effect in &effects {
            if let Effect::Answer { answer, .. } = effect {
                invariant_permanent_means_never(answer, &wanted, &self.world.offers);
            }
        }
        self.oracle.alloc(ticket, tenant, id, &wanted, extent);
        self.compare(effects);
    }

    pub(super) fn about(
        &mut self,
        asker: Asker,
        who: usize,
        request: impl FnOnce(LeaseId) -> Request,
    ) {
        // Most requests name a lease on record, so that they have an effect.
        let known: Vec<_> = { self.oracle.leases.iter() }
            .map(|lease| (lease.id, lease.tenant.clone()))
            .collect();
        let ids = self.ids.iter().map(|&(id, tenant)| (id, tenant.to_owned()));
        let all: Vec<_> = known.into_iter().chain(ids).collect();
        let Some((id, holder)) = all.get(who % all.len().max(1)) else {
            return;
        };
        let tenant = match asker {
            Asker::Holder => holder,
            Asker::Stranger => STRANGER,
            Asker::Operator => OPERATOR,
        };
        let request = request(*id);
        // Only a new attach code is made of this.
        let fresh_id = LeaseId(u128::from(self.number()));
        let ticket = self.ask(tenant, asker, fresh_id, request.clone());
        let effects = self.effects();
        let oracle = &mut self.oracle;
        match request {
            Request::LeaseRenew { lease_secs, .. } => oracle.renew(ticket, asker, *id, lease_secs),
            Request::LeaseFree(_) => oracle.free(ticket, asker, *id),
            Request::LeaseBind { peers, .. } => oracle.bind(ticket, asker, *id, &peers),
            Request::LeasePeers { change, .. } => oracle.change_peers(ticket, asker, *id, &change),
            Request::LeaseRotate { overlap_ms, .. } => {
                oracle.rotate(ticket, asker, *id, overlap_ms);
            }
            Request::LeaseAttach(_) => {
                self.codes.push(fresh_id.0);
                oracle.attach(ticket, asker, *id, fresh_id.0);
            }
            _ => oracle.revoke(ticket, asker, *id),
        }
        self.compare(effects);
    }

    /// Presents a code: right, used, refused, of an ended lease, or of nobody.
    pub(super) fn present(&mut self, which: usize) {
        let asked_for = self.codes.iter().rev().nth(which.wrapping_sub(1));
        let code = asked_for.copied().unwrap_or(u128::MAX);
        let spent = self
            .table
            .spend_attach_code(&AttachCode(code.to_be_bytes()))
            .map(|(id, tenant)| (id, String::from(&*tenant)));
        assert_eq!(spent, self.oracle.spend(code), "the lease of a code");
        let effects = self.effects();
        self.compare(effects);
    }

    pub(super) fn clear_fence(&mut self, asker: Asker, arena: usize) {
        let id = self.world.resource(arena);
        let request = Request::FenceClear(id);
        let ticket = self.ask(OPERATOR, asker, LeaseId(0), request);
        let effects = self.effects();
        self.oracle.clear_fence(ticket, asker, id);
        self.compare(effects);
    }
}

pub(super) fn about(request: &Request) -> Option<LeaseId> {
    match request {
        Request::LeaseRenew { lease_id, .. }
        | Request::LeaseBind { lease_id, .. }
        | Request::LeasePeers { lease_id, .. }
        | Request::LeaseRotate { lease_id, .. }
        | Request::LeaseAttach(lease_id)
        | Request::LeaseFree(lease_id)
        | Request::LeaseRevoke(lease_id) => Some(*lease_id),
        _ => None,
    }
}

pub(super) fn peers(to: Peer, number: u32) -> Vec<RdmaPeer> {
    let port = |which: usize| PORTS[which % PORTS.len()];
    let nobody = |which: usize| NOBODY[which % NOBODY.len()];
    let gids = match to {
        Peer::None => vec![],
        Peer::Port(which) => vec![port(which)],
        Peer::Several(which) => (0..which % 4 + 2).map(port).collect(),
        Peer::Nobody(which) => vec![nobody(which)],
        Peer::Mixed(which) => vec![port(which), nobody(which)],
    };
    let peer = |gid: &str| RdmaPeer {
        qpn: number,
        psn: 3,
        gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
        path_mtu: 0,
    };
    gids.into_iter().map(peer).collect()
}

pub(super) fn wanted(
    wish: Wish,
    resource_id: Option<ResourceId>,
    number: u32,
) -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_id,
        grace_secs: wish.grace,
        transport: wish.transport,
        rotate_on_renew: wish.rotate_on_renew,
        ..LeaseAllocRequest::new(wish.kind, wish.bytes, wish.secs)
    }
    .with_terms(MemTerms {
        rdma_peers: peers(wish.peer, number),
    })
    .with_terms(block_terms(wish.terms, number))
    .with_terms(GpuTerms {
        exclusivity: wish.terms.class,
        execution_mode: None,
        compute_slices: wish.terms.slices,
    })
}

fn block_terms(terms: Terms, number: u32) -> BlockTerms {
    let name = |number| format!("nqn.2025-01.org.example:{number}");
    BlockTerms {
        read_only: terms.read_only,
        host_nqn: terms.host.then(|| name(number).parse().unwrap()),
        host_id: None,
        mutual_auth: terms.mutual,
    }
}
