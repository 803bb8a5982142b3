//! The network of the nodes: one UDP socket of the kernel for all of them. Each node has an address of its own in
//! 127.64.0.0/10, and may be cut off from everybody, or from one peer.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    task::{Context, Poll, Waker},
};

use nix::sys::socket::{setsockopt, sockopt};
use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState},
};
use tokio::{io::Interest, net::UdpSocket};

/// Datagrams that wait for one node. What comes beyond is lost.
const WAITING_MAX: usize = 1_024;
/// The kernel's buffer for all nodes, bytes.
const BUFFER: usize = 32 << 20;
/// The largest datagram, or several that the kernel hands over as one.
const BYTES_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Switch {
    socket: UdpSocket,
    state: UdpSocketState,
    number: u16,
    ports: RwLock<HashMap<IpAddr, Arc<Port>>>,
}

/// The socket of one node.
pub(crate) struct Port {
    switch: Arc<Switch>,
    ip: Ipv4Addr,
    received: Mutex<Received>,
    rules: RwLock<Rules>,
}

#[derive(Default)]
struct Received {
    datagrams: VecDeque<Datagram>,
    waker: Option<Waker>,
}

struct Datagram {
    from: SocketAddr,
    ecn: Option<EcnCodepoint>,
    bytes: Vec<u8>,
}

/// What the network does to one node.
#[derive(Debug, Default)]
struct Rules {
    is_off: bool,
    cut_from: HashSet<SocketAddr>,
}

impl Rules {
    fn carries(&self, peer: SocketAddr) -> bool {
        !self.is_off && !self.cut_from.contains(&peer)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of the node with this number.
pub(crate) fn ip(node: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(127, 64, 0, 1).to_bits() + node)
}

impl Switch {
    /// Must be called within a tokio runtime.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_nonblocking(true)?;
        // Who is not root gets what net.core.rmem_max allows, and loses more datagrams.
        if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
        }
        let number = socket.local_addr()?.port();
        let state = UdpSocketState::new((&socket).into())?;
        let switch = Arc::new(Self {
            socket: UdpSocket::from_std(socket)?,
            state,
            number,
            ports: RwLock::default(),
        });
        tokio::spawn(Arc::clone(&switch).receive());
        Ok(switch)
    }

    /// The socket of a node, in place of an earlier one.
    pub(crate) fn port(self: &Arc<Self>, ip: Ipv4Addr) -> Arc<Port> {
        let port = Arc::new(Port {
            switch: Arc::clone(self),
            ip,
            received: Mutex::default(),
            rules: RwLock::default(),
        });
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.insert(ip.into(), Arc::clone(&port));
        port
    }

    async fn receive(self: Arc<Self>) {
        let mut buffers = vec![vec![0; BYTES_MAX]; BATCH_SIZE];
        let mut metas = vec![RecvMeta::default(); BATCH_SIZE];
        loop {
            let received = self.socket.async_io(Interest::READABLE, || {
                let mut slices: Vec<_> = { buffers.iter_mut() }
                    .map(|it| IoSliceMut::new(it))
                    .collect();
                self.state
                    .recv((&self.socket).into(), &mut slices, &mut metas)
            });
            // The kernel tells of a port that nobody listens on any more: a scheduler was killed.
            let Ok(count) = received.await else { continue };
            let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
            for (meta, buffer) in metas.iter().zip(&buffers).take(count) {
                let to = meta.dst_ip.and_then(|ip| ports.get(&ip));
                let Some(port) = to else { continue };
                for bytes in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    port.takes(meta.addr, meta.ecn, bytes);
                }
            }
        }
    }
}

impl Port {
    /// As after a loss of power, or with a broken cable.
    pub(crate) fn set_off(&self, is_off: bool) {
        self.rules().is_off = is_off;
    }

    pub(crate) fn cut_from(&self, peer: SocketAddr, is_cut: bool) {
        let cut = &mut self.rules().cut_from;
        match is_cut {
            true => cut.insert(peer),
            false => cut.remove(&peer),
        };
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.ip, self.switch.number))
    }

    fn rules(&self) -> std::sync::RwLockWriteGuard<'_, Rules> {
        self.rules.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn carries(&self, peer: SocketAddr) -> bool {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.carries(peer)
    }

    fn takes(&self, from: SocketAddr, ecn: Option<EcnCodepoint>, bytes: &[u8]) {
        if !self.carries(from) {
            return;
        }
        let mut received = lock(&self.received);
        if received.datagrams.len() < WAITING_MAX {
            let bytes = bytes.to_vec();
            received.datagrams.push_back(Datagram { from, ecn, bytes });
        }
        if let Some(waker) = received.waker.take() {
            drop(received);
            waker.wake();
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Port").field(&self.address()).finish()
    }
}

impl AsyncUdpSocket for Port {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if !self.carries(transmit.destination) {
            return Ok(());
        }
        let transmit = Transmit {
            src_ip: Some(self.ip.into()),
            ..*transmit
        };
        let socket = &self.switch.socket;
        let sent = socket.try_io(Interest::WRITABLE, || {
            self.switch.state.try_send(socket.into(), &transmit)
        });
        match sent {
            // A switch whose buffers are full loses datagrams.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // As the kernel's own sockets of quinn do: the peer may be gone, and the connection learns it by its timeout.
            Err(_) | Ok(()) => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = lock(&self.received);
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some(datagram) = received.datagrams.pop_front() else {
                break;
            };
            let len = datagram.bytes.len().min(buf.len());
            buf[..len].copy_from_slice(&datagram.bytes[..len]);
            *meta = RecvMeta {
                addr: datagram.from,
                len,
                stride: len,
                ecn: datagram.ecn,
                dst_ip: Some(self.ip.into()),
            };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        received.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address())
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
