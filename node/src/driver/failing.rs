//! Resources of which no lease can be made, although nothing else says that they are broken. Schedulers would name them
//! first for ever, because they stay empty. So the inventory tells them as degraded for a time, and others come first.
//!
//! Only faults of the node count ([`Note::NotBound`]): no refusal for what a client or its request lacks, and no bind that
//! its client has cancelled.

use std::{collections::BTreeMap, time::Duration};

use fabricbios_lease::{BootTime, Note};
use fabricbios_wire::ResourceId;

/// So many new leases in a row could not be made.
const FAILED_MIN: u32 = 16;
/// How long the resource is then degraded, the first time and at most. If the next lease cannot be made either: twice as
/// long as before.
const DEGRADED_FIRST: Duration = Duration::from_secs(60);
const DEGRADED_MAX: Duration = Duration::from_secs(600);

/// The resources of which the last lease could not be made.
#[derive(Debug, Default)]
pub(super) struct Failing(BTreeMap<ResourceId, Row>);

#[derive(Debug, Default)]
struct Row {
    failed: u32,
    last: BootTime,
    degraded_for: Duration,
    /// Until when it is degraded, and why, for people.
    degraded: Option<(BootTime, String)>,
}

impl Failing {
    /// Counts a lease that was not made.
    pub(super) fn count(&mut self, note: &Note, now: impl FnOnce() -> BootTime) {
        let Note::NotBound {
            resource_id,
            is_new: true,
            error,
            ..
        } = note
        else {
            return;
        };
        let (now, row) = (now(), self.0.entry(*resource_id).or_default());
        if row.last + DEGRADED_MAX + DEGRADED_MAX < now {
            *row = Row::default();
        }
        row.last = now;
        row.failed = row.failed.saturating_add(1);
        let is_degraded = { row.degraded.as_ref() }.is_some_and(|(until, _)| now < *until);
        if row.failed >= FAILED_MIN && !is_degraded {
            let twice = row.degraded_for * 2;
            row.degraded_for = twice.clamp(DEGRADED_FIRST, DEGRADED_MAX);
            let why = format!(
                "the last {} leases of it could not be made, at the step `{}`: the node's log says why",
                row.failed, error.step
            );
            tracing::warn!(
                %resource_id, why, secs = row.degraded_for.as_secs(),
                "the resource is told as degraded, so that schedulers name it last"
            );
            row.degraded = Some((now + row.degraded_for, why));
        }
    }

    /// A lease was made, and its grant is confirmed.
    pub(super) fn works(&mut self, id: ResourceId) {
        let row = self.0.remove(&id);
        if row.is_some_and(|it| it.degraded.is_some()) {
            tracing::warn!(resource_id = %id, "leases of the resource can be made again");
        }
    }

    /// Why the resource is degraded, if it is.
    pub(super) fn trouble(&self, now: BootTime, id: ResourceId) -> Option<String> {
        let (until, why) = self.0.get(&id)?.degraded.as_ref()?;
        (now < *until).then(|| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::StepError;
    use fabricbios_wire::LeaseId;

    use super::*;

    const ID: ResourceId = ResourceId(7);

    fn at(secs: u64) -> BootTime {
        BootTime(0) + Duration::from_secs(secs)
    }

    fn fails(failing: &mut Failing, secs: u64, is_new: bool) {
        let note = Note::NotBound {
            lease_id: LeaseId(1),
            resource_id: ID,
            tenant: "alice".into(),
            is_new,
            error: StepError::new("open a window", "/dev/x: EIO"),
        };
        failing.count(&note, || at(secs));
    }

    #[test]
    fn a_resource_is_degraded_after_sixteen_failures_and_tried_again_ever_more_rarely() {
        let mut failing = Failing::default();
        (0..15).for_each(|_| fails(&mut failing, 0, true));
        assert_eq!(failing.trouble(at(0), ID), None);
        // Leases that were granted before do not count.
        fails(&mut failing, 0, false);
        assert_eq!(failing.trouble(at(0), ID), None);
        let mut now = 0;
        for secs in [60, 120, 240, 480, 600, 600] {
            fails(&mut failing, now, true);
            let why = failing.trouble(at(now), ID).unwrap();
            assert!(
                why.contains("open a window") && !why.contains("/dev"),
                "{why}"
            );
            // What fails meanwhile makes it no longer.
            fails(&mut failing, now + 1, true);
            assert!(failing.trouble(at(now + secs - 1), ID).is_some(), "{secs}");
            now += secs;
            assert_eq!(failing.trouble(at(now), ID), None, "{secs}");
        }
        assert_eq!(failing.trouble(at(now), ResourceId(8)), None);
    }
}
