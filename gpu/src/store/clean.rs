//! The end of a lease on its device: no process holds the device, its memory is free again, and all of it is wiped.

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::Process;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use super::{GpuStore, LOOK, Resets};
use crate::{
    Health,
    management::{Accounted, Reset},
    record::{Listed, Record},
    steps::passed,
};

/// How long the store waits while no memory comes back; then the missing memory counts as lost.
const PATIENCE: Duration = Duration::from_secs(8);

/// The driver itself takes and returns pages of 2 MiB between two looks. Missing memory up to this amount may be the
/// driver's; memory of a tenant always comes back.
const TOLERANCE_BYTES: u64 = 32 << 20;

/// A driver returns the memory of a dead process in parts. If less than [`TOLERANCE_BYTES`] are missing and none came
/// back for this time, the rest is the driver's own.
const SETTLED: Duration = Duration::from_secs(1);

/// Most wipes in a row: memory that comes back during a wipe is not wiped, so all memory is wiped again.
const WIPES: usize = 4;

/// Percentage of the bytes free before the grant that must be wiped.
const WIPED_PERCENT: u64 = 99;

/// Shortest time between two resets of the device for one lease.
const RESET_EVERY: Duration = Duration::from_secs(300);

impl GpuStore {
    /// Proves that nothing of the lease is left on the device, and wipes the device. If this fails a second time,
    /// resets the device and tries again.
    pub(super) fn clean(
        &self,
        lease: LeaseId,
        record: &Record,
        resets: &mut Resets,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        self.end_holders(lease, record, progress)?;
        let wiped = self.wipe(lease, record, progress).or_else(|error| {
            match resets.get(&lease) {
                // Memory that the first release lacks may come back by itself.
                None => {
                    resets.insert(lease, None);
                    return Err(error);
                }
                Some(Some(at)) if at.elapsed() < RESET_EVERY => return Err(error),
                Some(_) => {}
            }
            resets.insert(lease, Some(Instant::now()));
            self.reset(Some(lease), &error, progress)?;
            self.wipe(lease, record, progress)
        })?;
        resets.remove(&lease);
        Ok(wiped)
    }

    /// Ends a lease beside others. A killed worker leaves bytes of its tenant on the device. No neighbour can read
    /// them, because new memory is filled with zeroes. A wipe takes all free memory, so it waits until the last lease
    /// is over.
    pub(super) fn end_shared(
        &self,
        lease: LeaseId,
        record: &Record,
        resets: &mut Resets,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let unwiped = self.gpus.records.unwiped(&self.device.uuid)?;
        if !record.is_dirty && unwiped.is_none() {
            return Ok(Proof::of(
                "wipe session",
                Duration::ZERO,
                "the session's memory was overwritten by its worker, which then ended by itself",
            ));
        }
        let mut records = self.records()?;
        records.retain(|(other, _)| *other != lease);
        let using = records.iter().filter(|(_, it)| !it.is_over).count();
        // The first lease found the most memory free.
        let all = records.into_iter().map(|(_, it)| it.baseline);
        let all = all.chain([record.baseline.clone()]).chain(unwiped);
        let baseline = all.max_by_key(|it| it.free_bytes).unwrap_or_default();
        self.gpus
            .records
            .set_unwiped(&self.device.uuid, &baseline)?;
        if using > 0 {
            tracing::warn!(
                lease_id = %lease,
                device = self.device.uuid,
                using,
                "the lease's memory is not wiped, as its worker had to be killed: all of the device is wiped when the leases beside it are over"
            );
            return Ok(Proof::of(
                "wipe later",
                Duration::ZERO,
                "the worker of the lease had to be killed: all of the device is wiped when the leases beside it are over, and new memory \
                 is zeroes until then",
            ));
        }
        let record = Record {
            baseline,
            ..record.clone()
        };
        self.clean(lease, &record, resets, progress)
    }

    /// Waits for the memory and overwrites it; repeats this if more memory came back meanwhile.
    fn wipe(
        &self,
        lease: LeaseId,
        record: &Record,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let mut free_before = self.wait_for_memory(record, record.baseline.free_bytes, progress)?;
        for _ in 0..WIPES {
            let proof = self.wipe_once(record, progress)?;
            let free = self.wait_for_memory(record, free_before, progress)?;
            if free <= free_before {
                self.gpus.records.set_wiped(&self.device.uuid, free)?;
                return Ok(proof);
            }
            tracing::warn!(
                lease_id = %lease,
                device = self.device.uuid,
                bytes = free - free_before,
                "memory came back while the device was wiped: it is wiped again"
            );
            free_before = free;
        }
        let why = format!(
            "{}: memory came back during each of {WIPES} wipes: another program gives memory of the device back",
            self.device.uuid
        );
        Err(StepError::new("scrub", why))
    }

    fn wipe_once(&self, record: &Record, progress: &dyn Fn()) -> Result<Proof, StepError> {
        let began = Instant::now();
        let wiped = self.gpus.scrub(&self.device, progress)?;
        passed("scrub");
        let free = record.baseline.free_bytes;
        let percent = wiped.bytes as f64 * 100.0 / free.max(1) as f64;
        if u128::from(wiped.bytes) * 100 < u128::from(free) * u128::from(WIPED_PERCENT) {
            let why = format!(
                "{}: only {:.2} % of the {free} bytes that were free before the lease could be wiped ({} bytes); {WIPED_PERCENT} % \
                 are needed",
                self.device.uuid, percent, wiped.bytes
            );
            return Err(StepError::new("scrub", why));
        }
        let found = format_args!(
            "{} bytes overwritten with zeroes, {percent:.2} % of the memory that was free before the lease",
            wiped.bytes
        );
        Ok(Proof::of("wipe device", began.elapsed(), found))
    }

    /// Waits until the vendor lists no process of the lease and `wanted` bytes are free, or almost as many and no more
    /// come back. Returns the number of free bytes. Reports progress when memory comes back.
    fn wait_for_memory(
        &self,
        record: &Record,
        wanted: u64,
        progress: &dyn Fn(),
    ) -> Result<u64, StepError> {
        let almost = wanted.saturating_sub(TOLERANCE_BYTES);
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let account = self.account("look at device")?;
            if let Health::Failed(why) = &account.health {
                return Err(StepError::new("look at device", why));
            }
            let listed = account.processes.iter().map(Listed::of);
            let strange: Vec<Listed> = listed
                .filter(|it| !record.baseline.listed.contains(it))
                .collect();
            if account.free_bytes > most {
                (most, since) = (account.free_bytes, Instant::now());
                progress();
            }
            let is_settled = account.free_bytes >= almost && since.elapsed() >= SETTLED;
            if strange.is_empty() && (account.free_bytes >= wanted || is_settled) {
                return Ok(account.free_bytes);
            }
            if since.elapsed() > PATIENCE {
                return Err(self.not_back(record, &account, &strange));
            }
            thread::sleep(LOOK);
        }
    }

    fn not_back(&self, record: &Record, account: &Accounted, strange: &[Listed]) -> StepError {
        let uuid = &self.device.uuid;
        let each = strange.iter().map(|it| {
            it.process.map_or_else(
                || format!("pid {}, which is not there any more", it.pid),
                Process::describe,
            )
        });
        let each: Vec<String> = each.collect();
        let why = match each.is_empty() {
            false => format!("{uuid}: the driver still lists {}", each.join(", ")),
            true => format!(
                "{uuid}: {} of the {} bytes that were free before the lease have not come back, and the driver lists no \
                 process that has them",
                record
                    .baseline
                    .free_bytes
                    .saturating_sub(account.free_bytes),
                record.baseline.free_bytes
            ),
        };
        StepError::new("wait for memory", why)
    }

    /// Resets a failed device, if it has no lease.
    pub(super) fn reset_failed(&self, why: &str) -> Result<(), StepError> {
        let _work = self.work(&|| ());
        let using = self.records()?.len();
        if using > 0 {
            let why = format!(
                "{}: {why}; it is not reset while it has leases, and it has {using}: revoke them first",
                self.device.uuid
            );
            return Err(StepError::new("reset device", why));
        }
        self.reset(None, &why, &|| ())
    }

    /// Resets the device, if no process uses it.
    fn reset(
        &self,
        lease: Option<LeaseId>,
        because: &dyn Display,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let account = self.account("look at device")?;
        let alive = account.processes.iter().find_map(|it| {
            let process = Process::of(i32::try_from(it.pid).ok()?)?;
            process.is_there().then_some(process)
        });
        if let Some(process) = alive {
            let why = format!(
                "{because}; it is not reset, as {} uses it",
                process.describe()
            );
            return Err(StepError::new("reset device", why));
        }
        let lease_id = lease.map(tracing::field::display);
        tracing::warn!(lease_id, device = self.device.uuid, %because, "resetting the device");
        let call = Reset {
            device: self.device.clone(),
        };
        self.gpus.cutter.call("reset device", &call, progress)?;
        passed("reset device");
        self.was_reset(self.account("look at device")?.health);
        Ok(())
    }
}
