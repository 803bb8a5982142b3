//! A thread that answers datagrams by a function, with the system calls of a service: batches of the same size, and a
//! queue of the same length.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    thread,
};

use fabricbios_fallback_udp::ReplyBuffer;
use fabricbios_wire::DATAGRAM_MAX;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt},
};

use super::load::BATCH;

const QUEUE_BYTES: usize = 8 << 20;

/// Starts the thread, which serves until the program ends. `handler` fills the reply and returns its length in bytes; 0
/// means no reply.
pub(super) fn start(
    handler: impl FnMut(&[u8], &mut ReplyBuffer) -> usize + Send + 'static,
) -> anyhow::Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    setsockopt(&socket, sockopt::RcvBufForce, &QUEUE_BYTES)
        .or_else(|_not_permitted| setsockopt(&socket, sockopt::RcvBuf, &QUEUE_BYTES))?;
    setsockopt(&socket, sockopt::SndBufForce, &QUEUE_BYTES)
        .or_else(|_not_permitted| setsockopt(&socket, sockopt::SndBuf, &QUEUE_BYTES))?;
    let address = socket.local_addr()?;
    thread::spawn(move || {
        if let Err(errno) = serve(&socket, handler) {
            eprintln!("the echo at {address}: {errno}");
        }
    });
    Ok(address)
}

fn serve(
    socket: &UdpSocket,
    mut handler: impl FnMut(&[u8], &mut ReplyBuffer) -> usize,
) -> Result<(), Errno> {
    let mut received = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut answered = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut datagrams = vec![[0; DATAGRAM_MAX]; BATCH];
    let mut replies = vec![[0; DATAGRAM_MAX]; BATCH];
    let (raw, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    loop {
        let got: Vec<_> = {
            let into = datagrams.iter_mut().map(|it| [IoSliceMut::new(it)]);
            let mut into: Vec<_> = into.collect();
            match recvmmsg(raw, &mut received, into.iter_mut(), flags, None) {
                Ok(all) => all.map(|it| (it.bytes, it.address)).collect(),
                Err(Errno::EAGAIN) => Vec::new(),
                Err(errno) => return Err(errno),
            }
        };
        let (mut slices, mut addresses) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        for ((datagram, reply), (length, from)) in datagrams.iter().zip(&mut replies).zip(&got) {
            let length = handler(&datagram[..*length], reply);
            if length > 0 {
                slices.push([IoSlice::new(&reply[..length])]);
                addresses.push(*from);
            }
        }
        let mut sent = 0;
        while sent < slices.len() {
            let (slices, addresses) = (&slices[sent..], &addresses[sent..]);
            match sendmmsg(raw, &mut answered, slices, addresses, [], flags) {
                Ok(done) => sent += done.count(),
                // A reply that the socket does not accept at once is lost, as in a service.
                Err(Errno::EAGAIN) => sent += 1,
                Err(errno) => return Err(errno),
            }
        }
        if got.len() < BATCH {
            let mut events = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut events, PollTimeout::NONE)?;
        }
    }
}
