//! The order that a worker receives from the daemon.

use fabricbios_channel::ChannelKind;
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize};

use crate::{device::Device, libraries::Libraries};

/// The only message that a worker gets on its standard input; the listening socket comes beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerOrder {
    /// The lease.
    pub lease_id: LeaseId,
    /// The number of the session, not 0.
    pub session: u64,
    /// The device.
    pub device: Device,
    /// The vendors' libraries.
    pub libraries: Libraries,
    /// Most bytes that the session can allocate.
    pub vram_bytes: u64,
    /// The session ends with its only stream.
    pub one_shot: bool,
    /// At its end the session also wipes all free memory of the device.
    pub scrub_at_close: bool,
    /// The worker's user after its start.
    pub uid: u32,
    /// Its supplementary groups: those of the device nodes. Its own group has the number of the user.
    pub gids: Vec<u32>,
}

impl WorkerOrder {
    /// The channel of the order and of its answer.
    pub const CHANNEL: ChannelKind = ChannelKind {
        name: "GPU worker",
        frame_bytes_max: 1 << 16,
        passes_descriptors: true,
    };
}
