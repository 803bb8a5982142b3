//! Runs suites in parallel lanes: lanes take suites from one list, and the quiet ones run after them, one at a time.
//! Pure, except for the threads.

use anyhow::{Result, anyhow};
use std::sync::{Mutex, PoisonError};

/// The most suites that run at the same time, one more than the processors of the smallest host with several: each spends
/// a third of its time or more waiting for leases to end.
pub(crate) const MAX: usize = 3;

/// As many of them may have a machine of their own, with more processors than the host.
const MACHINES_MAX: usize = 2;

/// After this many items have failed twice, nothing more is repeated: the cause is not chance.
const FAILED_TWICE_MAX: usize = 3;

/// Calls `lane` once for each lane, on its own thread, with an iterator over the lane's work and with a flag that tells
/// whether other lanes run beside it. Each item of `work` is done once, in its order, except that one lane does the items
/// of the same `machine`, one after the other, so that it boots once. Items with a `machine` are done first, by [`MACHINES_MAX`] of
/// the lanes; `quiet` items are done by one more lane after all others have ended. If a lane stops early, the others do the remaining
/// work. Returns an error if a lane returned one.
pub(crate) fn run<W: Send, M: PartialEq + Send>(
    cpus: usize,
    work: Vec<W>,
    quiet: impl Fn(&W) -> bool,
    machine: impl Fn(&W) -> Option<M> + Sync,
    lane: impl Fn(&mut dyn Iterator<Item = W>, bool) -> Result<()> + Sync,
) -> Result<()> {
    let (quiet, beside): (Vec<W>, Vec<W>) = work.into_iter().partition(quiet);
    let (mut work, others): (Vec<W>, Vec<W>) =
        beside.into_iter().partition(|work| machine(work).is_some());
    work.extend(others);
    let lanes = if cpus == 1 { 1 } else { MAX };
    [(lanes, work), (1, quiet)]
        .into_iter()
        .map(|(lanes, work)| all(lanes.min(work.len()), work, &machine, &lane))
        .fold(Ok(()), Result::and)
}

/// The work that no lane has taken, and the machine of the last item of each lane.
struct List<W, M> {
    work: Vec<W>,
    machines: Vec<Option<M>>,
}

impl<W, M: PartialEq> List<W, M> {
    /// The next item of a lane: the first with the machine of the lane's last item, else the first whose machine no lane
    /// has, else the first. If enough other lanes have machines, the first without one.
    fn take(&mut self, lane: usize, machine: &impl Fn(&W) -> Option<M>) -> Option<W> {
        let all: Vec<Option<M>> = self.work.iter().map(machine).collect();
        let (own, has) = (&self.machines[lane], |it| self.machines.contains(it));
        let others = self.machines.iter().enumerate();
        let others = others.filter(|(number, it)| *number != lane && it.is_some());
        let at = if others.count() < MACHINES_MAX {
            let same = all.iter().position(|it| it.is_some() && it == own);
            let free = || all.iter().position(|it| it.is_none() || !has(it));
            same.or_else(free).unwrap_or(0)
        } else {
            let without = all.iter().position(Option::is_none);
            without.unwrap_or(all.len())
        };
        self.machines[lane] = all.into_iter().nth(at)?;
        Some(self.work.remove(at))
    }
}

fn all<W: Send, M: PartialEq + Send>(
    lanes: usize,
    work: Vec<W>,
    machine: &(impl Fn(&W) -> Option<M> + Sync),
    lane: &(impl Fn(&mut dyn Iterator<Item = W>, bool) -> Result<()> + Sync),
) -> Result<()> {
    let machines = (0..lanes).map(|_| None).collect();
    let list = Mutex::new(List { work, machines });
    let list = &list;
    let one = |number: usize| {
        let take = || {
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.take(number, machine)
        };
        let ended = lane(&mut std::iter::from_fn(take), lanes > 1);
        list.lock().unwrap_or_else(PoisonError::into_inner).machines[number] = None;
        ended
    };
    let one = &one;
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let ended = lanes.into_iter().map(|lane| {
            lane.join()
                .unwrap_or_else(|_| Err(anyhow!("a lane of suites panicked")))
        });
        ended.fold(Ok(()), Result::and)
    })
}

/// Calls `again` for each failed item, one after the other, with a flag whether to repeat it; `again` returns whether
/// the item failed.
pub(crate) fn once_more<W>(failed: Vec<W>, mut again: impl FnMut(W, bool) -> bool) {
    let mut twice = 0;
    for work in failed {
        twice += usize::from(again(work, twice < FAILED_TWICE_MAX));
    }
}

/// The guest that the suites of one lane share, as long as no suite fails.
#[derive(Debug)]
pub(crate) struct Shared<G>(Option<G>);

impl<G> Shared<G> {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Runs `turn` with the guest of this lane; `boot` makes a guest if there is none. The guest is dropped after an
    /// error, or if `turn` does not return it.
    pub(crate) fn turn<T>(
        &mut self,
        boot: impl FnOnce() -> Result<G>,
        turn: impl FnOnce(G) -> Result<(Option<G>, T)>,
    ) -> Result<T> {
        let guest = self.0.take().map_or_else(boot, Ok)?;
        let (guest, ended) = turn(guest)?;
        self.0 = guest;
        Ok(ended)
    }

    /// The guest, if the next suite cannot use it.
    pub(crate) fn take_unfit(&mut self, fits: impl FnOnce(&G) -> bool) -> Option<G> {
        self.0.take_if(|guest| !fits(guest))
    }

    pub(crate) fn take(&mut self) -> Option<G> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The finished items, in the order of their begins; items from 90 on are quiet. Items from 60 on have machines, the
    /// same for ten.
    fn done(
        cpus: usize,
        work: &[u32],
        act: impl Fn(u32, bool) -> Result<()> + Sync,
    ) -> (Vec<u32>, Result<()>) {
        let begun = Mutex::new(Vec::new());
        let ended = run(
            cpus,
            work.to_vec(),
            |work| *work >= 90,
            |work| (60..90).contains(work).then_some(work / 10),
            |works, beside| {
                for work in works {
                    begun.lock().unwrap().push(work);
                    act(work, beside)?;
                }
                Ok(())
            },
        );
        (begun.into_inner().unwrap(), ended)
    }

    #[test]
    fn everything_is_done_once_and_begun_in_its_order() {
        let work: Vec<u32> = (0..50).collect();
        let (one, ended) = done(1, &work, |_, beside| {
            assert!(!beside);
            Ok(())
        });
        ended.unwrap();
        assert_eq!(one, work);
        let (mut two, ended) = done(8, &work, |_, beside| {
            assert!(beside);
            Ok(())
        });
        ended.unwrap();
        two.sort_unstable();
        assert_eq!(two, work);
        assert!(done(2, &[], |_, _| Ok(())).0.is_empty());
    }

    #[test]
    fn two_machines_come_first_with_others_beside_them_and_a_quiet_one_alone_at_the_end() {
        let (first, running, machines) =
            (Barrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        let (begun, ended) = done(2, &[90, 1, 60, 91, 2, 70, 80, 3], |work, beside| {
            let others = running.fetch_add(1, Ordering::SeqCst);
            let machine = usize::from((60..90).contains(&work));
            assert!(machines.fetch_add(machine, Ordering::SeqCst) + machine <= MACHINES_MAX);
            if [1, 60, 70].contains(&work) {
                // Each lane waits here until the others have begun.
                first.wait();
            }
            if work >= 90 {
                assert_eq!((others, beside), (0, false));
            }
            machines.fetch_sub(machine, Ordering::SeqCst);
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
        ended.unwrap();
        let mut first = begun[..3].to_vec();
        first.sort_unstable();
        assert_eq!(first, [1, 60, 70]);
        assert_eq!(begun.len(), 8);
        assert_eq!(begun[6..], [90, 91]);
    }

    #[test]
    fn one_lane_does_the_items_of_a_machine_and_another_those_behind_them() {
        let machine = |work: &u32| (60..90).contains(work).then_some(work / 10);
        let mut list = List {
            work: vec![60, 61, 70, 1, 62, 2, 71],
            machines: vec![None, None],
        };
        let mut take = |lane| list.take(lane, &machine);
        // The second lane takes the item of another machine, and then one without a machine of its own.
        let begun = [0, 1, 0, 1, 1, 0].map(&mut take);
        assert_eq!(begun, [60, 70, 61, 71, 1, 62].map(Some));
        assert_eq!([0, 1].map(&mut take), [Some(2), None]);

        // A machine is no reason to idle.
        list.work = vec![80, 81];
        let mut take = |lane| list.take(lane, &machine);
        assert_eq!([0, 1, 0].map(&mut take), [Some(80), Some(81), None]);

        // A third lane takes no machine beside two.
        list.work = vec![80, 70, 82, 1];
        list.machines = vec![None; 3];
        let mut take = |lane| list.take(lane, &machine);
        assert_eq!(
            [0, 1, 2, 2, 0].map(&mut take),
            [Some(80), Some(70), Some(1), None, Some(82)]
        );
    }

    #[test]
    fn a_lane_that_ends_badly_takes_nothing_else_with_it() {
        let work: Vec<u32> = (0..20).chain([90]).collect();
        let (mut begun, ended) = done(2, &work, |work, _| match work {
            0 => bail!("cannot tidy up"),
            _ => Ok(()),
        });
        begun.sort_unstable();
        assert_eq!(begun, work);
        assert_eq!(ended.unwrap_err().to_string(), "cannot tidy up");
    }

    #[test]
    fn failed_work_is_done_once_more_until_three_have_failed_twice() {
        let seen = |fails: fn(u32) -> bool| {
            let mut seen = Vec::new();
            once_more((1..=6).collect(), |work, runs| {
                seen.push((work, runs));
                fails(work)
            });
            seen
        };
        let all: Vec<(u32, bool)> = (1..=6).map(|work| (work, true)).collect();
        assert_eq!(seen(|_| false), all);
        assert_eq!(seen(|work| work == 1 || work > 4), all);
        let first: Vec<(u32, bool)> = (1..=6).map(|work| (work, work <= 3)).collect();
        assert_eq!(seen(|_| true), first);
    }

    #[test]
    fn a_guest_goes_with_whoever_fails_in_it_and_the_next_gets_a_new_one() {
        let mut shared = Shared::none();
        let booted = AtomicUsize::new(0);
        let boot = || Ok(booted.fetch_add(1, Ordering::SeqCst));
        let well = |guest| Ok((Some(guest), guest));
        assert_eq!(shared.turn(boot, well).unwrap(), 0);
        assert_eq!(shared.turn(boot, well).unwrap(), 0);
        shared
            .turn(boot, |_| bail!("kernel panic") as Result<(_, ())>)
            .unwrap_err();
        assert_eq!(shared.turn(boot, |guest| Ok((None, guest))).unwrap(), 1);
        assert_eq!(shared.turn(boot, well).unwrap(), 2);
        assert_eq!(shared.take_unfit(|guest| *guest == 2), None);
        assert_eq!(shared.take_unfit(|guest| *guest == 3), Some(2));
        assert_eq!(shared.turn(boot, well).unwrap(), 3);
    }
}
