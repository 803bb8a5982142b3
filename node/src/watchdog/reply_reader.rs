//! Reads the watchdog's replies. A thread that needs a reply reads it itself, because the reading thread may be late.

use std::{collections::HashSet, sync::mpsc::Sender, time::Duration};

use fabricbios_channel::Channel;
use fabricbios_wire::LeaseId;

use super::{RunnerEvent, message::WatchdogReply};

/// What the watchdog has done with a lease.
const CUT: &str =
    "the watchdog had put its queue pairs in ERR: this daemon had cut nothing for 2 s";

/// The channel of the current watchdog, and what was read.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    /// Number of watchdogs so far.
    number: u64,
    /// The channel of the current watchdog.
    channel: Option<Channel>,
    /// Leases that the watchdog has cut.
    cut: HashSet<LeaseId>,
}

impl ReplyReader {
    /// Replaces the watchdog by another one, or by none. Returns the number of the new watchdog.
    pub(super) fn replace(&mut self, channel: Option<Channel>) -> u64 {
        self.channel = channel;
        self.number += 1;
        self.number
    }

    /// The number of the current watchdog.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What the watchdog has done with a lease; each lease is returned once.
    pub(super) fn take_done(&mut self, lease: LeaseId) -> Option<String> {
        self.cut.remove(&lease).then(|| CUT.to_owned())
    }

    /// Reads all available replies and passes them on. `false`: the channel is closed.
    pub(super) fn read(&mut self, events: &Sender<RunnerEvent>) -> bool {
        while let Some(channel) = &mut self.channel {
            match channel.receive_within(Duration::ZERO) {
                Ok(Some(reply)) => self.note(reply, events),
                Ok(None) => return false,
                Err(error) if error.is_silence() => return true,
                Err(error) => {
                    tracing::warn!(%error, "a message of the watchdog is not understood");
                    if !error.is_garbled() {
                        return false;
                    }
                }
            }
        }
        false
    }

    fn note(&mut self, reply: WatchdogReply, events: &Sender<RunnerEvent>) {
        match reply {
            WatchdogReply::MayNotCut(why) => tracing::warn!(
                "should this daemon hang, its watchdog kills it, and every lease over RDMA ends with it: {why}"
            ),
            WatchdogReply::HasCut(lease) => {
                tracing::warn!(%lease, "{CUT}");
                self.cut.insert(lease);
            }
            reply => drop(events.send(RunnerEvent::Replied(self.number, reply))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use fabricbios_channel::Outgoing;
    use nix::sys::socket::MsgFlags;

    use super::*;
    use crate::watchdog::message::CHANNEL;

    #[test]
    fn what_it_has_done_is_there_as_soon_as_it_was_said() {
        let (ours, its) = Channel::pair(CHANNEL).unwrap();
        let mut replies = ReplyReader::default();
        let first = replies.replace(Some(ours));
        let (lease, (events, received)) = (LeaseId(0xA), mpsc::channel());
        let mut said = Outgoing::new(CHANNEL);
        for reply in [
            WatchdogReply::Watches,
            WatchdogReply::HasCut(lease),
            WatchdogReply::IsWell,
        ] {
            said.push(&reply).unwrap();
        }
        said.send_to(&its, None, MsgFlags::empty()).unwrap();
        assert!(replies.read(&events));
        for reply in [WatchdogReply::Watches, WatchdogReply::IsWell] {
            let RunnerEvent::Replied(number, its) = received.try_recv().unwrap() else {
                panic!("another event");
            };
            assert_eq!((number, its), (first, reply));
        }
        assert_eq!(replies.take_done(lease).as_deref(), Some(CUT));
        assert_eq!(replies.take_done(lease), None, "told once");
        drop(its);
        assert!(!replies.read(&events));
        assert_ne!(replies.replace(None), first);
    }
}
