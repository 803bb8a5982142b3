//! A lease of the table over this path; the path is cut without the table.

use fabricbios_arena::ArenaStore;
use fabricbios_lease::{
    AlreadyCut, Asked, BootTime, Effect, LeaseTable, Linger, Now, Order, Policy, Report, Ticket,
};
use fabricbios_wire::{
    Answer, DataStatus, EndCause, LeaseAllocRequest, LeaseError, LeaseId, LeaseInfo, LeasePhase,
    Reply, Request, ResourceType, Role, Transport,
};

use crate::fixture::{Fixture, PAGE, RESOURCE, binding_id, extent, in_a_minute, now, order};

/// The table, with the server carrying out its orders at once as far as they go.
struct Node {
    fixture: Fixture,
    table: LeaseTable,
    /// How far the table's clock is ahead of the boot-time clock.
    ahead: u64,
    answers: Vec<(Ticket, Answer)>,
}

impl Node {
    fn new() -> Self {
        let fixture = Fixture::new();
        let mut table = LeaseTable::new(Policy::default());
        let store = ArenaStore::new(fixture.arena.clone());
        let offer = store.offer(RESOURCE, vec![Transport::Udp]);
        table.offer(ResourceType::Mem, offer);
        Self {
            fixture,
            table,
            ahead: 0,
            answers: vec![],
        }
    }

    fn now(&self) -> Now {
        Now {
            boot: BootTime(now().0 + self.ahead),
            unix_ms: 1_700_000_000_000,
        }
    }

    fn ask(&mut self, request: Request) -> Answer {
        let ticket = Ticket(self.answers.len() as u64);
        let asked = Asked {
            ticket,
            tenant: "alice".into(),
            role: Role::Tenant,
            fresh_id: LeaseId(1),
            request,
        };
        self.table.on_request(self.now(), &asked);
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order { order, .. } => {
                    let report = self.carry_out(order);
                    self.table.on_report(self.now(), self.now().boot, report);
                }
                Effect::Answer { ticket, answer, .. } => self.answers.push((ticket, answer)),
                Effect::Journal(_) | Effect::Note(_) => {}
            }
        }
        let (to, answer) = self.answers.last().cloned().unwrap();
        assert_eq!(to, ticket);
        answer
    }

    fn carry_out(&self, order: Order) -> Report {
        let backend = &self.fixture.backend;
        match order {
            Order::Bind(order) => Report::Bind(order.binding_id, backend.bind(&order)),
            Order::Extend(binding_id, until) => {
                Report::Extended(binding_id, until, backend.extend(binding_id, until))
            }
            Order::Cut(binding_id, linger) => {
                Report::Cut(binding_id, backend.cut(binding_id, linger))
            }
            Order::Release(binding_id, extent) => {
                Report::Release(binding_id, backend.release(binding_id, extent, &|| ()))
            }
            other => panic!("{other:?}"),
        }
    }
}

fn lease(answer: Answer) -> LeaseInfo {
    match answer {
        Ok(Reply::Lease(info)) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_that_the_path_has_cut_is_not_renewed_and_ends() {
    let mut node = Node::new();
    let wanted = LeaseAllocRequest {
        transport: Transport::Udp,
        ..LeaseAllocRequest::new(ResourceType::Mem, PAGE, 60)
    };
    let granted = lease(node.ask(Request::LeaseAlloc(wanted)));
    let client = node.fixture.client(1, &granted.binding);
    assert_eq!(client.ping().status, DataStatus::Ok as u8);
    node.ahead = 55_000_000_000;
    let renew = Request::LeaseRenew {
        lease_id: LeaseId(1),
        lease_secs: 60,
    };
    assert!(lease(node.ask(renew.clone())).remaining_ms > 59_000);

    let first = binding_id(1, 1);
    node.fixture.backend.cut(first, Linger::None).unwrap();
    node.ahead += 55_000_000_000;
    let refusal = node.ask(renew).unwrap_err();
    assert_eq!(refusal.error, LeaseError::Revoked, "{refusal}");
    assert_eq!(client.ping().status, DataStatus::NoLease as u8);
    let over = lease(node.ask(Request::LeaseQuery(LeaseId(1))));
    assert_eq!(over.phase, LeasePhase::Revoked);
    assert_eq!(over.end.unwrap().cause, EndCause::BindingFailed);
    assert_eq!(
        node.table.availability().next().unwrap().available,
        64 * PAGE
    );
}

#[test]
fn only_what_was_cut_refuses() {
    let fixture = Fixture::new();
    let extend = |generation| {
        fixture
            .backend
            .extend(binding_id(1, generation), in_a_minute())
    };
    assert_eq!(extend(1), Ok(()), "never bound");
    fixture.lease(1);
    fixture.cut(1);
    assert_eq!(extend(1), Err(AlreadyCut));
    assert_eq!(extend(2), Ok(()), "the next binding is not there yet");
    fixture.backend.bind(&order(1, 2)).unwrap();
    assert_eq!(extend(2), Ok(()));
    fixture.backend.cut(binding_id(1, 2), Linger::None).unwrap();
    fixture
        .backend
        .release(binding_id(1, 2), extent(1), &|| ())
        .unwrap();
    assert_eq!(extend(3), Err(AlreadyCut), "it was released");
}
