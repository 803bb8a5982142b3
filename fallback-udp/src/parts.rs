//! Writes that come in parts: the blocks of which some parts are still missing.
//!
//! Their memory is bounded for a session by the replay window: each part used a counter, and a write behind the window
//! is dropped. For a lease, a tenant and a node it is bounded by [`crate::Room`].

use alloc::{boxed::Box, sync::Arc, vec, vec::Vec};
use core::time::Duration;

use fabricbios_wire::DataStatus;

use crate::{
    Invariant,
    invariants::Findings,
    replay::Window,
    room::{Reservation, Share},
    space::{Job, Writing},
};

/// The half-sent blocks of one session, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<HalfSent>);

/// A block of which some parts came.
#[derive(Debug)]
struct HalfSent {
    /// Counter of the part with index 0, which identifies the write.
    first: u32,
    offset: u64,
    count: u16,
    /// A bit for each part that came.
    came: u64,
    /// When the first part came.
    since: Duration,
    block: Box<[u8]>,
    room: Option<Reservation>,
}

impl Parts {
    /// Reserves room for the block of a job that is the first part of a write. `Err`: there is no room.
    pub(crate) fn room_for(
        &self,
        job: &Job<'_>,
        share: Option<&Arc<Share>>,
    ) -> Result<Option<Reservation>, DataStatus> {
        let Job::Write(Writing {
            bytes,
            part: Some((part, first)),
            ..
        }) = job
        else {
            return Ok(None);
        };
        let is_begun = self.0.iter().any(|write| write.first == *first);
        match share {
            Some(share) if !is_begun => {
                let room = share.take(bytes.len() * usize::from(part.count()));
                room.map(Some).ok_or(DataStatus::Busy)
            }
            _ => Ok(None),
        }
    }

    /// Adds a part whose counter is new; `room` is for the block, if this is its first part. Returns the job itself if
    /// it is no part, or the whole write if the job was its last missing part. `None`: other parts are missing.
    pub(crate) fn gather<'a>(
        &mut self,
        job: Job<'a>,
        now: Duration,
        room: Option<Reservation>,
        findings: &mut Findings,
    ) -> Result<Option<Job<'a>>, DataStatus> {
        let Job::Write(Writing {
            offset,
            bytes,
            part: Some((part, first)),
        }) = job
        else {
            return Ok(Some(job));
        };
        let at = self.0.iter().position(|write| write.first == first);
        let at = at.unwrap_or_else(|| {
            self.0.push(HalfSent {
                first,
                offset,
                count: part.count(),
                came: 0,
                since: now,
                block: vec![0; bytes.len() * usize::from(part.count())].into(),
                room,
            });
            self.0.len() - 1
        });
        let write = &mut self.0[at];
        if (write.offset, write.count) != (offset, part.count()) {
            return Err(DataStatus::Invalid);
        }
        let from = bytes.len() * usize::from(part.index());
        let bit = 1 << part.index();
        match write.block.get_mut(from..from + bytes.len()) {
            Some(into) if write.came & bit == 0 => into.copy_from_slice(&bytes),
            _ => {
                let detail = "a part came twice or is not within its block";
                findings.holds(Invariant::Parts, false, detail);
                return Err(DataStatus::Fenced);
            }
        }
        write.came |= bit;
        if write.came.count_ones() < u32::from(write.count) {
            return Ok(None);
        }
        let bytes = Vec::from(self.0.remove(at).block).into();
        let part = None;
        Ok(Some(Job::Write(Writing {
            offset,
            bytes,
            part,
        })))
    }

    /// Drops the writes that fell behind the window and cannot be completed.
    pub(crate) fn keep_within(&mut self, window: &Window) {
        self.0.retain(|write| !window.is_behind(write.first));
    }

    /// Bytes that the half-sent blocks hold of the lease's share.
    pub(crate) fn held(&self) -> usize {
        let rooms = self.0.iter().filter_map(|write| write.room.as_ref());
        rooms.map(Reservation::bytes).sum()
    }

    /// When the first part of the oldest half-sent block came.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.0.first().map(|write| write.since)
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::Part;

    use super::*;
    use crate::{ReplayWindow, Room};

    const START: Duration = Duration::from_secs(1000);

    /// A part of the write whose first part has the counter `first`.
    fn job(first: u32, offset: u64, (index, count): (u16, u16)) -> Job<'static> {
        Job::Write(Writing {
            offset,
            bytes: b"a".as_slice().into(),
            part: Some((Part::new(index, count).unwrap(), first)),
        })
    }

    /// Whether a whole block came of it, or what was refused.
    fn add(parts: &mut Parts, job: Job<'_>) -> Result<bool, DataStatus> {
        let gathered = parts.gather(job, START, None, &mut Findings::default());
        gathered.map(|whole| whole.is_some())
    }

    #[test]
    fn parts_of_one_write_agree() {
        let parts = &mut Parts::default();
        assert_eq!(add(parts, job(1, 5, (0, 2))), Ok(false));
        let invalid = Err(DataStatus::Invalid);
        assert_eq!(add(parts, job(1, 6, (1, 2))), invalid);
        assert_eq!(add(parts, job(1, 5, (1, 4))), invalid);
        assert_eq!(add(parts, job(1, 5, (1, 2))), Ok(true));
    }

    #[test]
    fn a_part_that_comes_twice_is_a_mistake_that_is_found() {
        let (mut parts, findings) = (Parts::default(), &mut Findings::default());
        let mut gather = || {
            let gathered = parts.gather(job(1, 5, (0, 2)), START, None, findings);
            (gathered.is_ok(), findings.take().map(|it| it.invariant))
        };
        assert_eq!(gather(), (true, None));
        assert_eq!(gather(), (false, Some(Invariant::Parts)));
    }

    #[test]
    fn what_falls_behind_the_window_is_dropped() {
        let (parts, mut window) = (&mut Parts::default(), Window::new(ReplayWindow::LONGEST));
        assert_eq!(add(parts, job(1, 5, (0, 2))), Ok(false));
        window.commit(128, [0; 8], Some(DataStatus::Ok));
        parts.keep_within(&window);
        assert_eq!(parts.since(), Some(START));
        window.commit(129, [0; 8], Some(DataStatus::Ok));
        parts.keep_within(&window);
        assert_eq!(parts.since(), None);
    }

    #[test]
    fn only_the_part_that_begins_a_block_takes_room_and_the_block_gives_it_back() {
        let share = Share::new(&Room::new(512 * 128), Arc::default());
        let mut parts = Parts::default();
        let job = |index: u16, first| {
            Job::Write(Writing {
                offset: 5,
                bytes: [0; 256].as_slice().to_vec().into(),
                part: Some((Part::new(index, 2).unwrap(), first)),
            })
        };
        let ask = |parts: &Parts, job: &Job<'_>| parts.room_for(job, Some(&share));
        let gather = |parts: &mut Parts, job, room| {
            let findings = &mut Findings::default();
            parts.gather(job, START, room, findings).unwrap()
        };
        let room = ask(&parts, &job(1, 1)).unwrap();
        assert!(gather(&mut parts, job(1, 1), room).is_none());
        assert_eq!(ask(&parts, &job(0, 3)).unwrap_err(), DataStatus::Busy);
        let room = ask(&parts, &job(0, 1)).unwrap();
        assert!(room.is_none() && share.is_used());
        assert!(gather(&mut parts, job(0, 1), room).is_some());
        assert!(!share.is_used());
        assert!(ask(&parts, &job(0, 3)).unwrap().is_some());
    }
}
