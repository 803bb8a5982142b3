//! Why a journal does not open, and why a group is not durable.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use fabricbios_channel::ChannelError;
use fabricbios_lease::OtherFormat;

/// Why the journal cannot be used. The node must not start without its journal: it would not know what is fenced.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process has the journal open.
    #[error(
        "journal {path} is still held by process {holder}, which a daemon that has ended left behind: it writes what \
         that daemon had given it, and the state disk does not answer, or the process is stopped \
         (/proc/{holder}/status). Have the disk answer (`fsfreeze --unfreeze`, `dmsetup resume`) or the process go \
         on (`kill -CONT {holder}`): it ends by itself. Then start again"
    )]
    InUse {
        /// The journal.
        path: PathBuf,
        /// Process id of the holder.
        holder: i32,
    },
    /// The file is not a whole journal.
    #[error(
        "journal {path} is damaged ({detail}): put back its newest copy, and move a file {path}.commits away (leases \
         that the copy does not know are cut; memory and pools tell by their own counters that it is older: then \
         leases of memory end, and pools wait for a newer one or --force; fences that it does not know are \
         forgotten), or, once every device of this node is known to be clean, move the file away, and {path}.commits, \
         to start with no leases and no fences"
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The damage.
        detail: String,
    },
    /// The file has another format.
    #[error(
        "journal {path}: {why}, or, once every device of this node is known to be clean, move the file away to start \
         with no leases and no fences"
    )]
    OtherFormat {
        /// The journal.
        path: PathBuf,
        /// The format of the file.
        why: OtherFormat,
    },
    /// The last run did not stop in order.
    #[error(
        "journal {path} is read only after the repair that a start makes: the last run did not stop in order"
    )]
    NeedsRepair {
        /// The journal.
        path: PathBuf,
    },
    /// The message of the process that writes the journal.
    #[error("{0}")]
    Refused(String),
    /// The process that writes the journal cannot be started.
    #[error("journal {path}: the process that writes it cannot be started: {error}")]
    NotStarted {
        /// The journal.
        path: PathBuf,
        /// The error of the system; the message contains its text.
        error: io::Error,
    },
    /// The process that writes the journal has ended by itself.
    #[error("journal {path}: process {pid}, which writes it, has ended ({status}): {lost}")]
    Ended {
        /// The journal.
        path: PathBuf,
        /// The process.
        pid: u32,
        /// Its exit status.
        status: String,
        /// What was lost with it.
        lost: Lost,
    },
    /// A system call failed.
    #[error("journal {path}: {step}: {error}")]
    Io {
        /// The journal.
        path: PathBuf,
        /// The failed step.
        step: String,
        /// The error of the system; the message contains its text.
        error: io::Error,
    },
}

/// What the daemon notices of a process that has ended.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The channel to the process fails.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The process has closed the channel.
    #[error("its end of the channel is closed")]
    Closed,
    /// The process does not read.
    #[error("it does not read, and its channel is full")]
    Full,
    /// The process runs another program.
    #[error("a message that is not expected here")]
    Unexpected,
}

impl JournalError {
    pub(super) fn io(path: &Path, step: impl Into<String>, error: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            step: step.into(),
            error,
        }
    }

    pub(super) fn redb(path: &Path, step: &str, error: redb::Error) -> Self {
        match error {
            redb::Error::Io(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                // redb reports a file of another program as invalid data of the I/O layer.
                if source.kind() == io::ErrorKind::InvalidData {
                    return Self::damaged(path, format!("{step}: {source}"));
                }
                Self::io(path, step, source)
            }
            other => Self::damaged(path, format!("{step}: {other}")),
        }
    }

    pub(super) fn damaged(path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            detail: detail.into(),
        }
    }
}

/// Why a group is not durable. The journal tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not durable: {0}")]
pub struct CommitError(String);

impl CommitError {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}
