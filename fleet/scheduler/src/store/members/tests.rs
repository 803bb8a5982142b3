use super::*;

/// No record of these tests is ahead of it, but one.
const NOW: u64 = 1_000_000;

fn node(number: u8) -> NodeId {
    NodeId([number; 32])
}

fn told(port: u16) -> Told {
    Told {
        endpoint: format!("192.0.2.1:{port}"),
        labels: vec!["rack=r7".into()],
    }
}

fn reports(port: u16, at_unix_ms: u64) -> Change {
    Change {
        told: Some(told(port)),
        reports: true,
        at_unix_ms,
    }
}

fn leaves(at_unix_ms: u64) -> Change {
    Change {
        at_unix_ms,
        ..Change::default()
    }
}

fn record(port: u16, first: u64, last: u64) -> Record {
    let Told { endpoint, labels } = told(port);
    Record::new(endpoint, labels, first, last)
}

/// Writes what is due, as an etcd at this revision that refuses nothing.
fn write(members: &mut Members, revision: i64) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some(write) = members.next_write(NOW) {
        records.push(write.record.clone());
        members.written(write, revision);
    }
    records
}

#[test]
fn a_member_is_written_once_and_stays_when_it_is_away() {
    let mut members = Members::default();
    members.change(node(1), reports(1, 1_000));
    let due = members.next_write(NOW).unwrap();
    assert_eq!(
        (due.mod_revision, &due.record),
        (0, &record(1, 1_000, 1_000))
    );
    assert_eq!(members.written(due, 5), Some(Became::Known(node(1))));
    assert_eq!(members.next_write(NOW), None);
    // Its own put, which the watch tells too, is no news.
    assert_eq!(
        members.put(node(1), 5, &record(1, 1_000, 1_000).to_bytes()),
        None
    );
    members.change(node(1), reports(1, 2_000));
    assert_eq!(write(&mut members, 6), []);
    // What has moved is written, and when it came first stays.
    members.change(node(1), reports(2, 3_000));
    assert_eq!(write(&mut members, 7), [], "it was written a moment ago");
    members.change(node(1), reports(2, 70_000));
    assert_eq!(write(&mut members, 7), [record(2, 1_000, 70_000)]);
    members.change(node(1), leaves(500_000));
    assert_eq!(write(&mut members, 8), [record(2, 1_000, 500_000)]);
    assert_eq!(members.len(), 1);
}

#[test]
fn a_node_that_came_and_left_while_etcd_was_away_is_written_afterwards() {
    let mut members = Members::default();
    members.change(node(1), reports(1, 1_000));
    members.change(node(1), leaves(2_000));
    assert_eq!(members.take_all(100, Vec::new()).1, []);
    assert_eq!(write(&mut members, 5), [record(1, 1_000, 2_000)]);
}

#[test]
fn a_wiped_etcd_is_filled_again_and_nobody_is_forgotten() {
    let mut members = Members::default();
    let away = (node(2), 9, record(2, 1, 1).to_bytes());
    let read = members.take_all(100, vec![away]);
    assert_eq!(read, (true, vec![Became::Known(node(2))]));
    members.change(node(1), reports(1, 1_000));
    assert_eq!(write(&mut members, 110).len(), 1);
    assert_eq!(members.take_all(1, Vec::new()), (false, Vec::new()));
    let mut written = write(&mut members, 2);
    written.sort_by_key(|it| it.first_seen_unix_ms);
    assert_eq!(written, [record(2, 1, 1), record(1, 1_000, 1_000)]);
    // A lower revision than before is the truth of the new etcd.
    let again = [
        (node(1), 2, record(1, 1_000, 1_000).to_bytes()),
        (node(2), 2, record(2, 1, 1).to_bytes()),
    ];
    assert_eq!(members.take_all(100, again.to_vec()), (true, Vec::new()));
    assert_eq!(members.next_write(NOW), None);
}

#[test]
fn a_deleted_record_is_forgotten_and_comes_back_if_its_node_reports() {
    let mut members = Members::default();
    members.change(node(1), reports(1, 1_000));
    write(&mut members, 5);
    members.put(node(2), 6, &record(2, 1, 1).to_bytes());
    assert_eq!(
        members.deleted(node(2), 7),
        Some(Became::Forgotten(node(2)))
    );
    assert_eq!(members.next_write(NOW), None);
    assert_eq!(
        members.deleted(node(1), 8),
        Some(Became::Forgotten(node(1)))
    );
    assert_eq!(write(&mut members, 9).len(), 1);
    // The deletion of revision 8 once more, after what was written at 9.
    assert_eq!(members.deleted(node(1), 8), None);
}

#[test]
fn a_last_word_that_waits_brings_no_member_back_that_somebody_has_had_forgotten() {
    let written = (node(1), 5, record(1, 1_000, 1_000).to_bytes());
    // While this scheduler is cut off, the node leaves, and an operator has it forgotten elsewhere; or the watch tells it.
    for is_read_anew in [true, false] {
        let mut members = Members::default();
        members.change(node(1), reports(1, 1_000));
        write(&mut members, 5);
        members.take_all(100, vec![written.clone()]);
        members.change(node(1), leaves(900_000));
        let forgotten = Some(Became::Forgotten(node(1)));
        match is_read_anew {
            true => assert_eq!(members.take_all(100, vec![]).1.first().copied(), forgotten),
            false => assert_eq!(members.deleted(node(1), 6), forgotten),
        }
        assert_eq!(members.next_write(NOW), None, "{is_read_anew}");
    }
}

#[test]
fn a_wiped_etcd_loses_no_last_word_that_waits() {
    let mut members = Members::default();
    members.change(node(1), reports(1, 1_000));
    write(&mut members, 50);
    members.change(node(1), leaves(900_000));
    members.take_all(3, vec![]);
    assert_eq!(write(&mut members, 4), [record(1, 1_000, 900_000)]);
}

#[test]
fn the_members_are_not_all_known_while_a_record_cannot_be_read() {
    let mut members = Members::default();
    assert!(members.are_whole());
    members.put(node(1), 5, br#"{"version":2}"#);
    assert!(!members.are_whole());
    members.put(node(1), 6, &record(1, 1, 1).to_bytes());
    assert!(members.are_whole());
}

#[test]
fn garbage_is_replaced_and_a_later_version_never_is() {
    let mut members = Members::default();
    let later = br#"{"version":2}"#.to_vec();
    let all = vec![(node(1), 3, b"{".to_vec()), (node(2), 4, later.clone())];
    assert_eq!(members.take_all(100, all).1, []);
    for number in [1, 2] {
        members.change(node(number), reports(number.into(), 1_000));
    }
    let due = members.next_write(NOW).unwrap();
    assert_eq!((due.id, due.mod_revision), (node(1), 3));
    assert_eq!(members.written(due, 5), Some(Became::Known(node(1))));
    assert_eq!(members.next_write(NOW), None);
    // One that a newer scheduler has written meanwhile.
    members.change(node(3), reports(3, 1_000));
    let due = members.next_write(NOW).unwrap();
    assert_eq!(members.overtaken(due.id, Some((6, &later))), None);
    assert_eq!(members.next_write(NOW), None);
    // A record that cannot be read any more is no member that is known.
    let gone = members.put(node(1), 7, &later);
    assert_eq!(gone, Some(Became::Forgotten(node(1))));
}

#[test]
fn two_schedulers_that_reach_a_node_by_other_addresses_do_not_write_in_turns() {
    let mut members = Members::default();
    members.change(node(1), reports(1, 1_000));
    write(&mut members, 5);
    members.put(node(1), 6, &record(2, 1_000, 1_000).to_bytes());
    assert_eq!(members.next_write(NOW), None);
    let all = vec![(node(1), 6, record(2, 1_000, 1_000).to_bytes())];
    members.take_all(100, all);
    assert_eq!(members.next_write(NOW), None);
}

#[test]
fn a_record_by_a_clock_that_is_ahead_is_replaced_once_and_one_of_another_scheduler_is_not() {
    for (seen, is_replaced) in [(NOW + 3_600_000, true), (NOW + 50_000, false)] {
        let mut members = Members::default();
        members.put(node(1), 5, &record(1, 1_000, seen).to_bytes());
        members.change(node(1), reports(2, NOW - 500_000));
        let expected = record(2, 1_000, NOW - 500_000);
        let expected = if is_replaced { vec![expected] } else { vec![] };
        assert_eq!(write(&mut members, 6), expected, "{seen}");
        members.change(node(1), reports(3, NOW - 499_000));
        assert_eq!(write(&mut members, 7), [], "{seen}");
    }
}

#[test]
fn each_node_has_its_turn() {
    let mut members = Members::default();
    for number in [1, 2] {
        members.change(node(number), reports(1, 1_000));
    }
    let first = members.next_write(NOW).unwrap();
    assert_eq!(first.id, node(1));
    members.written(first, 5);
    // The first one comes from another address again and again.
    members.change(node(1), reports(2, 100_000));
    assert_eq!(members.next_write(NOW).unwrap().id, node(2));
}
