//! Judges an available pool by the journal.

use std::{collections::HashMap, path::Path};

use anyhow::Context;
use fabricbios_wire::Epoch;

use super::record::PoolRecord;
use crate::journal::{Key, Recovered, records};

/// The judgement of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The leases of the pool on record are complete.
    Trusted,
    /// A run without this pool ended the leases of the pool: their bytes must be overwritten.
    Distrusted,
    /// The pool starts anew: earlier leases are over.
    Fresh,
    /// The pool has grants that the journal does not have.
    JournalIsOlder,
}

/// The pools on record.
pub(super) struct Known {
    pub(super) records: HashMap<u128, PoolRecord>,
    /// The journal is new.
    is_first_run: bool,
}

impl Known {
    pub(super) fn of(recovered: &Recovered) -> anyhow::Result<Self> {
        let mut pools = HashMap::new();
        for (key, bytes) in &recovered.records {
            let Key::Pool(identity) = *key else { continue };
            let record = records::decode(bytes);
            pools.insert(
                identity,
                record.with_context(|| format!("pool {identity:032x}"))?,
            );
        }
        Ok(Self {
            records: pools,
            is_first_run: recovered.epoch == Epoch(1),
        })
    }

    /// The record of the pool that was at this path in the last run, or else in an earlier run.
    pub(super) fn at(&self, path: &Path) -> Option<&PoolRecord> {
        let there = self.records.values().filter(|it| it.path == path);
        there.max_by_key(|it| it.was_offered)
    }

    /// The record of the pool that was at this path in the last run. No new pool is made at this path.
    pub(super) fn expected(&self, path: &Path) -> Option<&PoolRecord> {
        self.at(path).filter(|it| it.was_offered)
    }

    pub(super) fn grants(&self, identity: u128) -> u64 {
        self.records.get(&identity).map_or(0, |it| it.grants)
    }

    /// `of_pool`: the number of grants that the pool has stored. `is_taken_over`: the pool was another node's.
    pub(super) fn judge(
        &self,
        identity: u128,
        of_pool: u64,
        is_taken_over: bool,
        force: bool,
    ) -> Verdict {
        let record = self.records.get(&identity);
        let is_ahead = of_pool > self.grants(identity) && !self.is_first_run;
        // Another node had the pool meanwhile, or this node ended before it answered the first grant.
        let has_lost_its_number = of_pool == 0 && self.grants(identity) > 0;
        match (is_ahead, force) {
            _ if is_taken_over || has_lost_its_number => Verdict::Fresh,
            (true, true) => Verdict::Fresh,
            (true, false) => Verdict::JournalIsOlder,
            (false, _) if record.is_some_and(|it| it.was_offered) => Verdict::Trusted,
            (false, _) => Verdict::Distrusted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{facts, withheld::WhyWithheld},
        *,
    };
    use crate::journal::Change;

    const IDENTITY: u128 = 7;

    fn record(grants: u64, was_offered: bool) -> PoolRecord {
        PoolRecord {
            was_offered,
            ..PoolRecord::of(&facts(IDENTITY), Path::new("/pool"), grants)
        }
    }

    fn known(record: Option<PoolRecord>) -> Known {
        Known {
            records: record.map(|it| (IDENTITY, it)).into_iter().collect(),
            is_first_run: false,
        }
    }

    fn verdict(known: &Known, grants: u64, force: bool) -> Verdict {
        known.judge(IDENTITY, grants, false, force)
    }

    #[test]
    fn a_pool_that_knows_of_more_grants_than_the_journal_is_not_given_out() {
        let known_of_five = known(Some(record(5, true)));
        assert_eq!(verdict(&known_of_five, 5, false), Verdict::Trusted);
        assert_eq!(verdict(&known_of_five, 6, false), Verdict::JournalIsOlder);
        assert_eq!(verdict(&known_of_five, 6, true), Verdict::Fresh);
        // The journal is a copy from before the pool was first offered.
        assert_eq!(verdict(&known(None), 1, false), Verdict::JournalIsOlder);
    }

    #[test]
    fn a_crash_between_the_two_numbers_is_no_older_copy() {
        assert_eq!(
            verdict(&known(Some(record(6, true))), 5, false),
            Verdict::Trusted
        );
    }

    #[test]
    fn a_pool_that_was_away_or_whose_journal_is_gone_is_wiped_before_it_is_given_out() {
        let was_away = known(Some(record(5, false)));
        assert_eq!(verdict(&was_away, 5, false), Verdict::Distrusted);
        assert_eq!(verdict(&was_away, 6, false), Verdict::JournalIsOlder);
        let gone = Known {
            is_first_run: true,
            ..known(None)
        };
        assert_eq!(verdict(&gone, 9, false), Verdict::Distrusted);
    }

    #[test]
    fn a_pool_that_another_node_had_in_between_has_none_of_our_leases() {
        let known = known(Some(record(5, true)));
        assert_eq!(known.judge(IDENTITY, 0, true, true), Verdict::Fresh);
    }

    #[test]
    fn that_is_also_known_when_the_start_that_took_it_back_failed() {
        let known = known(Some(record(5, true)));
        assert_eq!(verdict(&known, 0, false), Verdict::Fresh);
    }

    #[test]
    fn a_place_is_the_pools_that_the_last_run_had_there() {
        let there = Path::new("/pool");
        let identity = |it: Option<&PoolRecord>| it.map(|it| it.identity);
        let mut known = known(Some(record(5, false)));
        assert_eq!(identity(known.expected(there)), None);
        assert_eq!(identity(known.at(there)), Some(IDENTITY));
        let newer = PoolRecord {
            identity: 8,
            ..record(1, true)
        };
        known.records.insert(8, newer);
        assert_eq!(identity(known.expected(there)), Some(8));
        assert_eq!(identity(known.at(there)), Some(8));
        assert_eq!(identity(known.at(Path::new("/other"))), None);
    }

    #[test]
    fn the_two_numbers_and_the_ways_out_are_told() {
        let why = WhyWithheld::JournalIsOlder {
            of_pool: 812,
            of_journal: 640,
        };
        let why = why.to_string();
        for word in ["812", "640", "newest journal", "--force"] {
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_record_outlives_its_writing() {
        let before = record(5, true);
        let Change { key, value } = before.put().unwrap();
        let after: PoolRecord = records::decode(&value.unwrap()).unwrap();
        assert_eq!((key, &after), (Key::Pool(IDENTITY), &before));
        assert_eq!(after.facts().name, "/pool");
    }
}
