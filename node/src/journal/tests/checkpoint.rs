//! Checkpoints: from the log into the journal's file.

use super::*;

/// Some of these fill a half of the log.
fn big() -> String {
    "value".repeat(3000)
}

fn ids(recovered: &Recovered) -> Vec<u128> {
    let leases = leases(recovered);
    leases.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn commits_go_on_while_a_checkpoint_waits_for_the_disk() {
    let scene = Scene::new();
    let (tell, reports) = channel();
    let meter = Arc::<Meter>::default();
    let journal = open_metered(&scene.path(), tell, &meter);
    let held = meter.faults.gate.lock().unwrap();
    let syncs = |which| {
        let asked = meter.faults.asked().into_iter();
        asked
            .filter(|it| matches!(it, Asked::Sync(of) if *of == which))
            .count()
    };
    let before = syncs(Which::Base);
    // The fourth finds no room in its half.
    for id in 1..=6 {
        await_durable(&reports, journal.submit(vec![put(id, &big())]));
    }
    assert_eq!(
        syncs(Which::Base),
        before,
        "a sync of the file that is held"
    );
    let (_journal, recovered, _) = scene.copy().open();
    assert_eq!(ids(&recovered), [1, 2, 3, 4, 5, 6]);
    // This one needs the first half.
    let last = journal.submit(vec![put(7, &big())]);
    drop(held);
    await_durable(&reports, last);
    journal.close().unwrap();
    assert!(!scene.log().exists(), "the file alone is the journal");
    assert_eq!(ids(&scene.open().1).len(), 7);
}

#[test]
fn no_commit_is_reported_after_a_failed_checkpoint_until_one_succeeds() {
    let scene = Scene::new();
    let (tell, reports) = channel();
    let meter = Arc::<Meter>::default();
    let journal = open_metered(&scene.path(), tell, &meter);
    let held = meter.faults.gate.lock().unwrap();
    for id in 1..=4 {
        await_durable(&reports, journal.submit(vec![put(id, &big())]));
    }
    meter.faults.sync.store(true, Ordering::SeqCst);
    drop(held);
    let last = journal.submit(vec![put(5, "five")]);
    let error = reports.recv().unwrap().unwrap_err().to_string();
    assert!(error.contains("Input/output error"), "{error}");
    meter.faults.sync.store(false, Ordering::SeqCst);
    await_durable(&reports, last);
    let (_journal, recovered, _) = scene.copy().open();
    assert_eq!(ids(&recovered), [1, 2, 3, 4, 5]);
}

#[test]
fn a_group_larger_than_the_log_is_one_commit() {
    let scene = Scene::new();
    let (journal, reports) = scene.with_two_commits();
    let value = big();
    let group: Vec<_> = (1..=60).map(|id| put(id, &value)).collect();
    await_durable(&reports, journal.submit(group));
    await_durable(&reports, journal.submit(vec![put(61, "after")]));
    let (_journal, recovered, _) = scene.copy().open();
    assert_eq!((ids(&recovered).len(), recovered.commits), (61, 4));
}

#[test]
fn numbers_of_commits_go_on_over_deaths_and_ends() {
    let scene = Scene::new();
    let (journal, reports) = scene.with_two_commits();
    let killed = scene.copy();
    let (after_death, recovered, after) = killed.open();
    assert_eq!(recovered.commits, 2);
    await_durable(&after, after_death.submit(vec![put(3, "three")]));
    after_death.close().unwrap();
    assert_eq!(killed.open().1.commits, 3);
    await_durable(&reports, journal.submit(vec![remove(1)]));
    journal.close().unwrap();
    assert_eq!(scene.open().1.commits, 3);
}
