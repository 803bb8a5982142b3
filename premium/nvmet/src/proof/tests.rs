use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use fabricbios_helper::{Handler, Supervisor};

use super::*;
use crate::{fabrics::Status, probe::AskRdma};

const ANCHOR: &str = "nqn.2020-01.org:anchor";

/// A directory in the form of configfs, with one port of this node for TCP.
struct Imitation {
    place: tempfile::TempDir,
}

impl Imitation {
    fn new(address: SocketAddr) -> Self {
        let imitation = Self {
            place: tempfile::tempdir().unwrap(),
        };
        imitation.port(1, "tcp", address);
        imitation
    }

    fn port(&self, number: u16, kind: &str, address: SocketAddr) {
        let base = format!("ports/{number}");
        for (name, value) in [
            ("trtype", kind.to_owned()),
            ("adrfam", "ipv4".to_owned()),
            ("traddr", address.ip().to_string()),
            ("trsvcid", address.port().to_string()),
        ] {
            self.file(&format!("{base}/addr_{name}"), &value);
        }
        self.file(&format!("{base}/subsystems/{ANCHOR}"), "");
    }

    fn file(&self, path: &str, text: &str) {
        let at = self.place.path().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    }

    fn case(&self, lease: u128) -> Case {
        self.case_at(lease, &[1])
    }

    fn case_at(&self, lease: u128, ports: &[u16]) -> Case {
        let subsystem = format!("nqn.2020-01.org:{lease}");
        let allowed = format!("subsystems/{subsystem}/allowed_hosts");
        fs::create_dir_all(self.place.path().join(allowed)).unwrap();
        Case {
            lease: LeaseId(lease),
            subsystem,
            ports: ports.to_vec(),
            host: None,
        }
    }

    fn proofs(&self) -> Proofs {
        Proofs::new(
            Tree::new(self.place.path()),
            ANCHOR.to_owned(),
            Prober::new(None),
        )
    }
}

/// A port for TCP that counts connections. If the subsystem's name ends in 2, the port answers that it exists; if the
/// name ends in 3, the port does not answer; otherwise the port answers that it does not exist.
fn port() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || serve(stream));
        }
    });
    (address, connections)
}

fn serve(mut stream: TcpStream) {
    let mut initialize = [0; 128];
    stream.read_exact(&mut initialize).unwrap();
    initialize[0] = 1;
    stream.write_all(&initialize).unwrap();
    let mut connect = [0; 1096];
    stream.read_exact(&mut connect).unwrap();
    let name = &connect[72 + 256..];
    let end = name.iter().position(|byte| *byte == 0).unwrap();
    let status: u16 = match name[end - 1] {
        b'2' => 0x4184,
        b'3' => return,
        _ => 0x4182,
    };
    let mut response = [5, 0, 24, 0, 24, 0, 0, 0].to_vec();
    response.resize(24, 0);
    response[22..].copy_from_slice(&(status << 1).to_le_bytes());
    stream.write_all(&response).unwrap();
}

#[test]
fn many_are_proved_in_one_round_each_asked_for_once() {
    let (address, connections) = port();
    let imitation = Imitation::new(address);
    let cases: Vec<Case> = (10..20)
        .filter(|it| !(12..=13).contains(it))
        .map(|it| imitation.case(it))
        .collect();
    for result in imitation.proofs().prove_all(&cases) {
        let answers = result.unwrap().answers;
        assert!(
            answers[0].starts_with("refused with status 0x4182 by "),
            "{answers:?}"
        );
    }
    assert_eq!(connections.load(Ordering::SeqCst), cases.len());
}

#[test]
fn a_proof_that_fails_is_one_leases_failure() {
    let (address, _) = port();
    let imitation = Imitation::new(address);
    let [good, there, mute, linked, open, late] = [1, 2, 3, 4, 5, 6].map(|it| imitation.case(it));
    imitation.file(&format!("ports/1/subsystems/{}", linked.subsystem), "");
    imitation.file(
        &format!("subsystems/{}/allowed_hosts/nqn.h", open.subsystem),
        "",
    );
    let results = imitation
        .proofs()
        .prove_all(&[good, there, mute, linked, open, late]);
    let told: Vec<String> = results
        .into_iter()
        .map(|result| result.map_or_else(|error| error.to_string(), |_| String::new()))
        .collect();
    assert_eq!((told[0].as_str(), told[5].as_str()), ("", ""));
    for (at, word) in [
        (1, "0x4184"),
        (2, "no answer"),
        (3, "still there"),
        (4, "nqn.h is still allowed"),
    ] {
        assert!(told[at].contains(word), "{}", told[at]);
    }
}

#[test]
fn a_port_that_says_nothing_proves_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let imitation = Imitation::new(closed);
    let cases = [1, 2].map(|it| imitation.case(it));
    for result in imitation.proofs().prove_all(&cases) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("nobody listens"), "{error}");
    }
}

/// A node with one port for RDMA, number 2. The port passes the test and then gives this answer. `None`: the process
/// that asks the port dies.
fn over_rdma(answer: Option<Answer>) -> (Imitation, Proofs) {
    let imitation = Imitation {
        place: tempfile::tempdir().unwrap(),
    };
    imitation.port(2, "rdma", "10.0.0.1:4420".parse().unwrap());
    let ask = Handler::by(
        move |call: AskRdma, _: &_| match &*call.question.subsystem {
            ANCHOR => Ok(status(0x4184)),
            _ => Ok(answer.clone().expect("one that dies of it")),
        },
    );
    let prober = Prober::new(Some(Supervisor::of_threads(vec![ask])));
    let tree = Tree::new(imitation.place.path());
    let proofs = Proofs::new(tree, ANCHOR.to_owned(), prober);
    (imitation, proofs)
}

fn status(number: u16) -> Answer {
    Answer::Status(Status(number))
}

#[test]
fn a_port_for_rdma_must_say_that_the_subsystem_is_gone() {
    for (answer, words) in [
        (status(0x4184), "0x4184"),
        (status(0), "0x0000"),
        (Answer::Silence("lost".to_owned()), "lost"),
        (Answer::NobodyListens, "nobody listens"),
    ] {
        let (imitation, proofs) = over_rdma(Some(answer));
        proofs.test_rdma_ports().unwrap();
        let case = imitation.case_at(1, &[2]);
        let error = proofs.prove(case).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let (imitation, proofs) = over_rdma(Some(status(0x4182)));
    proofs.test_rdma_ports().unwrap();
    let proven = proofs.prove(imitation.case_at(1, &[2])).unwrap();
    assert!(proven.answers[0].contains("0x4182"), "{proven:?}");
    assert_eq!(proven.not_asked, [""; 0]);
}

#[test]
fn a_port_that_cannot_be_asked_is_told_of_and_fails_nothing() {
    let (imitation, proofs) = over_rdma(None);
    // The port has not been tested yet.
    let proven = proofs.prove(imitation.case_at(1, &[2])).unwrap();
    assert!(
        proven.not_asked[0].contains("ports/2 (rdma 10.0.0.1 4420)"),
        "{proven:?}"
    );
    let (imitation, proofs) = over_rdma(Some(Answer::NoSuchAddress));
    proofs.test_rdma_ports().unwrap();
    let proven = proofs.prove(imitation.case_at(1, &[2])).unwrap();
    assert!(proven.not_asked[0].contains("has no device"), "{proven:?}");
}

#[test]
fn a_port_for_rdma_in_trouble_is_that_of_its_own_leases() {
    let (imitation, proofs) = over_rdma(None);
    proofs.test_rdma_ports().unwrap();
    let elsewhere = imitation.case_at(1, &[1]);
    assert_eq!(proofs.prove(elsewhere), Ok(Proven::default()));
    let unknown = imitation.case_at(2, &[]);
    assert!(proofs.prove(unknown).is_err(), "it may have been there");
}
