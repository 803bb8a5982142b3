//! Tests of the table.

use super::*;

fn table() -> (tempfile::TempDir, Knobs, Table) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    let knobs = Knobs::open(&directory).unwrap();
    let table = Table::open(&directory, Vendor::Nvidia).unwrap();
    (place, knobs, table)
}

fn of(owner: Owner, offset: u64) -> Record {
    Record {
        kind: Kind::Allocation,
        owner,
        partition: Some(3),
        offset,
        bytes: PAGE,
    }
}

const DEAD: Owner = Owner {
    pid: 1 << 22,
    start: 1,
};

#[test]
fn records_come_back_as_they_were_written() {
    let (_place, knobs, table) = table();
    let locked = table.lock(&knobs).unwrap();
    let first = of(table.me(), 0);
    let second = Record {
        kind: Kind::Context,
        partition: None,
        ..of(table.me(), PAGE)
    };
    assert_eq!(locked.insert(first), Some(0));
    assert_eq!(locked.insert(second), Some(1));
    drop(locked);
    let locked = table.lock(&knobs).unwrap();
    let all: Vec<_> = locked.records().collect();
    assert_eq!(all, [(0, first), (1, second)]);
    locked.remove(0);
    assert_eq!(locked.insert(second), Some(0), "a free place is used again");
}

#[test]
fn the_memory_of_a_dead_process_comes_back_in_a_while() {
    let (place, knobs, table) = table();
    let directory = Directory::at(place.path()).unwrap();
    directory.set(Knob::Lingering, "3600000").unwrap();
    table.lock(&knobs).unwrap().insert(of(DEAD, 0)).unwrap();
    for _ in 0..2 {
        let locked = table.lock(&knobs).unwrap();
        let all: Vec<_> = locked.records().map(|(_, it)| it.kind).collect();
        assert_eq!(all, [Kind::Lingering], "it does not come back at once");
    }
    directory.set(Knob::Lingering, "1").unwrap();
    while table.lock(&knobs).unwrap().records().count() > 0 {}
}

#[test]
fn lost_memory_stays_lost_when_the_knob_is_off_again() {
    let (place, knobs, table) = table();
    let directory = Directory::at(place.path()).unwrap();
    table.lock(&knobs).unwrap().insert(of(DEAD, 0)).unwrap();
    directory.set(Knob::Lost, "1").unwrap();
    drop(table.lock(&knobs).unwrap());
    directory.clear(Knob::Lost).unwrap();
    let locked = table.lock(&knobs).unwrap();
    let all: Vec<_> = locked.records().map(|(_, it)| it.kind).collect();
    assert_eq!(all, [Kind::Lost]);
}

#[test]
fn a_record_without_its_first_word_is_none() {
    // The state after a process was killed in the middle of `insert`.
    let (_place, knobs, table) = table();
    let locked = table.lock(&knobs).unwrap();
    locked.word(AT_USED).store(1, Ordering::Relaxed);
    locked.field(0, 1).store(7, Ordering::Relaxed);
    assert_eq!(locked.records().count(), 0);
    assert_eq!(locked.insert(of(table.me(), 0)), Some(0));
}

#[test]
fn the_size_changes_when_nobody_has_memory() {
    let (place, knobs, table) = table();
    let directory = Directory::at(place.path()).unwrap();
    let locked = table.lock(&knobs).unwrap();
    assert_eq!(locked.memory_bytes(), MEMORY);
    let index = locked.insert(of(table.me(), 0)).unwrap();
    drop(locked);
    directory.set(Knob::Memory, "8388609").unwrap();
    let locked = table.lock(&knobs).unwrap();
    assert_eq!(locked.memory_bytes(), MEMORY);
    locked.remove(index);
    drop(locked);
    let locked = table.lock(&knobs).unwrap();
    assert_eq!(locked.memory_bytes(), 10 << 20);
    let file = place.path().join(Vendor::Nvidia.memory_file());
    assert_eq!(file.metadata().unwrap().len(), 10 << 20);
}
