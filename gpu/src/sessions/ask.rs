//! Connections of the daemon to a worker. Its tenant may have taken over the worker, so the daemon never waits long for
//! it.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use fabricbios_wire::{
    GpuRequest, HEADER_LEN, Header, LeaseError, LeaseId, MAX_PAYLOAD, decode_gpu_answer,
    encode_gpu_request,
};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

/// Connects to a worker. Does not wait for a worker that accepts no connection.
pub(super) fn dial(socket: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let descriptor = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(descriptor.as_raw_fd(), &UnixAddr::new(socket)?)?;
    let stream = UnixStream::from(descriptor);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Asks a worker to close its session, and waits for the answer for at most `patience`.
pub(super) fn ask_to_close(socket: &Path, lease: LeaseId, patience: Duration) -> io::Result<()> {
    let mut stream = dial(socket)?;
    // A worker that answers byte by byte gets no more time than a silent worker.
    let (_asking, asked) = mpsc::channel::<()>();
    let line = stream.try_clone()?;
    thread::spawn(move || {
        if asked.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            line.shutdown(Shutdown::Both).ok();
        }
    });
    let requests = [
        GpuRequest::Open {
            lease_id: lease,
            session: 0,
        },
        GpuRequest::Close,
    ];
    for (id, request) in (1..).zip(&requests) {
        let frame = encode_gpu_request(id, 0, request);
        stream.write_all(&frame)?;
        let mut asked = [0; HEADER_LEN];
        asked.copy_from_slice(&frame[..HEADER_LEN]);
        let asked = Header::parse(&asked)
            .map_err(|rejected| io::Error::other(rejected.refusal().message))?;
        let answer = read_frame(&mut stream)?;
        let answer = decode_gpu_answer(&asked, &answer)
            .map_err(|rejected| io::Error::other(rejected.refusal().message))?;
        match answer {
            // A stream that finds all queues in use can still close the session.
            Err(refusal) if id == 1 && refusal.error == LeaseError::ResourceBusy => {}
            answer => {
                answer.map_err(|refusal| io::Error::other(refusal.message))?;
            }
        }
    }
    Ok(())
}

fn read_frame(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEADER_LEN];
    stream.read_exact(&mut frame)?;
    let mut header = [0; HEADER_LEN];
    header.copy_from_slice(&frame);
    let header =
        Header::parse(&header).map_err(|rejected| io::Error::other(rejected.refusal().message))?;
    let length = usize::try_from(header.payload_len).unwrap_or(MAX_PAYLOAD);
    frame.resize(HEADER_LEN + length, 0);
    stream.read_exact(&mut frame[HEADER_LEN..])?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use fabricbios_wire::REPLY;
    use nix::sys::socket::{Backlog, listen};

    use super::*;

    const LEASE: LeaseId = LeaseId(1);

    #[test]
    fn a_worker_that_accepts_nobody_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("worker");
        let listener = UnixListener::bind(&at).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match dial(&at) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_worker_that_answers_byte_by_byte_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("worker");
        let listener = UnixListener::bind(&at).unwrap();
        let worker = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; HEADER_LEN];
            stream.read_exact(&mut asked).unwrap();
            let answer = Header {
                flags: REPLY,
                payload_len: u32::try_from(MAX_PAYLOAD).unwrap(),
                ..Header::parse(&asked).unwrap()
            };
            stream.write_all(&answer.to_bytes()).unwrap();
            // Enough bytes for eleven minutes.
            while stream.write_all(&[0]).is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        ask_to_close(&at, LEASE, Duration::from_millis(100)).unwrap_err();
        worker.join().unwrap();
    }
}
