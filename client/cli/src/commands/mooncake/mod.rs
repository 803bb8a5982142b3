//! `mooncake`: serves a lease of memory as a segment of Mooncake's Transfer Engine, to stock clients.
//!
//! A client opens the segment by name and gets the lease's address and key; then it names its queue pairs and gets the node's.
//! From then on it reads and writes the node without this command, which keeps the lease. Tried with
//! mooncake-transfer-engine-non-cuda 0.3.13.post1, whose handshake has no version number.

mod bridge;
mod calls;
mod events;
mod frames;
mod handshake;
mod leaving;
mod messages;
mod names;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use fabricbios_client::{Error, Granted, Node, Renewals};
use fabricbios_wire::{
    EndCause, LeaseAllocRequest, LeaseInfo, LeasePhase, MemTerms, RefusalClass, Transport,
};

use self::{bridge::Bridge, events::Events, handshake::Segment};
use super::{
    alloc, lease, request_of,
    serve::{self, End, Event, Followed, Listening},
};
use crate::{
    args::Mooncake,
    failure::{Exit, Failure},
    output::Output,
};

/// Most clients whose messages are read or answered at once.
const AT_ONCE: usize = 64;
/// How long clients that are being answered at the end of the lease are waited for.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Returns after the end of the lease, and after SIGINT or SIGTERM, which the caller has blocked.
pub(super) fn run(node: &Node, what: Mooncake, output: Output) -> Result<(), Failure> {
    if what.listen.ip().is_unspecified() {
        return Err(Failure::usage(format!(
            "--listen {}: the segment is named after the address, which clients must reach: name one address of this machine",
            what.listen
        )));
    }
    let listening = serve::listen(what.listen)?;
    let address = listening.address;
    let secs = what.term.secs;
    let request = LeaseAllocRequest {
        transport: Transport::Rdma,
        ..request_of(node, MemTerms::default(), what.bytes, what.term)?
    };
    let asked = node;
    let Granted { node, info, .. } = &asked.acquire(request)?;
    let give_back = |failure: Failure| failure.and_message(&alloc::give_back(node, info.lease_id));
    let events = Events(output);
    let renewals = what
        .renew
        .then(|| Renewals::open(node, info.lease_id, secs));
    let renewals = renewals.transpose();
    let renewals = renewals.map_err(|error| give_back(error.into()))?;
    let segment = Segment::new(address, info.lease_id, what.mtu.unwrap_or(0));
    let bridge = Bridge::new(node, info, segment, events).ok_or_else(|| {
        give_back(Failure::local(
            "serve the lease",
            &"the node granted it without RDMA",
        ))
    })?;
    events
        .segment(
            &address.to_string(),
            info,
            what.mtu.unwrap_or(0),
            (node, asked),
        )
        .map_err(give_back)?;
    if let Some(renewals) = renewals {
        thread::spawn(move || renew(&renewals, events));
    }
    let followed = Followed::new(node, info);
    let served = serve(&Arc::new(bridge), followed, listening, events, what.renew);
    alloc::close_other(node, asked);
    served
}

/// Serves clients until the lease is over and each has been told. A client that is told may be asking at the same time, so
/// one thread serves and another one follows the lease.
fn serve(
    bridge: &Arc<Bridge>,
    followed: Followed,
    listening: Listening,
    events: Events,
    renew: bool,
) -> Result<(), Failure> {
    // Each thread that serves a client holds a reference; the channel is closed when the last one ends.
    let (serving, all_served) = mpsc::channel::<Infallible>();
    let serving = Arc::new(serving);
    let (signal, signalled) = mpsc::channel();
    let (follower, over) = (Arc::clone(bridge), listening.events);
    let follower = thread::spawn(move || {
        let ended = until_the_end(&follower, followed, &signalled);
        over.send(Event::Over).ok();
        ended
    });
    for event in listening.happened {
        match event {
            Event::Client(_, peer) if Arc::strong_count(&serving) > AT_ONCE => {
                let why = format!("{AT_ONCE} others are being answered: try again");
                events.refused(&peer.to_string(), &why);
            }
            Event::Client(stream, peer) => {
                let (bridge, serving) = (Arc::clone(bridge), Arc::clone(&serving));
                thread::spawn(move || {
                    bridge.serve(stream, peer);
                    drop(serving);
                });
            }
            Event::Signal => {
                signal.send(()).ok();
            }
            Event::Over => break,
        }
    }
    drop(serving);
    all_served.recv_timeout(LAST_ANSWERS_WITHIN).ok();
    let panicked = |_| Failure::local("follow the lease", &"a thread has panicked");
    let (end, how, followed) = follower.join().map_err(panicked)?;
    if !matches!(end, End::Unknown(_)) {
        events.ended(followed.info(), &how);
    }
    outcome(followed.info(), end, renew)
}

/// Waits for the end of the lease, or gives it back at a signal, and tells the clients.
fn until_the_end(
    bridge: &Bridge,
    mut followed: Followed,
    signalled: &Receiver<()>,
) -> (End, String, Followed) {
    let mut is_lost = false;
    let end = loop {
        let due_in = followed.due_in();
        if due_in.is_zero() {
            if let Some(how) = followed.look() {
                break End::Over(how);
            }
            match followed.lost() {
                Some(why) if !is_lost => bridge.events.node_lost(followed.info(), why),
                None if is_lost => bridge.events.node_back(),
                _ => {}
            }
            is_lost = followed.lost().is_some();
            continue;
        }
        match signalled.recv_timeout(due_in) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => break followed.give_back(),
        }
    };
    let how = match &end {
        End::Freed => "freed".to_owned(),
        End::Over(how) | End::Unknown(how) => how.clone(),
    };
    bridge.end(&how);
    (end, how, followed)
}

/// A lease that was given back, and one that lasted for its term, are no failure.
fn outcome(info: &LeaseInfo, end: End, renew: bool) -> Result<(), Failure> {
    let lease_id = info.lease_id;
    let cause = info.end.as_ref().map(|end| end.cause);
    match end {
        End::Freed => Ok(()),
        End::Unknown(why) => {
            let message =
                format!("lease {lease_id} was not given back and ends with its term: {why}");
            let class = RefusalClass::Transient;
            Err(Failure::new(
                Exit::Unreachable,
                class,
                "Unreachable",
                message,
            ))
        }
        End::Over(_) if info.phase == LeasePhase::Fenced => Err(lease::fenced(lease_id)),
        End::Over(_) if cause == Some(EndCause::Expired) && !renew => Ok(()),
        End::Over(why) => Err(Error::Ended {
            lease_id,
            cause,
            why,
        }
        .into()),
    }
}

/// Renews the lease until it is over.
fn renew(renewals: &Renewals, events: Events) {
    loop {
        match renewals.renew_next() {
            Ok(info) => events.renewed(&info),
            // The end of the lease has a line of its own.
            Err(error) if error.is_over() => return,
            Err(error) => return events.not_renewed(&error.to_string()),
        }
    }
}
