//! Clients that come, go and come again, and the ends of the lease.

use super::*;

#[test]
fn clients_come_and_come_again_until_a_signal_frees_the_lease_and_they_hear_of_it() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    assert_eq!(served.strategy, Some(json!("region")));
    let (one, two) = (Client::new(), Client::new());
    assert_eq!(one.join(&mut served, &[101, 102]), json!([17, 18]));
    let segment = two.open(&served);
    // The same queue pairs again: the same answer, and no request.
    let again = one.connect(&served, &segment, &[101, 102]);
    assert_eq!(again["qp_num"], json!([17, 18]));
    assert_eq!(two.join(&mut served, &[201]), json!([19]));
    // Whether the first one is still there.
    assert_eq!(one.answer(|_| json!({ "status": "success" })), 3);
    assert_eq!(one.join(&mut served, &[103, 104]), json!([20, 21]));
    two.answer(|_| json!({}));
    served.signal();
    for client in [&one, &two] {
        client.is_kicked(&segment);
    }
    let mut told = [served.event("kicked"), served.event("kicked")].map(|it| it["client"].clone());
    told.sort_by_key(Value::to_string);
    let mut all = [json!(one.path()), json!(two.path())];
    all.sort_by_key(Value::to_string);
    assert_eq!(told, all);
    let ended = served.event("ended");
    assert_eq!(
        (&ended["state"], &ended["end_cause"]),
        (&json!("freed"), &json!("freed"))
    );
    assert_eq!(served.finish().status.code(), Some(0));
    let expected = [
        "bind [101, 102]",
        "add [201]",
        "add [103, 104]",
        "remove [17, 18]",
        "free",
    ];
    assert_eq!(changes(&node), expected);
}

#[test]
fn queue_pairs_of_clients_that_have_ended_are_cut() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let one = Client::new();
    one.join(&mut served, &[101, 102]);
    let path = one.path();
    drop(one);
    Client::new().join(&mut served, &[201]);
    let left = served.event("left");
    assert_eq!(
        (&left["client"], &left["queue_pairs"]),
        (&json!(path), &json!(2))
    );
    assert_eq!(changes(&node)[2], "remove [17, 18]");
    served.signal();
    served.event("left");
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn an_end_that_nobody_asked_for_is_a_failure_and_the_end_of_the_term_is_none() {
    let ends = [
        (LeasePhase::Expired, EndCause::Expired, Some(0)),
        (LeasePhase::Revoked, EndCause::Revoked, Some(4)),
        (LeasePhase::Fenced, EndCause::Expired, Some(5)),
    ];
    for (phase, cause, status) in ends {
        let (world, node) = World::new(RdmaStrategy::Region);
        let mut served = Served::start(&node);
        let client = Client::new();
        client.join(&mut served, &[101, 102]);
        let segment = client.open(&served);
        world.end(phase, cause);
        client.is_kicked(&segment);
        served.event("kicked");
        let ended = served.event("ended");
        assert_eq!(ended["state"], phase.name());
        assert_eq!(ended["end_cause"], cause.name());
        let output = served.finish();
        assert_eq!(output.status.code(), status, "{output:?}");
        if status != Some(0) {
            let object: Value = serde_json::from_slice(&output.stderr).unwrap();
            assert!(
                object["message"].as_str().unwrap().contains(LEASE_TEXT),
                "{object}"
            );
        }
        assert!(!changes(&node).contains(&"free".to_owned()));
    }
}

#[test]
fn a_node_that_is_lost_and_comes_back_has_a_line_each_and_nobody_is_kicked_before_the_end() {
    let (world, mut node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let client = Client::new();
    client.join(&mut served, &[101, 102]);
    let segment = client.open(&served);
    world.0.lock().unwrap().renewed = true;
    let queries = || {
        let asked = node.asked().into_iter();
        asked
            .filter(|it| matches!(it, Request::LeaseQuery(_)))
            .count()
    };
    // When the command asks once more, it has heard of the longer term.
    let enough = queries() + 2;
    while queries() < enough {
        std::thread::yield_now();
    }
    node.crash();
    let lost = served.event("node_lost");
    assert!(
        lost["message"].as_str().is_some_and(|it| !it.is_empty()),
        "{lost}"
    );
    node.serve();
    served.event("node_back");
    served.signal();
    client.is_kicked(&segment);
    served.event("kicked");
    assert_eq!(served.event("ended")["end_cause"], "freed");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn clients_of_a_node_that_is_lost_are_kicked_when_the_term_is_over() {
    let (_world, mut node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let client = Client::new();
    client.join(&mut served, &[101, 102]);
    let segment = client.open(&served);
    node.crash();
    client.is_kicked(&segment);
    served.event("kicked");
    assert_eq!(served.event("ended")["state"], Value::Null);
    assert_eq!(served.finish().status.code(), Some(4));
}

#[test]
fn a_lease_that_is_to_be_renewed_is_and_its_end_is_a_failure() {
    let (world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start_with(&node, "--renew");
    let renewed = served.event("renewed");
    assert_eq!(renewed["expires_at_unix_ms"], 1_800_003_600_000_u64);
    world.end(LeasePhase::Expired, EndCause::Expired);
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(4));
}

#[test]
fn a_lease_that_ends_while_a_client_comes_in_is_said_to_have_ended() {
    let (world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let client = Client::new();
    let segment = client.open(&served);
    world.0.lock().unwrap().refuses = true;
    let answer = client.connect(&served, &segment, &[101, 102]);
    assert_eq!(answer["qp_num"], json!([]));
    assert_eq!(
        answer["reply_msg"],
        "the lease has ended: lease 1 has expired"
    );
    assert_eq!(served.event("refused")["message"], answer["reply_msg"]);
    world.end(LeasePhase::Expired, EndCause::Expired);
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn a_window_takes_one_client_with_one_queue_pair_and_says_so_to_others() {
    let (_world, node) = World::new(RdmaStrategy::Window);
    let mut served = Served::start(&node);
    assert_eq!(served.strategy, Some(json!("window")));
    let refused = |served: &mut Served, told: &Value| {
        let told = told.as_str().unwrap().to_owned();
        for part in ["MC_NUM_QP_PER_EP=1", "--rdma-strategy region"] {
            assert!(told.contains(part), "{part} in {told}");
        }
        let event = served.event("refused");
        assert!(
            event["message"]
                .as_str()
                .unwrap()
                .contains("MC_NUM_QP_PER_EP=1"),
            "{event}"
        );
    };
    // A client with two queue pairs does not take one.
    let two = Client::new();
    let mut waits = served.send(&frame(METADATA, two.descriptor().to_string().as_bytes()));
    two.answer(|mut message| {
        assert_eq!(message["qp_num"], json!([17]));
        message["reply_msg"] = "QP count mismatch".into();
        message
    });
    assert!(receive(&mut waits).is_none(), "there is no key for it");
    let told = served.event("refused")["message"].clone();
    assert!(
        told.as_str().unwrap().contains("QP count mismatch"),
        "{told}"
    );
    assert!(
        told.as_str().unwrap().contains("MC_NUM_QP_PER_EP=1"),
        "{told}"
    );
    // One with one gets in, and may open the segment again.
    let one = Client::new();
    let mut waits = served.send(&frame(METADATA, one.descriptor().to_string().as_bytes()));
    one.answer(|message| one.message(message["local_nic_path"].as_str().unwrap(), &[101]));
    assert_eq!(
        receive(&mut waits).unwrap().1["buffers"][0]["rkey"],
        json!([KEY])
    );
    assert_eq!(served.event("connected")["client"], one.path());
    let segment = one.open(&served);
    assert_eq!(
        one.connect(&served, &segment, &[101])["qp_num"],
        json!([17])
    );
    // Another one, and the same one with another queue pair, do not.
    let other = Client::new();
    other.open(&served);
    let answer = other.connect(&served, &segment, &[201]);
    refused(&mut served, &answer["reply_msg"]);
    let answer = one.connect(&served, &segment, &[102]);
    refused(&mut served, &answer["reply_msg"]);
    assert_eq!(changes(&node), ["bind [101]"]);
    served.signal();
    one.is_kicked(&segment);
    served.event("kicked");
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn the_first_line_has_the_path_mtu_that_holds() {
    for (asked, told) in [("512", 512), ("4096", 1024)] {
        let (_world, node) = World::new(RdmaStrategy::Region);
        let mut served = Served::start_told(&node, &format!("--mtu {asked}"), told);
        served.signal();
        served.event("ended");
        assert_eq!(served.finish().status.code(), Some(0));
    }
}
