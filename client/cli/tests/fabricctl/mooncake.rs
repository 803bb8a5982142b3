//! `mooncake`: a lease as a segment of Mooncake's Transfer Engine.

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStdout, Output, Stdio},
    sync::{Arc, Mutex},
};

use fabricbios_wire::{
    Answer, EndCause, LeaseEnd, LeaseError, LeaseInfo, LeasePhase, LeaseStatus, PeerChange,
    RdmaBinding, RdmaQueuePair, RdmaStrategy, RefusalClass, Reply, Request, Transport,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, LEASE, lease, rdma, refuse},
    fails, failure, line_of,
};

const CONNECTION: u8 = 0;
const METADATA: u8 = 1;
const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02";
const KEY: u32 = 0x1234;

/// A node whose lease has a region with a prepared key, or a window.
#[derive(Clone)]
struct World(Arc<Mutex<State>>);

struct State {
    rdma: RdmaBinding,
    /// The next queue pair of the node.
    next: u32,
    ended: Option<(LeasePhase, EndCause)>,
    /// Requests that change queue pairs are refused: the lease has just expired.
    refuses: bool,
    renewed: bool,
}

impl World {
    fn new(strategy: RdmaStrategy) -> (Self, FakeNode) {
        let rdma = RdmaBinding {
            rkey: None,
            prepared_rkey: (strategy == RdmaStrategy::Region).then_some(KEY),
            strategy,
            ..rdma()
        };
        let state = State {
            next: rdma.qp_num,
            rdma,
            ended: None,
            refuses: false,
            renewed: false,
        };
        let world = Self(Arc::new(Mutex::new(state)));
        let answers = world.clone();
        let node = FakeNode::start(move |request: &Request| answers.answer(request));
        (world, node)
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.0.lock().unwrap();
        match request {
            Request::LeaseAlloc(alloc) => assert_eq!(alloc.transport, Transport::Rdma),
            Request::LeaseBind { .. } | Request::LeasePeers { .. } if state.refuses => {
                let why = "lease 1 has expired";
                return refuse(LeaseError::Expired, RefusalClass::Permanent, why);
            }
            Request::LeaseBind { peers, .. } => {
                (state.rdma.qp_num, state.rdma.further) = (0, Vec::new());
                peers.iter().for_each(|_| state.join());
            }
            Request::LeasePeers { change, .. } => match change {
                PeerChange::Add(peers) => peers.iter().for_each(|_| state.join()),
                PeerChange::Remove(numbers) => state.leave(numbers),
            },
            Request::LeaseFree(_) => state.ended = Some((LeasePhase::Freed, EndCause::Freed)),
            Request::LeaseQuery(_) => {}
            Request::LeaseRenew { lease_secs: 60, .. } => state.renewed = true,
            other => panic!("{other:?}"),
        }
        let mut info = state.info();
        if matches!(request, Request::LeaseAlloc(_)) {
            info.effective.transport = Some(Transport::Rdma);
        }
        Ok(Reply::Lease(info))
    }

    fn end(&self, phase: LeasePhase, cause: EndCause) {
        self.0.lock().unwrap().ended = Some((phase, cause));
    }
}

impl State {
    fn join(&mut self) {
        let (qp_num, rdma) = (self.next, &mut self.rdma);
        self.next += 1;
        (rdma.rkey, rdma.prepared_rkey) = (Some(KEY), None);
        let further = RdmaQueuePair {
            qp_num,
            psn: 5,
            rkey: KEY,
        };
        match rdma.qp_num {
            0 => rdma.qp_num = qp_num,
            _ => rdma.further.push(further),
        }
    }

    /// Only queue pairs besides the first of the lease leave in these tests, or all.
    fn leave(&mut self, numbers: &[u32]) {
        let rdma = &mut self.rdma;
        rdma.further.retain(|it| !numbers.contains(&it.qp_num));
        if numbers.contains(&rdma.qp_num) {
            let first = (!rdma.further.is_empty()).then(|| rdma.further.remove(0).qp_num);
            rdma.qp_num = first.unwrap_or(0);
        }
    }

    /// With little time left, so that the command looks often.
    fn info(&self) -> LeaseInfo {
        let mut info = lease(if self.renewed { 3_600_000 } else { 100 });
        match self.ended {
            None => info.binding.kind = fabricbios_wire::KindBinding::Mem(Some(self.rdma.clone())),
            Some((phase, cause)) => {
                (info.phase, info.remaining_ms) = (phase, 0);
                info.status = LeaseStatus::Revoked;
                info.binding.kind = fabricbios_wire::KindBinding::Mem(None);
                info.end = Some(Box::new(LeaseEnd {
                    at_unix_ms: 1,
                    cause,
                    by: None,
                    proof: Vec::new(),
                    cleaning: Vec::new(),
                }));
            }
        }
        info
    }
}

/// The running command, which ends with its test.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

struct Served {
    child: Running,
    lines: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
    strategy: Option<Value>,
}

impl Served {
    fn start(node: &FakeNode) -> Self {
        Self::start_with(node, "")
    }

    fn start_with(node: &FakeNode, more: &str) -> Self {
        let line = format!("--json mooncake --bytes 1MiB --secs 60 {more}");
        let mut command = command(node, &line);
        let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(Some(pipes.spawn().unwrap()));
        let stdout = child.0.as_mut().unwrap().stdout.take();
        let mut lines = BufReader::new(stdout.unwrap()).lines();
        let mut first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let strategy = first.as_object_mut().unwrap().remove("strategy");
        let segment = first["segment"].as_str().unwrap().to_owned();
        let expected = json!({
            "segment": segment, "lease_id": LEASE_TEXT, "bytes": 1 << 20,
            "expires_at_unix_ms": 1_800_000_000_100_u64, "path_mtu": 1024,
        });
        assert_eq!(first, expected);
        Self {
            child,
            lines,
            address: segment.parse().unwrap(),
            strategy,
        }
    }

    /// The next event, which has this name.
    fn event(&mut self, name: &str) -> Value {
        let line = self.lines.next().unwrap().unwrap();
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["event"], name, "{line}");
        event
    }

    fn signal(&self) {
        let pid = Pid::from_raw(self.child.0.as_ref().unwrap().id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
    }

    /// No further events, and how the command ended.
    fn finish(mut self) -> Output {
        assert!(self.lines.next().is_none());
        self.child.0.take().unwrap().wait_with_output().unwrap()
    }

    fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    fn ask(&self, kind: u8, message: &Value) -> Option<Value> {
        let mut stream = self.send(&frame(kind, message.to_string().as_bytes()));
        receive(&mut stream).map(|(of, answer)| {
            assert_eq!(of, kind);
            answer
        })
    }
}

fn frame(kind: u8, json: &[u8]) -> Vec<u8> {
    let length = u64::try_from(json.len() + 1).unwrap().to_le_bytes();
    [&length[..], &[kind], json].concat()
}

fn receive(stream: &mut TcpStream) -> Option<(u8, Value)> {
    let mut length = [0; 8];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u64::from_le_bytes(length).try_into().unwrap()];
    stream.read_exact(&mut body).unwrap();
    Some((body[0], serde_json::from_slice(&body[1..]).unwrap()))
}

/// A client with a listener of its own.
struct Client {
    listener: TcpListener,
    name: String,
}

impl Client {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        Self { listener, name }
    }

    fn path(&self) -> String {
        format!("{}@rxe0", self.name)
    }

    fn descriptor(&self) -> Value {
        json!({ "name": self.name, "protocol": "rdma", "devices": [{ "name": "rxe0", "lid": 0, "gid": GID }],
            "buffers": [], "of_a_later_version": { "x": [] } })
    }

    fn message(&self, segment: &str, qp_num: &[u32]) -> Value {
        json!({ "local_nic_path": self.path(), "local_lid": 0, "local_gid": GID, "peer_nic_path": segment,
            "qp_num": qp_num, "ready_ack": false, "reply_msg": "", "payload": "" })
    }

    /// Opens the segment; returns the path of its device.
    fn open(&self, served: &Served) -> String {
        let found = served.ask(METADATA, &self.descriptor()).unwrap();
        let device = found["devices"][0]["name"].as_str().unwrap();
        assert_eq!(found["protocol"], "rdma");
        assert_eq!(found["buffers"][0]["rkey"], json!([KEY]));
        assert_eq!(found["buffers"][0]["addr"], 0x7f00_0000_1000_u64);
        assert_eq!(found["buffers"][0]["length"], 1 << 20);
        assert_eq!(found["priority_matrix"], json!({ "cpu:0": [[device], []] }));
        format!("{}@{device}", found["name"].as_str().unwrap())
    }

    /// Names its queue pairs; returns the answer.
    fn connect(&self, served: &Served, segment: &str, qp_num: &[u32]) -> Value {
        let answer = served
            .ask(CONNECTION, &self.message(segment, qp_num))
            .unwrap();
        assert_eq!(answer["local_nic_path"], segment);
        assert_eq!(answer["peer_nic_path"], self.path());
        assert!(answer.get("ready_ack").is_none(), "{answer}");
        answer
    }

    /// Opens and connects; returns the node's queue pairs.
    fn join(&self, served: &mut Served, qp_num: &[u32]) -> Value {
        let segment = self.open(served);
        let mut answer = self.connect(served, &segment, qp_num);
        assert_eq!(answer["reply_msg"], "");
        let event = served.event("connected");
        assert_eq!(event["client"], self.path());
        assert_eq!(event["queue_pairs"], qp_num.len());
        answer["qp_num"].take()
    }

    /// Answers the next call of the command.
    fn answer(&self, reply: impl FnOnce(Value) -> Value) -> u8 {
        let (mut stream, _) = self.listener.accept().unwrap();
        let (kind, message) = receive(&mut stream).unwrap();
        let reply = reply(message).to_string();
        stream.write_all(&frame(kind, reply.as_bytes())).unwrap();
        kind
    }

    /// The end of the lease, as Mooncake hears of it.
    fn is_kicked(&self, segment: &str) {
        self.answer(|message| {
            assert_eq!(message["qp_num"], json!([]));
            assert_eq!(message["local_nic_path"], segment);
            assert_eq!(message["peer_nic_path"], self.path());
            self.message(segment, &[])
        });
    }
}

/// The requests that change queue pairs, in short.
fn changes(node: &FakeNode) -> Vec<String> {
    let asked = node.asked().into_iter();
    let numbers = |peers: &[fabricbios_wire::RdmaPeer]| {
        assert!(peers.iter().all(|it| it.psn == 0 && it.path_mtu == 0));
        peers.iter().map(|it| it.qpn).collect::<Vec<_>>()
    };
    asked
        .filter_map(|request| match request {
            Request::LeaseBind { peers, .. } => Some(format!("bind {:?}", numbers(&peers))),
            Request::LeasePeers { change, .. } => Some(match change {
                PeerChange::Add(peers) => format!("add {:?}", numbers(&peers)),
                PeerChange::Remove(ours) => format!("remove {ours:?}"),
            }),
            Request::LeaseFree(LEASE) => Some("free".to_owned()),
            _ => None,
        })
        .collect()
}

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
