//! Messages between the daemon and the journal's process.

use fabricbios_channel::ChannelKind;
use serde::{Deserialize, Serialize};

use super::{JournalCounts, Key, Recovered, Value};

/// Records are sent when they take more than this: a journal may have hundreds of megabytes.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// A message has at most the records of a host with many thousand leases. Other records have some hundred bytes, errors
/// some thousand.
pub(crate) const CHANNEL: ChannelKind = ChannelKind {
    name: "journal",
    frame_bytes_max: 4 << 20,
    passes_descriptors: false,
};

#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    /// To the process, first message: open the journal on this boot. Either count this start, or replace a process that
    /// has ended.
    Begin { boot_id: String, replaces: bool },
    /// From the process: a record. To the process: a change that belongs to the next group.
    Record(Key, Option<Value>),
    /// From the process, after the records: the journal is open; the rest of its contents.
    Opened(Recovered),
    /// From the process: why the journal does not open, or why the group is not durable.
    Refused(String),
    /// To the process: the group is complete, commit it.
    Commit,
    /// From the process: the group is durable, as the commit with this number.
    Committed(u64, JournalCounts),
}
