//! Logs that a power cut or damage leaves, at every sector and byte.

use super::{
    scan::Image,
    sector::{Chain, ROOM, SECTOR, write},
};

const LOG: u64 = 0x1122_3344_5566_7788;
/// Sectors of a half.
const HALF: usize = 12;

/// Writes a log as the journal's process does.
struct Pen {
    bytes: Vec<u8>,
    half: usize,
    used: usize,
    before: Chain,
    last: u64,
    /// Where the frames are in the file, in bytes.
    places: Vec<std::ops::Range<usize>>,
}

impl Pen {
    fn new() -> Self {
        let (head, _) = write(LOG, 0, Chain::default(), &(HALF as u64).to_le_bytes());
        let mut bytes = head.to_vec();
        bytes.resize((1 + 2 * HALF) * SECTOR, 0);
        Self {
            bytes,
            half: 0,
            used: 0,
            before: Chain::default(),
            last: 0,
            places: vec![],
        }
    }

    /// A log whose halves were both written before, up to commit 12: the file has these.
    fn used() -> Self {
        let mut pen = Self::new();
        for _ in 0..6 {
            pen.add(2);
        }
        pen.turn();
        for _ in 0..6 {
            pen.add(2);
        }
        pen.turn();
        pen.places.clear();
        pen
    }

    /// A commit of so many sectors.
    fn add(&mut self, sectors: usize) {
        self.last += 1;
        let payload = payload(self.last, sectors);
        let (frame, chain) = write(LOG, self.last, self.before, &payload);
        assert_eq!(frame.len(), sectors * SECTOR);
        let at = (1 + self.half * HALF + self.used) * SECTOR;
        self.bytes[at..at + frame.len()].copy_from_slice(&frame);
        self.places.push(at..at + frame.len());
        self.used += sectors;
        self.before = chain;
    }

    fn turn(&mut self) {
        (self.half, self.used) = (1 - self.half, 0);
    }
}

fn payload(number: u64, sectors: usize) -> Vec<u8> {
    let byte = u8::try_from(number).unwrap();
    vec![byte; (sectors - 1) * ROOM + 10]
}

/// The numbers of the commits behind `after` in these bytes.
fn read(bytes: &[u8], after: u64, reported: Option<u64>) -> Result<Vec<u64>, String> {
    let frames = Image::of(bytes)?.frames(after, reported)?;
    let numbers = frames.into_iter().map(|(number, payload)| {
        assert!(payload.iter().all(|byte| u64::from(*byte) == number));
        number
    });
    Ok(numbers.collect())
}

#[test]
fn whole_frames_are_read_over_both_halves_and_those_of_before_are_not() {
    let mut pen = Pen::new();
    assert_eq!(read(&pen.bytes, 0, None), Ok(vec![]));
    for sectors in [1, 3, 7] {
        pen.add(sectors);
    }
    pen.turn();
    pen.add(12);
    for reported in [None, Some(4)] {
        assert_eq!(read(&pen.bytes, 0, reported), Ok(vec![1, 2, 3, 4]));
        assert_eq!(read(&pen.bytes, 3, reported), Ok(vec![4]));
        assert_eq!(read(&pen.bytes, 4, reported), Ok(vec![]));
    }
    pen.turn();
    pen.add(2);
    assert_eq!(read(&pen.bytes, 3, None), Ok(vec![4, 5]));
    assert_eq!(read(&pen.bytes, 4, None), Ok(vec![5]));
    assert_eq!(Image::of(&pen.bytes).unwrap().newest(), 5);
}

#[test]
fn an_unfinished_write_is_dropped_whichever_of_its_sectors_reached_the_disk() {
    for pen in [Pen::new(), Pen::used()] {
        let (after, mut before) = (pen.last, pen);
        before.add(1);
        let mut whole = before.bytes.clone();
        let number = before.last + 1;
        let sectors = 4;
        let (frame, _) = write(LOG, number, before.before, &payload(number, sectors));
        let at = before.places[0].end;
        whole[at..at + frame.len()].copy_from_slice(&frame);
        for reached in 0..1 << sectors {
            let mut bytes = before.bytes.clone();
            for sector in (0..sectors).filter(|it| reached & 1 << it != 0) {
                let place = at + sector * SECTOR..at + (sector + 1) * SECTOR;
                bytes[place.clone()].copy_from_slice(&whole[place]);
            }
            let is_whole = reached == (1 << sectors) - 1;
            let found: Vec<_> = (after + 1..=number - u64::from(!is_whole)).collect();
            // Nobody knows of it.
            for reported in [None, Some(number - 1)] {
                assert_eq!(
                    read(&bytes, after, reported),
                    Ok(found.clone()),
                    "{reached:b}"
                );
            }
            // A client does.
            assert_eq!(
                read(&bytes, after, Some(number)).is_ok(),
                is_whole,
                "{reached:b}"
            );
        }
    }
}

#[test]
fn damage_of_the_last_commits_is_found_at_every_byte() {
    for pen in [Pen::new(), Pen::used()] {
        let (after, mut pen) = (pen.last, pen);
        for sectors in [1, 2, 3] {
            pen.add(sectors);
        }
        let last = pen.last;
        for (frame, place) in [
            (last - 1, pen.places[1].clone()),
            (last, pen.places[2].clone()),
        ] {
            for (at, flip) in place.flat_map(|at| [(at, 1), (at, 0x80), (at, 0xFF)]) {
                let mut bytes = pen.bytes.clone();
                bytes[at] ^= flip;
                for reported in [None, Some(last), Some(frame)] {
                    let refused = read(&bytes, after, reported).unwrap_err();
                    assert!(refused.contains("whole"), "{at}: {refused}");
                }
                // Of a write that nobody knows of, damage is no loss.
                let known: Vec<_> = (after + 1..frame).collect();
                assert_eq!(read(&bytes, after, Some(frame - 1)), Ok(known), "{at}");
            }
        }
    }
}

#[test]
fn a_commit_that_vanished_whole_is_found_by_the_next_one_or_by_its_number() {
    for pen in [Pen::new(), Pen::used()] {
        let (after, mut pen) = (pen.last, pen);
        let older = pen.bytes.clone();
        for sectors in [2, 2, 2] {
            pen.add(sectors);
        }
        let last = pen.last;
        let without = |frame: usize| {
            let (mut bytes, place) = (pen.bytes.clone(), pen.places[frame].clone());
            bytes[place.clone()].copy_from_slice(&older[place]);
            bytes
        };
        for frame in [0, 1] {
            let refused = read(&without(frame), after, None).unwrap_err();
            assert!(refused.contains("a part of commit"), "{refused}");
        }
        assert!(read(&without(2), after, Some(last)).is_err());
        // The one loss of sectors that nothing shows (docs/decisions/0046).
        assert_eq!(read(&without(2), after, None), Ok(vec![last - 2, last - 1]));
    }
}

#[test]
fn sectors_of_another_write_do_not_complete_a_commit() {
    let mut pen = Pen::new();
    pen.add(1);
    let mut other = Pen::new();
    other.before = [7; 16];
    other.add(1);
    // The same number behind another commit, and a frame of the same number that is longer.
    for (frame, _) in [
        write(LOG, 2, other.before, &payload(2, 2)),
        write(LOG, 2, pen.before, &payload(2, 3)),
    ] {
        let mut bytes = pen.bytes.clone();
        let (mine, _) = write(LOG, 2, pen.before, &payload(2, 2));
        let at = pen.places[0].end;
        bytes[at..at + SECTOR].copy_from_slice(&mine[..SECTOR]);
        bytes[at + SECTOR..at + 2 * SECTOR].copy_from_slice(&frame[SECTOR..2 * SECTOR]);
        let refused = read(&bytes, 0, None).unwrap_err();
        assert!(refused.contains("does not follow commit 1"), "{refused}");
    }
}

#[test]
fn a_damaged_head_and_another_length_are_told_at_every_byte() {
    let mut pen = Pen::new();
    pen.add(1);
    for at in 0..SECTOR {
        let mut bytes = pen.bytes.clone();
        bytes[at] ^= 1;
        // A head with another identity is no head either: its checksum is of the old one.
        assert!(read(&bytes, 0, None).is_err(), "{at}");
    }
    for length in 0..pen.bytes.len() {
        assert!(read(&pen.bytes[..length], 0, None).is_err(), "{length}");
    }
    pen.bytes.push(0);
    assert!(read(&pen.bytes, 0, None).is_err());
}

#[test]
fn no_bytes_make_it_panic_and_no_number_overflows() {
    let mut random = fastrand::Rng::with_seed(46);
    for _ in 0..300 {
        let mut pen = Pen::used();
        pen.add(3);
        for _ in 0..random.usize(1..40) {
            let at = random.usize(..pen.bytes.len());
            pen.bytes[at] = random.u8(..);
        }
        for after in [0, 12, u64::MAX] {
            read_any(&pen.bytes, after, None);
        }
    }
    // Whole sectors with any numbers.
    let mut pen = Pen::new();
    let (frame, _) = write(LOG, u64::MAX, [0; 16], &[1; 2 * ROOM]);
    pen.bytes[SECTOR..3 * SECTOR].copy_from_slice(&frame);
    for (after, reported) in [(u64::MAX, None), (u64::MAX - 1, None), (0, Some(u64::MAX))] {
        read_any(&pen.bytes, after, reported);
    }
}

fn read_any(bytes: &[u8], after: u64, reported: Option<u64>) {
    if let Ok(image) = Image::of(bytes) {
        image.frames(after, reported).ok();
    }
}

/// Computed with another program.
#[test]
fn a_sector_is_written_as_the_number_of_the_format_says() {
    let (frame, _) = write(LOG, 7, [9; 16], b"a commit");
    let hex: String = frame[..68].iter().map(|it| format!("{it:02x}")).collect();
    let of_format_9 = concat!(
        "88776655443322110700000000000000000000000100000008000000",
        "09090909090909090909090909090909",
        "680f1f2121283e797c5a316d81c932cb",
        "6120636f6d6d6974",
    );
    assert_eq!(
        (fabricbios_lease::FORMAT, hex.as_str()),
        (9, of_format_9),
        "another shape needs another number: docs/compatibility.md"
    );
    assert!(frame[68..].iter().all(|byte| *byte == 0) && frame.len() == SECTOR);
}
