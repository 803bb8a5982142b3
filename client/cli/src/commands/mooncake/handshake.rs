//! What a message of the handshake leads to. No sockets, no requests: a message and the state of the segment go in, a
//! decision comes out.

use std::net::SocketAddr;

use fabricbios_wire::{LeaseId, LeaseInfo, RDMA_PEERS_MAX, RdmaBinding, RdmaPeer};

use super::{
    messages::{Buffer, Descriptor, Device, Priorities, QueuePairs},
    names::raw_gid,
};
use crate::gid;

/// Why a client of a window cannot get in.
pub(super) const ONE_QUEUE_PAIR: &str = "the key of this lease belongs to one queue pair, so that it has one client with \
    MC_NUM_QP_PER_EP=1, which opens the segment once; a node with --rdma-strategy region takes several clients as they are";

/// The lease as the clients see it.
pub(super) struct Segment {
    /// `ADDR:PORT`, the name that clients open.
    pub(super) name: String,
    /// The only device. Named after the lease: a client that has opened an earlier lease at this address is refused.
    device: String,
    /// The path MTU of the clients; 0: that of the node.
    mtu: u16,
    clients: Vec<Client>,
}

/// A client whose queue pairs are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// `ADDR:PORT@DEVICE`.
    pub(super) path: String,
    /// Where it listens, or why it cannot be called there.
    pub(super) listener: Result<SocketAddr, String>,
    /// Its queue pairs, in its order.
    pub(super) theirs: Vec<u32>,
    /// Those of the node, in the same order.
    pub(super) ours: Vec<u32>,
}

/// What to do for a client that names its queue pairs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// They are connected: give the same answer again.
    Repeat(Vec<u32>),
    /// Connect these. If the client was connected before, its old queue pairs leave afterwards.
    Connect(Vec<RdmaPeer>),
}

impl Segment {
    pub(super) fn new(name: SocketAddr, lease: LeaseId, mtu: u16) -> Self {
        Self {
            name: name.to_string(),
            device: format!("lease-{lease}"),
            mtu,
            clients: Vec::new(),
        }
    }

    pub(super) fn path(&self) -> String {
        format!("{}@{}", self.name, self.device)
    }

    pub(super) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// What a client gets when it opens the segment; `None` while the lease has no key.
    pub(super) fn descriptor(&self, info: &LeaseInfo) -> Option<Descriptor<'_>> {
        let rdma = info.binding.rdma()?;
        let rkey = rdma.rkey.or(rdma.prepared_rkey)?;
        let device = &*self.device;
        Some(Descriptor {
            name: &self.name,
            protocol: "rdma",
            tcp_data_port: 0,
            devices: [Device {
                name: device,
                lid: 0,
                gid: raw_gid(rdma.gid),
            }],
            buffers: [Buffer {
                name: "cpu:0",
                addr: rdma.remote_addr,
                length: info.binding.limits.map_or(info.capacity, |it| it.length),
                rkey: [rkey],
                lkey: [0],
            }],
            priority_matrix: Priorities {
                place: (vec![device], Vec::new()),
            },
        })
    }

    /// Decides about queue pairs. `takes_more`: whether the lease's key serves further ones.
    ///
    /// # Errors
    /// The refusal, for the client and for people.
    pub(super) fn step(&self, asks: &QueuePairs, takes_more: bool) -> Result<Step, String> {
        if asks.peer_nic_path != self.path() {
            return Err(format!(
                "the queue pairs are for {:.80}, and this segment is {}: open the segment first, or again",
                asks.peer_nic_path,
                self.path()
            ));
        }
        let known = self
            .clients
            .iter()
            .find(|it| it.path == asks.local_nic_path);
        match known.filter(|it| it.theirs == asks.qp_num) {
            Some(client) => return Ok(Step::Repeat(client.ours.clone())),
            None if asks.ready_ack => {
                return Err("the client confirms queue pairs that were not connected".to_owned());
            }
            None if !takes_more => return Err(ONE_QUEUE_PAIR.to_owned()),
            None => {}
        }
        self.peers(asks).map(Step::Connect)
    }

    /// The queue pairs of a message, as the node wants them. Clients send with the PSN 0.
    pub(super) fn peers(&self, asks: &QueuePairs) -> Result<Vec<RdmaPeer>, String> {
        let count = asks.qp_num.len();
        if !(1..=RDMA_PEERS_MAX).contains(&count) {
            return Err(format!(
                "a client has 1 to {RDMA_PEERS_MAX} queue pairs, and this one has {count}: set MC_NUM_QP_PER_EP"
            ));
        }
        if let Some(wrong) = asks.qp_num.iter().find(|it| !(1..1 << 24).contains(*it)) {
            return Err(format!("no queue pair has the number {wrong}"));
        }
        let gid = gid::parse(&asks.local_gid)
            .map_err(|_no_gid| format!("the client's GID {:.80?} is none", asks.local_gid))?;
        let peer = |qpn: &u32| RdmaPeer {
            qpn: *qpn,
            psn: 0,
            gid,
            path_mtu: self.mtu,
        };
        Ok(asks.qp_num.iter().map(peer).collect())
    }

    /// Takes a client whose queue pairs were connected; returns the node's queue pairs of its earlier connection.
    pub(super) fn connected(&mut self, client: Client) -> Vec<u32> {
        let old = self.left(&client.path);
        self.clients.push(client);
        old
    }

    /// Forgets a client; returns the node's queue pairs of it.
    pub(super) fn left(&mut self, path: &str) -> Vec<u32> {
        let at = self.clients.iter().position(|it| it.path == path);
        at.map_or_else(Vec::new, |at| self.clients.remove(at).ours)
    }

    /// A message about the node's queue pairs `ours` to the client `path`; with `why`, a refusal.
    pub(super) fn message(
        &self,
        rdma: &RdmaBinding,
        path: &str,
        ours: &[u32],
        why: &str,
    ) -> QueuePairs {
        QueuePairs {
            local_nic_path: self.path(),
            local_lid: 0,
            local_gid: raw_gid(rdma.gid),
            peer_nic_path: path.to_owned(),
            qp_num: ours.to_vec(),
            reply_msg: why.to_owned(),
            ready_ack: false,
        }
    }
}

/// The node's queue pairs that a request has just connected: the last `count` of the lease.
pub(super) fn newest(rdma: &RdmaBinding, count: usize) -> Option<Vec<u32>> {
    let all = std::iter::once(rdma.qp_num).chain(rdma.further.iter().map(|it| it.qp_num));
    let all: Vec<u32> = all.filter(|number| *number != 0).collect();
    let from = all.len().checked_sub(count)?;
    Some(all[from..].to_vec())
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{RdmaQueuePair, RdmaStrategy};

    use super::*;

    const CLIENT: &str = "10.0.0.2:15001@mlx5_0";

    fn segment() -> Segment {
        Segment::new(([127, 0, 0, 1], 17_100).into(), LeaseId(7), 1_024)
    }

    fn asks(segment: &Segment, qp_num: &[u32]) -> QueuePairs {
        QueuePairs {
            local_nic_path: CLIENT.to_owned(),
            local_lid: 0,
            local_gid: "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02".to_owned(),
            peer_nic_path: segment.path(),
            qp_num: qp_num.to_vec(),
            reply_msg: String::new(),
            ready_ack: false,
        }
    }

    fn client(theirs: &[u32], ours: &[u32]) -> Client {
        Client {
            path: CLIENT.to_owned(),
            listener: Err(String::new()),
            theirs: theirs.to_vec(),
            ours: ours.to_vec(),
        }
    }

    #[test]
    fn queue_pairs_are_connected_with_the_psn_of_mooncake_and_the_mtu_of_the_command() {
        let segment = segment();
        let Ok(Step::Connect(peers)) = segment.step(&asks(&segment, &[17, 18]), true) else {
            panic!("refused");
        };
        let told: Vec<_> = peers
            .iter()
            .map(|it| (it.qpn, it.psn, it.path_mtu))
            .collect();
        assert_eq!(told, [(17, 0, 1_024), (18, 0, 1_024)]);
        assert_eq!(peers[0].gid[10..], [255, 255, 10, 0, 0, 2]);
    }

    #[test]
    fn a_client_that_asks_twice_gets_one_answer_and_one_that_reconnects_loses_its_old_queue_pairs()
    {
        let mut segment = segment();
        assert!(segment.connected(client(&[17, 18], &[30, 31])).is_empty());
        let again = segment.step(&asks(&segment, &[17, 18]), true);
        assert_eq!(again, Ok(Step::Repeat(vec![30, 31])));
        let new = segment.step(&asks(&segment, &[19, 20]), true);
        assert!(matches!(new, Ok(Step::Connect(_))), "{new:?}");
        assert_eq!(segment.connected(client(&[19, 20], &[32, 33])), [30, 31]);
        assert_eq!(segment.clients().len(), 1);
    }

    #[test]
    fn refusals_say_what_to_do() {
        let mut segment = segment();
        segment.connected(client(&[17], &[30]));
        let refused = |change: fn(&mut QueuePairs), takes_more| {
            let mut asks = asks(&segment, &[40]);
            change(&mut asks);
            segment.step(&asks, takes_more).unwrap_err()
        };
        let cases = [
            (refused(|it| it.qp_num.clear(), true), "this one has 0"),
            (
                refused(|it| it.qp_num = (1..10).collect(), true),
                "this one has 9",
            ),
            (refused(|it| it.qp_num = vec![0], true), "the number 0"),
            (refused(|it| it.qp_num = vec![1 << 24], true), "16777216"),
            (refused(|it| it.local_gid.clear(), true), "GID"),
            (
                refused(|it| it.peer_nic_path = "x:1@y".into(), true),
                "open the segment first",
            ),
            (refused(|it| it.ready_ack = true, true), "not connected"),
            (refused(|_| (), false), "MC_NUM_QP_PER_EP=1"),
            (refused(|_| (), false), "--rdma-strategy region"),
        ];
        for (error, part) in cases {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn the_queue_pairs_that_joined_are_the_last_ones() {
        let mut rdma = RdmaBinding {
            rkey: Some(1),
            remote_addr: 0,
            qp_num: 30,
            gid: [0; 16],
            port: 1,
            psn: 0,
            path_mtu: 1_024,
            strategy: RdmaStrategy::Region,
            previous: None,
            max_rd_atomic: 16,
            atomics: false,
            further: [31, 32]
                .map(|qp_num| RdmaQueuePair {
                    qp_num,
                    psn: 0,
                    rkey: 1,
                })
                .to_vec(),
            prepared_rkey: None,
            attach: None,
        };
        assert_eq!(newest(&rdma, 2), Some(vec![31, 32]));
        assert_eq!(newest(&rdma, 3), Some(vec![30, 31, 32]));
        assert_eq!(newest(&rdma, 4), None);
        (rdma.qp_num, rdma.further) = (0, Vec::new());
        assert_eq!(newest(&rdma, 1), None);
    }
}
