//! What is no client, or a bad one, and addresses that do not work.

use super::*;

#[test]
fn whatever_comes_instead_of_a_message_has_a_line_and_disturbs_nobody() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let client = Client::new();
    let segment = client.open(&served);
    let deep = [b"[".repeat(500_000), b"]".repeat(500_000)].concat();
    let long = frame(METADATA, &vec![b' '; 10_000_000]);
    let name = json!({ "name": "x\u{1b}[2J", "devices": [] }).to_string();
    let bad: [(&[u8], &str); 9] = [
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "no message of Mooncake",
        ),
        (&u64::MAX.to_le_bytes(), "18446744073709551615"),
        (&long[..9], "10000001"),
        (&frame(9, b"{}"), "type 9"),
        (&frame(METADATA, b"{}"), "name"),
        (&frame(CONNECTION, b"nonsense"), "0.3.13"),
        (&frame(METADATA, &deep), "invalid type"),
        (&frame(METADATA, name.as_bytes()), "control characters"),
        (&frame(METADATA, b"{\"na")[..11], "after 2 of 4 bytes"),
    ];
    for (bytes, part) in bad {
        let mut stream = served.send(bytes);
        stream.shutdown(Shutdown::Write).ok();
        assert_eq!(receive(&mut stream), None, "{part}");
        let why = served.event("refused")["message"].clone();
        assert!(why.as_str().unwrap().contains(part), "{part} in {why}");
    }
    let cases = [
        (&segment[..], vec![], "this one has 0"),
        (&segment, (1..=9).collect(), "this one has 9"),
        (
            "127.0.0.1:1@lease-of-before",
            vec![7],
            "open the segment first, or again",
        ),
    ];
    for (segment, qp_num, part) in cases {
        let answer = served
            .ask(CONNECTION, &client.message(segment, &qp_num))
            .unwrap();
        assert!(
            answer["reply_msg"].as_str().unwrap().contains(part),
            "{answer}"
        );
        assert_eq!(served.event("refused")["message"], answer["reply_msg"]);
    }
    assert_eq!(
        served.ask(3, &json!({})).unwrap(),
        json!({ "status": "success" })
    );
    assert!(
        served
            .ask(2, &json!({ "name": "x", "notify_msg": "y" }))
            .is_some()
    );
    // Beside one that sends nothing.
    let silent = served.send(b"");
    assert_eq!(client.join(&mut served, &[101, 102]), json!([17, 18]));
    drop(silent);
    served.event("refused");
    served.signal();
    client.is_kicked(&segment);
    served.event("kicked");
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn a_client_that_never_answers_the_end_of_the_lease_has_a_line() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let client = Client::new();
    client.join(&mut served, &[101, 102]);
    served.signal();
    // It takes the connection and says nothing.
    let held = client.listener.accept().unwrap();
    let event = served.event("not_kicked");
    assert_eq!(event["client"], client.path());
    assert!(
        event["message"].as_str().unwrap().contains("in time"),
        "{event}"
    );
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
    drop(held);
}

#[test]
fn clients_beyond_those_that_are_answered_at_once_are_refused_until_others_have_gone() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let mut served = Served::start(&node);
    let silent: Vec<TcpStream> = (0..64).map(|_| served.send(b"")).collect();
    let client = Client::new();
    assert!(receive(&mut served.send(b"")).is_none());
    let why = served.event("refused")["message"].clone();
    assert!(why.as_str().unwrap().contains("64 others"), "{why}");
    drop(silent);
    for _ in 0..64 {
        served.event("refused");
    }
    client.join(&mut served, &[101]);
    served.signal();
    drop(client);
    served.event("left");
    served.event("ended");
    assert_eq!(served.finish().status.code(), Some(0));
}

#[test]
fn addresses_that_do_not_work_cost_no_lease() {
    let (_world, node) = World::new(RdmaStrategy::Region);
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let serving = |address: &str| format!("mooncake --bytes 1MiB --secs 60 --listen {address}");
    let (status, object) = fails(&node, &serving("0.0.0.0:0"));
    assert_eq!(status, 2);
    assert!(
        object["message"]
            .as_str()
            .unwrap()
            .contains("name one address"),
        "{object}"
    );
    let (status, line) = line_of(&node, &serving(&taken));
    assert_eq!(status, 1);
    assert!(line.contains(&taken) && line.contains("in use"), "{line}");
    drop(held);
    assert!(node.asked().is_empty(), "{:?}", node.asked());
    let output = crate::run(&node, &format!("--json {}", serving("localhost")));
    assert_eq!(failure(&output).0, 2);
}
