//! Reports, pages and redirects: what fits, what does not, and what a client is told then.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use fabricbios_wire::*;

fn asked(message: MessageType) -> Header {
    Header {
        msg_type: message as u16,
        ..Header::default()
    }
}

/// An inventory of this many bytes, which are names of a resource.
fn inventory(length: usize) -> ResourceInventory {
    let plain = ResourceInventory {
        node_id: NodeId([7; 32]),
        epoch: Epoch(1),
        health: health::OK,
        mem_arenas: vec![],
        block_devs: vec![],
        cpu_caps: vec![],
        nics: vec![],
        gpus: vec![],
        extensions: vec![],
    };
    let rest = length - encode_structured(&plain).unwrap().len();
    let name = |length: usize| InventoryExtension::Name(ResourceId(1), "n".repeat(length));
    // A name of n bytes takes 20 + n, and the last two share what is left.
    let (whole, left) = (rest / 220, rest % 220);
    let mut extensions = vec![name(200); whole - 1];
    extensions.extend([name(90 + left / 2), name(90 + left - left / 2)]);
    ResourceInventory {
        extensions,
        ..plain
    }
}

fn report(length: usize) -> NodeReport {
    NodeReport {
        sequence: 1,
        endpoint: endpoint(),
        inventory: inventory(length),
    }
}

fn endpoint() -> Endpoint {
    Endpoint {
        addr: [1; 16],
        port: 1,
    }
}

fn node(number: u16, inventory: ResourceInventory) -> FleetNode {
    let mut node_id = [0; 32];
    node_id[..2].copy_from_slice(&number.to_be_bytes());
    FleetNode {
        node_id: NodeId(node_id),
        endpoint: endpoint(),
        since_unix_ms: 1,
        labels: vec!["l".repeat(LABEL_BYTES_MAX); LABELS_MAX],
        inventory,
    }
}

fn told(reply: Reply) -> Answer {
    let asked = asked(MessageType::NodeList);
    decode_answer(&asked, &encode_answer(&asked, &Ok(reply))).unwrap()
}

#[test]
fn a_report_that_fits_can_be_sent_and_listed_and_a_longer_one_cannot() {
    for length in [10_000, 10_219, REPORT_BYTES_MAX] {
        let report = report(length);
        assert_eq!(
            encode_structured(&report.inventory).unwrap().len(),
            length,
            "the inventory of the test"
        );
        assert!(report.fits(), "{length}");
        let request = Request::NodeReport(report.clone());
        assert_eq!(request.check(), Ok(()));
        let page = Reply::Nodes(FleetPage {
            nodes: vec![node(1, report.inventory)],
            next: Some(NodeId([1; 32])),
        });
        assert_eq!(told(page.clone()), Ok(page), "{length}");
    }
    // The second one is longer than a payload.
    for length in [REPORT_BYTES_MAX + 1, 2 * MAX_PAYLOAD] {
        let report = report(length);
        assert!(!report.fits(), "{length}");
        let error = Request::NodeReport(report.clone()).check().unwrap_err();
        assert_eq!(error.lease_error(), LeaseError::Malformed, "{error}");
        assert_eq!(node(1, report.inventory).encoded_len(), usize::MAX);
    }
}

#[test]
fn a_page_filled_by_the_lengths_of_its_nodes_fits_a_frame_and_one_more_does_not() {
    // Status, next, and the count.
    let fixed = 2 + 33 + 2;
    let mut page = FleetPage {
        nodes: vec![],
        next: Some(NodeId([0xFF; 32])),
    };
    let mut length = fixed;
    for number in 1_u16.. {
        let node = node(number, inventory(10_000 + usize::from(number)));
        length += node.encoded_len();
        if length > MAX_PAYLOAD {
            page.nodes.push(node);
            break;
        }
        page.nodes.push(node);
        let frame = encode_answer(
            &asked(MessageType::NodeList),
            &Ok(Reply::Nodes(page.clone())),
        );
        assert_eq!(frame.len(), HEADER_LEN + length);
    }
    let refusal = told(Reply::Nodes(page.clone())).unwrap_err();
    assert_eq!(refusal.error, LeaseError::Internal);
    page.nodes.pop();
    assert_eq!(page.nodes.len(), 4);
    assert_eq!(told(Reply::Nodes(page.clone())), Ok(Reply::Nodes(page)));
}

#[test]
fn a_page_never_has_a_node_that_its_reader_would_refuse_or_a_label_that_was_cut() {
    let plain = || node(1, inventory(10_000));
    let mut long_label = plain();
    long_label.labels[3].push('l');
    let mut labels = plain();
    labels.labels.push("a=b".to_owned());
    for bad in [
        long_label,
        labels,
        node(1, inventory(REPORT_BYTES_MAX + 1)),
        node(1, inventory(2 * MAX_PAYLOAD)),
    ] {
        assert_eq!(bad.encoded_len(), usize::MAX);
        let refusal = told(Reply::Nodes(FleetPage {
            nodes: vec![bad],
            next: None,
        }));
        assert_eq!(refusal.unwrap_err().error, LeaseError::Internal);
    }
}

#[test]
fn a_page_has_at_most_256_nodes() {
    let small = |number| FleetNode {
        labels: vec![],
        inventory: ResourceInventory {
            extensions: vec![],
            ..inventory(10_000)
        },
        ..node(number, inventory(10_000))
    };
    let page = |count: u16| {
        Reply::Nodes(FleetPage {
            nodes: (0..count).map(small).collect(),
            next: None,
        })
    };
    assert_eq!(told(page(256)), Ok(page(256)));
    assert_eq!(told(page(257)).unwrap_err().error, LeaseError::Internal);
}

#[test]
fn an_error_in_a_node_of_a_page_says_where_in_the_frame() {
    let whole = FleetNode {
        labels: vec![],
        ..node(1, inventory(10_000))
    };
    let asked = asked(MessageType::NodeList);
    let reply = Reply::Nodes(FleetPage {
        nodes: vec![whole],
        next: None,
    });
    let mut frame = encode_answer(&asked, &Ok(reply));
    // After status, next and count: id, endpoint, time, labels and length of the inventory; then its node, epoch and health.
    let at = HEADER_LEN + 2 + 1 + 2 + (32 + 18 + 8 + 2 + 4) + 44;
    frame[at..at + 2].copy_from_slice(&257_u16.to_be_bytes());
    let error = decode_answer(&asked, &frame).unwrap_err().error;
    assert_eq!((error.offset, error.field), (at, "mem_arenas"), "{error}");
}

#[test]
fn a_redirect_is_never_empty_and_has_at_most_eight_candidates() {
    let asked = asked(MessageType::LeaseAlloc);
    let candidate = Candidate {
        node_id: NodeId([1; 32]),
        endpoint: endpoint(),
        resource_id: ResourceId(1),
    };
    let told = |count: usize| {
        let reply = Reply::Redirect(vec![candidate; count]);
        decode_answer(&asked, &encode_answer(&asked, &Ok(reply))).unwrap()
    };
    for count in [1, CANDIDATES_MAX] {
        assert_eq!(told(count), Ok(Reply::Redirect(vec![candidate; count])));
    }
    for count in [0, CANDIDATES_MAX + 1] {
        assert_eq!(told(count).unwrap_err().error, LeaseError::Internal);
    }
}
