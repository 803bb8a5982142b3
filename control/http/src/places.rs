//! The places of connections, and whose place one more gets.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::task::AbortHandle;

/// Connections at once. One more takes the place of another, so those that say nothing keep nobody out.
const CONNECTIONS_MAX: usize = 48;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// It has not sent a whole request.
    Silent = 0,
    /// It waits for its answer, or takes it.
    Asked = 1,
    /// Its answer is a stream. Sites bound their number.
    Watches = 2,
}

/// What the port knows of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection(AtomicU8);

impl Connection {
    pub(crate) fn reaches(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.0.load(Ordering::Relaxed) {
            0 => Stage::Silent,
            1 => Stage::Asked,
            _ => Stage::Watches,
        }
    }
}

/// The connections, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<(AbortHandle, Arc<Connection>)>);

impl Places {
    /// Adds a connection. If all places are taken, it ends one: of those that have not sent a request the oldest, else of
    /// those that take an answer, and only then of those that watch.
    pub(crate) fn add(&mut self, task: AbortHandle, connection: Arc<Connection>) {
        if self.0.len() == CONNECTIONS_MAX {
            self.0.retain(|(task, _)| !task.is_finished());
        }
        if self.0.len() == CONNECTIONS_MAX {
            let places = self.0.iter().enumerate();
            // Of equal ones it is the first.
            let least = places.min_by_key(|(_, (_, it))| it.stage());
            if let Some((index, _)) = least {
                let (task, _) = self.0.remove(index);
                task.abort();
            }
        }
        self.0.push((task, connection));
    }
}
