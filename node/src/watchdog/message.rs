//! Messages between the daemon and its watchdog.

use fabricbios_channel::ChannelKind;
use fabricbios_lease::BootTime;
use fabricbios_rdma::GuardedPair;
use fabricbios_wire::{Generation, LeaseId, ResourceType};
use serde::{Deserialize, Serialize};

/// The channel on the watchdog's standard input.
pub const CHANNEL: ChannelKind = ChannelKind {
    name: "watchdog",
    frame_bytes_max: 1 << 16,
    passes_descriptors: false,
};

/// A message to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchdogMessage {
    /// The deadline of a lease that is ended by name, over a path of this kind.
    Until(ResourceType, LeaseId, Generation, BootTime),
    /// The end of access is proved, for this generation and all before it.
    Over(ResourceType, LeaseId, Generation),
    /// This queue pair is about to give access to a lease over RDMA.
    Opens(LeaseId, GuardedPair),
    /// The new deadline of a lease over RDMA.
    Extend(LeaseId, BootTime),
    /// The cut of the queue pair with this number was proved, or failed.
    Ends(LeaseId, u32),
    /// A cut over RDMA has begun.
    Moves,
    /// All earlier leases were sent: watch from now on, and replace the watchdog of an earlier run.
    Begin,
    /// Reply that you are well.
    Ping,
}

/// A message from the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchdogReply {
    /// The watchdog watches, in place of the previous watchdog.
    Watches,
    /// The reply to a ping.
    IsWell,
    /// The watchdog may not duplicate descriptors, for this reason, so it could only kill the daemon.
    MayNotCut(String),
    /// The watchdog has put the queue pairs of this lease in ERR.
    HasCut(LeaseId),
}
