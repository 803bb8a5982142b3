//! Connections with a deadline, and the calls of this command to its clients.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    frames::{self, Kind},
    handshake::Client,
    messages::{self, Probed},
};

/// How long a client may take to answer a call.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A connection that ends at a deadline.
pub(super) struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        let until = Instant::now() + limit;
        Self { stream, until }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), String> {
        let left = self.left();
        let sent = left
            .and_then(|left| self.stream.set_write_timeout(Some(left)))
            .and_then(|()| self.stream.write_all(frame));
        sent.map_err(|error| format!("it took no message: {error}"))
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

/// Sends a message to a client and returns its answer.
pub(super) fn call<T: DeserializeOwned>(
    client: SocketAddr,
    kind: Kind,
    message: &impl Serialize,
) -> Result<T, String> {
    let stream = connect(client).map_err(|error| format!("cannot reach {client}: {error}"))?;
    exchange(stream, kind, message).map_err(|why| format!("{client}: {why}"))
}

fn connect(client: SocketAddr) -> io::Result<Timed> {
    let until = Instant::now() + ANSWER_WITHIN;
    let stream = TcpStream::connect_timeout(&client, ANSWER_WITHIN)?;
    Ok(Timed { stream, until })
}

fn exchange<T: DeserializeOwned>(
    mut stream: Timed,
    kind: Kind,
    message: &impl Serialize,
) -> Result<T, String> {
    stream.send(&frames::frame(kind, message)?)?;
    match frames::read(&mut stream)? {
        (of, json) if of == kind => messages::parse(&json),
        (other, _) => Err(format!("it answered a {kind:?} with a {other:?}")),
    }
}

/// The clients that have ended: nobody listens at their address any more.
pub(super) fn ended(clients: Vec<Client>) -> Vec<Client> {
    let is_gone = |client: &Client| {
        let Ok(address) = client.listener else {
            return false;
        };
        match connect(address) {
            // A connection without a message would be an error in the client's log.
            Ok(stream) => {
                exchange::<Probed>(stream, Kind::Probe, &Probed::default()).ok();
                false
            }
            Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        }
    };
    thread::scope(|scope| {
        let asked: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || Some(client).filter(is_gone)))
            .collect();
        let gone = asked.into_iter().map(|it| it.join().ok().flatten());
        gone.flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_sends_nothing_is_left_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let held = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut timed = Timed::new(stream, Duration::from_millis(20));
        let error = frames::read(&mut timed).unwrap_err();
        assert!(error.contains("did not come in time"), "{error}");
        // The kernel's timer may be some nanoseconds early.
        while timed.left().is_ok() {
            thread::yield_now();
        }
        let error = timed.send(b"late").unwrap_err();
        assert!(error.contains("took no message"), "{error}");
        drop(held);
    }
}
