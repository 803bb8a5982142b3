//! `lease keep`: renews leases until a signal.

use std::{
    sync::mpsc::{self, Sender},
    thread,
    time::Duration,
};

use fabricbios_client::{Error, Node, Renewals};
use fabricbios_wire::{LeaseId, LeaseInfo};

use crate::{
    failure::Failure,
    json::{Object, field},
    output::Output,
    signals, time_text,
};

/// What happened.
enum Event {
    Renewed(Box<LeaseInfo>, Duration),
    Lost(LeaseId, Error),
    /// SIGINT or SIGTERM.
    Signal,
}

/// Returns after SIGINT or SIGTERM, which the caller has blocked, or with the failure of the last lease that was lost.
pub(super) fn run(
    node: &Node,
    leases: &[LeaseId],
    secs: u32,
    output: Output,
) -> Result<(), Failure> {
    let mut all = Vec::new();
    for lease in leases {
        let renewals = Renewals::open(node, *lease, secs).map_err(|error| named(*lease, error))?;
        print(&renewals.info(), None, renewals.due_in(), output)?;
        all.push(renewals);
    }
    let mut left = all.len();
    let (events, happened) = mpsc::channel();
    for renewals in all {
        let events = events.clone();
        thread::spawn(move || keep(&renewals, &events));
    }
    thread::spawn(move || {
        if signals::ends().wait().is_ok() {
            events.send(Event::Signal).ok();
        }
    });
    for event in happened {
        match event {
            Event::Renewed(info, due_in) => {
                print(&info, Some(time_text::now_ms()), due_in, output)?;
            }
            Event::Signal => break,
            Event::Lost(lease, error) => {
                let failure = named(lease, error);
                left -= 1;
                if left == 0 {
                    return Err(failure);
                }
                failure.report(output);
            }
        }
    }
    Ok(())
}

fn keep(renewals: &Renewals, events: &Sender<Event>) {
    loop {
        let event = match renewals.renew_next() {
            Ok(info) => Event::Renewed(Box::new(info), renewals.due_in()),
            Err(error) => Event::Lost(renewals.info().lease_id, error),
        };
        let is_last = matches!(event, Event::Lost(..));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

fn named(lease: LeaseId, error: Error) -> Failure {
    Failure::from(error).at(&format!("lease {lease}"))
}

/// Prints a line about a lease. The names are a contract. `due_in`: until the next renewal.
fn print(
    info: &LeaseInfo,
    renewed_at_unix_ms: Option<u64>,
    due_in: Duration,
    output: Output,
) -> Result<(), Failure> {
    let (lease_id, expires_at) = (info.lease_id, info.expires_at_unix_ms);
    let due_in_ms = u64::try_from(due_in.as_millis()).unwrap_or(u64::MAX);
    let json = Object::from([
        field("lease_id", lease_id.to_string()),
        field("renewed_at_unix_ms", renewed_at_unix_ms),
        field("expires_at_unix_ms", expires_at),
        field("due_in_ms", due_in_ms),
    ]);
    output.print(&json, || {
        let what = match renewed_at_unix_ms {
            Some(at) => format!("renewed at {} until", time_text::utc(at)),
            None => "lasts until".to_owned(),
        };
        let until = time_text::utc(expires_at);
        let due_in = time_text::span(due_in_ms);
        format!("lease {lease_id} {what} {until}; the next renewal is in {due_in}")
    })
}
