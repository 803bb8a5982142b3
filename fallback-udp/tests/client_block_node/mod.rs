//! The model of a server behind a real socket.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fabricbios_fallback_udp::{Coordinates, Refresh};
use fabricbios_wire::{DpKey, LeaseId};

use crate::server::Server;

pub(crate) struct Node {
    server: Arc<Mutex<Server>>,
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(crate) fn start(blocks: usize) -> Self {
        let server = Arc::new(Mutex::new(Server::new(blocks)));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (served, stopped) = (Arc::clone(&server), Arc::clone(&stop));
        let thread = Some(thread::spawn(move || serve(&served, &socket, &stopped)));
        Self {
            server,
            address,
            stop,
            thread,
        }
    }

    pub(crate) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    pub(crate) fn coordinates(&self) -> Coordinates {
        coordinates(&self.server(), self.address)
    }

    /// A source of the current coordinates.
    pub(crate) fn asked(&self) -> Box<Asked> {
        Box::new(Asked(Arc::clone(&self.server), self.address))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let waker = UdpSocket::bind("127.0.0.1:0").unwrap();
        waker.send_to(&[0], self.address).unwrap();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub(crate) struct Asked(Arc<Mutex<Server>>, SocketAddr);

impl Refresh for Asked {
    fn refresh(&mut self) -> Result<Coordinates, String> {
        Ok(coordinates(&self.0.lock().unwrap(), self.1))
    }
}

fn coordinates(server: &Server, endpoint: SocketAddr) -> Coordinates {
    Coordinates {
        lease_id: LeaseId(0x1ea5e),
        dp_key: DpKey([server.number(); 32]),
        endpoint,
    }
}

/// Serves requests. The storage finishes each I/O when the next datagram comes.
fn serve(server: &Mutex<Server>, socket: &UdpSocket, stop: &AtomicBool) {
    let begin = Instant::now();
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let (length, client) = socket.recv_from(&mut buffer).unwrap();
        let mut server = server.lock().unwrap();
        let now = begin.elapsed();
        let mut replies = Vec::from_iter(server.take(&buffer[..length], now, Duration::ZERO));
        replies.extend(server.ready(now));
        for reply in replies {
            socket.send_to(&reply, client).unwrap();
        }
    }
}
