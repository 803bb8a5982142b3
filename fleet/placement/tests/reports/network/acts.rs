//! What happens to nodes and schedulers, and what is asked of them at the end.

use super::{Event, Pair, Run};
use crate::{
    invariants::{Broken, Invariant},
    node::dice,
    world::Fate,
};

impl Run {
    pub(super) fn act(&mut self) {
        let node = self.random.usize(..self.nodes.len());
        let scheduler = self.random.usize(..self.schedulers.len());
        match self.random.u8(..40) {
            0..4 => {
                self.say(|| {
                    format!("the connection of node {node} to scheduler {scheduler} is cut")
                });
                self.ends(Pair { node, scheduler });
            }
            4 => {
                self.say(|| format!("scheduler {scheduler} starts anew"));
                self.schedulers[scheduler].starts_anew();
                for node in 0..self.nodes.len() {
                    self.ends(Pair { node, scheduler });
                }
            }
            5 => {
                let starts = self.off.remove(&node);
                if starts {
                    self.say(|| format!("node {node} starts"));
                    self.all_connect(node);
                } else {
                    self.say(|| format!("node {node} stops"));
                    self.off.insert(node);
                    for scheduler in 0..self.schedulers.len() {
                        self.ends(Pair { node, scheduler });
                    }
                }
            }
            _ => {
                self.nodes[node].happens(&mut self.random);
                self.tell(node);
            }
        }
    }

    pub(super) fn all_connect(&mut self, node: usize) {
        for scheduler in 0..self.schedulers.len() {
            self.soon(Event::Connects(Pair { node, scheduler }));
        }
    }

    /// Asks each scheduler, and then each table.
    pub(super) fn check_places(&mut self) -> Result<(), Broken> {
        let of = self.random.usize(..self.nodes.len());
        let request = self.nodes[of].request(&mut self.random);
        let seed = self.random.u64(..);
        let schedulers = self.schedulers.iter();
        let named: Vec<_> = schedulers.map(|it| it.places(&request, seed)).collect();
        for at in 0..self.nodes.len() {
            if self.off.contains(&at) {
                continue;
            }
            let node = &mut self.nodes[at];
            let fate = Fate::random(&mut dice(&mut self.random));
            let grants = node.world.ask("blue", &request, fate);
            for named in &named {
                let named = named.get(&node.id());
                let why =
                    || format!("node {at}: {named:?}, and its table: {grants:?}: {request:?}");
                let is_same = named == grants.as_ref().ok();
                Invariant::PlacesAsTheTables.holds(is_same, why)?;
            }
            self.counts.placed += usize::from(grants.is_ok());
            self.tell(at);
        }
        Ok(())
    }
}
