//! What the task that owns the view tells those who watch: its health, its counts, and the fleet in amounts and in short
//! lists. Nothing of it grows with what tenants ask for.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use fabricbios_lease::Histogram;
use fabricbios_placement::{NotTaken, Seen, View};
use fabricbios_wire::{AwayNode, Endpoint, NodeId, Refusal, ResourceType, health as healths};
use tokio::sync::{mpsc, oneshot};

use crate::health::Health;

/// Nodes of a list: a page has three.
pub(crate) const LISTED_MAX: usize = 25;
/// A node tells its inventory at least every 30 s.
const LATE_AFTER: Duration = Duration::from_secs(70);

/// Why reports are not taken.
pub(crate) const NOT_TAKEN: [&str; 5] = [
    "other-node",
    "sequence",
    "leases",
    "later-connection",
    "too-large",
];

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Requests for a lease that got candidates.
    pub(crate) placed: u64,
    /// Requests about a lease that were sent to its node.
    pub(crate) found: u64,
    /// Requests with `--explain` that got candidates.
    pub(crate) explained: u64,
    /// Refusals by class and code.
    pub(crate) refusals: BTreeMap<(&'static str, &'static str), u64>,
    /// How long it took to choose, or to refuse.
    pub(crate) decisions: Histogram,
    /// Reports of inventories and of leases that were taken.
    pub(crate) reports: [u64; 2],
    /// Reports that were not taken, by why: [`NOT_TAKEN`].
    pub(crate) not_taken: [u64; NOT_TAKEN.len()],
}

/// The resources of a kind that nodes report. Amounts are in the unit of the kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfKind {
    pub(crate) resources: u64,
    pub(crate) capacity: u64,
    /// What one more lease of each resource could get, all together.
    pub(crate) available: u64,
}

/// A node in a list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) node_id: NodeId,
    pub(crate) endpoint: Endpoint,
    pub(crate) labels: Vec<String>,
    pub(crate) state: State,
}

/// Why a node is in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// It does not report: its last word, milliseconds since 1970.
    Away(u64),
    /// It reports, and said nothing for so long.
    Late(Duration),
    Fenced,
    Degraded,
    /// It has not told all that decides about a lease.
    Untold,
    /// Its fullest resource is used so far, percent.
    Full(u8),
}

/// The fleet of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fleet {
    /// Nodes that report and have told all that decides about a lease, and those that have not.
    pub(crate) whole: u64,
    pub(crate) untold: u64,
    pub(crate) away: u64,
    /// Nodes that report, by their health: well, degraded, fenced.
    pub(crate) by_health: [u64; 3],
    pub(crate) late: u64,
    /// The age of the oldest last report.
    pub(crate) oldest_report: Option<Duration>,
    pub(crate) leases: u64,
    pub(crate) kinds: BTreeMap<ResourceType, OfKind>,
    /// The first of those that are away, those that are not well, and the fullest, at most [`LISTED_MAX`] of each.
    pub(crate) lists: [Vec<Listed>; 3],
    /// How many are not well in all.
    pub(crate) unwell: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) health: Health,
    pub(crate) fleet: Fleet,
    pub(crate) tally: Tally,
}

impl Tally {
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        let key = (refusal.class.name(), refusal.error.name());
        *self.refusals.entry(key).or_default() += 1;
    }

    pub(crate) fn not_taken(&mut self, why: &NotTaken) {
        let why = match why {
            NotTaken::OtherNode { .. } => 0,
            NotTaken::Sequence { .. } => 1,
            NotTaken::Leases(_) => 2,
            NotTaken::LaterConnection => 3,
            NotTaken::TooLarge => 4,
        };
        self.not_taken[why] += 1;
    }
}

impl Fleet {
    /// `heard`: when each node that reports said its last word.
    pub(crate) fn of(view: &View, heard: &HashMap<NodeId, Instant>, now: Instant) -> Self {
        let mut fleet = Self {
            away: view.away() as u64,
            leases: view.leases() as u64,
            ..Self::default()
        };
        let mut full: Vec<(u8, Seen<'_>)> = Vec::new();
        for seen in view.seen() {
            let said = heard.get(&seen.told.node_id);
            let age = said.map_or(Duration::ZERO, |at| now.saturating_duration_since(*at));
            fleet.oldest_report = fleet.oldest_report.max(Some(age));
            let percent = fleet.add(&seen, age);
            full.push((percent, seen));
        }
        let full = first(full, |(percent, seen)| {
            (Reverse(*percent), seen.told.node_id)
        });
        fleet.lists[2] = { full.iter() }
            .map(|(percent, seen)| Listed::of(seen, State::Full(*percent)))
            .collect();
        // The last lost first: an old one is known.
        let absent = first(view.absent().collect(), |it: &&AwayNode| {
            (Reverse(it.last_seen_unix_ms), it.node_id)
        });
        fleet.lists[0] = absent.into_iter().map(Listed::away).collect();
        fleet
    }

    /// Adds a node, and returns how far its fullest resource is used.
    fn add(&mut self, seen: &Seen<'_>, age: Duration) -> u8 {
        match seen.is_whole {
            true => self.whole += 1,
            false => self.untold += 1,
        }
        let is_late = age > LATE_AFTER;
        self.late += u64::from(is_late);
        let health = seen.told.inventory.health;
        let (health, state) = match health {
            healths::OK => (0, None),
            healths::FENCED => (2, Some(State::Fenced)),
            _ => (1, Some(State::Degraded)),
        };
        self.by_health[health] += 1;
        let state = state
            .or(is_late.then_some(State::Late(age)))
            .or((!seen.is_whole).then_some(State::Untold));
        if let Some(state) = state {
            self.unwell += 1;
            if self.lists[1].len() < LISTED_MAX {
                self.lists[1].push(Listed::of(seen, state));
            }
        }
        let mut fullest = 0;
        for (kind, capacity, available) in seen.amounts() {
            let of = self.kinds.entry(kind).or_default();
            let available = available.min(capacity);
            of.resources += 1;
            of.capacity = of.capacity.saturating_add(capacity);
            of.available = of.available.saturating_add(available);
            let used = u128::from(capacity - available) * 100;
            let percent = used.checked_div(capacity.into()).unwrap_or(0);
            fullest = fullest.max(u8::try_from(percent).unwrap_or(100));
        }
        fullest
    }
}

/// The first [`LISTED_MAX`] by this key, in its order. Decisions wait meanwhile, so the others are not sorted.
fn first<T, K: Ord>(mut all: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    if all.len() > LISTED_MAX {
        all.select_nth_unstable_by_key(LISTED_MAX, &key);
        all.truncate(LISTED_MAX);
    }
    all.sort_by_key(key);
    all
}

impl Listed {
    fn of(seen: &Seen<'_>, state: State) -> Self {
        Self {
            node_id: seen.told.node_id,
            endpoint: seen.told.endpoint,
            labels: seen.told.labels.clone(),
            state,
        }
    }

    fn away(node: &AwayNode) -> Self {
        Self {
            node_id: node.node_id,
            endpoint: node.endpoint,
            labels: node.labels.clone(),
            state: State::Away(node.last_seen_unix_ms),
        }
    }
}

/// Somebody waits for them.
pub(crate) type Ask = oneshot::Sender<Figures>;

/// Asks the task that owns the view.
#[derive(Clone, Debug)]
pub(crate) struct Asks(mpsc::Sender<Ask>);

impl Asks {
    /// `None`: the scheduler is stopping. May take as long as the task is busy.
    pub(crate) async fn figures(&self) -> Option<Figures> {
        let (ask, answer) = oneshot::channel();
        self.0.send(ask).await.ok()?;
        answer.await.ok()
    }
}

/// The two ends.
pub(crate) fn channel() -> (Asks, mpsc::Receiver<Ask>) {
    let (asks, asked) = mpsc::channel(1);
    (Asks(asks), asked)
}
