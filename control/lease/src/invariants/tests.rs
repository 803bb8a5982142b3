//! Plants a violation of each invariant: the table must find it and fence the resource concerned.

use std::{vec, vec::Vec};

use fabricbios_wire::{
    Answer, Binding, EndCause, Generation, LeaseAllocRequest, LeaseError, Request, RequestToken,
    Role, Transport,
};

use super::*;
use crate::{
    AllocationMode, Asked, BootTime, Durability, Effect, FenceScope, Offer, Policy, Proof, Report,
    Requested, Ticket,
    room::{Holding, Need},
};

const PAGE: u64 = 4096;
const ONE: ResourceId = ResourceId(1);
const OTHER: ResourceId = ResourceId(2);
const NOW: Now = Now {
    boot: BootTime(1_000_000_000),
    unix_ms: 1_700_000_000_000,
};

const TWICE: Requested = Requested {
    token: RequestToken(7),
    sum: 9,
};

/// Plants a violation.
type Plant = fn(&mut Node);

/// A table whose orders all succeed, with the orders, answers and notes so far.
struct Node {
    table: LeaseTable,
    next: u64,
    orders: Vec<Order>,
    answers: Vec<(Ticket, Answer)>,
    notes: Vec<Note>,
}

impl Node {
    /// Two leases of one page each on the first resource, and a second resource.
    fn new() -> Self {
        let mut table = LeaseTable::new(Policy::default());
        for resource_id in [ONE, OTHER] {
            let offer = Offer {
                resource_id,
                capacity: 4 * PAGE,
                align: PAGE,
                transports: vec![Transport::Udp],
                durability: Durability::Process,
                fence_scope: FenceScope::Separate,
                cut_within: None,
                allocation_mode: AllocationMode::Stretches,
                read_only: false,
                classes: None,
                rate: None,
                needs_vlan: None,
            };
            table.offer(ResourceType::Mem, offer);
        }
        let (orders, answers, notes) = (vec![], vec![], vec![]);
        let mut node = Self {
            table,
            next: 0,
            orders,
            answers,
            notes,
        };
        for _ in 0..2 {
            assert!(node.grant(ONE).is_ok());
        }
        assert_eq!(node.table.check(), []);
        node
    }

    fn grant(&mut self, of: ResourceId) -> Answer {
        self.ask(Request::LeaseAlloc(LeaseAllocRequest {
            resource_id: Some(of),
            ..LeaseAllocRequest::new(ResourceType::Mem, PAGE, 60)
        }))
    }

    fn ask(&mut self, request: Request) -> Answer {
        self.next += 1;
        let ticket = Ticket(self.next);
        let asked = Asked {
            ticket,
            tenant: "alice".into(),
            role: Role::Operator,
            fresh_id: LeaseId(self.next.into()),
            request,
        };
        self.table.on_request(NOW, &asked);
        self.go_on();
        let answer = self.answers.iter().find(|(to, _)| *to == ticket);
        answer.unwrap().1.clone()
    }

    fn go_on(&mut self) {
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order { order, .. } => {
                    self.orders.push(order.clone());
                    if let Some(report) = carried_out(order) {
                        self.table.on_report(NOW, NOW.boot, report);
                    }
                }
                Effect::Answer { ticket, answer, .. } => self.answers.push((ticket, answer)),
                Effect::Note(note) => self.notes.push(note),
                Effect::Journal(_) => {}
            }
        }
    }

    fn lease(&mut self, number: u128) -> &mut Lease {
        self.table.leases.get_mut(&LeaseId(number)).unwrap()
    }

    /// Checks that the mistake was found, its resource is fenced, and the node goes on with the other resource.
    fn is_fenced_for(&mut self, invariant: Invariant) {
        let is_it =
            |note: &Note| matches!(note, Note::Broken { invariant: it, .. } if *it == invariant);
        assert!(
            self.notes.iter().any(is_it),
            "{invariant}: {:?}",
            self.notes
        );
        let refused = self.grant(ONE).unwrap_err();
        assert_eq!(refused.error, LeaseError::Fenced, "{invariant}");
        assert!(self.grant(OTHER).is_ok(), "{invariant}");
    }
}

fn carried_out(order: Order) -> Option<Report> {
    Some(match order {
        Order::Bind(order) => {
            let bound = Binding::plain(order.terms.resource_type());
            Report::Bind(order.binding_id, Ok(bound))
        }
        Order::Extend(binding_id, deadline) => Report::Extended(binding_id, deadline, Ok(())),
        Order::Cut(binding_id, _) => Report::Cut(binding_id, Ok(Proof::default())),
        Order::Release(binding_id, _) => Report::Release(binding_id, Ok(Proof::default())),
        _ => return None,
    })
}

#[test]
fn a_look_at_everything_finds_each() {
    let plants: [(Invariant, Plant); 12] = [
        (Invariant::Overlap, |node| {
            node.lease(2).placement = node.lease(1).placement.clone();
        }),
        (Invariant::Capacity, |node| {
            let free = &mut node.table.resources.get_mut(&ONE).unwrap().free;
            free.take(Need::plain(PAGE, Holding::Alone)).unwrap();
        }),
        (Invariant::Generations, |node| {
            node.lease(1).generation = Generation(0);
        }),
        (Invariant::States, |node| {
            node.lease(1).ends(EndCause::Freed, None);
        }),
        (Invariant::Timers, |node| {
            node.lease(1).deadline = BootTime(7);
        }),
        (Invariant::Timers, |node| {
            let (timer, at) = (Timer::Lease(LeaseId(9)), Some(BootTime(7)));
            node.table.patience.set(&None, timer, None, at);
        }),
        (Invariant::Tenants, |node| {
            node.table.tenants.get_mut("alice").unwrap().on_their_way += 1;
        }),
        (Invariant::Tenants, |node| {
            node.lease(1).tenant = "bob".into();
        }),
        (Invariant::Requests, |node| {
            node.lease(2).requested = Some(TWICE);
        }),
        (Invariant::Requests, |node| {
            let alice = node.table.tenants.get_mut("alice").unwrap();
            alice.requests.insert(TWICE.token, LeaseId(9));
        }),
        (Invariant::Requests, |node| {
            (node.lease(1).requested, node.lease(2).requested) = (Some(TWICE), Some(TWICE));
            let alice = node.table.tenants.get_mut("alice").unwrap();
            alice.requests.insert(TWICE.token, LeaseId(1));
        }),
        (Invariant::Census, |node| {
            node.table.recount(None, Some((State::Grace, false)));
        }),
    ];
    for (invariant, plant) in plants {
        let mut node = Node::new();
        plant(&mut node);
        let found = node.table.check();
        let found: Vec<_> = found.iter().map(|(found, _)| *found).collect();
        assert!(found.contains(&invariant), "{invariant}: {found:?}");
    }
}

#[test]
fn what_does_not_add_up_when_a_lease_is_over_fences_its_resource() {
    let plants: [(Invariant, Plant); 2] = [
        (Invariant::Capacity, |node| {
            *node.table.held.get_mut(&ONE).unwrap() += PAGE;
        }),
        (Invariant::Tenants, |node| {
            let alice = node.table.tenants.get_mut("alice").unwrap();
            alice.live.remove(&LeaseId(1));
        }),
    ];
    for (invariant, plant) in plants {
        let mut node = Node::new();
        plant(&mut node);
        assert!(node.ask(Request::LeaseFree(LeaseId(1))).is_ok());
        node.is_fenced_for(invariant);
    }
}

#[test]
fn an_order_for_an_older_binding_is_not_given_and_the_newest_is_cut() {
    let mut node = Node::new();
    node.lease(1).generation = Generation(0);
    node.orders.clear();
    let freed = node.ask(Request::LeaseFree(LeaseId(1)));
    assert_eq!(freed.unwrap_err().error, LeaseError::Fenced);
    let cut = |order: &Order| match order {
        Order::Cut(binding_id, _) => Some(binding_id.generation),
        _ => None,
    };
    let cut: Vec<_> = node.orders.iter().filter_map(cut).collect();
    assert_eq!(cut, [Generation(1)]);
    node.is_fenced_for(Invariant::Generations);
}

#[test]
fn nobody_is_told_and_nothing_released_before_the_proof() {
    let mut node = Node::new();
    node.orders.clear();
    let waiting = (crate::lease::Waiting::Free, Ticket(99));
    node.lease(1).waiting.push(waiting);
    node.table.tell_ended(NOW, LeaseId(1));
    node.table.start_release(LeaseId(1));
    node.table.fence_broken(NOW);
    node.go_on();
    let told = node.answers.iter().find(|(to, _)| *to == Ticket(99));
    let refusal = told.unwrap().1.clone().unwrap_err();
    assert_eq!(refusal.error, LeaseError::Fenced);
    let released = |order: &Order| matches!(order, Order::Release(..));
    assert!(!node.orders.iter().any(released), "{:?}", node.orders);
    node.is_fenced_for(Invariant::Proof);
}

#[test]
fn what_does_not_fit_the_state_is_not_ordered_and_fences() {
    let plants: [Plant; 2] = [
        |node| {
            let binding_id = node.lease(1).binding_id();
            node.table.order(Order::Rotate(binding_id));
        },
        |node| {
            node.lease(1).ends(EndCause::Freed, None);
            node.table.arm(LeaseId(1));
        },
    ];
    for plant in plants {
        let mut node = Node::new();
        node.orders.clear();
        plant(&mut node);
        node.table.fence_broken(NOW);
        node.go_on();
        let rotates = |order: &Order| matches!(order, Order::Rotate(_));
        assert!(!node.orders.iter().any(rotates), "{:?}", node.orders);
        node.is_fenced_for(Invariant::States);
    }
}

#[test]
fn a_report_that_nobody_is_counted_to_wait_for_fences() {
    let mut node = Node::new();
    let asked = Asked {
        ticket: Ticket(50),
        tenant: "alice".into(),
        role: Role::Tenant,
        fresh_id: LeaseId(50),
        request: Request::LeaseRotate {
            lease_id: LeaseId(1),
            overlap_ms: 0,
        },
    };
    node.table.on_request(NOW, &asked);
    node.table.tenants.get_mut("alice").unwrap().on_their_way -= 1;
    node.go_on();
    node.is_fenced_for(Invariant::Tenants);
}
