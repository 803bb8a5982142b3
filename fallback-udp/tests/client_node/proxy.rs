//! A path that loses, repeats and reorders datagrams, both ways.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const ANY: &str = "127.0.0.1:0";
/// Number of datagrams that are held back at a time, so that others overtake them.
const HELD: usize = 4;

pub(crate) struct Proxy {
    endpoint: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A path to `server` that loses `percent` of the datagrams, and repeats and holds back as many.
    pub(crate) fn start(server: SocketAddr, percent: u16) -> Self {
        let front = UdpSocket::bind(ANY).unwrap();
        let back = UdpSocket::bind(ANY).unwrap();
        back.connect(server).unwrap();
        let endpoint = front.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let line = Line {
            front,
            back,
            client: None,
            share: u16::MAX / 100 * percent,
            random: 1,
            held: Vec::new(),
        };
        let stopped = Arc::clone(&stop);
        let thread = Some(thread::spawn(move || line.run(&stopped)));
        Self {
            endpoint,
            stop,
            thread,
        }
    }

    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct Line {
    front: UdpSocket,
    back: UdpSocket,
    client: Option<SocketAddr>,
    /// The share of the datagrams, in units of 1/65,536.
    share: u16,
    random: u64,
    /// The held-back datagrams: whether they go to the server, and their bytes.
    held: Vec<(bool, Vec<u8>)>,
}

impl Line {
    fn run(mut self, stop: &AtomicBool) {
        let mut buffer = vec![0; 1 << 16];
        while !stop.load(Ordering::Relaxed) {
            let readable = |socket: &UdpSocket| {
                let mut wanted = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                poll(&mut wanted, PollTimeout::ZERO).unwrap() > 0
            };
            let mut wanted = [
                PollFd::new(self.front.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.back.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut wanted, PollTimeout::from(5u8)).unwrap() == 0 {
                self.let_go(0);
            }
            if readable(&self.front) {
                let (length, client) = self.front.recv_from(&mut buffer).unwrap();
                self.client = Some(client);
                self.pass(true, &buffer[..length]);
            }
            if readable(&self.back) {
                let length = self.back.recv(&mut buffer).unwrap();
                self.pass(false, &buffer[..length]);
            }
        }
    }

    fn pass(&mut self, to_server: bool, bytes: &[u8]) {
        if self.happens() {
            return;
        }
        if self.happens() {
            self.forward(to_server, bytes);
        }
        if self.happens() {
            self.held.push((to_server, bytes.to_vec()));
            self.let_go(HELD);
        } else {
            self.forward(to_server, bytes);
        }
    }

    fn let_go(&mut self, keep: usize) {
        while self.held.len() > keep {
            let (to_server, bytes) = self.held.remove(0);
            self.forward(to_server, &bytes);
        }
    }

    /// A datagram that the system does not accept is lost, as on any path.
    fn forward(&self, to_server: bool, bytes: &[u8]) {
        let sent = match self.client {
            Some(client) if !to_server => self.front.send_to(bytes, client),
            _ => self.back.send(bytes),
        };
        drop(sent);
    }

    fn happens(&mut self) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((self.random >> 40) as u16) < self.share
    }
}
