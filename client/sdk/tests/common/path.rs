//! The network path to a lease's memory; it can break and hold datagrams back.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use fabricbios_wire::{DataFrame, DataOp};

/// A network between clients and a server. Its threads run until the test process ends.
pub(crate) struct Path {
    address: SocketAddr,
    to_server: UdpSocket,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    broken: bool,
    client: Option<SocketAddr>,
    held: Vec<Vec<u8>>,
}

impl Path {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let any = "127.0.0.1:0";
        let (near, far) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        far.connect(server).unwrap();
        let path = Self {
            address: near.local_addr().unwrap(),
            to_server: far.try_clone().unwrap(),
            state: Arc::default(),
        };
        let (state, from, to) = (
            Arc::clone(&path.state),
            near.try_clone().unwrap(),
            far.try_clone().unwrap(),
        );
        thread::spawn(move || there(&state, &from, &to));
        let state = Arc::clone(&path.state);
        thread::spawn(move || back(&state, &far, &near));
        path
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on no datagram arrives. WRITEs are delayed, not lost.
    pub(crate) fn break_off(&self) {
        self.state().broken = true;
    }

    /// Datagrams sent from now on arrive; earlier ones do not.
    pub(crate) fn heal(&self) {
        let healer = UdpSocket::bind("127.0.0.1:0").unwrap();
        healer.send_to(HEAL, self.address).unwrap();
        healer.recv(&mut [0; HEAL.len()]).unwrap();
    }

    /// The delayed WRITEs arrive before any datagram that is sent after this call. Returns their number.
    pub(crate) fn deliver(&self) -> usize {
        let held = std::mem::take(&mut self.state().held);
        for datagram in &held {
            self.to_server.send(datagram).unwrap();
        }
        held.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Arrives after all datagrams that were sent before it.
const HEAL: &[u8] = b"heal";

fn there(state: &Mutex<State>, near: &UdpSocket, far: &UdpSocket) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (length, client) = near.recv_from(&mut buffer).unwrap();
        let datagram = &buffer[..length];
        let mut state = state.lock().unwrap();
        if datagram == HEAL {
            state.broken = false;
            near.send_to(HEAL, client).unwrap();
            continue;
        }
        state.client = Some(client);
        if !state.broken {
            far.send(datagram).unwrap();
        } else if is_write(datagram) {
            state.held.push(datagram.to_vec());
        }
    }
}

fn back(state: &Mutex<State>, far: &UdpSocket, near: &UdpSocket) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = far.recv(&mut buffer).unwrap();
        let state = state.lock().unwrap();
        if let Some(client) = state.client.filter(|_| !state.broken) {
            // The client may have gone.
            near.send_to(&buffer[..length], client).ok();
        }
    }
}

fn is_write(datagram: &[u8]) -> bool {
    DataFrame::parse(datagram).is_ok_and(|frame| frame.header.op == DataOp::Write as u8)
}
