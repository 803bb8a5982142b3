//! Reads the watchdog's replies. A thread that needs a reply reads it itself, because the reading thread may be late.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read},
    os::unix::net::UnixStream,
    sync::mpsc::Sender,
};

use fabricbios_wire::LeaseId;

use super::{
    RunnerEvent,
    reply_writer::{CUT, REFUSED, WATCHING, WELL},
};

/// A reply of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Watches,
    IsWell,
}

/// The socket to the current watchdog, and what was read.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    /// Number of watchdogs so far.
    number: u64,
    /// The socket of the current watchdog, which does not block.
    socket: Option<UnixStream>,
    rest: Vec<u8>,
    /// The watchdog's action on each lease that it has cut.
    done: HashMap<LeaseId, String>,
}

impl ReplyReader {
    /// Replaces the watchdog by another one, or by none. Returns the number of the new watchdog.
    pub(super) fn replace(&mut self, socket: Option<UnixStream>) -> u64 {
        self.socket = socket;
        self.rest.clear();
        self.number += 1;
        self.number
    }

    /// The number of the current watchdog.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Removes and returns the watchdog's action on a lease.
    pub(super) fn take_done(&mut self, lease: LeaseId) -> Option<String> {
        self.done.remove(&lease)
    }

    /// Reads all available replies and passes them on. `false`: the socket is closed.
    pub(super) fn read(&mut self, events: &Sender<RunnerEvent>) -> bool {
        let mut bytes = [0; 4096];
        loop {
            let Some(socket) = &mut self.socket else {
                return false;
            };
            match socket.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.rest.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.note(String::from_utf8_lossy(&line).trim_end(), events);
            }
        }
    }

    fn note(&mut self, line: &str, events: &Sender<RunnerEvent>) {
        let pass_on = |reply| drop(events.send(RunnerEvent::Replied(self.number, reply)));
        match line.split_once(' ').unwrap_or((line, "")) {
            (WATCHING, "") => pass_on(Reply::Watches),
            (WELL, "") => pass_on(Reply::IsWell),
            (REFUSED, why) => tracing::warn!(
                "should this daemon hang, its watchdog kills it, and every lease over RDMA ends with it: {why}"
            ),
            (CUT, about) => self.note_cut(about),
            _ => tracing::warn!(line, "the watchdog says what is not understood"),
        }
    }

    fn note_cut(&mut self, about: &str) {
        let lease = about.split_once(' ');
        let lease = lease.and_then(|(id, done)| Some((id.parse::<LeaseId>().ok()?, done)));
        if let Some((lease, done)) = lease {
            tracing::warn!(%lease, "{done}");
            self.done.insert(lease, done.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::mpsc};

    use super::*;

    #[test]
    fn what_it_has_done_is_there_as_soon_as_it_was_said() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut replies = ReplyReader::default();
        let first = replies.replace(Some(ours));
        let (lease, (events, received)) = (LeaseId(0xA), mpsc::channel());
        its.write_all(b"watching\nwe").unwrap();
        assert!(replies.read(&events));
        let rest = format!("ll\ncut {lease} two words\n");
        its.write_all(rest.as_bytes()).unwrap();
        assert!(replies.read(&events));
        for reply in [Reply::Watches, Reply::IsWell] {
            let RunnerEvent::Replied(number, its) = received.try_recv().unwrap() else {
                panic!("another event");
            };
            assert_eq!((number, its), (first, reply));
        }
        assert_eq!(replies.take_done(lease).as_deref(), Some("two words"));
        assert_eq!(replies.take_done(lease), None, "told once");
        drop(its);
        assert!(!replies.read(&events));
        assert_ne!(replies.replace(None), first);
    }
}
