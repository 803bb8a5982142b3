//! `perftest`: the handshake of its clients, and the leases of their queue pairs.

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::{Shutdown, TcpStream},
    process::{Child, ChildStderr, ChildStdout, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use fabricbios_wire::{
    EndCause, LeaseAllocRequest, LeaseEnd, LeaseError, LeaseId, LeasePhase, MemTerms, RdmaPeer,
    RefusalClass, Reply, Request, Transport,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    command,
    common::{FakeNode, granted, lease, rdma, refuse},
};

const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:";

/// `fabricctl --json perftest`, and its events.
struct Serving {
    child: Child,
    address: String,
    events: Lines<BufReader<ChildStdout>>,
    failures: Lines<BufReader<ChildStderr>>,
}

impl Serving {
    fn start(node: &FakeNode, flags: &str) -> Self {
        let line = format!("--json perftest --listen 127.0.0.1:0 {flags}");
        let mut command = command(node, &line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
        let failures = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = next(&mut events);
        assert_eq!(listening["event"], "listening");
        Self {
            address: listening["address"].as_str().unwrap().to_owned(),
            child,
            events,
            failures,
        }
    }

    fn client(&self) -> Client {
        Client(TcpStream::connect(&self.address).unwrap())
    }

    /// The next event, which is of this client.
    fn event(&mut self, client: &Client) -> Value {
        let event = next(&mut self.events);
        assert_eq!(event["client"], client.name(), "{event}");
        event
    }

    /// The message of the next failure, which names this client.
    fn failure(&mut self, client: &Client) -> String {
        let failure = next(&mut self.failures);
        let message = failure["message"].as_str().unwrap();
        let of_client = format!("client {}: ", client.name());
        message.strip_prefix(&of_client).unwrap().to_owned()
    }

    fn stop(&mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn next(lines: &mut Lines<impl BufRead>) -> Value {
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

/// A perftest client, which sends a message and waits for the answer.
struct Client(TcpStream);

impl Client {
    fn name(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    fn ask(&mut self, message: &[u8]) -> Vec<u8> {
        self.0.write_all(message).unwrap();
        let mut answer = vec![0; message.len()];
        self.0.read_exact(&mut answer).unwrap();
        answer
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Whether the server closes the connection, and without another byte.
    fn is_closed(&mut self) -> bool {
        // Bytes of the client that were not read make it a reset.
        self.0.read(&mut [0]).map_or(true, |bytes| bytes == 0)
    }

    fn open(&mut self) {
        let version = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
        for message in [&version[..], &[0, 0, 16, 0], &[0, 0, 0, 64], b"3\0"] {
            assert_eq!(self.ask(message), message);
        }
    }

    /// Sends the lines of these queue pairs until the run; returns the first answers.
    fn name_pairs(&mut self, qpns: &[u32]) -> Vec<String> {
        let mut ask = |qpn: &u32| String::from_utf8(self.ask(&line(*qpn))).unwrap();
        let first: Vec<String> = qpns.iter().map(&mut ask).collect();
        let again: Vec<String> = qpns.iter().map(&mut ask).collect();
        assert_eq!(first, again);
        assert_eq!(ask(&qpns[0]), first[0]);
        first
    }

    /// Reports the run and says goodbye as ib_write_bw does.
    fn finish(&mut self, qpn: u32) {
        self.ask(&line(qpn));
        for _ in 0..5 {
            assert_eq!(self.ask(&1.5_f64.to_be_bytes()), [0; 8]);
        }
        self.ask(&line(qpn));
    }
}

fn line(qpn: u32) -> Vec<u8> {
    format!("0000:0010:{qpn:06x}:00abcd:00000dd7:00007f1a2b3c4000:{GID}00000000:\0").into_bytes()
}

/// A node whose leases have the numbers 1, 2, … and are over from the time on that `over` is set.
fn node(over: &Arc<AtomicBool>) -> FakeNode {
    let over = Arc::clone(over);
    let leases = AtomicU64::new(0);
    FakeNode::start(move |request: &Request| {
        let mut info = match request {
            Request::LeaseAlloc(alloc) => {
                let mut info = granted(alloc);
                info.lease_id = LeaseId((leases.fetch_add(1, Ordering::Relaxed) + 1).into());
                return Ok(Reply::Lease(info));
            }
            _ => lease(60_000),
        };
        let (phase, cause) = match request {
            Request::LeaseQuery(_) if over.load(Ordering::Relaxed) => {
                (LeasePhase::Expired, EndCause::Expired)
            }
            Request::LeaseQuery(_) => return Ok(Reply::Lease(info)),
            Request::LeaseFree(_) => (LeasePhase::Freed, EndCause::Freed),
            other => panic!("{other:?}"),
        };
        info.phase = phase;
        info.end = Some(Arc::new(LeaseEnd {
            at_unix_ms: 1_800_000_031_000,
            cause,
            by: None,
            proof: Vec::new(),
            cleaning: Vec::new(),
        }));
        Ok(Reply::Lease(info))
    })
}

fn allocs(node: &FakeNode) -> Vec<LeaseAllocRequest> {
    let asked = node.asked().into_iter();
    let alloc = |request| match request {
        Request::LeaseAlloc(alloc) => Some(alloc),
        _ => None,
    };
    asked.filter_map(alloc).collect()
}

fn freed(node: &FakeNode) -> Vec<u128> {
    let asked = node.asked().into_iter();
    let free = |request| match request {
        Request::LeaseFree(LeaseId(id)) => Some(id),
        _ => None,
    };
    asked.filter_map(free).collect()
}

#[test]
fn each_queue_pair_of_a_client_gets_a_lease_until_the_client_goes() {
    let node = node(&Arc::default());
    let mut serving = Serving::start(&node, "--bytes 1MiB --secs 7");
    let mut client = serving.client();
    client.open();
    let answers = client.name_pairs(&[21, 22]);
    let rdma = rdma();
    let expected = format!(
        "0000:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
        rdma.max_rd_atomic.min(16),
        rdma.qp_num,
        rdma.psn,
        rdma.rkey.unwrap(),
        rdma.remote_addr
    );
    assert!(answers[0].starts_with(&expected), "{answers:?}, {expected}");
    client.finish(21);
    for (qpn, lease) in [(21, 1), (22, 2)] {
        let event = serving.event(&client);
        assert_eq!(
            (&event["event"], &event["qp_num"]),
            (&"leased".into(), &qpn.into())
        );
        assert_eq!(event["lease_id"], LeaseId(lease).to_string());
        assert!(event["expires_at_unix_ms"].is_u64(), "{event}");
    }
    client.send(b"done\0");
    client.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(serving.event(&client)["event"], "done");
    assert_eq!(freed(&node), [1, 2]);
    let alloc = &allocs(&node)[0];
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1];
    let peer = RdmaPeer {
        qpn: 21,
        gid,
        psn: 0xabcd,
        path_mtu: 1_024,
    };
    let terms = MemTerms {
        rdma_peers: vec![peer],
    };
    assert_eq!(alloc.terms, terms.into());
    assert_eq!((alloc.capacity, alloc.lease_secs), (1 << 20, 7));
    assert_eq!(alloc.transport, Transport::Rdma);
}

#[test]
fn clients_are_served_at_the_same_time_and_a_signal_ends_all_leases() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let node = node(&Arc::default());
        let mut serving = Serving::start(&node, "");
        let mut clients = [serving.client(), serving.client()];
        for (qpn, client) in (21..).zip(&mut clients) {
            client.open();
            client.name_pairs(&[qpn]);
            assert_eq!(serving.event(client)["event"], "leased");
        }
        assert!(freed(&node).is_empty());
        assert_eq!(serving.stop(signal), Some(0));
        assert!(clients.iter_mut().all(Client::is_closed));
        let mut freed = freed(&node);
        freed.sort_unstable();
        assert_eq!(freed, [1, 2]);
    }
}

#[test]
fn a_lease_that_ends_before_its_client_is_told() {
    let over = Arc::new(AtomicBool::new(false));
    let node = node(&over);
    let mut serving = Serving::start(&node, "");
    let mut stays = serving.client();
    stays.open();
    stays.name_pairs(&[21]);
    let mut fails = serving.client();
    fails.open();
    fails.name_pairs(&[22]);
    next(&mut serving.events);
    next(&mut serving.events);
    over.store(true, Ordering::Relaxed);
    // A client whose access has ended goes by itself.
    fails.0.shutdown(Shutdown::Both).unwrap();
    assert!(stays.is_closed());
    let mut events = [next(&mut serving.events), next(&mut serving.events)];
    events.sort_by_key(|event| event["lease_id"].to_string());
    for (event, client) in events.iter().zip([&stays, &fails]) {
        assert_eq!(event["event"], "over");
        assert_eq!(
            (&event["client"], &event["message"]),
            (&client.name().into(), &"expired".into())
        );
    }
    assert!(freed(&node).is_empty());
}

#[test]
fn a_client_that_leaves_its_run_gives_its_lease_back() {
    let node = node(&Arc::default());
    let mut serving = Serving::start(&node, "");
    let mut client = serving.client();
    client.open();
    client.name_pairs(&[21]);
    assert_eq!(serving.event(&client)["event"], "leased");
    client.0.shutdown(Shutdown::Both).unwrap();
    assert_eq!(serving.event(&client)["event"], "left");
    assert_eq!(freed(&node), [1]);
}

#[test]
fn what_is_no_perftest_client_is_named_and_the_others_go_on() {
    let node = node(&Arc::default());
    let mut serving = Serving::start(&node, "");
    let mut good = serving.client();
    good.open();
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no perftest client"),
        (&[b'7'; 100_000], "no perftest client"),
        (b"6.06\0\0\0", "7 bytes into a message"),
        (b"", "before it named a queue pair"),
    ];
    for (bytes, why) in cases {
        let mut bad = serving.client();
        bad.0.write_all(bytes).ok();
        bad.0.shutdown(Shutdown::Write).ok();
        let message = serving.failure(&bad);
        assert!(message.contains(why), "{message}");
        assert!(bad.is_closed());
    }
    let mut half = serving.client();
    half.open();
    half.name_pairs(&[22]);
    half.send(&line(22)[..50]);
    half.0.shutdown(Shutdown::Write).unwrap();
    assert!(serving.failure(&half).contains("50 bytes into a message"));
    assert_eq!(freed(&node), [1], "its lease is given back");
    good.name_pairs(&[21]);
    good.finish(21);
}

#[test]
fn a_refusal_of_the_node_and_another_mtu_end_one_client_only() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) if alloc.terms.rdma_peers()[0].qpn == 21 => {
            let why = "the tenant has 4 leases, which is its limit";
            refuse(LeaseError::CapacityExceeded, RefusalClass::Policy, why)
        }
        Request::LeaseAlloc(alloc) => {
            let mut info = granted(alloc);
            info.binding.rdma_mut().unwrap().path_mtu = 512;
            Ok(Reply::Lease(info))
        }
        _ => Ok(Reply::Lease(lease(60_000))),
    });
    let mut serving = Serving::start(&node, "");
    for (qpn, why) in [(21, "the tenant has 4 leases"), (22, "give it -m 512")] {
        let mut client = serving.client();
        client.open();
        client.send(&line(qpn));
        assert!(client.is_closed());
        let message = serving.failure(&client);
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(freed(&node).len(), 1, "the lease with the other MTU");
    assert_eq!(serving.stop(Signal::SIGTERM), Some(0));
}

#[test]
fn an_address_that_is_taken_or_none_is_told_before_anything_is_leased() {
    let node = node(&Arc::default());
    let serving = Serving::start(&node, "");
    let taken = format!("perftest --listen {}", serving.address);
    let (status, line) = crate::line_of(&node, &taken);
    assert_eq!(status, 1);
    assert!(line.contains("cannot listen on 127.0.0.1:"), "{line}");
    let (status, line) = crate::line_of(&node, "perftest --listen 18515");
    assert_eq!(status, 2);
    assert!(line.contains("write ADDR:PORT"), "{line}");
}
