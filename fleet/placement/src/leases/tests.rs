use fabricbios_wire::{CANDIDATES_MAX, Candidate, LeaseError, RefusalClass};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    NotTaken, View,
    view::tests::{from, node, report},
};

const BLUE: Whose<'_> = Whose::Tenant("blue");
const NO_KEY: Key = (LeaseId(0), NodeId([0; 32]));

fn lease(id: u128, tenant: &str) -> ReportedLease {
    ReportedLease {
        lease_id: LeaseId(id),
        resource_id: ResourceId(7),
        resource_type: ResourceType::Mem,
        phase: LeasePhase::Active,
        capacity: 4096,
        expires_at_unix_ms: 1000,
        tenant: tenant.to_owned(),
    }
}

fn blue(ids: &[u128]) -> Vec<ReportedLease> {
    ids.iter().map(|id| lease(*id, "blue")).collect()
}

/// A node that reports over a connection, and what it says next.
struct Node {
    number: u8,
    connection: u64,
    sequence: u64,
}

impl Node {
    fn connected(view: &mut View, number: u8, connection: u64) -> Self {
        view.report(&from(number, connection), 0, report(number, 1, 10))
            .unwrap();
        Self {
            number,
            connection,
            sequence: 1,
        }
    }

    fn try_tell(
        &mut self,
        view: &mut View,
        part: ReportPart,
        leases: Vec<ReportedLease>,
        gone: &[u128],
    ) -> Result<Option<Key>, NotTaken> {
        let report = LeaseReport {
            sequence: self.sequence + 1,
            part,
            leases,
            gone: gone.iter().copied().map(LeaseId).collect(),
        };
        let taken = view.report_leases(&from(self.number, self.connection), report)?;
        self.sequence += 1;
        Ok(taken)
    }

    #[track_caller]
    fn tell(&mut self, view: &mut View, part: ReportPart, leases: Vec<ReportedLease>) {
        self.try_tell(view, part, leases, &[]).unwrap();
    }
}

/// The ids of leases, by one page.
fn ids(view: &View, whose: Whose<'_>) -> Vec<u128> {
    let page = view.lease_page(NO_KEY, whose);
    assert!(!page.more);
    page.leases.iter().map(|it| it.lease.lease_id.0).collect()
}

fn nodes_of(view: &View, id: u128, whose: Whose<'_>) -> Vec<NodeId> {
    let found = view.find(LeaseId(id), whose).unwrap_or_default();
    found.iter().map(|it| it.node_id).collect()
}

#[test]
fn a_list_stands_until_the_next_one_has_ended() {
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    one.tell(&mut view, ReportPart::Whole, blue(&[1, 2]));
    one.tell(&mut view, ReportPart::Begin, blue(&[2, 3]));
    assert_eq!(ids(&view, BLUE), [1, 2]);
    one.tell(&mut view, ReportPart::Next, blue(&[4]));
    assert_eq!(ids(&view, BLUE), [1, 2]);
    one.tell(&mut view, ReportPart::End, blue(&[5]));
    assert_eq!(ids(&view, BLUE), [2, 3, 4, 5]);
    // A list that begins anew in the middle of another one is a new list.
    one.tell(&mut view, ReportPart::Begin, blue(&[6]));
    one.tell(&mut view, ReportPart::Begin, blue(&[8]));
    one.tell(&mut view, ReportPart::End, vec![]);
    assert_eq!(ids(&view, BLUE), [8]);
}

#[test]
fn changes_change_what_they_name() {
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    one.tell(&mut view, ReportPart::Whole, blue(&[1, 2, 3]));
    let grace = ReportedLease {
        phase: LeasePhase::Grace,
        expires_at_unix_ms: 2000,
        ..lease(2, "blue")
    };
    let new = vec![grace.clone(), lease(4, "blue")];
    one.try_tell(&mut view, ReportPart::Changes, new, &[1, 99])
        .unwrap();
    assert_eq!(ids(&view, BLUE), [2, 3, 4]);
    assert_eq!(view.lease_page(NO_KEY, BLUE).leases[0].lease, grace);
    // A node says of another tenant what it has said of this one.
    one.tell(&mut view, ReportPart::Changes, vec![lease(3, "red")]);
    assert_eq!(ids(&view, BLUE), [2, 4]);
    assert_eq!(ids(&view, Whose::Tenant("red")), [3]);
}

#[test]
fn what_does_not_follow_from_what_was_told_is_refused_and_changes_nothing() {
    use ReportPart as P;
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    let refused = |view: &mut View, one: &mut Node, part| {
        let before = view.lease_page(NO_KEY, Whose::All);
        let refused = one.try_tell(view, part, blue(&[9]), &[]).unwrap_err();
        assert!(matches!(refused, NotTaken::Leases(_)), "{refused}");
        assert_eq!(view.lease_page(NO_KEY, Whose::All), before);
    };
    for part in [P::Changes, P::Next, P::End] {
        refused(&mut view, &mut one, part);
    }
    one.tell(&mut view, P::Whole, blue(&[1]));
    for part in [P::Next, P::End] {
        refused(&mut view, &mut one, part);
    }
    one.tell(&mut view, P::Begin, blue(&[2]));
    refused(&mut view, &mut one, P::Changes);
    one.tell(&mut view, P::End, vec![]);
    assert_eq!(ids(&view, BLUE), [2]);

    // A report that was lost, one that came twice, and one before any inventory.
    for (number, sequence) in [(1, 6), (1, 4)] {
        let mut gap = Node {
            number,
            connection: 7,
            sequence: sequence - 1,
        };
        let expected = 5;
        assert_eq!(
            gap.try_tell(&mut view, P::Whole, vec![], &[]),
            Err(NotTaken::Sequence {
                got: sequence,
                expected
            })
        );
    }
    let mut unknown = Node {
        number: 2,
        connection: 8,
        sequence: 0,
    };
    refused(&mut view, &mut unknown, P::Whole);
    assert_eq!(ids(&view, Whose::All), [2]);
}

#[test]
fn reports_of_inventory_and_of_leases_have_one_sequence() {
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    one.tell(&mut view, ReportPart::Begin, blue(&[1]));
    assert_eq!(view.report(&from(1, 7), 0, report(1, 3, 5)), Ok(false));
    one.sequence = 3;
    one.tell(&mut view, ReportPart::End, blue(&[2]));
    assert_eq!(ids(&view, BLUE), [1, 2]);
}

#[test]
fn the_leases_of_a_node_go_with_its_connection() {
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    one.tell(&mut view, ReportPart::Whole, blue(&[1, 2]));
    let mut other = Node::connected(&mut view, 2, 8);
    other.tell(&mut view, ReportPart::Whole, blue(&[5]));
    // A later connection of the node tells a list of its own; until it has ended, the one before stands.
    let mut again = Node::connected(&mut view, 1, 9);
    let late = one.try_tell(&mut view, ReportPart::Changes, vec![], &[1]);
    assert_eq!(late, Err(NotTaken::LaterConnection));
    assert!(!view.gone(node(1), 7));
    again.tell(&mut view, ReportPart::Begin, blue(&[3]));
    assert_eq!(ids(&view, BLUE), [1, 2, 5]);
    assert_eq!(nodes_of(&view, 1, BLUE), [node(1)]);
    assert!(view.gone(node(1), 9));
    assert_eq!(ids(&view, BLUE), [5]);
    assert!(view.gone(node(2), 8));
    assert!(view.leases.all.is_empty() && view.leases.tenants.is_empty());
    assert!(view.leases.nodes.is_empty());
}

#[test]
fn a_tenant_finds_its_own_leases_and_learns_nothing_of_others() {
    let mut view = View::default();
    let mut one = Node::connected(&mut view, 1, 7);
    let of_other_fabric = lease(3, &format!("blue@{}", "a".repeat(32)));
    let all = vec![lease(1, "blue"), lease(2, "red"), of_other_fabric.clone()];
    one.tell(&mut view, ReportPart::Whole, all);
    let expected = Candidate {
        node_id: node(1),
        endpoint: report(1, 1, 0).endpoint,
        resource_id: ResourceId(7),
    };
    assert_eq!(view.find(LeaseId(1), BLUE), Ok(vec![expected]));
    assert_eq!(ids(&view, BLUE), [1]);
    let same_name = Whose::Tenant(&of_other_fabric.tenant);
    assert_eq!(ids(&view, same_name), [3]);
    for id in [1, 2, 3] {
        assert_eq!(nodes_of(&view, id, Whose::All), [node(1)]);
    }
    assert_eq!(ids(&view, Whose::All), [1, 2, 3]);
    // Of another tenant, of the same name in another fabric, of nobody: the same words.
    let refused = [2, 3, 4].map(|id| {
        let refusal = view.find(LeaseId(id), BLUE).unwrap_err();
        assert_eq!(refusal.error, LeaseError::NotFound);
        assert_eq!(refusal.class, RefusalClass::Transient);
        refusal.message.replace(&LeaseId(id).to_string(), "ID")
    });
    assert!(refused.iter().all(|it| *it == refused[0]), "{refused:?}");
    assert_eq!(ids(&view, Whose::Tenant("nobody")), [0_u128; 0]);
}

#[test]
fn a_node_that_claims_a_lease_hides_it_from_nobody() {
    let mut view = View::default();
    let mut has = Node::connected(&mut view, 9, 1);
    has.tell(&mut view, ReportPart::Whole, blue(&[1]));
    let mut claims = Node::connected(&mut view, 1, 2);
    let of_red = vec![lease(1, "red")];
    let taken = claims.try_tell(&mut view, ReportPart::Whole, of_red, &[]);
    assert_eq!(taken, Ok(Some((LeaseId(1), node(9)))));
    assert_eq!(nodes_of(&view, 1, BLUE), [node(9)]);
    claims.tell(&mut view, ReportPart::Changes, blue(&[1]));
    // The node that has reported for longer comes first.
    assert_eq!(nodes_of(&view, 1, BLUE), [node(9), node(1)]);
    claims
        .try_tell(&mut view, ReportPart::Changes, vec![], &[1])
        .unwrap();
    assert_eq!(nodes_of(&view, 1, BLUE), [node(9)]);
    for number in 20..40 {
        let mut more = Node::connected(&mut view, number, number.into());
        more.tell(&mut view, ReportPart::Whole, blue(&[1]));
    }
    let found = nodes_of(&view, 1, BLUE);
    assert_eq!((found.len(), found[0]), (CANDIDATES_MAX, node(9)));
}

#[test]
fn pages_have_every_lease_once() {
    let mut view = View::default();
    let mut expected = Vec::new();
    for number in 1..=2 {
        let mut it = Node::connected(&mut view, number, 7);
        it.tell(&mut view, ReportPart::Begin, vec![]);
        // Both nodes report lease 300.
        for id in [1..=300, 300..=600][usize::from(number) - 1].clone() {
            expected.push((LeaseId(id), node(number)));
            let tenant = if id % 2 == 0 { "blue" } else { "red" };
            it.tell(&mut view, ReportPart::Next, vec![lease(id, tenant)]);
        }
        it.tell(&mut view, ReportPart::End, vec![]);
    }
    let all = |whose: Whose<'_>| {
        let (mut seen, mut after) = (Vec::new(), NO_KEY);
        loop {
            let page = view.lease_page(after, whose);
            seen.extend(page.leases.iter().map(|it| (it.lease.lease_id, it.node_id)));
            after = *seen.last().unwrap();
            if !page.more {
                return seen;
            }
            assert_eq!(page.leases.len(), FLEET_LEASES_PER_PAGE_MAX);
        }
    };
    assert_eq!(all(Whose::All), expected);
    expected.retain(|(id, _)| id.0 % 2 == 0);
    assert_eq!(all(BLUE), expected);
}

/// What a node does, by numbers: which node, which part, ids, and whose.
type Step = (u8, u8, Vec<(u8, u8)>, Vec<u8>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leases = vec((1..9_u8, 0..3_u8), 0..4);
    vec((1..4_u8, 0..8_u8, leases, vec(1..9_u8, 0..3)), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_view_is_what_the_nodes_have_told(steps in steps()) {
        let mut view = View::default();
        let mut nodes: BTreeMap<u8, (Node, Option<BTreeMap<u128, String>>)> = BTreeMap::new();
        let mut told: BTreeMap<(u128, u8), String> = BTreeMap::new();
        for (at, (number, what, leases, gone)) in steps.into_iter().enumerate() {
            let connection = at as u64 + 1;
            if what == 5 || !nodes.contains_key(&number) {
                nodes.insert(number, (Node::connected(&mut view, number, connection), None));
                continue;
            }
            if what >= 6 {
                let (it, _) = nodes.remove(&number).unwrap();
                prop_assert!(view.gone(node(number), it.connection));
                told.retain(|(_, of), _| *of != number);
                continue;
            }
            let (it, coming) = nodes.get_mut(&number).unwrap();
            let part = ReportPart::ALL[usize::from(what)];
            let leases: BTreeMap<u128, String> = { leases.into_iter() }
                .map(|(id, whose)| (id.into(), format!("tenant-{whose}")))
                .collect();
            let gone: Vec<u128> = match part {
                ReportPart::Changes => gone.into_iter().map(u128::from).collect(),
                _ => vec![],
            };
            let report = leases.iter().map(|(id, tenant)| lease(*id, tenant)).collect();
            if it.try_tell(&mut view, part, report, &gone).is_err() {
                continue;
            }
            match part {
                ReportPart::Changes => {
                    told.retain(|(id, of), _| *of != number || !gone.contains(id));
                    told.extend(leases.into_iter().map(|(id, tenant)| ((id, number), tenant)));
                    continue;
                }
                ReportPart::Begin | ReportPart::Whole => *coming = Some(leases),
                ReportPart::Next | ReportPart::End => coming.as_mut().unwrap().extend(leases),
            }
            if matches!(part, ReportPart::End | ReportPart::Whole) {
                told.retain(|(_, of), _| *of != number);
                let whole = coming.take().unwrap().into_iter();
                told.extend(whole.map(|(id, tenant)| ((id, number), tenant)));
            }
        }
        let rows = |whose: Whose<'_>| -> Vec<((u128, u8), String)> {
            let page = view.lease_page(NO_KEY, whose).leases.into_iter();
            page.map(|it| ((it.lease.lease_id.0, it.node_id.0[0]), it.lease.tenant)).collect()
        };
        let all: Vec<_> = told.clone().into_iter().collect();
        prop_assert_eq!(rows(Whose::All), all.clone());
        let mut of_tenants = 0;
        for tenant in ["tenant-0", "tenant-1", "tenant-2"] {
            let whose = Whose::Tenant(tenant);
            let its: Vec<_> = all.iter().filter(|(_, of)| of == tenant).cloned().collect();
            of_tenants += its.len();
            prop_assert_eq!(rows(whose), its.clone());
            for id in 1..9 {
                let at: BTreeSet<NodeId> = nodes_of(&view, id, whose).into_iter().collect();
                let expected = its.iter().filter(|((of, _), _)| *of == id).map(|((_, it), _)| node(*it));
                prop_assert_eq!(at, expected.collect());
            }
        }
        prop_assert_eq!(of_tenants, view.leases.all.len());
        let of_nodes: usize = view.leases.nodes.values().map(|it| it.leases.len()).sum();
        prop_assert_eq!(of_nodes, view.leases.all.len());
        prop_assert!(view.leases.tenants.values().all(|its| !its.is_empty()));
    }
}
