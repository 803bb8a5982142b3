//! Who belongs to the fabric: what etcd holds, what this scheduler's own nodes have told, and what is still to be written.
//! Pure: no I/O, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Bound::{Excluded, Unbounded},
};

use fabricbios_wire::{AwayNode, NodeId};

use super::record::{Record, Unreadable};

/// A record of etcd is written anew only so much later: a node that comes ever again, from ever other addresses, does not
/// fill etcd.
const LAST_SEEN_STEP_MS: u64 = 60_000;
/// Most records that are held, as many as four times the nodes of a scheduler.
pub(crate) const RECORDS_MAX: usize = 65_536;

/// What a node has become by a change of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Became {
    /// It belongs to the fabric, with a record that is new or has changed.
    Known(NodeId),
    /// It does not belong to it any more, as far as etcd says.
    Forgotten(NodeId),
}

/// What a node has told this scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) endpoint: String,
    pub(crate) labels: Vec<String>,
}

/// A change of a node's connection to this scheduler. A later change of the same node takes up an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// What it told last; `None`: nothing since the change before.
    pub(crate) told: Option<Told>,
    pub(crate) reports: bool,
    pub(crate) at_unix_ms: u64,
}

/// A node that this scheduler has seen, while it reports and until that is written, or that etcd has lost, until then.
#[derive(Clone, Debug)]
struct Own {
    told: Told,
    reports: bool,
    /// Its first report that is not written.
    since_unix_ms: u64,
    last_unix_ms: u64,
}

/// The record of etcd.
#[derive(Clone, Debug)]
struct Held {
    mod_revision: i64,
    record: Result<Record, Unreadable>,
}

/// A record to write, if the key still has this revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) id: NodeId,
    pub(crate) record: Record,
    /// 0: there is no such key.
    pub(crate) mod_revision: i64,
}

/// The members.
#[derive(Debug, Default)]
pub(crate) struct Members {
    held: BTreeMap<NodeId, Held>,
    /// The largest revision of etcd that was seen.
    revision: i64,
    own: BTreeMap<NodeId, Own>,
    /// Nodes of `own` that may have to be written.
    due: BTreeSet<NodeId>,
    /// The node whose turn was last: each has one, however often another one comes.
    last_turn: Option<NodeId>,
    /// The last unreadable revision of each key, which a log line has told.
    complained: BTreeMap<NodeId, i64>,
}

impl Members {
    /// A node has come to this scheduler or left it.
    pub(crate) fn change(&mut self, id: NodeId, change: Change) {
        let Change {
            told,
            reports,
            at_unix_ms,
        } = change;
        let before = self.own.get(&id);
        // A node that has left is told with what it reported before.
        let Some(told) = told.or_else(|| before.map(|it| it.told.clone())) else {
            return;
        };
        let since_unix_ms = before.map_or(at_unix_ms, |it| it.since_unix_ms);
        let last_unix_ms = at_unix_ms;
        self.own.insert(
            id,
            Own {
                told,
                reports,
                since_unix_ms,
                last_unix_ms,
            },
        );
        self.due.insert(id);
    }

    /// Takes all records of the fabric as they are at this revision, with those keys that are gone. Also whether etcd still has
    /// what it had: one that was wiped or restored has forgotten members whom nobody has had forgotten.
    pub(crate) fn take_all(
        &mut self,
        revision: i64,
        all: Vec<(NodeId, i64, Vec<u8>)>,
    ) -> (bool, Vec<Became>) {
        let before = mem::take(&mut self.held);
        // A wiped or restored etcd counts from an earlier revision on.
        let goes_on = mem::replace(&mut self.revision, revision) <= revision;
        for (id, mod_revision, value) in all {
            self.hold(id, mod_revision, &value);
        }
        self.complained.retain(|id, _| self.held.contains_key(id));
        for id in before.keys().filter(|_| goes_on) {
            self.is_missing(*id);
        }
        // A wiped etcd is filled by who reports, and by who was known.
        for (id, held) in before.iter().filter(|_| !goes_on) {
            if let (Ok(was), false) = (&held.record, self.held.contains_key(id)) {
                self.own.entry(*id).or_insert_with(|| Own {
                    told: Told {
                        endpoint: was.endpoint.clone(),
                        labels: was.labels.clone(),
                    },
                    reports: false,
                    since_unix_ms: was.first_seen_unix_ms,
                    last_unix_ms: was.last_seen_unix_ms,
                });
            }
        }
        let missing = { self.own.keys() }.filter(|id| !self.is_readable(**id));
        self.due.extend(missing.copied().collect::<Vec<_>>());
        let known = { self.held.keys() }.filter(|id| {
            let record = self.record(**id);
            record.is_some() && record != record_of(&before, **id)
        });
        let forgotten = { before.keys() }
            .filter(|id| goes_on && record_of(&before, **id).is_some() && !self.is_readable(**id));
        let forgotten = forgotten.map(|id| Became::Forgotten(*id));
        let became = known.map(|id| Became::Known(*id)).chain(forgotten);
        (goes_on, became.collect())
    }

    /// A key was put.
    pub(crate) fn put(&mut self, id: NodeId, mod_revision: i64, value: &[u8]) -> Option<Became> {
        self.revision = self.revision.max(mod_revision);
        if self.is_later(id, mod_revision) {
            return None;
        }
        if self.held.len() >= RECORDS_MAX && !self.held.contains_key(&id) {
            return None;
        }
        let before = self.record(id).cloned();
        self.hold(id, mod_revision, value);
        match (before, self.record(id)) {
            (before, Some(now)) if before.as_ref() != Some(now) => Some(Became::Known(id)),
            (Some(_), None) => Some(Became::Forgotten(id)),
            _ => None,
        }
    }

    /// A key was deleted.
    pub(crate) fn deleted(&mut self, id: NodeId, mod_revision: i64) -> Option<Became> {
        if self.is_later(id, mod_revision) {
            return None;
        }
        let was = self.held.remove(&id)?;
        self.is_missing(id);
        was.record.is_ok().then_some(Became::Forgotten(id))
    }

    /// If the record that etcd had is gone: the node is written anew if it reports. Otherwise somebody has had it forgotten,
    /// and its last word, if it is not written yet, does not bring it back.
    fn is_missing(&mut self, id: NodeId) {
        if self.held.contains_key(&id) {
            return;
        }
        match self.own.get(&id).map(|it| it.reports) {
            Some(true) => drop(self.due.insert(id)),
            Some(false) => self.is_done(id),
            None => {}
        }
    }

    /// Whether every record that etcd has is held and can be read.
    pub(crate) fn are_whole(&self) -> bool {
        self.held.len() < RECORDS_MAX && self.held.values().all(|it| it.record.is_ok())
    }

    /// The next record to write.
    pub(crate) fn next_write(&mut self, now_unix_ms: u64) -> Option<Write> {
        while let Some(id) = self.next_turn() {
            self.last_turn = Some(id);
            match self.wanted(id, now_unix_ms) {
                Some(write) => return Some(write),
                None => self.is_done(id),
            }
        }
        None
    }

    fn next_turn(&self) -> Option<NodeId> {
        let behind = (self.last_turn.map_or(Unbounded, Excluded), Unbounded);
        let next = self.due.range(behind).next().or_else(|| self.due.first());
        next.copied()
    }

    /// Whether something may have to be written.
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The record was written at this revision.
    pub(crate) fn written(&mut self, write: Write, mod_revision: i64) -> Option<Became> {
        let Write { id, record, .. } = write;
        self.revision = self.revision.max(mod_revision);
        self.held.insert(
            id,
            Held {
                mod_revision,
                record: Ok(record),
            },
        );
        self.is_done(id);
        Some(Became::Known(id))
    }

    /// The key had another revision: this one, or none.
    pub(crate) fn overtaken(&mut self, id: NodeId, found: Option<(i64, &[u8])>) -> Option<Became> {
        match found {
            Some((mod_revision, value)) => self.put(id, mod_revision, value),
            None => self.deleted(id, i64::MAX),
        }
    }

    /// The number of records that can be read.
    pub(crate) fn len(&self) -> usize {
        self.held.values().filter(|it| it.record.is_ok()).count()
    }

    fn is_done(&mut self, id: NodeId) {
        self.due.remove(&id);
        if self.own.get(&id).is_some_and(|it| !it.reports) {
            self.own.remove(&id);
        }
    }

    fn wanted(&self, id: NodeId, now_unix_ms: u64) -> Option<Write> {
        let own = self.own.get(&id)?;
        let held = self.held.get(&id);
        let mod_revision = held.map_or(0, |it| it.mod_revision);
        let mut first = own.since_unix_ms;
        let mut last = own.last_unix_ms;
        match held.map(|it| &it.record) {
            Some(Err(Unreadable::Later(_))) => return None,
            Some(Ok(it)) => {
                let is_same = it.endpoint == own.told.endpoint && it.labels == own.told.labels;
                // By a clock that is ahead: it must not stop updates until this one is there.
                let is_ahead = it.last_seen_unix_ms > now_unix_ms.saturating_add(LAST_SEEN_STEP_MS);
                // What has changed since is written when the node comes or leaves the next time.
                let is_seen = last < it.last_seen_unix_ms.saturating_add(LAST_SEEN_STEP_MS);
                if is_seen && !is_ahead || is_same && own.reports {
                    return None;
                }
                first = first.min(it.first_seen_unix_ms);
                if !is_ahead {
                    last = last.max(it.last_seen_unix_ms);
                }
            }
            Some(Err(Unreadable::Garbage(_))) | None => {}
        }
        let Told { endpoint, labels } = own.told.clone();
        let record = Record::new(endpoint, labels, first, last);
        Some(Write {
            id,
            record,
            mod_revision,
        })
    }

    fn is_readable(&self, id: NodeId) -> bool {
        self.record(id).is_some()
    }

    fn record(&self, id: NodeId) -> Option<&Record> {
        record_of(&self.held, id)
    }

    /// A member, as it is shown while it is away.
    pub(crate) fn as_away(&self, id: NodeId) -> Option<AwayNode> {
        self.record(id)?.as_away(id)
    }

    /// The revision of a member's record, which may be removed; `None`: there is none, or the node reports to this scheduler.
    pub(crate) fn removable(&self, id: NodeId) -> Option<i64> {
        let reports = self.own.get(&id).is_some_and(|it| it.reports);
        let held = self.held.get(&id).filter(|it| it.record.is_ok());
        held.filter(|_| !reports).map(|it| it.mod_revision)
    }

    /// Whether a later revision of the key is known: an answer to a write overtakes the watch.
    fn is_later(&self, id: NodeId, mod_revision: i64) -> bool {
        { self.held.get(&id) }.is_some_and(|it| it.mod_revision > mod_revision)
    }

    fn hold(&mut self, id: NodeId, mod_revision: i64, value: &[u8]) {
        let record = Record::read(value);
        if let Err(why) = &record
            && self.complained.insert(id, mod_revision) != Some(mod_revision)
        {
            tracing::warn!(node_id = %id, mod_revision, %why, "a record in etcd is not used");
        }
        self.held.insert(
            id,
            Held {
                mod_revision,
                record,
            },
        );
    }
}

fn record_of(held: &BTreeMap<NodeId, Held>, id: NodeId) -> Option<&Record> {
    held.get(&id)?.record.as_ref().ok()
}

#[cfg(test)]
mod tests;
