//! A thread that drops blocks that have been half-sent for too long. It looks once a second, so that they are dropped
//! even if no further request comes.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{blocks::Blocks, clock, leases::Leases};
use crate::{Room, ServedLease, Space};

const PERIOD: Duration = Duration::from_secs(1);

/// The thread; dropping this ends it.
#[derive(Debug)]
pub(super) struct Tidying {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Tidying {
    pub(super) fn start(leases: &Arc<Leases<Blocks>>, room: &Arc<Room>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let (leases, room) = (Arc::clone(leases), Arc::clone(room));
        let body = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                if room.is_used() {
                    tidy(&leases);
                }
            }
        };
        let thread = thread::Builder::new().name("fbbu-tidy".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(body)?),
        })
    }
}

fn tidy(leases: &Leases<Blocks>) {
    let now = clock::now();
    leases.for_each(|entry| {
        let share = entry.space().share();
        if share.is_some_and(|share| share.is_used()) {
            let broken = entry.with_sessions(|sessions| sessions.tidy(now, share));
            broken.into_iter().for_each(|broken| entry.broken(broken));
        }
    });
}

impl Drop for Tidying {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|it| it.join().is_err()) {
            tracing::error!("a thread of FBBU panicked");
        }
    }
}
