//! `fabricbiosd journal`: the process that writes the journal.
//!
//! A thread that waits for a disk cannot be killed, nor can its process, and such a process keeps every port and queue
//! pair for as long as the disk does not answer. So this process does the journal's disk I/O. It has only the journal
//! and a socket to the daemon, as standard input. When the daemon is gone, the process writes the current group and
//! ends.

use std::{
    io::{self, stdin},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use nix::sys::prctl::{set_dumpable, set_name};

use super::{
    Group,
    channel::{Channel, Message},
    meter::Meter,
    store::Store,
};
use crate::process::detached::outlive_the_daemon;

/// Arguments of the subcommand.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The journal
    #[arg(long)]
    path: PathBuf,
}

/// Commits groups for the daemon until the daemon is gone.
///
/// # Errors
/// The process cannot detach from the daemon, the journal does not open (the process sends the reason to the daemon),
/// or the socket fails.
pub fn journal_main(arguments: &Arguments) -> anyhow::Result<()> {
    outlive_the_daemon()?;
    set_name(c"fb-journal")?;
    set_dumpable(false)?;
    let socket = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    Ok(serve(
        Channel::over(socket)?,
        &arguments.path,
        Arc::default(),
    )?)
}

pub(super) fn serve(mut channel: Channel, path: &Path, meter: Arc<Meter>) -> io::Result<()> {
    let opened = match channel.receive()? {
        Message::Begin(Some(boot_id)) => Store::open(path, &boot_id, Arc::clone(&meter)),
        Message::Begin(None) => Store::resume(path, Arc::clone(&meter)),
        _ => return Err(unexpected()),
    };
    let (mut store, mut recovered) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            channel.send(&Message::Refused(error.to_string()))?;
            channel.flush()?;
            return Err(io::Error::other(error));
        }
    };
    for (key, value) in std::mem::take(&mut recovered.records) {
        channel.send(&Message::Record(key, Some(value)))?;
    }
    channel.send(&Message::Opened(recovered))?;
    channel.flush()?;
    let mut group = Group::new();
    loop {
        match channel.receive() {
            Ok(Message::Record(key, value)) => drop(group.insert(key, value)),
            Ok(Message::Commit) => {
                channel.send(&match store.commit(&group) {
                    Ok(number) => Message::Committed(number, *meter.counts()),
                    Err(error) => Message::Refused(error.to_string()),
                })?;
                channel.flush()?;
                group.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(_) => return Err(unexpected()),
            Err(error) => return Err(error),
        }
    }
}

/// A message that does not belong in this direction: the other end runs another program.
pub(super) fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message that does not belong here",
    )
}
