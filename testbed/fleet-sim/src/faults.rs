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
    EtcdKilled,
    EtcdStopped,
    /// And its data are gone.
    EtcdWiped,
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
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            begin: Instant::now(),
            present: Vec::new(),
        }
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

    fn some_nodes(&mut self, fleet: &Fleet) -> Vec<usize> {
        let share = if self.random.bool() { 3 } else { 50 };
        let mut nodes: Vec<usize> = (0..fleet.nodes()).collect();
        self.random.shuffle(&mut nodes);
        nodes.truncate(fleet.nodes().div_ceil(share));
        nodes
    }

    async fn begins(&mut self, fleet: &mut Fleet) -> anyhow::Result<()> {
        let scheduler = self.random.usize(..fleet.schedulers.len());
        let nodes = self.some_nodes(fleet);
        let fault = match self.random.u8(..9) {
            0 => Fault::SchedulerKilled(scheduler),
            1 => Fault::SchedulerStopped(scheduler),
            2 => Fault::EtcdKilled,
            3 => Fault::EtcdStopped,
            4 => Fault::EtcdWiped,
            5 => Fault::PowerLost(nodes),
            6 => Fault::Restarted(nodes),
            _ => Fault::Cut(nodes, scheduler),
        };
        if self.present.iter().any(|(_, it)| collide(it, &fault)) {
            return Ok(());
        }
        self.say(format_args!("{fault} begins"));
        match &fault {
            Fault::SchedulerKilled(at) => fleet.kill_scheduler(*at),
            Fault::SchedulerStopped(at) => fleet.signal_scheduler(*at, Signal::SIGSTOP),
            Fault::EtcdKilled | Fault::EtcdWiped => fleet.signal_etcd(Signal::SIGKILL),
            Fault::EtcdStopped => fleet.signal_etcd(Signal::SIGSTOP),
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
                Fault::PowerLost(nodes) => start(fleet, nodes)?,
                Fault::Restarted(_) => {}
                Fault::Cut(nodes, scheduler) => cut(fleet, nodes, *scheduler, false),
            }
        }
        Ok(())
    }
}

/// Whether the two concern the same process or node.
fn collide(one: &Fault, other: &Fault) -> bool {
    use Fault as F;
    match (one, other) {
        (
            F::SchedulerKilled(one) | F::SchedulerStopped(one),
            F::SchedulerKilled(other) | F::SchedulerStopped(other),
        ) => one == other,
        (
            F::EtcdKilled | F::EtcdStopped | F::EtcdWiped,
            F::EtcdKilled | F::EtcdStopped | F::EtcdWiped,
        )
        | (
            F::PowerLost(_) | F::Restarted(_) | F::Cut(..),
            F::PowerLost(_) | F::Restarted(_) | F::Cut(..),
        ) => true,
        _ => false,
    }
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
