//! Opens the pools of `--block-pool` and compares them with the journal.
//!
//! A path that this node has never offered must be a pool; otherwise the node does not start, because the path may be a
//! typing error. A pool of the last run that is not available now is withheld, and the node starts without it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use fabricbios_lease::LeaseRecord;
use fabricbios_pool::{Facts, Pool, PoolConfig, check_for_nvmet};
use fabricbios_wire::{NodeId, ResourceId, ResourceType};

use super::{
    BlockSettings, CONFIGFS,
    foreign_exports::ForeignExports,
    readable,
    record::PoolRecord,
    verdict::{Known, Verdict},
    withheld::WhyWithheld,
};
use crate::{
    inventory::hardware::resource_id,
    journal::{Change, Key, Recovered, records},
    kinds::{Continuity, Opening},
    process::clock,
};

/// A pool, available or withheld.
pub(super) struct OpenPool {
    pub(super) resource_id: ResourceId,
    pub(super) facts: Facts,
    pub(super) pool: Result<Pool, WhyWithheld>,
    pub(super) record: PoolRecord,
    pub(super) continuity: Continuity,
}

/// Opens every pool of the settings, and writes their records, which are durable when this returns.
pub(super) fn open(opening: &Opening<'_>) -> anyhow::Result<Vec<OpenPool>> {
    let known = Known::of(&opening.past.recovered)?;
    let opener = PoolOpener {
        opening,
        known: &known,
    };
    let pools = opener.open_all()?;
    let left_out: Vec<_> = not_offered(&known, &pools)
        .filter(|it| it.was_offered)
        .collect();
    for path in &opening.settings.block.without_pool {
        if !left_out.iter().any(|it| is_same(path, &it.path)) {
            tracing::warn!(
                pool = %path.display(),
                "--without-pool has no effect: the last run offered no such pool, or this one does"
            );
        }
    }
    for record in left_out {
        refuse_forgotten(
            &opening.settings.block,
            &opening.node_id,
            &opening.past.recovered,
            record,
        )?;
        tracing::warn!(
            pool = %record.path.display(),
            "the last run offered it and this one does not (--block-pool): its leases are over"
        );
    }
    let writer = opening.past.journal.writer();
    let seq = writer.submit(changes(&known, &pools)?);
    writer
        .wait(seq)
        .context("write down which pools are on offer")?;
    Ok(pools)
}

/// Refuses a start that leaves out a pool of the last run with live leases: the operator may have forgotten it. With
/// `--without-pool` the operator confirms that these leases end.
pub(super) fn refuse_forgotten(
    settings: &BlockSettings,
    node_id: &NodeId,
    recovered: &Recovered,
    record: &PoolRecord,
) -> anyhow::Result<()> {
    let now = clock::now().unix_ms;
    let resource_id = resource_of(node_id, record.identity);
    let mut live = 0;
    for (key, bytes) in &recovered.records {
        let Key::Lease(id) = key else { continue };
        let lease: LeaseRecord = records::decode(bytes).with_context(|| format!("lease {id}"))?;
        let ends = lease.expires_at_unix_ms + u64::from(lease.grace_secs) * 1000;
        let lives = lease.ended.is_none() && !lease.cannot_go_on && ends > now;
        live += usize::from(lives && lease.resource_id == resource_id);
    }
    let mut meant = settings.without_pool.iter();
    if live == 0 || meant.any(|it| is_same(it, &record.path)) {
        return Ok(());
    }
    let path = record.path.display();
    bail!(
        "the last run offered the pool {path}, and {live} of its leases live: give --block-pool {path} again, or \
         --without-pool {path} to start without it, which ends them"
    )
}

/// True if both are the same path, as written or after links are resolved.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    one == other || real(one).is_some_and(|it| Some(it) == real(other))
}

fn resource_of(node_id: &NodeId, identity: u128) -> ResourceId {
    let name = format!("{identity:032x}");
    resource_id(node_id, ResourceType::Block, &name)
}

/// Pools on record that are not on offer.
fn not_offered<'a>(
    known: &'a Known,
    pools: &'a [OpenPool],
) -> impl Iterator<Item = &'a PoolRecord> {
    let is_offered = |identity: u128| pools.iter().any(|it| it.record.identity == identity);
    let records = known.records.values();
    records.filter(move |it| !is_offered(it.identity))
}

/// The records of all pools. Leases of a pool that is not on offer end with this run.
fn changes(known: &Known, pools: &[OpenPool]) -> anyhow::Result<Vec<Change>> {
    let not_offered = not_offered(known, pools).map(|record| PoolRecord {
        was_offered: false,
        ..record.clone()
    });
    let offered = pools.iter().map(|pool| PoolRecord {
        // A pool that starts anew is recorded as not offered until its first grant: if this start fails before the
        // earlier leases are over, the next start must not adopt them.
        was_offered: pool.continuity.has_leases(),
        ..pool.record.clone()
    });
    not_offered
        .chain(offered)
        .map(|record| record.put())
        .collect()
}

/// Refuses a pool that cannot be leased over NVMe-oF.
pub(super) fn serves_nvmet(path: &Path) -> anyhow::Result<()> {
    check_for_nvmet(path).map_err(|why| {
        anyhow!(
            "--block-pool {}: cannot be leased over NVMe-oF: {why}: put the pool on ext4 or xfs or give a device, or leave \
             --nvmet out and lease it with --fbbu-listen",
            path.display()
        )
    })
}

struct PoolOpener<'a> {
    opening: &'a Opening<'a>,
    known: &'a Known,
}

impl PoolOpener<'_> {
    /// Opens the available pools, wherever they are now, then adds the missing ones as withheld.
    fn open_all(&self) -> anyhow::Result<Vec<OpenPool>> {
        let mut pools: Vec<OpenPool> = Vec::new();
        let mut missing = Vec::new();
        for path in &self.opening.settings.block.block_pool {
            let readable = readable::check(self.opening.supervisor, path);
            // A known pool is checked too: if it were withheld, its leases over UDP would lose access as well.
            if readable.is_ok() && !self.opening.settings.block.nvmet.is_empty() {
                serves_nvmet(path)?;
            }
            let pool = readable
                .map_err(anyhow::Error::from)
                .and_then(|()| self.open_one(path));
            match (pool, self.known.at(path)) {
                (Ok(pool), _) => {
                    pools.push(self.admit(path, pool)?);
                    let why = || anyhow!("another pool of this node is in its place");
                    missing.extend(self.known.expected(path).map(|it| (path, it, why())));
                }
                (Err(why), Some(record)) => missing.push((path, record, why)),
                (Err(why), None) => {
                    return Err(why).with_context(|| format!("--block-pool {}", path.display()));
                }
            }
        }
        for (path, record, why) in missing {
            if !pools.iter().any(|it| it.record.identity == record.identity) {
                pools.push(self.withheld(path, record, WhyWithheld::Unavailable(why)));
            }
        }
        Ok(pools)
    }

    fn open_one(&self, path: &Path) -> anyhow::Result<Pool> {
        let foreign = ForeignExports {
            configfs: Path::new(CONFIGFS),
            node_id: self.opening.node_id,
            supervisor: self.opening.supervisor,
        };
        foreign.refuse_served(path)?;
        let force = self.opening.settings.block.force;
        let is_free = force || self.known.expected(path).is_none();
        let pool = Pool::open(PoolConfig {
            path: path.to_owned(),
            node_id: self.opening.node_id,
            force,
            may_begin: is_free,
            supervisor: self.opening.supervisor.clone(),
        })?;
        let identity = u128::from_be_bytes(pool.facts().identity);
        if !is_free && !self.known.records.contains_key(&identity) {
            bail!("not the pool that this node has offered here; --force takes it");
        }
        foreign.end(path, pool.facts())?;
        Ok(pool)
    }

    /// Judges an open pool by the journal.
    fn admit(&self, path: &Path, pool: Pool) -> anyhow::Result<OpenPool> {
        let facts = pool.facts();
        let identity = u128::from_be_bytes(facts.identity);
        let (of_pool, of_journal) = (pool.grants().unwrap_or(0), self.known.grants(identity));
        let force = self.opening.settings.block.force;
        let verdict = { self.known }.judge(identity, of_pool, pool.is_taken_over(), force);
        if verdict == Verdict::JournalIsOlder {
            let record = PoolRecord::of(facts, path, of_journal);
            let why = WhyWithheld::JournalIsOlder {
                of_pool,
                of_journal,
            };
            return Ok(self.withheld(path, &record, why));
        }
        let record = PoolRecord::of(facts, path, of_pool.max(of_journal));
        if verdict != Verdict::Trusted {
            pool.distrust()?;
        }
        if verdict == Verdict::Fresh {
            tracing::warn!(
                pool = %facts.name,
                "taken anew: leases that it had are over, and what they left is overwritten"
            );
        }
        tracing::info!(
            pool = %facts.name,
            bytes = facts.capacity,
            block_bytes = facts.block_bytes,
            read_only = facts.read_only,
            "block storage is on offer"
        );
        let continuity = match verdict {
            Verdict::Trusted => Continuity::Known,
            _ => Continuity::Fresh,
        };
        let facts = facts.clone();
        Ok(self.pool(record, facts, Ok(pool), continuity))
    }

    fn withheld(&self, path: &Path, record: &PoolRecord, why: WhyWithheld) -> OpenPool {
        let continuity = why.continuity();
        let leases = match continuity.has_leases() {
            true => "its leases keep their blocks until a start with the pool",
            false => "they are over",
        };
        tracing::error!(
            pool = %path.display(), %why, %leases,
            "withheld: the node starts without this pool and grants none of its blocks"
        );
        let facts = Facts {
            name: path.display().to_string(),
            ..record.facts()
        };
        self.pool(record.clone(), facts, Err(why), continuity)
    }

    fn pool(
        &self,
        record: PoolRecord,
        facts: Facts,
        pool: Result<Pool, WhyWithheld>,
        continuity: Continuity,
    ) -> OpenPool {
        OpenPool {
            resource_id: resource_of(&self.opening.node_id, record.identity),
            facts,
            pool,
            record,
            continuity,
        }
    }
}
