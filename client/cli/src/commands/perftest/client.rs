//! One client: its conversation, and the leases of its queue pairs.

mod events;

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use fabricbios_client::Granted;
use fabricbios_wire::{
    LeaseAllocRequest, LeaseId, LeaseInfo, MemTerms, RdmaPeer, RefusalClass, ResourceType,
    Transport,
};

use super::{
    Server, bad_client,
    handshake::{Handshake, Line, MESSAGE_MAX, Message},
};
use crate::{
    commands::{
        alloc,
        serve::{End, Followed},
    },
    failure::{Exit, Failure},
    hint::Topic,
};

/// The time for each message before the run, and for taking an answer. A client pauses for 1 s, and then registers its
/// memory.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// The timeout of a socket is not zero.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// A connected client.
pub(super) struct Client<'a> {
    server: &'a Server,
    stream: TcpStream,
    peer: SocketAddr,
    handshake: Handshake,
    pairs: Vec<Pair>,
}

/// A queue pair of the client, with its lease and the line of the node's queue pair.
struct Pair {
    qpn: u32,
    lease: Followed,
    answer: Vec<u8>,
}

/// A lease that ended before its client, and how.
type Over = (LeaseId, String);

enum Received {
    Bytes(usize),
    /// The client has closed the connection, or this command ends.
    Closed,
    Over(Over),
}

impl<'a> Client<'a> {
    pub(super) fn new(server: &'a Server, stream: TcpStream, peer: SocketAddr) -> Self {
        Self {
            server,
            stream,
            peer,
            handshake: Handshake::new(),
            pairs: Vec::new(),
        }
    }

    /// Answers the client until it goes or a lease of it ends, gives its leases back and prints how it ended.
    pub(super) fn serve(mut self) {
        let over = self.converse();
        // The listening thread has a handle of the connection too.
        self.stream.shutdown(Shutdown::Both).ok();
        // The client may have seen the end before the node has proved it.
        let (found, all_back) = self.give_back();
        let found = found.filter(|_| !self.handshake.is_complete());
        match over {
            Ok(over) => match over.or(found) {
                Some(over) => self.print_over(&over),
                None if all_back => self.print_closed(),
                // What was not given back has a line.
                None => {}
            },
            Err(failure) => {
                failure.report(self.server.output);
            }
        }
    }

    /// Returns when the client goes or a lease of it is over.
    fn converse(&mut self) -> Result<Option<Over>, Failure> {
        let cannot = |error| Failure::local("set a limit of the connection", &error);
        self.stream.set_nodelay(true).map_err(cannot)?;
        self.stream
            .set_write_timeout(Some(SILENT_MAX))
            .map_err(cannot)?;
        let (mut buffer, mut filled) = ([0; MESSAGE_MAX], 0);
        let mut since = Instant::now();
        loop {
            let message = self.handshake.next(&buffer[..filled]);
            if let Some((message, length)) = message.map_err(|why| self.bad(&why))? {
                buffer.copy_within(length..filled, 0);
                filled -= length;
                self.answer(message)?;
                since = Instant::now();
                continue;
            }
            let until = since + SILENT_MAX;
            let until = Some(until).filter(|_| !self.handshake.is_running());
            match self.receive(&mut buffer[filled..], until)? {
                Received::Bytes(bytes) => filled += bytes,
                Received::Over(over) => return Ok(Some(over)),
                Received::Closed if self.stops() => return Ok(None),
                Received::Closed if filled > 0 => {
                    return Err(self.bad(&format!("it left {filled} bytes into a message")));
                }
                Received::Closed if self.pairs.is_empty() => {
                    return Err(self.bad("it left before it named a queue pair"));
                }
                Received::Closed => return Ok(None),
            }
        }
    }

    /// Waits for bytes and follows the leases meanwhile.
    fn receive(&mut self, into: &mut [u8], until: Option<Instant>) -> Result<Received, Failure> {
        loop {
            let mut due = self
                .pairs
                .iter_mut()
                .filter(|pair| pair.lease.due_in().is_zero());
            if let Some(over) =
                due.find_map(|pair| Some((pair.lease.lease_id(), pair.lease.look()?)))
            {
                return Ok(Received::Over(over));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                let why = format!(
                    "it said nothing for {} s before its run",
                    SILENT_MAX.as_secs()
                );
                return Err(self.bad(&why));
            }
            let due = self.pairs.iter().map(|pair| pair.lease.due_in());
            let timeout = due
                .chain(left)
                .min()
                .map(|timeout| timeout.max(TIMEOUT_MIN));
            let limited = self.stream.set_read_timeout(timeout);
            limited.map_err(|error| Failure::local("set a limit of the connection", &error))?;
            match self.stream.read(into) {
                Ok(0) => return Ok(Received::Closed),
                Ok(bytes) => return Ok(Received::Bytes(bytes)),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    // A client that fails may end with a reset.
                    _ => return Ok(Received::Closed),
                },
            }
        }
    }

    fn answer(&mut self, message: Message) -> Result<(), Failure> {
        let answer = match message {
            Message::Answered(bytes) => bytes,
            Message::Pair(line) => match self.pairs.iter().find(|pair| pair.qpn == line.qpn) {
                Some(pair) => pair.answer.clone(),
                None => self.lease(&line)?,
            },
            Message::Done => return Ok(()),
        };
        let sent = self.stream.write_all(&answer);
        sent.map_err(|error| self.bad(&format!("it does not take an answer: {error}")))
    }

    /// Asks for a lease for a queue pair of the client; returns the line of the node's queue pair.
    fn lease(&mut self, line: &Line) -> Result<Vec<u8>, Failure> {
        let Server {
            node, bytes, secs, ..
        } = self.server;
        let path_mtu = self.handshake.path_mtu;
        let terms = MemTerms {
            rdma_peers: vec![RdmaPeer {
                qpn: line.qpn,
                gid: line.gid,
                psn: line.psn,
                path_mtu,
            }],
        };
        let request = LeaseAllocRequest {
            terms: terms.into(),
            transport: Transport::Rdma,
            ..LeaseAllocRequest::new(ResourceType::Mem, *bytes, *secs)
        };
        let lease = node.acquire(request).map_err(|error| {
            let failure = Failure::from(error).with_hint(Topic::NewLease);
            failure.at(&format!("client {}", self.peer))
        })?;
        let Granted { node, info, .. } = &lease;
        let answer = self.answer_of(line, info);
        self.pairs.push(Pair {
            qpn: line.qpn,
            lease: Followed::new(node, info),
            answer: answer.clone().unwrap_or_default(),
        });
        let answer = answer.map_err(|why| self.bad(&why))?;
        self.print_leased(line, &lease);
        Ok(answer)
    }

    fn answer_of(&self, line: &Line, info: &LeaseInfo) -> Result<Vec<u8>, String> {
        let rdma = info.binding.rdma();
        let key = rdma.and_then(|rdma| Some((rdma, rdma.rkey?)));
        let Some((rdma, rkey)) = key else {
            return Err(format!("lease {} has no key for it", info.lease_id));
        };
        let (its, node) = (self.handshake.path_mtu, rdma.path_mtu);
        if its != node {
            return Err(format!(
                "its path MTU is {its}, and that to the node is {node}: give it -m {node}"
            ));
        }
        let answer = Line {
            max_reads: line.max_reads.min(rdma.max_rd_atomic.into()),
            qpn: rdma.qp_num,
            psn: rdma.psn,
            rkey,
            addr: rdma.remote_addr,
            gid: rdma.gid,
        };
        Ok(answer.bytes())
    }

    /// Gives all leases back; returns the first that had ended before, and whether the others were given back.
    fn give_back(&mut self) -> (Option<Over>, bool) {
        let (mut first, mut all_back) = (None, true);
        for Pair { lease, .. } in &mut self.pairs {
            let lease_id = lease.lease_id();
            match lease.give_back() {
                End::Freed => {}
                End::Over(how) => first = first.or(Some((lease_id, how))),
                End::Unknown(why) => {
                    all_back = false;
                    let message = format!(
                        "lease {lease_id} was not given back and ends with its term: {why}"
                    );
                    let class = RefusalClass::Transient;
                    Failure::new(Exit::Unreachable, class, "Unreachable", message)
                        .report(self.server.output);
                }
            }
            alloc::close_other(lease.node(), &self.server.node);
        }
        (first, all_back)
    }

    fn bad(&self, why: &str) -> Failure {
        bad_client(self.peer, why)
    }

    fn stops(&self) -> bool {
        self.server.stops.load(Ordering::Relaxed)
    }
}
