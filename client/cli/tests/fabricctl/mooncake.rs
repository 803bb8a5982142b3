//! `mooncake`: a lease as a segment of Mooncake's Transfer Engine.

mod bad_input;
mod lives;

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
            attach: None,
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
                info.end = Some(Arc::new(LeaseEnd {
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
        Self::start_told(node, more, 1024)
    }

    /// `path_mtu`: what the first line says.
    fn start_told(node: &FakeNode, more: &str, path_mtu: u16) -> Self {
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
            "expires_at_unix_ms": 1_800_000_000_100_u64, "path_mtu": path_mtu,
            "node": node.addr(), "node_id": node.id().to_string(),
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
