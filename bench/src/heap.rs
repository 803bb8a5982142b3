//! Counts allocated bytes: the system's allocator with a counter before it. It counts the requested sizes,
//! without the allocator's own overhead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Calls of the allocator by all threads since the start, and the bytes that they asked for.
#[cfg(test)]
static ALLOCATED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// See [`ALLOCATED`].
#[cfg(test)]
pub(crate) fn allocations() -> (usize, usize) {
    let (calls, bytes) = &ALLOCATED;
    (calls.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
}

/// Bytes that are allocated and not freed.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}

// SAFETY: every call goes to the system's allocator unchanged; the counter touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        #[cfg(test)]
        {
            ALLOCATED.0.fetch_add(1, Ordering::Relaxed);
            ALLOCATED.1.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `ptr` came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests allocate at the same time, so this size is much larger than theirs.
    #[test]
    fn what_is_allocated_counts_until_it_is_freed() {
        const SIZE: usize = 1 << 30;
        let before = live_bytes();
        let large: Vec<u8> = Vec::with_capacity(SIZE);
        assert!(live_bytes() > before + SIZE / 2);
        drop(large);
        assert!(live_bytes() < before + SIZE / 2);
    }
}
