#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{
    atomic::{AtomicU32, Ordering},
    mpsc::channel,
};

use super::*;

fn numbered(number: u32) -> Found {
    Found {
        of_node: Some(number.to_string()),
        ..Found::default()
    }
}

fn number(detection: &Detection) -> String {
    detection.latest().0.of_node.clone().unwrap()
}

fn is_old(detection: &Detection) {
    detection.latest.send_modify(|it| it.at -= FRESH);
}

#[tokio::test]
async fn a_look_is_made_when_it_is_asked_for_and_the_last_one_is_old() {
    let looks = AtomicU32::new(0);
    let detection = Detection::new(move || numbered(looks.fetch_add(1, Ordering::Relaxed)));
    is_old(&detection);
    let mut latest = detection.latest.subscribe();
    detection.refresh().await;
    // On a slow machine the detection may take longer than an inventory waits.
    latest
        .wait_for(|it| *it.found.of_node.as_ref().unwrap() == "1")
        .await
        .unwrap();
    // Inventories in a row share one detection.
    detection
        .latest
        .send_modify(|it| it.at = Instant::now() + FRESH);
    for _ in 0..1000 {
        detection.refresh().await;
    }
    assert_eq!(number(&detection), "1");
    assert_eq!(detection.latest().1, None);
}

#[tokio::test]
async fn a_kernel_that_hangs_keeps_no_inventory_waiting_for_ever_and_shows() {
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let looks = AtomicU32::new(0);
    let detection = Detection::new(move || {
        let number = looks.fetch_add(1, Ordering::Relaxed);
        if number == 1 {
            lock(&gate).recv().ok();
        }
        numbered(number)
    });
    is_old(&detection);
    detection.refresh().await;
    assert_eq!(number(&detection), "0", "the look before");
    let why = detection.latest().1.unwrap();
    assert!(why.contains("not described"), "{why}");
    // No second detection begins beside the hanging one.
    detection.refresh().await;
    let mut latest = detection.latest.subscribe();
    latest.mark_unchanged();
    drop(go);
    latest.changed().await.unwrap();
    assert_eq!(number(&detection), "1");
    assert_eq!(detection.latest().1, None);
}

#[test]
fn a_kernel_that_hangs_at_the_start_does_not_keep_the_node_from_starting() {
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let detection = Detection::new(move || {
        lock(&gate).recv().ok();
        numbered(0)
    });
    assert_eq!(detection.latest().0.of_node, None, "nothing is known");
    let why = detection.latest().1.unwrap();
    assert!(why.contains("not described"), "{why}");
    assert!(!detection.is_fresh());
    let mut latest = detection.latest.subscribe();
    drop(go);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(latest.changed()).unwrap();
    assert_eq!(number(&detection), "0");
    assert_eq!(detection.latest().1, None);
}

#[tokio::test]
async fn a_look_that_panics_is_told_and_the_next_question_looks_again() {
    let looks = AtomicU32::new(0);
    let detection = Detection::new(move || match looks.fetch_add(1, Ordering::Relaxed) {
        number @ (0 | 3) => numbered(number),
        number => panic!("on purpose {number}"),
    });
    for look in 1..=3 {
        is_old(&detection);
        let mut latest = detection.latest.subscribe();
        detection.refresh().await;
        latest.changed().await.unwrap();
        let why = detection.latest().1;
        if look == 3 {
            assert_eq!(why, None);
            break;
        }
        let why = why.unwrap();
        assert!(why.contains(&format!("on purpose {look}")), "{why}");
        assert_eq!(number(&detection), "0", "the look before");
    }
    assert_eq!(number(&detection), "3");
}

#[test]
fn a_state_directory_that_is_gone_is_a_problem_and_one_with_room_is_none() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(lack_of_room(directory.path()), None);
    let gone = directory.path().join("gone");
    let why = lack_of_room(&gone).unwrap();
    assert!(why.contains("gone") && why.contains("ENOENT"), "{why}");
}
