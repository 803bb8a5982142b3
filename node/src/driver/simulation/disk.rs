//! The disk of the journal, and what is left of a process.

use fabricbios_lease::Offer;
use fabricbios_wire::LeasePhase;

use super::{
    MILLISECOND,
    invariants::Mistake,
    machine::{Event, Machine, ZEROES},
};
use crate::{
    driver::Input,
    journal::{Change, CommitError, Seq},
};

/// The journal's disk.
impl Machine {
    pub(super) fn submit(&mut self, changes: Vec<Change>) -> Seq {
        self.waiting.push(changes);
        self.submitted += 1;
        self.commit_later();
        Seq(self.submitted)
    }

    fn commit_later(&mut self) {
        if self.commits_at.is_none() {
            self.commits_at = Some(self.submitted);
            let takes = self.takes();
            self.at(self.now + takes, Event::Commit);
        }
    }

    pub(super) fn commits(&mut self) {
        let Some(up_to) = self.commits_at.take() else {
            return;
        };
        let fails = self.happens(|it| it.disk);
        self.say(|| format!("the journal's disk: {up_to}, fails: {fails}"));
        self.before.clone_from(&self.records);
        // Changes whose sync failed may be in the file nevertheless.
        if !self.has(Mistake::DiskReportsTooSoon) && (!fails || self.below(2) == 0) {
            self.write_down();
        }
        let outcome = match fails {
            true => Err(CommitError::new("the disk is full")),
            false => Ok(Seq(up_to)),
        };
        if fails || self.submitted > up_to {
            self.commit_later();
        }
        if let Some(driver) = &self.driver {
            driver.notify(Input::Durable(outcome));
        }
    }

    /// Writes all waiting changes. Changes submitted since the commit began may be included; the next commit reports
    /// them.
    pub(super) fn write_down(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.written_on = Some(self.boot);
        let keeps_first = self.has(Mistake::DiskKeepsTheFirstRecord);
        for change in self.waiting.drain(..).flatten() {
            match change.value {
                Some(_) if keeps_first && self.records.contains_key(&change.key) => continue,
                Some(record) => self.records.insert(change.key, record),
                None => self.records.remove(&change.key),
            };
        }
        self.written_unix_ms = self.now().unix_ms;
    }
}

/// The end of a process.
impl Machine {
    /// The process ends. Some of the last changes reach the disk.
    pub(super) fn process_ends(&mut self, is_in_order: bool) {
        self.driver = None;
        self.later.clear();
        if !is_in_order {
            let kept = self.waiting.len() as u64 + 1;
            let kept = self.below(kept) as usize;
            self.waiting.truncate(kept);
        }
        self.write_down();
        self.commits_at = None;
        self.behind = 0;
        // A lease whose end was proved and not told may go on.
        self.proved.clear();
        self.cuts.clear();
        self.resetting.clear();
        // A hold-up of this process is no cause for a fence of the next one.
        self.in_trouble_until.clear();
        self.held_up_until = 0;
        self.behind_fences.extend(self.fenced_on_record());
        self.strays.clear();
        for ((path, lease), mut object) in std::mem::take(&mut self.objects) {
            if object.checks_deadlines {
                continue;
            }
            let is_fenced = self.record(lease) == Some(Some(LeasePhase::Fenced));
            object.is_left = true;
            object.is_open |= is_fenced && self.has(Mistake::ReopensTheFenced);
            self.objects.insert((path, lease), object);
        }
        let dies = |it: &Offer| !it.durability.leases_stay();
        let offers = &self.offers;
        self.parts.retain(|(id, _), _| !dies(&offers[id].1));
        self.check_told();
    }

    /// The machine is off, and boots.
    pub(super) fn reboots(&mut self, off_ms: u64) {
        self.say(|| format!("the machine boots after {off_ms} ms"));
        if self.has(Mistake::DiskHasACache) {
            self.records = self.before.clone();
        }
        self.objects.clear();
        self.parts.clear();
        for (id, (_, offer)) in &self.offers {
            let pages = self
                .pages
                .get_mut(id)
                .filter(|_| !offer.durability.leases_stay());
            pages.into_iter().for_each(|it| it.fill(ZEROES));
        }
        self.booted_unix_ms += self.now / MILLISECOND + off_ms;
        self.now = 1_000 * MILLISECOND;
        self.checked_at = self.now;
        self.boot += 1;
        self.check_told();
    }
}
