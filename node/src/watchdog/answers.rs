//! What the watchdog answers. Whoever needs it reads it: it may be there before the thread that waits for it.

use std::{
    collections::HashMap,
    io::{ErrorKind, Read},
    os::unix::net::UnixStream,
    sync::mpsc::Sender,
};

use fabricbios_wire::LeaseId;

use super::{
    Event,
    report::{CUT, REFUSED, WATCHING, WELL},
};

/// One of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Watches,
    IsWell,
}

/// What was read and what was not yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Counts the watchdogs.
    number: u64,
    /// Of the watchdog that is there; reading it does not wait.
    socket: Option<UnixStream>,
    rest: Vec<u8>,
    /// What it has done about leases.
    done: HashMap<LeaseId, String>,
}

impl Answers {
    /// Another watchdog is there, or none; its number.
    pub(super) fn replace(&mut self, socket: Option<UnixStream>) -> u64 {
        self.socket = socket;
        self.rest.clear();
        self.number += 1;
        self.number
    }

    /// Of the watchdog that is there.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What it has done about the lease; told once.
    pub(super) fn take_done(&mut self, lease: LeaseId) -> Option<String> {
        self.done.remove(&lease)
    }

    /// Reads all that is there, and passes it on. `false`: nothing will come any more.
    pub(super) fn read(&mut self, events: &Sender<Event>) -> bool {
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
                self.hear(String::from_utf8_lossy(&line).trim_end(), events);
            }
        }
    }

    fn hear(&mut self, line: &str, events: &Sender<Event>) {
        let pass_on = |answer| drop(events.send(Event::Answered(self.number, answer)));
        match line.split_once(' ').unwrap_or((line, "")) {
            (WATCHING, "") => pass_on(Answer::Watches),
            (WELL, "") => pass_on(Answer::IsWell),
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
        let mut answers = Answers::default();
        let first = answers.replace(Some(ours));
        let (lease, (events, heard)) = (LeaseId(0xA), mpsc::channel());
        its.write_all(b"watching\nwe").unwrap();
        assert!(answers.read(&events));
        let rest = format!("ll\ncut {lease} two words\n");
        its.write_all(rest.as_bytes()).unwrap();
        assert!(answers.read(&events));
        for answer in [Answer::Watches, Answer::IsWell] {
            let Event::Answered(number, its) = heard.try_recv().unwrap() else {
                panic!("another event");
            };
            assert_eq!((number, its), (first, answer));
        }
        assert_eq!(answers.take_done(lease).as_deref(), Some("two words"));
        assert_eq!(answers.take_done(lease), None, "told once");
        drop(its);
        assert!(!answers.read(&events));
        assert_ne!(answers.replace(None), first);
    }
}
