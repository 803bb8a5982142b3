//! A second process that serves one lease and is killed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};

use fabricbios_wire::{RdmaBinding, RdmaPeer};

use super::{Lab, binding_id, pages};

const MARK: &str = "FABRICBIOS_LAB_CHILD";

/// Starts this test binary again as a server of one lease, bound to `peer`.
pub(crate) fn serve_in_child(peer: RdmaPeer, like: &RdmaBinding) -> (Child, RdmaBinding) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "lives::crash::serves_one_lease_as_a_child",
            "--include-ignored",
            "--nocapture",
        ])
        .env(MARK, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.as_mut().unwrap();
    writeln!(input, "{} {}", peer.qpn, peer.psn).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines
        .map(Result::unwrap)
        .find(|line| line.contains("bound: "))
        .unwrap();
    let (_, numbers) = line.split_once("bound: ").unwrap();
    let numbers: Vec<u64> = numbers
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let binding = RdmaBinding {
        rkey: Some(numbers[0] as u32),
        remote_addr: numbers[1],
        qp_num: numbers[2] as u32,
        psn: numbers[3] as u32,
        ..like.clone()
    };
    (child, binding)
}

/// The part of the child process; does nothing in the parent.
pub(crate) fn serve() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let lab = Lab::open();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let (qpn, psn) = line.trim().split_once(' ').unwrap();
    let peer = RdmaPeer {
        qpn: qpn.parse().unwrap(),
        psn: psn.parse().unwrap(),
        gid: lab.rdma.inventory().gid,
        path_mtu: 0,
    };
    let rdma = lab
        .bind(binding_id(1, 1), pages(0, 16), Some(peer))
        .unwrap();
    lab.backend.rotate(binding_id(1, 1)).unwrap();
    println!(
        "bound: {} {} {} {}",
        rdma.rkey.unwrap(),
        rdma.remote_addr,
        rdma.qp_num,
        rdma.psn
    );
    // Waits until the parent kills this process or ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
