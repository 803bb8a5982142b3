//! Limits the log lines for refusals of one tenant, so that they do not displace lines about other tenants.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most lines for refusals of one tenant in a second.
const LINES_MAX: u64 = 10;

const SECOND: Duration = Duration::from_secs(1);

static REFUSALS: Mutex<Refusals> = Mutex::new(Refusals {
    since: None,
    of: BTreeMap::new(),
});

/// The refusals of one second.
#[derive(Debug)]
struct Refusals {
    since: Option<Instant>,
    /// Number of refusals by tenant.
    of: BTreeMap<String, u64>,
}

/// True if the current refusal of `tenant` is logged.
pub(crate) fn gets_line(tenant: &str) -> bool {
    let mut refusals = REFUSALS.lock().unwrap_or_else(PoisonError::into_inner);
    refusals.gets_line(tenant, Instant::now())
}

impl Refusals {
    /// At the first refusal of a new second, logs how many of the last second were not logged.
    fn gets_line(&mut self, tenant: &str, now: Instant) -> bool {
        let in_second = |since: Instant| now.duration_since(since) < SECOND;
        if !self.since.is_some_and(in_second) {
            self.since = Some(now);
            for (tenant, count) in std::mem::take(&mut self.of) {
                let untold = count.saturating_sub(LINES_MAX);
                if untold > 0 {
                    tracing::info!(%tenant, untold, "refusals: further ones of this tenant are only counted");
                }
            }
        }
        let count = self.of.entry(tenant.to_owned()).or_default();
        *count += 1;
        *count <= LINES_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, read_to_string};

    use fabricbios_lease::{Note, StepError};
    use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass, ResourceId};

    use super::*;
    use crate::driver::log_note;

    /// Returns the log lines that `by` writes.
    fn logged(by: impl FnOnce()) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Mutex::new(file.try_clone().unwrap()))
            .finish();
        tracing::subscriber::with_default(subscriber, by);
        file.rewind().unwrap();
        let text = read_to_string(file).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_tenant_has_its_lines_a_second_and_those_without_one_are_counted() {
        let start = Instant::now();
        let mut refusals = Refusals {
            since: None,
            of: BTreeMap::new(),
        };
        let lines = logged(|| {
            let mut told = |tenant, at| refusals.gets_line(tenant, start + at);
            let loud = (0..1_000).filter(|_| told("loud", SECOND / 2)).count();
            assert_eq!(loud, 10);
            assert!(told("quiet", SECOND));
            assert!(told("loud", SECOND * 3 / 2));
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].ends_with("tenant are only counted tenant=loud untold=990"),
            "{lines:?}"
        );
        assert_eq!(refusals.of.len(), 1);
    }

    #[test]
    fn who_is_refused_without_end_fills_no_log_and_a_fence_is_told() {
        let lines = logged(|| {
            let refused = |tenant: &str| Note::Refused {
                tenant: tenant.into(),
                wanted: None,
                lease_id: Some(LeaseId(1)),
                refusal: Refusal::new(LeaseError::NotFound, RefusalClass::Permanent, "none"),
            };
            (0..100_000).for_each(|_| log_note::log(&refused("loud")));
            log_note::log(&refused("quiet"));
            log_note::log(&Note::Fenced {
                resource_id: ResourceId(1),
                lease_id: LeaseId(1),
                reason: StepError::new("remove", "EBUSY"),
            });
        });
        assert!(lines.len() < 10_000, "{}", lines.len());
        assert!(lines.iter().any(|line| line.contains("tenant=quiet")));
        assert!(lines.iter().any(|line| line.contains("FENCED")));
    }
}
