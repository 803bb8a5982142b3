//! Chooses the keys of windows and the first PSNs of queue pairs.
//!
//! The device chooses the upper 24 bits of a window's key; the lower 8 bits are chosen here, at random. The kernel
//! chooses the whole key of a region. A key that the last lease of a byte had must not work for the next lease. So
//! every byte remembers the keys of its last holder, and these keys are not used.

use std::collections::BTreeMap;

use fabricbios_lease::{Extent, StepError};
use fabricbios_wire::{LeaseId, ResourceId};

/// Largest number of keys remembered per holder: a forgotten key is at least 192 keys old, more than 64 queue pairs have with two
/// windows each. The low byte has 256 values, so a free one is always left.
const KEYS_PER_HOLDER: usize = 192;

/// The history of each arena. Extents of two arenas may be equal, and must not share a history.
#[derive(Debug, Default)]
pub(crate) struct KeyHistories(BTreeMap<ResourceId, KeyHistory>);

impl KeyHistories {
    /// The history of the arena of a resource.
    pub(crate) fn of(&mut self, resource_id: ResourceId) -> &mut KeyHistory {
        self.0.entry(resource_id).or_default()
    }
}

/// The keys of the last holder of every byte of one arena.
///
/// The size is bounded: stretches are disjoint whole pages, so there are at most as many as pages in the arena. In
/// practice there are about as many as leases that fit side by side.
#[derive(Debug, Default)]
pub(crate) struct KeyHistory {
    /// The stretches, by their first byte.
    stretches: BTreeMap<u64, Stretch>,
}

#[derive(Clone, Debug)]
struct Stretch {
    end: u64,
    holder: LeaseId,
    keys: Vec<u32>,
}

impl KeyHistory {
    /// Chooses a key for a window whose current key is `window_rkey`. The low byte is `random`, or the next value with
    /// which neither the last holder of any byte of `extent` nor this lease had the key. The key is remembered at once.
    pub(crate) fn choose(
        &mut self,
        holder: LeaseId,
        extent: Extent,
        window_rkey: u32,
        random: u8,
    ) -> Option<u32> {
        let free = |key: &u32| *key != window_rkey && !self.knows(extent, *key);
        let key = candidates(window_rkey, random).find(free)?;
        self.remember(holder, extent, key);
        Some(key)
    }

    /// Whether a key that the kernel chose may be used: neither the last holder of any byte of `extent` nor this lease
    /// had the key. A key that may be used is remembered.
    pub(crate) fn accept(&mut self, holder: LeaseId, extent: Extent, key: u32) -> bool {
        let free = !self.knows(extent, key);
        if free {
            self.remember(holder, extent, key);
        }
        free
    }

    fn knows(&self, extent: Extent, key: u32) -> bool {
        self.overlapping(extent)
            .any(|(_, stretch)| stretch.keys.contains(&key))
    }

    fn overlapping(&self, extent: Extent) -> impl Iterator<Item = (u64, &Stretch)> {
        self.stretches
            .range(..extent.end())
            .rev()
            .take_while(move |(_, stretch)| stretch.end > extent.offset)
            .map(|(start, stretch)| (*start, stretch))
    }

    fn remember(&mut self, holder: LeaseId, extent: Extent, key: u32) {
        let mut keys = self.keys_of(holder, extent);
        keys.push(key);
        keys.drain(..keys.len().saturating_sub(KEYS_PER_HOLDER));
        self.clear(extent);
        self.stretches.insert(
            extent.offset,
            Stretch {
                end: extent.end(),
                holder,
                keys,
            },
        );
    }

    fn keys_of(&self, holder: LeaseId, extent: Extent) -> Vec<u32> {
        let own = self
            .overlapping(extent)
            .find(|(_, stretch)| stretch.holder == holder);
        own.map(|(_, stretch)| stretch.keys.clone())
            .unwrap_or_default()
    }

    /// Removes the history of an extent for a new holder. Bytes on either side keep their history.
    fn clear(&mut self, extent: Extent) {
        let old: Vec<u64> = self.overlapping(extent).map(|(start, _)| start).collect();
        for start in old {
            let Some(stretch) = self.stretches.remove(&start) else {
                continue;
            };
            if stretch.end > extent.end() {
                self.stretches.insert(extent.end(), stretch.clone());
            }
            if start < extent.offset {
                self.stretches.insert(
                    start,
                    Stretch {
                        end: extent.offset,
                        ..stretch
                    },
                );
            }
        }
    }
}

/// All keys with the upper bits of `rkey`, beginning with the low byte `first`.
fn candidates(rkey: u32, first: u8) -> impl Iterator<Item = u32> {
    (0..=u8::MAX).map(move |step| (rkey & !0xff) | u32::from(first.wrapping_add(step)))
}

/// A random low byte for a key.
pub(crate) fn random_byte() -> Result<u8, StepError> {
    random::<1>().map(|[byte]| byte)
}

/// A random starting PSN: 24 bits.
pub(crate) fn random_psn() -> Result<u32, StepError> {
    random::<4>().map(|bytes| u32::from_ne_bytes(bytes) & 0x00ff_ffff)
}

fn random<const N: usize>() -> Result<[u8; N], StepError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StepError::new("getrandom", error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(1);
    const B: LeaseId = LeaseId(2);
    const C: LeaseId = LeaseId(3);

    fn pages(first: u64, count: u64) -> Extent {
        Extent {
            offset: first * 4096,
            length: count * 4096,
        }
    }

    #[test]
    fn the_random_byte_is_taken_when_nothing_speaks_against_it() {
        let key = KeyHistory::default().choose(A, pages(0, 1), 0x0012_3401, 0x7f);
        assert_eq!(key, Some(0x0012_347f));
    }

    #[test]
    fn the_windows_current_key_is_stepped_over() {
        let key = KeyHistory::default().choose(A, pages(0, 1), 0x0012_34ff, 0xff);
        assert_eq!(key, Some(0x0012_3400));
    }

    #[test]
    fn the_next_holder_of_any_of_the_bytes_gets_another_key() {
        let mut history = KeyHistory::default();
        let first = history.choose(A, pages(0, 4), 0x100, 7).unwrap();
        let second = history.choose(B, pages(3, 2), 0x100, 7).unwrap();
        assert_ne!(first, second);
        // The first three pages still remember A, the fourth B.
        assert_eq!(history.choose(C, pages(0, 5), 0x100, 7), Some(0x109));
    }

    #[test]
    fn a_key_of_the_last_holder_is_not_accepted_from_the_kernel_either() {
        let mut history = KeyHistory::default();
        assert!(history.accept(A, pages(0, 2), 0x100));
        assert!(!history.accept(B, pages(1, 1), 0x100));
        assert!(history.accept(B, pages(1, 1), 0x101));
        assert!(history.accept(C, pages(1, 1), 0x100), "two holders ago");
    }

    #[test]
    fn other_bytes_may_have_the_same_key() {
        let mut history = KeyHistory::default();
        let first = history.choose(A, pages(0, 1), 0x100, 7);
        assert_eq!(history.choose(B, pages(1, 1), 0x100, 7), first);
    }

    #[test]
    fn a_holder_in_another_arena_hides_no_key_of_the_same_extent_here() {
        let mut histories = KeyHistories::default();
        let (here, there) = (ResourceId(1), ResourceId(2));
        assert!(histories.of(here).accept(A, pages(0, 1), 0x100));
        assert!(histories.of(there).accept(B, pages(0, 1), 0x200));
        assert!(!histories.of(here).accept(C, pages(0, 1), 0x100), "retired");
        assert!(
            !histories.of(there).accept(C, pages(0, 1), 0x200),
            "retired"
        );
        // A key that another arena had is free here.
        assert!(histories.of(here).accept(C, pages(0, 1), 0x200));
    }

    #[test]
    fn a_lease_never_gets_a_key_twice_while_it_is_remembered() {
        let mut history = KeyHistory::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..KEYS_PER_HOLDER {
            assert!(seen.insert(history.choose(A, pages(0, 1), 0x100, 7).unwrap()));
        }
        let next = history.choose(B, pages(0, 1), 0x100, 7).unwrap();
        assert!(!seen.contains(&next));
    }

    #[test]
    fn a_holder_in_the_middle_leaves_both_sides_their_memory() {
        let mut history = KeyHistory::default();
        history.choose(A, pages(0, 9), 0x100, 7).unwrap();
        history.choose(B, pages(4, 1), 0x100, 7).unwrap();
        for page in [0, 3, 5, 8] {
            assert!(history.knows(pages(page, 1), 0x107), "page {page}");
        }
        assert!(!history.knows(pages(4, 1), 0x107));
        assert_eq!(history.stretches.len(), 3);
    }
}
