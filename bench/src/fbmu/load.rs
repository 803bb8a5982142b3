//! A client that sends prepared requests and only counts the replies.

use std::{
    io::IoSlice,
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fabricbios_fallback_udp::DataKey;
use fabricbios_wire::{
    DATA_OVERHEAD, DATAGRAM_MAX, DataFrame, DataHeader, DataOp, DataService, HELLO_LEN, HelloReply,
    LeaseId,
};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg},
};

use super::servers::Leased;

/// The most requests in flight.
pub(super) const IN_FLIGHT: usize = 64;
/// Datagrams per system call; the servers use the same number.
pub(super) const BATCH: usize = 32;
/// A lost datagram makes the round invalid after this time.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) struct Load {
    socket: UdpSocket,
    key: DataKey,
    lease_id: LeaseId,
    session: u32,
    counter: u32,
}

impl Load {
    /// A session on the lease.
    pub(super) fn new(leased: &Leased) -> anyhow::Result<Self> {
        let mut load = Self {
            socket: connected(leased.address())?,
            key: DataKey::new(&leased.key()),
            lease_id: leased.lease_id(),
            session: 0,
            counter: 0,
        };
        load.hello()?;
        Ok(load)
    }

    /// The same datagrams to another address.
    pub(super) fn towards(mut self, address: SocketAddr) -> anyhow::Result<Self> {
        self.socket = connected(address)?;
        Ok(self)
    }

    fn hello(&mut self) -> anyhow::Result<()> {
        let hello = self.datagram(DataOp::Hello, 0, &[0; HELLO_LEN]);
        self.socket.send(&hello)?;
        let mut reply = [0; DATAGRAM_MAX];
        let length = self.socket.recv(&mut reply).context("no answer to HELLO")?;
        let frame = DataFrame::parse(&reply[..length]).ok();
        let told = frame.and_then(|frame| HelloReply::read(frame.payload));
        self.session = told.context("HELLO was refused")?.session;
        Ok(())
    }

    /// READs of `bytes` bytes each.
    pub(super) fn small_reads(&mut self, count: usize, bytes: u32) -> anyhow::Result<Duration> {
        let requests: Vec<_> = (0..count)
            .map(|_| self.datagram(DataOp::Read, bytes, &[]))
            .collect();
        self.run(&requests)
    }

    /// WRITEs of `bytes` bytes each.
    pub(super) fn writes(&mut self, count: usize, bytes: usize) -> anyhow::Result<Duration> {
        let payload = vec![0x5a; bytes];
        let length = u32::try_from(bytes)?;
        let requests: Vec<_> = (0..count)
            .map(|_| self.datagram(DataOp::Write, length, &payload))
            .collect();
        self.run(&requests)
    }

    fn datagram(&mut self, op: DataOp, length: u32, payload: &[u8]) -> Vec<u8> {
        self.counter += 1;
        let header = DataHeader {
            nonce: u64::from(self.session) << 32 | u64::from(self.counter),
            length: if op == DataOp::Hello { 0 } else { length },
            ..DataHeader::request(DataService::Memory, op, self.lease_id)
        };
        [&self.key.seal(header, payload)[..], payload].concat()
    }

    /// Sends all requests, [`IN_FLIGHT`] at a time, and returns when all are answered.
    fn run(&mut self, requests: &[Vec<u8>]) -> anyhow::Result<Duration> {
        let mut buffers = vec![[0; DATA_OVERHEAD + 4096]; BATCH];
        let (mut sent, mut answered) = (0, 0);
        let start = Instant::now();
        while answered < requests.len() {
            let room = (answered + IN_FLIGHT).min(requests.len()) - sent;
            if room >= BATCH || sent + room == requests.len() && room > 0 {
                sent += send(&self.socket, &requests[sent..sent + room.min(BATCH)])?;
            } else {
                answered += receive(&self.socket, &mut buffers)?;
            }
        }
        Ok(start.elapsed())
    }
}

fn connected(address: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(SILENCE))?;
    Ok(socket)
}

fn send(socket: &UdpSocket, requests: &[Vec<u8>]) -> anyhow::Result<usize> {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(requests.len(), None);
    let slices: Vec<_> = requests.iter().map(|it| [IoSlice::new(it)]).collect();
    let nobody = vec![None; requests.len()];
    let sent = sendmmsg(
        socket.as_raw_fd(),
        &mut headers,
        &slices,
        &nobody,
        [],
        MsgFlags::empty(),
    )?;
    Ok(sent.count())
}

/// Waits for a reply and reads all that have arrived.
fn receive(
    socket: &UdpSocket,
    buffers: &mut [[u8; DATA_OVERHEAD + 4096]],
) -> anyhow::Result<usize> {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(buffers.len(), None);
    let mut slices: Vec<_> = buffers
        .iter_mut()
        .map(|it| [std::io::IoSliceMut::new(it)])
        .collect();
    let got = recvmmsg(
        socket.as_raw_fd(),
        &mut headers,
        slices.iter_mut(),
        MsgFlags::MSG_WAITFORONE,
        None,
    );
    match got {
        Ok(got) => Ok(got.count()),
        Err(Errno::EAGAIN) => bail!("a datagram was lost on loopback"),
        Err(errno) => Err(errno.into()),
    }
}
