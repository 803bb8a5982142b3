//! Between clients and node: each message of a client becomes a request of the lease's holder, and an answer.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{LeaseId, LeaseInfo, PeerChange, RdmaBinding, RdmaPeer, Request};

use super::{
    calls::{self, Timed},
    events::Events,
    frames::{self, Kind},
    handshake::{self, Client, ONE_QUEUE_PAIR, Segment, Step},
    messages::{self, Asking, Notified, Probed, QueuePairs},
    names,
};
use crate::commands::serve::how_it_ended;

/// Most refusals that are remembered.
const TOLD_MAX: usize = 1_024;
/// How long a client may take to send its message and to take the answer.
const CLIENT_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Bridge {
    pub(super) node: Node,
    pub(super) lease_id: LeaseId,
    /// Whether the lease's key is known before queue pairs are, and serves any number of them.
    takes_more: bool,
    pub(super) events: Events,
    /// Held while queue pairs come or go. Whether the lease was ever bound.
    pub(super) turn: Mutex<bool>,
    state: Mutex<State>,
    /// Refusals that have a line: client and reason. Stock clients try again at once.
    told: Mutex<HashSet<(String, String)>>,
}

/// Locked for moments only.
pub(super) struct State {
    pub(super) segment: Segment,
    /// The last answer of the node.
    info: LeaseInfo,
    pub(super) rdma: RdmaBinding,
    /// How the lease ended.
    pub(super) ended: Option<String>,
}

impl Bridge {
    /// `None` if the lease has no RDMA.
    pub(super) fn new(
        node: &Node,
        info: &LeaseInfo,
        segment: Segment,
        events: Events,
    ) -> Option<Self> {
        let rdma = info.binding.rdma()?.clone();
        Some(Self {
            node: node.clone(),
            lease_id: info.lease_id,
            takes_more: rdma.prepared_rkey.is_some(),
            events,
            turn: Mutex::new(false),
            state: Mutex::new(State {
                segment,
                info: info.clone(),
                rdma,
                ended: None,
            }),
            told: Mutex::default(),
        })
    }

    /// Reads the message of a client and answers it.
    pub(super) fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let mut stream = Timed::new(stream, CLIENT_WITHIN);
        let done = frames::read(&mut stream).and_then(|(kind, json)| match kind {
            Kind::Connection => self.connection(&mut stream, &json, peer.ip()),
            Kind::Metadata => self.metadata(&mut stream, &json, peer.ip()),
            Kind::Notify => stream.send(&frames::frame(
                kind,
                &Notified {
                    name: "",
                    notify_msg: "no program reads notifications of leased memory",
                },
            )?),
            Kind::Probe => {
                let status = "success".to_owned();
                stream.send(&frames::frame(kind, &Probed { status })?)
            }
        });
        if let Err(why) = done {
            self.refused(&peer.to_string(), &why);
        }
    }

    /// A client opens the segment. A lease whose key serves one queue pair asks the client for that first.
    fn metadata(&self, stream: &mut Timed, json: &[u8], from: IpAddr) -> Result<(), String> {
        let asking: Asking = messages::parse(json)?;
        names::check_name(&asking.name)?;
        let frame = {
            let mut was_bound = locked(&self.turn);
            self.ask(Request::LeaseQuery(self.lease_id))?;
            if !self.takes_more && !*was_bound {
                self.call_first(&asking, from, &mut was_bound)?;
            }
            let state = self.state();
            let descriptor = state.segment.descriptor(&state.info);
            frames::frame(Kind::Metadata, &descriptor.ok_or("the lease has no key")?)?
        };
        stream.send(&frame)
    }

    /// Calls the client back while it waits for the descriptor, so that the lease has a key.
    fn call_first(
        &self,
        asking: &Asking,
        from: IpAddr,
        was_bound: &mut bool,
    ) -> Result<(), String> {
        let device = asking.devices.first().map(|it| &*it.name);
        let device = device.ok_or("the client has no RDMA device")?;
        let path = format!("{}@{device}", asking.name);
        names::check_name(&path)?;
        let listener = names::listener(&path, from, is_of_this_machine)?;
        let message = {
            let State { segment, rdma, .. } = &*self.state();
            segment.message(rdma, &path, &[rdma.qp_num], "")
        };
        let answer: QueuePairs = calls::call(listener, Kind::Connection, &message)?;
        if !answer.reply_msg.is_empty() {
            let why = &answer.reply_msg;
            return Err(format!(
                "{path} does not take one queue pair ({why:.200}): {ONE_QUEUE_PAIR}"
            ));
        }
        let peers = self.state().segment.peers(&answer)?;
        if peers.len() != 1 {
            return Err(format!(
                "{path} has {} queue pairs: {ONE_QUEUE_PAIR}",
                peers.len()
            ));
        }
        let ours = self.join(peers, was_bound)?;
        if ours != message.qp_num {
            return Err("the node has connected another queue pair than the lease had".to_owned());
        }
        self.connected(Client {
            path,
            listener: Ok(listener),
            theirs: answer.qp_num,
            ours,
        })?;
        Ok(())
    }

    /// A client names its queue pairs.
    fn connection(&self, stream: &mut Timed, json: &[u8], from: IpAddr) -> Result<(), String> {
        let asks: QueuePairs = messages::parse(json)?;
        let path = &*asks.local_nic_path;
        names::check_name(path)?;
        let connected = self.connect(&asks, from);
        let (ours, why) = match &connected {
            Ok((ours, _)) => (&ours[..], ""),
            Err(why) => (&[][..], &**why),
        };
        let message = {
            let State { segment, rdma, .. } = &*self.state();
            segment.message(rdma, path, ours, why)
        };
        let sent = stream.send(&frames::frame(Kind::Connection, &message)?);
        match connected {
            Ok((_, None)) => {}
            Ok((_, Some(old))) => {
                self.cut(path, old);
                self.forget_the_ended(path);
            }
            Err(why) => self.refused(path, &why),
        }
        sent
    }

    /// Returns the node's queue pairs and, if they were connected just now, the old ones of the client.
    fn connect(
        &self,
        asks: &QueuePairs,
        from: IpAddr,
    ) -> Result<(Vec<u32>, Option<Vec<u32>>), String> {
        let mut was_bound = locked(&self.turn);
        let step = {
            let state = self.state();
            state.check_lasts()?;
            state.segment.step(asks, self.takes_more)?
        };
        let peers = match step {
            Step::Repeat(ours) => return Ok((ours, None)),
            Step::Connect(peers) => peers,
        };
        let ours = self.join(peers, &mut was_bound)?;
        let path = &asks.local_nic_path;
        let old = self.connected(Client {
            path: path.clone(),
            listener: names::listener(path, from, is_of_this_machine),
            theirs: asks.qp_num.clone(),
            ours: ours.clone(),
        })?;
        Ok((ours, Some(old)))
    }

    /// Connects queue pairs of a client; those of others go on. Returns the node's.
    fn join(&self, peers: Vec<RdmaPeer>, was_bound: &mut bool) -> Result<Vec<u32>, String> {
        let lease_id = self.lease_id;
        let count = peers.len();
        let request = match *was_bound {
            false => Request::LeaseBind { lease_id, peers },
            true => Request::LeasePeers {
                lease_id,
                change: PeerChange::Add(peers),
            },
        };
        let rdma = self.ask(request)?;
        *was_bound = true;
        handshake::newest(&rdma, count).ok_or_else(|| {
            "the node has connected fewer queue pairs than it was asked for".to_owned()
        })
    }

    /// Takes a client whose queue pairs are connected; returns the node's queue pairs of its earlier connection.
    fn connected(&self, client: Client) -> Result<Vec<u32>, String> {
        let mut state = self.state();
        state.check_lasts()?;
        self.events.connected(&client.path, client.ours.len());
        Ok(state.segment.connected(client))
    }

    /// Sends a request of the lease; the answer is the last one from now on.
    pub(super) fn ask(&self, request: Request) -> Result<RdmaBinding, String> {
        self.state().check_lasts()?;
        let info = self.node.lease(request).map_err(|error| why(&error))?;
        if let Some(how) = how_it_ended(&info) {
            return Err(has_ended(&how));
        }
        let rdma = info
            .binding
            .rdma()
            .cloned()
            .ok_or("the lease has no RDMA any more")?;
        let mut state = self.state();
        (state.info, state.rdma) = (info, rdma.clone());
        Ok(rdma)
    }

    /// A line for a refusal, unless the client has had the same one.
    fn refused(&self, client: &str, why: &str) {
        let mut told = locked(&self.told);
        if told.len() == TOLD_MAX {
            told.clear();
        }
        if told.insert((client.to_owned(), why.to_owned())) {
            self.events.refused(client, why);
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    fn check_lasts(&self) -> Result<(), String> {
        self.ended
            .as_deref()
            .map_or(Ok(()), |how| Err(has_ended(how)))
    }
}

fn has_ended(how: &str) -> String {
    format!("the lease has ended: {how}")
}

fn why(error: &Error) -> String {
    match error.is_over() {
        true => has_ended(&error.to_string()),
        false => error.to_string(),
    }
}

/// A panic under the lock leaves a complete state.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this machine has the address.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
