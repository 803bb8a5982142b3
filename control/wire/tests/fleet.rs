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
            away: vec![],
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
    // Status, next, and the two counts.
    let fixed = 2 + 33 + 2 + 2;
    let mut page = FleetPage {
        nodes: vec![],
        away: vec![],
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
            away: vec![],
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
            away: vec![],
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
        away: vec![],
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

fn most() -> Vec<ReportedLease> {
    let lease = |number| ReportedLease {
        lease_id: LeaseId(number),
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        phase: LeasePhase::Active,
        capacity: 1,
        expires_at_unix_ms: 1,
        tenant: format!("{}@{}", "t".repeat(TENANT_BYTES_MAX), "a".repeat(32)),
    };
    (1..=LEASES_PER_REPORT_MAX as u128).map(lease).collect()
}

#[test]
fn the_largest_report_of_leases_and_the_largest_page_fit_and_one_more_lease_does_not() {
    let gone: Vec<LeaseId> = (1..=256).map(LeaseId).collect();
    let report = |leases, gone| {
        Request::NodeLeases(LeaseReport {
            sequence: 1,
            part: ReportPart::Changes,
            leases,
            gone,
        })
    };
    assert_eq!(report(most(), gone.clone()).check(), Ok(()));
    let one_more = |mut ids: Vec<LeaseId>| {
        ids.push(LeaseId(257));
        ids
    };
    let more_leases = [most(), most()].concat()[..257].to_vec();
    for bad in [
        report(most(), one_more(gone.clone())),
        report(more_leases, gone),
    ] {
        assert!(bad.check().is_err());
    }
    let told = |leases: Vec<ReportedLease>| {
        let node_id = NodeId([1; 32]);
        let leases = leases.into_iter();
        let reply = Reply::FleetLeases(FleetLeases {
            leases: leases.map(|lease| FleetLease { node_id, lease }).collect(),
            more: true,
        });
        let asked = asked(MessageType::FleetLeases);
        let told = decode_answer(&asked, &encode_answer(&asked, &Ok(reply.clone())));
        (told.unwrap(), reply)
    };
    let (whole, reply) = told(most());
    assert_eq!(whole, Ok(reply));
    let (refused, _) = told([most(), most()].concat()[..257].to_vec());
    assert_eq!(refused.unwrap_err().error, LeaseError::Internal);
}

#[test]
fn a_tenant_that_no_certificate_can_have_is_not_told() {
    for tenant in ["", "Blue", "blue@", "blue@0", &"t".repeat(98)] {
        let mut leases = most();
        leases[0].tenant = tenant.to_owned();
        let report = LeaseReport {
            sequence: 1,
            part: ReportPart::Whole,
            leases,
            gone: vec![],
        };
        assert!(Request::NodeLeases(report).check().is_err(), "{tenant}");
    }
}
