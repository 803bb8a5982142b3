//! A driver commits its own groups, and the journal's thread whatever may wait.

use std::{os::fd::AsFd, time::Duration};

use fabricbios_channel::is_readable_within;

use super::*;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

struct Driven {
    scene: Scene,
    journal: Journal,
    meter: Arc<Meter>,
    reports: Receiver<Report>,
}

impl Driven {
    fn new() -> Self {
        let (scene, meter) = (Scene::new(), Arc::<Meter>::default());
        let (tell, reports) = channel();
        let journal = open_metered(&scene.path(), tell, &meter);
        journal.drive();
        Self {
            scene,
            journal,
            meter,
            reports,
        }
    }

    /// The driver has the line, after one commit of the thread.
    fn with_line() -> Self {
        let new = Self::new();
        new.commit_by_thread(|journal| journal.submit(vec![put(1, "one")]));
        new
    }

    /// The journal's thread reports this submission, and lends the line again.
    fn commit_by_thread(&self, submit: impl FnOnce(&Journal) -> Seq) {
        let seq = submit(&self.journal);
        assert!(self.journal.awaited().is_none(), "the driver waits for it");
        assert_eq!(self.reports.recv_timeout(PATIENCE), Ok(Ok(seq)));
    }

    /// Waits as the driver does.
    fn hear(&self) -> Option<Seq> {
        let awaited = self.journal.awaited().expect("a commit of the driver");
        assert!(is_readable_within(awaited.as_fd(), PATIENCE).unwrap());
        self.journal.hear()
    }

    fn submit(&self, id: u128, value: &str) -> Seq {
        self.journal.submit(vec![put(id, value)])
    }

    fn ids_after_close(self) -> Vec<u128> {
        self.journal.close().unwrap();
        let recovered = self.scene.open().1;
        leases(&recovered).into_iter().map(|(id, _)| id).collect()
    }
}

#[test]
fn a_driver_hears_of_its_commits_and_the_thread_of_none() {
    let driven = Driven::with_line();
    let held = driven.meter.faults.log_gate.lock().unwrap();
    let first = driven.submit(2, "two");
    assert_eq!(driven.journal.hear(), None, "the disk has not answered");
    let second = driven.submit(3, "three");
    drop(held);
    assert_eq!(driven.hear(), Some(first));
    assert_eq!(driven.hear(), Some(second), "what came during it goes next");
    assert!(
        driven.journal.awaited().is_none(),
        "nothing is left to hear"
    );
    assert!(
        driven.reports.try_recv().is_err(),
        "the thread reports nothing"
    );
    assert_eq!(driven.journal.figures().waiting, 0);
    assert_eq!(driven.ids_after_close(), [1, 2, 3]);
}

#[test]
fn a_close_makes_durable_what_the_driver_has_not_heard_of() {
    let driven = Driven::with_line();
    let held = driven.meter.faults.log_gate.lock().unwrap();
    driven.submit(2, "two");
    driven.submit(3, "three");
    drop(held);
    assert_eq!(driven.ids_after_close(), [1, 2, 3]);
}

#[test]
fn a_failed_commit_of_the_driver_is_tried_again_by_the_thread() {
    let driven = Driven::with_line();
    driven.meter.faults.write.store(true, Ordering::SeqCst);
    let seq = driven.submit(2, "two");
    assert_eq!(driven.hear(), None, "an error is the thread's");
    let failed = driven.reports.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(failed.to_string().contains("No space left"), "{failed}");
    driven.meter.faults.write.store(false, Ordering::SeqCst);
    await_durable(&driven.reports, seq);
    let next = driven.submit(3, "three");
    assert_eq!(driven.hear(), Some(next));
    assert_eq!(driven.ids_after_close(), [1, 2, 3]);
}

#[test]
fn what_other_threads_write_needs_no_driver() {
    let driven = Driven::with_line();
    let writer = driven.journal.writer();
    driven.commit_by_thread(|_| writer.submit(vec![put(2, "two")]));
    // During a commit of the driver, the driver sends it.
    let held = driven.meter.faults.log_gate.lock().unwrap();
    let of_driver = driven.submit(3, "three");
    let of_other = writer.submit(vec![put(4, "four")]);
    drop(held);
    assert_eq!(driven.hear(), Some(of_driver));
    assert_eq!(driven.hear(), Some(of_other));
    writer.wait(of_other).unwrap();
    assert_eq!(driven.ids_after_close(), [1, 2, 3, 4]);
}

#[test]
fn a_group_that_the_socket_may_not_take_at_once_is_the_threads() {
    let driven = Driven::with_line();
    let long = "x".repeat(80 << 10);
    driven.commit_by_thread(|journal| journal.submit(vec![put(2, &long)]));
    let next = driven.submit(3, &long[..63 << 10]);
    assert_eq!(driven.hear(), Some(next));
    assert_eq!(driven.ids_after_close(), [1, 2, 3]);
}

#[test]
fn what_came_during_a_commit_of_the_thread_is_under_way_at_its_report() {
    let driven = Driven::new();
    let held = driven.meter.faults.log_gate.lock().unwrap();
    let first = driven.submit(1, "one");
    // The thread has taken the first group.
    while driven.journal.figures().waiting > 0 {
        std::thread::yield_now();
    }
    let second = driven.submit(2, "two");
    drop(held);
    assert_eq!(driven.reports.recv_timeout(PATIENCE), Ok(Ok(first)));
    assert_eq!(driven.hear(), Some(second));
    assert_eq!(driven.ids_after_close(), [1, 2]);
}

#[test]
fn a_number_that_waits_for_a_disk_is_stored_by_the_thread() {
    let scene = Scene::new();
    let (journal, _, reports) = scene.open();
    let (tell, numbers) = channel();
    journal.count_commits_with(true, move |number| {
        let thread = std::thread::current().id();
        tell.send((number, thread)).unwrap_or_default();
    });
    journal.drive();
    for id in 1..=2 {
        await_durable(&reports, journal.submit(vec![put(id, "value")]));
        assert!(journal.awaited().is_none());
        let (_, thread) = numbers.recv_timeout(PATIENCE).unwrap();
        assert_ne!(thread, std::thread::current().id());
    }
}
