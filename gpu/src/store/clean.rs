//! The end of a lease on its device: nobody holds it, its memory is back, and all of it is wiped.

use std::{
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::Process;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

use super::GpuStore;
use crate::{
    Health,
    management::{Accounted, Reset},
    record::{Listed, Record},
    steps::passed,
};

/// Memory that is not back after so long without any coming back is lost.
const PATIENCE: Duration = Duration::from_secs(8);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// The driver itself takes and gives back some memory between two looks: pages of its own, of 2 MiB each.
const TOLERANCE_BYTES: u64 = 32 << 20;

/// Of the bytes that were free before the grant, so many are wiped.
const WIPED_PERCENT: u64 = 99;

/// A device is reset at most once in this time for one lease.
const RESET_EVERY: Duration = Duration::from_secs(300);

impl GpuStore {
    /// Proves that nothing of the lease is left on the device, and wipes the device. Where that fails again, it resets the
    /// device first.
    pub(super) fn clean(
        &self,
        lease: LeaseId,
        record: &Record,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let mut resets = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_holders(record)?;
        if let Err(error) = self.wipe(lease, record, progress) {
            match resets.get(&lease) {
                // What the first release lacks may come back by itself.
                None => {
                    resets.insert(lease, None);
                    return Err(error);
                }
                Some(Some(at)) if at.elapsed() < RESET_EVERY => return Err(error),
                Some(_) => {}
            }
            resets.insert(lease, Some(Instant::now()));
            self.reset(lease, &error, progress)?;
            self.wipe(lease, record, progress)?;
        }
        resets.remove(&lease);
        Ok(())
    }

    /// Waits for the memory, and overwrites it.
    fn wipe(&self, lease: LeaseId, record: &Record, progress: &dyn Fn()) -> Result<(), StepError> {
        self.wait_for_memory(record, progress)?;
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
        tracing::info!(
            lease_id = %lease,
            device = self.device.uuid,
            bytes = wiped.bytes,
            free,
            "scrubbed {percent:.2} % of the memory that was free before the lease"
        );
        Ok(())
    }

    /// Who has the device open now and had not before the grant.
    fn check_holders(&self, record: &Record) -> Result<(), StepError> {
        let mut strange = self.holders()?;
        strange.retain(|holder| !record.baseline.holders.contains(holder));
        // Workers of other leases have it open too.
        if !record.is_exclusive {
            strange.retain(|holder| !self.is_in_a_lease(*holder));
        }
        match &strange[..] {
            [] => Ok(()),
            strange => {
                let each: Vec<String> = strange.iter().map(|it| it.describe()).collect();
                let why = format!(
                    "{}: {} has the device open, and had not before the lease: end it",
                    self.device.uuid,
                    each.join(", ")
                );
                Err(StepError::new("look for holders", why))
            }
        }
    }

    fn is_in_a_lease(&self, holder: Process) -> bool {
        let leases = self.gpus.records.leases().unwrap_or_default();
        let mut records = leases
            .into_iter()
            .filter_map(|it| self.gpus.records.find(it).ok()?);
        records.any(|it| it.worker.is_some_and(|worker| worker.process == holder))
    }

    /// Waits until the vendor lists no process of the lease and the memory is back. Memory that comes back is progress.
    fn wait_for_memory(&self, record: &Record, progress: &dyn Fn()) -> Result<(), StepError> {
        let wanted = record.baseline.free_bytes.saturating_sub(TOLERANCE_BYTES);
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
            if strange.is_empty() && account.free_bytes >= wanted {
                return Ok(());
            }
            if account.free_bytes > most {
                (most, since) = (account.free_bytes, Instant::now());
                progress();
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

    /// Resets the device, if nothing uses it.
    fn reset(
        &self,
        lease: LeaseId,
        because: &StepError,
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
        tracing::warn!(lease_id = %lease, device = self.device.uuid, %because, "resetting the device");
        let call = Reset {
            device: self.device.clone(),
        };
        self.gpus.call("reset device", &call, progress)?;
        passed("reset device");
        Ok(())
    }
}
