//! Decides to whom the bytes of an arena belong at a start, and which bytes are overwritten before the arena is on
//! offer.

use anyhow::{Context, anyhow};
use fabricbios_arena::{Arena, Mark};
use fabricbios_lease::Extent;
use fabricbios_wire::ResourceId;

use crate::{
    journal::{Change, Key, past::Past},
    process::clock,
};

/// Decides whether the bytes belong to the leases in the journal, and returns the change that the journal needs for
/// them.
///
/// Journal and bytes have the same mark, and the bytes store the number of the journal's last commit. A journal with a
/// lower number was restored from a copy: bytes of a lease that this journal records as live may belong to another
/// tenant now. If the two do not match, the bytes get a new mark, which no copy of a journal has. The journal gets the
/// new mark in the commit that ends the earlier leases, so a start that fails before this commit leaves the two marks
/// different. The caller stores the numbers of later commits beside the bytes.
pub(super) fn claim(
    arena: &Arena,
    name: &str,
    past: &Past,
    resource_id: ResourceId,
) -> anyhow::Result<(bool, Option<Change>)> {
    let recovered = &past.recovered;
    let key = Key::Mark(resource_id);
    let ours = recovered.records.get(&key).map(|mark| mark.as_slice());
    let is_same_mark = arena.mark().is_some_and(|mark| ours == Some(&mark));
    let counted_beside = arena.commits();
    let is_older = recovered.commits < counted_beside;
    if is_older && is_same_mark {
        tracing::error!(
            arena = name,
            journal = recovered.commits,
            memory = counted_beside,
            "the journal is older than the memory file: it was put back from a copy; leases of this arena that it \
             knows are over, and their bytes are overwritten"
        );
    }
    // A reboot ends leases of memory and loses bytes that the file system had not written.
    let same_boot = recovered.last_boot_id == Some(clock::boot_id());
    let is_known = is_same_mark && same_boot && !is_older;
    let change = match is_known {
        true => None,
        false => Some(Change::put(key, new_mark(arena)?.to_vec())),
    };
    // After a change of the mark, a lower number is correct.
    arena.set_commits(recovered.commits);
    Ok((is_known, change))
}

fn new_mark(arena: &Arena) -> anyhow::Result<Mark> {
    let mut mark = Mark::default();
    getrandom::fill(&mut mark).map_err(|error| anyhow!("make a mark for the memory: {error}"))?;
    arena.set_mark(&mark);
    Ok(mark)
}

/// Overwrites the bytes of an arena that no lease holds, which an earlier run may have left dirty.
pub(super) fn scrub_unheld(arena: &Arena, name: &str, held: &[Extent]) -> anyhow::Result<()> {
    let unheld = gaps(held, arena.bytes());
    let bytes: u64 = unheld.iter().map(|gap| gap.length).sum();
    tracing::info!(
        arena = name,
        bytes,
        leases = held.len(),
        "scrubbing the memory that no lease of the earlier run holds"
    );
    for gap in unheld {
        arena
            .scrub(gap.offset, gap.length, &|| ())
            .context("scrub the memory on offer")?;
    }
    Ok(())
}

/// The parts of `0..end` outside the extents, which may be in any order.
fn gaps(held: &[Extent], end: u64) -> Vec<Extent> {
    let mut held = held.to_vec();
    held.sort_unstable();
    held.push(Extent {
        offset: end,
        length: 0,
    });
    let mut from = 0;
    let mut gaps = Vec::new();
    for extent in held {
        if extent.offset > from {
            gaps.push(Extent {
                offset: from,
                length: extent.offset - from,
            });
        }
        from = from.max(extent.end());
    }
    gaps
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use fabricbios_arena::Source;

    use super::*;
    use crate::{
        driver::mailbox::Mailbox,
        journal::{self, Journal},
    };

    const RESOURCE: ResourceId = ResourceId(7);

    /// The opened journal in this directory, as after a start with this boot id.
    fn past(directory: &Path, boot_id: &str) -> Past {
        let (mailbox, driver) = Mailbox::new().unwrap();
        let path = directory.join(journal::FILE);
        let (journal, recovered) = Journal::open_here(&path, boot_id, Box::new(|_| ())).unwrap();
        Past {
            mailbox,
            driver,
            journal,
            recovered,
        }
    }

    fn write(past: &Past, change: Change) {
        let writer = past.journal.writer();
        writer.wait(writer.submit(vec![change])).unwrap();
    }

    fn arena(directory: &Path) -> Arc<Arena> {
        let source = Source {
            file: Some(directory.join("arena")),
            ..Source::default()
        };
        Arc::new(Arena::open(&source, 4096).unwrap())
    }

    #[test]
    fn bytes_of_before_a_reboot_stay_unknown_after_a_start_in_vain() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let before = past(at, "another boot");
        write(&before, Change::put(Key::Mark(RESOURCE), vec![9; 16]));
        arena(at).set_mark(&[9; 16]);
        drop(before);
        for _ in 0..2 {
            let past = past(at, &clock::boot_id());
            let (is_known, change) = claim(&arena(at), "mem0", &past, RESOURCE).unwrap();
            assert!(!is_known && change.is_some());
        }
    }

    fn extent(offset: u64, length: u64) -> Extent {
        Extent { offset, length }
    }

    #[test]
    fn what_no_lease_holds_lies_between_those_that_do() {
        assert_eq!(gaps(&[], 9), [extent(0, 9)]);
        assert_eq!(gaps(&[extent(0, 9)], 9), []);
        let held = [extent(6, 1), extent(0, 2), extent(2, 1)];
        assert_eq!(gaps(&held, 9), [extent(3, 3), extent(7, 2)]);
        // The lease is of an earlier, larger arena.
        assert_eq!(gaps(&[extent(8, 8)], 9), [extent(0, 8)]);
    }
}
