use fabricbios_wire::{
    Answer, Epoch, Header, InventoryExtension, MemArena, MessageType, Reply, ResourceId, Transport,
    decode_answer, encode_answer, health,
};

use super::*;

pub(crate) fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

pub(crate) fn from(number: u8, connection: u64) -> Reporter {
    Reporter {
        node_id: node(number),
        labels: vec!["rack=r7".into()],
        connection,
    }
}

/// A member that is away, with the most and longest labels that there can be.
pub(crate) fn away(number: u8) -> AwayNode {
    AwayNode {
        node_id: node(number),
        endpoint: std::net::SocketAddr::from(([192, 0, 2, number], 5701)).into(),
        last_seen_unix_ms: 7,
        labels: vec!["l".repeat(255); 16],
    }
}

/// A report of a node with one arena.
pub(crate) fn report(number: u8, sequence: u64, available: u64) -> NodeReport {
    let resource_id = ResourceId(u128::from(number) + 1);
    NodeReport {
        sequence,
        endpoint: std::net::SocketAddr::from(([192, 0, 2, number], 5760)).into(),
        inventory: ResourceInventory {
            node_id: node(number),
            epoch: Epoch(1),
            health: health::OK,
            mem_arenas: vec![MemArena {
                resource_id,
                base: 0,
                len: 1 << 30,
                align: 4096,
                max_read: 0,
                max_write: 0,
                health: health::OK,
            }],
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: vec![
                InventoryExtension::Available(resource_id, available),
                InventoryExtension::Transports(resource_id, vec![Transport::Udp]),
            ],
        },
    }
}

#[test]
fn a_node_with_more_labels_than_a_page_can_have_is_no_candidate() {
    let mut view = View::default();
    let labels = vec!["rack=r7".to_owned(); LABELS_MAX + 1];
    let labelled = Reporter {
        labels,
        ..from(1, 1)
    };
    let refused = view.report(&labelled, 0, report(1, 1, 1));
    assert_eq!(refused, Err(NotTaken::TooLarge));
    assert!(view.is_empty());
}

#[test]
fn a_node_is_there_from_its_first_report_to_the_end_of_its_connection() {
    let mut view = View::default();
    assert_eq!(view.report(&from(1, 7), 1000, report(1, 1, 10)), Ok(true));
    assert_eq!(view.report(&from(1, 7), 2000, report(1, 2, 5)), Ok(false));
    let page = view.page(NodeId([0; 32]));
    let [told] = &page.nodes[..] else {
        panic!("{page:?}");
    };
    assert_eq!((told.since_unix_ms, &told.labels[0][..]), (1000, "rack=r7"));
    assert_eq!(told.inventory, report(1, 2, 5).inventory);
    assert!(!view.gone(node(1), 6) && view.len() == 1);
    assert!(view.gone(node(1), 7) && view.is_empty());
}

#[test]
fn a_gap_a_repeat_and_a_report_for_another_node_change_nothing() {
    let mut view = View::default();
    view.report(&from(1, 7), 0, report(1, 1, 10)).unwrap();
    let before = view.page(NodeId([0; 32]));
    for (sequence, expected) in [(1, 2), (3, 2)] {
        let got = sequence;
        assert_eq!(
            view.report(&from(1, 7), 0, report(1, sequence, 3)),
            Err(NotTaken::Sequence { got, expected })
        );
    }
    let begins_late = view.report(&from(2, 8), 0, report(2, 2, 3));
    assert!(matches!(begins_late, Err(NotTaken::Sequence { .. })));
    let of_another = view.report(&from(2, 8), 0, report(1, 1, 3));
    assert!(matches!(of_another, Err(NotTaken::OtherNode { .. })));
    assert_eq!(view.page(NodeId([0; 32])), before);
}

#[test]
fn a_later_connection_takes_over_and_the_end_of_the_older_one_ends_nothing() {
    let mut view = View::default();
    view.report(&from(1, 7), 0, report(1, 1, 10)).unwrap();
    assert_eq!(view.report(&from(1, 9), 5, report(1, 1, 4)), Ok(true));
    let of_older = view.report(&from(1, 7), 9, report(1, 2, 10));
    assert_eq!(of_older, Err(NotTaken::LaterConnection));
    assert!(!view.gone(node(1), 7));
    assert_eq!(view.page(NodeId([0; 32])).nodes[0].since_unix_ms, 5);
    assert!(view.gone(node(1), 9));
}

#[test]
fn pages_have_every_node_once_and_fit_a_frame() {
    let mut view = View::default();
    // Of different lengths: some pages end by their bytes and some by their nodes.
    for number in 1..=250 {
        let mut told = report(number, 1, 10);
        let id = told.inventory.mem_arenas[0].resource_id;
        let name = "n".repeat(usize::from(number));
        let names = usize::from(number % 100);
        let of_name = InventoryExtension::Name(id, name);
        told.inventory.extensions.extend(vec![of_name; names]);
        view.report(&from(number, 1), 0, told).unwrap();
    }
    let asked = Header {
        msg_type: MessageType::NodeList as u16,
        ..Header::default()
    };
    let (mut seen, mut after, mut pages) = (Vec::new(), Some(NodeId([0; 32])), 0);
    while let Some(id) = after {
        let page = view.page(id);
        after = page.next;
        pages += 1;
        let answer: Answer = Ok(Reply::Nodes(page));
        let frame = encode_answer(&asked, &answer);
        assert_eq!(decode_answer(&asked, &frame).unwrap(), answer);
        let Ok(Reply::Nodes(page)) = answer else {
            unreachable!()
        };
        seen.extend(page.nodes.iter().map(|it| it.node_id));
    }
    assert!(pages > 3);
    assert_eq!(seen, (1..=250).map(node).collect::<Vec<_>>());
}
