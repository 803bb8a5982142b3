//! Nodes and schedulers, and a network that loses, delays, repeats and reorders reports, and cuts connections.

mod acts;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Counts,
    invariants::{Broken, Mistake},
    node::{Connection, Node, Report},
    scheduler::Scheduler,
};

const ACTS: usize = 80;
/// Milliseconds: a report that is not answered so long ends its connection.
const ANSWER_TIMEOUT: u64 = 8_000;
/// Milliseconds: the longest time until a scheduler notices that a connection has ended.
const NOTICED_WITHIN: u64 = 12_000;

/// A node and a scheduler, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    node: usize,
    scheduler: usize,
}

#[derive(Debug)]
enum Event {
    /// To this life of the scheduler, over this connection.
    Comes(Pair, u64, u64, Box<Report>),
    /// Over this connection, the report with this number, and whether it was taken.
    IsAnswered(Pair, u64, u64, bool),
    /// Over this connection, the report with this number.
    IsLate(Pair, u64, u64),
    Connects(Pair),
    /// This life of the scheduler notices the end of this connection.
    Ends(Pair, u64, u64),
}

/// What the network does, by the seed; nothing at the end of a run.
#[derive(Debug, Default)]
struct Faults {
    /// Of a hundred reports and answers.
    lost: u64,
    repeated: u64,
    /// Milliseconds.
    late: u64,
}

pub(crate) struct Run {
    random: fastrand::Rng,
    mistake: Option<Mistake>,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    number: u64,
    faults: Faults,
    /// Reports that a node sends before the first is answered. A real node waits for each answer.
    at_once: usize,
    nodes: Vec<Node>,
    schedulers: Vec<Scheduler>,
    connections: BTreeMap<Pair, Connection>,
    /// When the scheduler notices the end of each connection that has ended.
    ended: BTreeMap<u64, u64>,
    /// Nodes that do not report.
    off: BTreeSet<usize>,
    pub(crate) counts: Counts,
    /// What has happened, if somebody wants to read it.
    pub(crate) log: Option<Vec<String>>,
}

impl Run {
    pub(crate) fn new(seed: u64, mistake: Option<Mistake>, is_logged: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let nodes = 1..=random.u8(2..=5);
        let nodes = nodes.map(|number| Node::new(number, &mut random)).collect();
        // Of a node that waits for its answers this is the end of each connection, and what it sent comes much later.
        let is_slow = random.u8(..8) == 0;
        let mut rate = |most: u64| random.u64(..=most) * random.u64(..=1);
        let faults = Faults {
            lost: rate(20),
            repeated: rate(30),
            late: 1 + if is_slow { 60_000 } else { rate(4_000) },
        };
        let at_once = if random.bool() { 1 } else { random.usize(2..5) };
        Self {
            faults,
            at_once,
            schedulers: (0..random.u8(2..=3)).map(|_| Scheduler::new(0)).collect(),
            random,
            mistake,
            now: 0,
            events: BTreeMap::new(),
            number: 0,
            nodes,
            connections: BTreeMap::new(),
            ended: BTreeMap::new(),
            off: BTreeSet::new(),
            counts: Counts::default(),
            log: is_logged.then(Vec::new),
        }
    }

    /// Acts, and then no fault any more: every view becomes what the tables are.
    pub(crate) fn run(&mut self) -> Result<(), Broken> {
        for node in 0..self.nodes.len() {
            self.all_connect(node);
        }
        for _ in 0..ACTS {
            let until = self.now + self.random.u64(..1_000);
            self.go_on(until)?;
            self.act();
        }
        self.faults = Faults::default();
        self.go_on(u64::MAX)?;
        for _ in 0..6 {
            self.check_places()?;
            self.go_on(u64::MAX)?;
            let nodes: Vec<&Node> = { self.nodes.iter().enumerate() }
                .filter(|(at, _)| !self.off.contains(at))
                .map(|(_, it)| it)
                .collect();
            for scheduler in &self.schedulers {
                scheduler.check_against(&nodes)?;
            }
        }
        self.counts.leases = self.nodes.iter().map(|it| it.leases().len()).sum();
        Ok(())
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{now} ms: {}", what()));
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.insert((time, self.number), event);
    }

    fn soon(&mut self, event: Event) {
        let late = self.random.u64(..=self.faults.late);
        let is_report = matches!(event, Event::Comes(..));
        self.counts.late += usize::from(is_report && late > 30_000);
        self.at(self.now + 1 + late, event);
    }

    fn is_lost(&mut self) -> bool {
        let is_lost = self.random.u64(..100) < self.faults.lost;
        self.counts.lost += usize::from(is_lost);
        is_lost
    }

    fn tell(&mut self, node: usize) {
        for scheduler in 0..self.schedulers.len() {
            self.tell_one(Pair { node, scheduler });
        }
    }

    /// The node tells what it has not told yet.
    fn tell_one(&mut self, pair: Pair) {
        let Some(mut connection) = self.connections.remove(&pair) else {
            return;
        };
        let node = pair.node;
        while connection.waiting.len() < self.at_once {
            let Some(mut report) = connection.next(&self.nodes[node], self.mistake) else {
                break;
            };
            let (number, sequence) = (connection.number, *report.sequence());
            self.say(|| format!("{pair:?} sends over {number}: {report:?}"));
            let is_late = Event::IsLate(pair, number, sequence);
            self.at(self.now + ANSWER_TIMEOUT, is_late);
            let life = self.schedulers[pair.scheduler].life;
            if self.random.u64(..100) < self.faults.repeated {
                self.counts.repeated += 1;
                self.soon(Event::Comes(pair, life, number, Box::new(report.clone())));
            }
            if !self.is_lost() {
                self.soon(Event::Comes(pair, life, number, Box::new(report)));
            }
        }
        self.connections.insert(pair, connection);
    }

    /// The connection ends, and what is under way may still come.
    fn ends(&mut self, pair: Pair) {
        let Some(Connection { number, .. }) = self.connections.remove(&pair) else {
            return;
        };
        let noticed = self.now + self.random.u64(..NOTICED_WITHIN);
        self.ended.insert(number, noticed);
        let scheduler = &self.schedulers[pair.scheduler];
        if scheduler.awaited.contains(&number) {
            self.at(noticed, Event::Ends(pair, scheduler.life, number));
        }
        let pause = self.random.u64(..2_000);
        self.at(self.now + pause, Event::Connects(pair));
    }

    /// Goes on until this time, or until nothing more happens.
    fn go_on(&mut self, until: u64) -> Result<(), Broken> {
        while let Some(first) = self.events.first_entry() {
            let (time, _) = *first.key();
            if time > until {
                break;
            }
            let event = first.remove();
            self.now = time;
            self.say(|| format!("{event:?}"));
            self.happens(event)?;
        }
        if until < u64::MAX {
            self.now = until;
        }
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Comes(pair, life, number, report) => self.comes(pair, life, number, *report)?,
            Event::IsAnswered(pair, number, sequence, is_taken) => {
                let connection = self.connections.get_mut(&pair);
                let Some(connection) = connection.filter(|it| it.number == number) else {
                    return Ok(());
                };
                let goes_on = is_taken || self.mistake == Some(Mistake::GoesOnAfterARefusal);
                match connection.waiting.remove(&sequence) {
                    true if goes_on => self.tell_one(pair),
                    true => self.ends(pair),
                    false => {}
                }
            }
            Event::IsLate(pair, number, sequence) => {
                let connection = self.connections.get(&pair);
                let is_waiting = |it: &Connection| it.waiting.contains(&sequence);
                if connection.is_some_and(|it| it.number == number && is_waiting(it)) {
                    self.ends(pair);
                }
            }
            Event::Connects(pair) => {
                if !self.off.contains(&pair.node) && !self.connections.contains_key(&pair) {
                    self.number += 1;
                    self.connections.insert(pair, Connection::new(self.number));
                    self.tell_one(pair);
                }
            }
            Event::Ends(pair, life, number) => {
                let scheduler = &mut self.schedulers[pair.scheduler];
                if scheduler.life == life {
                    let node_id = self.nodes[pair.node].id();
                    scheduler.ends(node_id, number, self.mistake)?;
                }
            }
        }
        Ok(())
    }

    fn comes(
        &mut self,
        pair: Pair,
        life: u64,
        number: u64,
        mut report: Report,
    ) -> Result<(), Broken> {
        let scheduler = &mut self.schedulers[pair.scheduler];
        if scheduler.life != life {
            return Ok(());
        }
        let sequence = *report.sequence();
        let is_inventory = matches!(report, Report::Inventory(_));
        let node_id = self.nodes[pair.node].id();
        let is_older = scheduler.has_later(node_id, number);
        let is_taken = scheduler.takes(node_id, number, report, self.mistake)?;
        let is_new = is_taken && is_inventory && scheduler.awaited.insert(number);
        // The end of a connection is awaited from its first report on; it may have ended before.
        if let Some(noticed) = self.ended.get(&number).filter(|_| is_new) {
            let noticed = self.now.max(*noticed) + 1;
            self.at(noticed, Event::Ends(pair, life, number));
        }
        self.counts.taken += usize::from(is_taken);
        self.counts.refused += usize::from(!is_taken);
        self.counts.of_older += usize::from(is_older);
        if !self.is_lost() {
            self.soon(Event::IsAnswered(pair, number, sequence, is_taken));
        }
        Ok(())
    }
}
