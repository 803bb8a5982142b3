//! What fails, by the seed: each fault is over after some seconds, and several may be there at once.

use std::{
    fmt,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tokio::task::JoinSet;

use crate::fleet::Fleet;

/// A fault is over after at most so long.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two faults.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
enum Fault {
    SchedulerKilled(usize),
    SchedulerStopped(usize),
    /// All servers of it.
    EtcdKilled,
    EtcdStopped,
    /// One of several servers.
    ServerKilled(usize),
    ServerStopped(usize),
    /// It is killed, and its data are gone.
    EtcdWiped,
    /// In the end it has again what it had in the beginning.
    EtcdRestored,
    /// The power of these nodes.
    PowerLost(Vec<usize>),
    /// The daemons of these nodes were killed, and are started at once.
    Restarted(Vec<usize>),
    /// The network between these nodes and this scheduler.
    Cut(Vec<usize>, usize),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerLost(nodes) => write!(f, "PowerLost of {} nodes", nodes.len()),
            Self::Restarted(nodes) => write!(f, "Restarted {} nodes", nodes.len()),
            Self::Cut(nodes, scheduler) => {
                write!(
                    f,
                    "Cut between {} nodes and scheduler {scheduler}",
                    nodes.len()
                )
            }
            other => fmt::Debug::fmt(other, f),
        }
    }
}

/// The faults of a run.
pub(crate) struct Faults {
    random: fastrand::Rng,
    begin: Instant,
    /// Those that are there, with their ends.
    present: Vec<(Instant, Fault)>,
    /// Kinds that have not come since each has come once.
    due: Vec<Kind>,
}

type Kind = fn(&mut fastrand::Rng, &Fleet) -> Fault;

const KINDS: [Kind; 11] = [
    |random, fleet| Fault::SchedulerKilled(random.usize(..fleet.schedulers.len())),
    |random, fleet| Fault::SchedulerStopped(random.usize(..fleet.schedulers.len())),
    |_, _| Fault::EtcdKilled,
    |_, _| Fault::EtcdStopped,
    |_, _| Fault::EtcdWiped,
    |_, _| Fault::EtcdRestored,
    |random, fleet| Fault::ServerKilled(random.usize(..fleet.etcd.pids().len())),
    |random, fleet| Fault::ServerStopped(random.usize(..fleet.etcd.pids().len())),
    |random, fleet| Fault::PowerLost(some_nodes(random, fleet)),
    |random, fleet| Fault::Restarted(some_nodes(random, fleet)),
    |random, fleet| {
        let scheduler = random.usize(..fleet.schedulers.len());
        Fault::Cut(some_nodes(random, fleet), scheduler)
    },
];

fn some_nodes(random: &mut fastrand::Rng, fleet: &Fleet) -> Vec<usize> {
    let share = if random.bool() { 3 } else { 50 };
    let mut nodes: Vec<usize> = (0..fleet.nodes()).collect();
    random.shuffle(&mut nodes);
    nodes.truncate(fleet.nodes().div_ceil(share));
    nodes
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            begin: Instant::now(),
            present: Vec::new(),
            due: Vec::new(),
        }
    }

    /// etcd is dead for so long, from now on.
    pub(crate) fn etcd_is_away(&mut self, fleet: &mut Fleet, span: Duration) {
        self.say("EtcdKilled begins");
        fleet.etcd.kill();
        self.present
            .push((Instant::now() + span, Fault::EtcdKilled));
    }

    /// Makes faults for so long, and heals all of them.
    pub(crate) async fn run(&mut self, fleet: &mut Fleet, span: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.begins(fleet).await?;
            let next = Instant::now() + PAUSE.mul_f64(self.random.f64());
            loop {
                let ends = self.present.iter().map(|(at, _)| *at).min();
                let at = ends.map_or(next, |at| at.min(next));
                tokio::time::sleep_until(at.into()).await;
                if at == next {
                    break;
                }
                self.heal(fleet, at).await?;
            }
        }
        self.heal_all(fleet).await
    }

    async fn heal_all(&mut self, fleet: &mut Fleet) -> anyhow::Result<()> {
        let last = self.present.iter().map(|(at, _)| *at).max();
        match last {
            Some(last) => self.heal(fleet, last).await,
            None => Ok(()),
        }
    }

    fn say(&self, what: impl fmt::Display) {
        println!("{:>6.1} s {what}", self.begin.elapsed().as_secs_f64());
    }

    async fn begins(&mut self, fleet: &mut Fleet) -> anyhow::Result<()> {
        if self.due.is_empty() {
            self.due.extend(KINDS);
            self.random.shuffle(&mut self.due);
        }
        let Some(fault) = self.next(fleet) else {
            return Ok(());
        };
        self.say(format_args!("{fault} begins"));
        match &fault {
            Fault::SchedulerKilled(at) => fleet.kill_scheduler(*at),
            Fault::SchedulerStopped(at) => fleet.signal_scheduler(*at, Signal::SIGSTOP),
            Fault::EtcdKilled | Fault::EtcdWiped => fleet.etcd.kill(),
            Fault::EtcdStopped => fleet.signal_etcd(Signal::SIGSTOP),
            Fault::EtcdRestored => fleet.copy_etcd()?,
            Fault::ServerKilled(at) => fleet.signal_server(*at, Signal::SIGKILL),
            Fault::ServerStopped(at) => fleet.signal_server(*at, Signal::SIGSTOP),
            Fault::PowerLost(nodes) => die(fleet, nodes).await,
            Fault::Restarted(nodes) => {
                die(fleet, nodes).await;
                return start(fleet, nodes);
            }
            Fault::Cut(nodes, scheduler) => cut(fleet, nodes, *scheduler, true),
        }
        let ends = Instant::now() + LONGEST.mul_f64(self.random.f64());
        self.present.push((ends, fault));
        Ok(())
    }

    /// The next one that is due, or any other one, that concerns nothing that another one does.
    fn next(&mut self, fleet: &Fleet) -> Option<Fault> {
        let mut others = KINDS;
        self.random.shuffle(&mut others);
        for (at, kind) in self.due.clone().into_iter().chain(others).enumerate() {
            let fault = kind(&mut self.random, fleet);
            if !self.present.iter().any(|(_, it)| collide(it, &fault)) {
                if at < self.due.len() {
                    self.due.remove(at);
                }
                return Some(fault);
            }
        }
        None
    }

    /// Ends the faults whose time is before `until`.
    async fn heal(&mut self, fleet: &mut Fleet, until: Instant) -> anyhow::Result<()> {
        let present = std::mem::take(&mut self.present);
        let (over, present) = present.into_iter().partition(|(at, _)| *at <= until);
        self.present = present;
        let over: Vec<(Instant, Fault)> = over;
        for (_, fault) in over {
            self.say(format_args!("{fault} is over"));
            match &fault {
                Fault::SchedulerKilled(at) => fleet.start_scheduler(*at)?,
                Fault::SchedulerStopped(at) => fleet.signal_scheduler(*at, Signal::SIGCONT),
                Fault::EtcdKilled => fleet.etcd.restart()?,
                Fault::EtcdStopped => fleet.signal_etcd(Signal::SIGCONT),
                Fault::EtcdWiped => fleet.start_empty_etcd()?,
                Fault::EtcdRestored => fleet.start_older_etcd()?,
                Fault::ServerKilled(at) => fleet.etcd.restart_server(*at)?,
                Fault::ServerStopped(at) => fleet.signal_server(*at, Signal::SIGCONT),
                Fault::PowerLost(nodes) => start(fleet, nodes)?,
                Fault::Restarted(_) => {}
                Fault::Cut(nodes, scheduler) => cut(fleet, nodes, *scheduler, false),
            }
        }
        Ok(())
    }
}

/// Whether the two concern the same processes or nodes.
fn collide(one: &Fault, other: &Fault) -> bool {
    fn of(fault: &Fault) -> (u8, usize) {
        match fault {
            Fault::SchedulerKilled(at) | Fault::SchedulerStopped(at) => (0, *at),
            Fault::PowerLost(_) | Fault::Restarted(_) | Fault::Cut(..) => (1, 0),
            _ => (2, 0),
        }
    }
    of(one) == of(other)
}

async fn die(fleet: &mut Fleet, nodes: &[usize]) {
    let mut dying = JoinSet::new();
    for at in nodes {
        dying.spawn(fleet.all[*at].dies());
    }
    dying.join_all().await;
}

fn start(fleet: &mut Fleet, nodes: &[usize]) -> anyhow::Result<()> {
    nodes.iter().try_for_each(|at| fleet.start_node(*at))
}

fn cut(fleet: &Fleet, nodes: &[usize], scheduler: usize, is_cut: bool) {
    let address = fleet.schedulers[scheduler].address;
    for at in nodes {
        if let Some(port) = fleet.all[*at].port() {
            port.cut_from(address, is_cut);
        }
    }
}
