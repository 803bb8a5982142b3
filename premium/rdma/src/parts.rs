//! The verbs objects of one binding.

use std::sync::Arc;

use nix::errno::Errno;

use fabricbios_verbs::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, QueuePairState, Window, WindowMaker,
};

use super::{binding_state::Objects, memory::Bytes};

/// Boxed, since it moves through results and phases.
pub(crate) type Parts = Box<BindingParts>;

/// The verbs objects of one binding.
#[derive(Debug)]
pub(crate) struct BindingParts {
    pub(super) bytes: Bytes,
    /// The queue pairs, in the order in which clients named their peers.
    pub(super) pairs: Vec<Pair>,
    /// Shared by all queue pairs: only one piece of work is outstanding at a time. A thread that makes further queue pairs
    /// has it too.
    pub(super) completions: Option<Arc<CompletionQueue>>,
    /// A region of exactly these bytes, to which the windows are bound. Only on a device that does not enforce the
    /// bounds of windows.
    pub(super) extent_mr: Option<MemoryRegion>,
    /// The domain of this lease, if leases are regions.
    pub(super) domain: Option<Arc<ProtectionDomain>>,
    /// The regions of this lease, if leases are regions; the last one has the current key.
    pub(super) regions: Vec<MemoryRegion>,
    /// Path MTU of all connections: the smallest that a peer asked for.
    pub(super) mtu_bytes: u16,
    /// Queue pairs that left before, each proved gone.
    pub(super) left: usize,
    /// Whether access is open; only then the client may learn the keys.
    pub(super) open: bool,
}

/// One queue pair with its windows.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(super) queue_pair: Option<QueuePair>,
    /// Oldest first; the last one has the current key.
    pub(super) windows: Vec<Window>,
    /// Windows that were never bound and that the kernel refused to deallocate.
    pub(super) unbound_windows: Vec<Window>,
    pub(super) number: u32,
    /// Whether the kernel has confirmed that the queue pair is gone.
    pub(super) proven_gone: bool,
    pub(super) psn: u32,
    /// Number of the peer's queue pair; 0 until it is known.
    pub(super) peer: u32,
}

impl Objects for Parts {
    /// A window without its queue pair gives no access.
    fn may_give_access(&self) -> bool {
        let serves = |pair: &Pair| pair.queue_pair.is_some() || !pair.proven_gone;
        self.pairs.iter().any(serves) || !self.regions.is_empty()
    }
}

impl BindingParts {
    pub(super) fn new(bytes: Bytes, mtu_bytes: u16) -> Parts {
        Box::new(Self {
            bytes,
            pairs: Vec::new(),
            completions: None,
            extent_mr: None,
            domain: None,
            regions: Vec::new(),
            mtu_bytes,
            left: 0,
            open: false,
        })
    }

    /// The makers of the windows of each queue pair.
    pub(super) fn window_makers(&self) -> Vec<WindowMaker> {
        let queue_pairs = self.pairs.iter().filter_map(|it| it.queue_pair.as_ref());
        queue_pairs.map(QueuePair::window_maker).collect()
    }

    /// Adds a window to each queue pair.
    pub(super) fn add_windows(&mut self, windows: Vec<Window>) {
        for (pair, window) in self.pairs.iter_mut().zip(windows) {
            pair.windows.push(window);
        }
    }

    /// Removes all queue pairs except the first one and returns them.
    pub(super) fn split_off_added(&mut self) -> Parts {
        let mut added = Self::new(self.bytes.clone(), self.mtu_bytes);
        added.pairs = self.pairs.split_off(1.min(self.pairs.len()));
        added
    }

    /// Whether the binding has exactly one queue pair and it waits for a peer.
    pub(super) fn is_prepared(&self) -> bool {
        matches!(&self.pairs[..], [pair] if pair.state() == Ok(QueuePairState::NotConnected))
    }

    /// Number of keys of each queue pair: two during a rotation.
    pub(super) fn keys(&self) -> usize {
        let windows = self.pairs.first().map_or(0, |pair| pair.windows.len());
        windows.max(self.regions.len())
    }

    /// The key that a queue pair had `back` rotations ago, if access is open.
    pub(super) fn key(&self, pair: &Pair, back: usize) -> Option<u32> {
        let window = pair.windows.iter().rev().nth(back).map(Window::rkey);
        let region = self.regions.iter().rev().nth(back);
        window
            .or(region.map(MemoryRegion::rkey))
            .filter(|_| self.open)
    }

    /// The key of the regions that the next queue pair of a client gets, while no queue pair gives access with it.
    pub(super) fn prepared_key(&self) -> Option<u32> {
        let region = self.regions.last().map(MemoryRegion::rkey);
        region.filter(|_| !self.open || self.pairs.is_empty())
    }

    /// Whether no key is left.
    pub(super) fn has_no_keys(&self) -> bool {
        self.regions.is_empty() && self.pairs.iter().all(|pair| pair.windows.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.iter().all(Pair::is_empty)
            && self.completions.is_none()
            && self.extent_mr.is_none()
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
        self.queue_pair.as_ref().is_some_and(works)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue_pair.is_none() && self.windows.is_empty() && self.unbound_windows.is_empty()
    }
}

/// Whether the queue pair still answers.
pub(super) fn works(queue_pair: &QueuePair) -> bool {
    queue_pair.state() == Ok(QueuePairState::ReadyToSend)
}
