//! A minimal client: one request at a time, written from the specification.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use fabricbios_fallback_udp::{DataKey, crc32c};
use fabricbios_wire::{
    Binding, DATA_OVERHEAD, DataFrame, DataHeader, DataOp, DataService, DataStatus, DpKey,
    HelloReply, LeaseId,
};

/// Longer than any answer takes on one machine, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    service: DataService,
    /// Bytes of a unit, in which offsets and lengths count.
    pub(crate) unit: u32,
    pub(crate) socket: UdpSocket,
    pub(crate) lease: LeaseId,
    pub(crate) key: DataKey,
    pub(crate) session: u32,
    pub(crate) counter: u32,
    hellos: u64,
}

/// A parsed reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) status: u8,
    pub(crate) payload: Vec<u8>,
    /// Whether tag and checksum were correct.
    pub(crate) authentic: bool,
    /// Nonce of the request that this reply answers.
    pub(crate) nonce: u64,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, lease: LeaseId, binding: &Binding) -> Self {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            service: DataService::Memory,
            unit: 1,
            socket,
            lease,
            key: key_of(binding),
            session: 0,
            counter: 0,
            hellos: 0,
        }
    }

    /// The same for FBBU.
    pub(crate) fn of_blocks(self, unit: u32) -> Self {
        let service = DataService::Block;
        Self {
            service,
            unit,
            ..self
        }
    }

    /// Sets another key of the same lease; the session stays.
    pub(crate) fn set_key(&mut self, binding: &Binding) {
        self.key = key_of(binding);
    }

    pub(crate) fn header(&self, op: DataOp, offset: u64, length: u32) -> DataHeader {
        DataHeader {
            offset,
            length,
            ..DataHeader::request(self.service, op, self.lease)
        }
    }

    pub(crate) fn frame(&self, header: DataHeader, payload: &[u8]) -> Vec<u8> {
        [&self.key.seal(header, payload)[..], payload].concat()
    }

    pub(crate) fn exchange(&self, datagram: &[u8]) -> Got {
        self.socket.send(datagram).unwrap();
        self.receive().expect("a reply")
    }

    /// The next reply; `None`: nothing came within the time-out.
    pub(crate) fn receive(&self) -> Option<Got> {
        let mut buffer = [0; 10_000];
        let length = loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => break length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A receive with a time-out is not restarted by the kernel after a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        };
        let frame = DataFrame::parse(&buffer[..length]).unwrap();
        assert!(frame.header.is_reply());
        Some(Got {
            status: frame.header.status,
            payload: frame.payload.to_vec(),
            authentic: self.key.verifies(&frame)
                && crc32c(frame.payload) == frame.header.payload_crc,
            nonce: frame.header.nonce,
        })
    }

    /// The status and payload of an authentic reply.
    pub(crate) fn ask(&self, datagram: &[u8]) -> (u8, Vec<u8>) {
        let got = self.exchange(datagram);
        assert!(got.authentic, "{got:?}");
        (got.status, got.payload)
    }

    pub(crate) fn ping(&self) -> Got {
        self.exchange(&self.frame(self.header(DataOp::Ping, 0, 0), &[]))
    }

    /// Sends PING and skips all other replies.
    pub(crate) fn ping_through(&self) -> Got {
        let mut got = self.ping();
        while !got.authentic {
            got = self.receive().expect("a reply");
        }
        got
    }

    pub(crate) fn hello(&mut self) -> HelloReply {
        self.hellos += 1;
        let header = DataHeader {
            nonce: self.hellos << 32 | u64::from(self.socket.local_addr().unwrap().port()),
            ..self.header(DataOp::Hello, self.session.into(), 0)
        };
        let (status, payload) = self.ask(&self.frame(header, &[0; 40]));
        assert_eq!(status, DataStatus::Ok as u8);
        let reply = HelloReply::read(&payload).unwrap();
        (self.session, self.counter) = (reply.session, 0);
        reply
    }

    pub(crate) fn next(&mut self, op: DataOp, offset: u64, length: u32) -> DataHeader {
        self.counter += 1;
        DataHeader {
            nonce: self.nonce(),
            ..self.header(op, offset, length)
        }
    }

    /// Nonce of the newest request.
    pub(crate) fn nonce(&self) -> u64 {
        u64::from(self.session) << 32 | u64::from(self.counter)
    }

    pub(crate) fn write_frame(&mut self, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let header = self.next(DataOp::Write, offset, bytes.len() as u32 / self.unit);
        self.frame(header, bytes)
    }

    pub(crate) fn read_frame(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let header = self.next(DataOp::Read, offset, length);
        self.frame(header, &[])
    }

    pub(crate) fn flush_frame(&mut self) -> Vec<u8> {
        let header = self.next(DataOp::Flush, 0, 0);
        self.frame(header, &[])
    }

    pub(crate) fn flush(&mut self) -> u8 {
        let frame = self.flush_frame();
        self.ask(&frame).0
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> u8 {
        let frame = self.write_frame(offset, bytes);
        self.ask(&frame).0
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> (u8, Vec<u8>) {
        let frame = self.read_frame(offset, length);
        self.ask(&frame)
    }
}

/// Whether the reply is an INVALID that proves nothing: 88 bytes.
pub(crate) fn is_unauthenticated(got: &Got) -> bool {
    !got.authentic && got.status == DataStatus::Invalid as u8 && got.payload.is_empty()
}

pub(crate) const SHORTEST: usize = DATA_OVERHEAD;
pub(crate) const OK: u8 = DataStatus::Ok as u8;
pub(crate) const NO_LEASE: u8 = DataStatus::NoLease as u8;

fn key_of(binding: &Binding) -> DataKey {
    let DpKey(bytes) = binding.dp_key.as_ref().expect("a key");
    DataKey::new(&DpKey(*bytes))
}
