//! The verbs objects of one binding.

use std::sync::Arc;

use fabricbios_lease::Extent;
use nix::errno::Errno;

use fabricbios_verbs::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairState, Window,
};

/// Boxed, since it travels through results and states.
pub(crate) type Parts = Box<BindingParts>;

/// All of one binding.
#[derive(Debug)]
pub(crate) struct BindingParts {
    pub(super) extent: Extent,
    /// In the order of the client's.
    pub(super) pairs: Vec<Pair>,
    /// Of all queue pairs: whoever posts waits before anybody posts again.
    pub(super) completions: Option<CompletionQueue>,
    /// What windows are bound to, where the arena would let them reach too far.
    pub(super) beneath: Option<MemoryRegion>,
    /// The lease's own domain, where it has regions.
    pub(super) domain: Option<Arc<ProtectionDomain>>,
    /// The lease's own regions; the last one has the current key.
    pub(super) regions: Vec<MemoryRegion>,
    /// Of the connections: the smallest that anybody asked for, since it is told once.
    pub(super) mtu_bytes: u16,
    /// Whether the client may be told the keys.
    pub(super) open: bool,
}

/// One queue pair and what hangs on it.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(super) queue_pair: Option<QueuePair>,
    /// Oldest first; the last one has the current key.
    pub(super) windows: Vec<Window>,
    /// Never bound, and the kernel would not take them away yet.
    pub(super) doomed: Vec<Window>,
    pub(super) number: u32,
    /// Whether the kernel has confirmed that the queue pair is gone.
    pub(super) proven_gone: bool,
    pub(super) psn: u32,
    /// Number of the queue pair at the other end; 0 until it is known.
    pub(super) peer: u32,
}

impl BindingParts {
    pub(super) fn new(extent: Extent, mtu_bytes: u16) -> Parts {
        Box::new(Self {
            extent,
            pairs: Vec::new(),
            completions: None,
            beneath: None,
            domain: None,
            regions: Vec::new(),
            mtu_bytes,
            open: false,
        })
    }

    /// Takes out the queue pairs but for the first one.
    pub(super) fn split_off_added(&mut self) -> Parts {
        let mut added = Self::new(self.extent, self.mtu_bytes);
        added.pairs = self.pairs.split_off(1.min(self.pairs.len()));
        added
    }

    /// Whether its one queue pair waits for a peer.
    pub(super) fn is_prepared(&self) -> bool {
        matches!(&self.pairs[..], [pair] if pair.state() == Ok(QueuePairState::NotConnected))
    }

    /// How many keys each queue pair has: two during a rotation.
    pub(super) fn keys(&self) -> usize {
        let windows = self.pairs.first().map_or(0, |pair| pair.windows.len());
        windows.max(self.regions.len())
    }

    /// The current key of a queue pair, or the one `back` rotations before, if the client may know.
    pub(super) fn key(&self, pair: &Pair, back: usize) -> Option<u32> {
        let window = pair.windows.iter().rev().nth(back).map(Window::rkey);
        let region = self.regions.iter().rev().nth(back);
        window
            .or(region.map(MemoryRegion::rkey))
            .filter(|_| self.open)
    }

    /// Whether no key is left through which anything could be reached.
    pub(super) fn has_no_keys(&self) -> bool {
        self.regions.is_empty() && self.pairs.iter().all(|pair| pair.windows.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.iter().all(Pair::is_empty)
            && self.completions.is_none()
            && self.beneath.is_none()
            && self.domain.is_none()
            && self.regions.is_empty()
    }
}

impl Pair {
    /// State of the queue pair.
    pub(super) fn state(&self) -> Result<QueuePairState, Errno> {
        self.queue_pair
            .as_ref()
            .map_or(Err(Errno::EINVAL), QueuePair::state)
    }

    /// Whether accesses may still be answered.
    pub(super) fn works(&self) -> bool {
        self.state() == Ok(QueuePairState::ReadyToSend)
    }

    fn is_empty(&self) -> bool {
        self.queue_pair.is_none() && self.windows.is_empty() && self.doomed.is_empty()
    }
}
