//! `fabricbiosd journal`: the process that writes the journal.
//!
//! A thread that waits for a disk cannot be killed, nor can its process, and such a process keeps every port and queue
//! pair for as long as the disk does not answer. So this process does the journal's disk I/O. It has only the journal
//! and a socket to the daemon, as standard input. When the daemon is gone, the process writes the current group,
//! closes the journal and ends.

use std::{
    io::stdin,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use fabricbios_channel::{Channel, ChannelError, Outgoing};
use nix::sys::{
    prctl::{set_dumpable, set_name},
    socket::MsgFlags,
};

use super::{
    Group, Lost, Recovered,
    counter::Counters,
    message::{BATCH_BYTES, CHANNEL, Message},
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

    /// Where the number of the newest commit is kept over the daemon's death
    #[arg(long)]
    counters: Option<PathBuf>,
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
    let channel = Channel::over(CHANNEL, stdin().as_fd().try_clone_to_owned()?);
    let Arguments { path, counters } = arguments;
    serve(channel, path, counters.clone(), Arc::default())
}

pub(super) fn serve(
    mut channel: Channel,
    path: &Path,
    directory: Option<PathBuf>,
    meter: Arc<Meter>,
) -> anyhow::Result<()> {
    let Some(Message::Begin { boot_id, replaces }) = channel.receive()? else {
        return Err(Lost::Unexpected.into());
    };
    let counters = Counters { directory, boot_id };
    let opened = match replaces {
        false => Store::open(path, counters, Arc::clone(&meter)),
        true => Store::resume(path, counters, Arc::clone(&meter)),
    };
    let (mut store, recovered) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            answer(&channel, &Message::Refused(error.to_string()))?;
            return Err(error.into());
        }
    };
    let served = commit_all(channel, &mut store, recovered, &meter);
    let closed = store.close();
    served?;
    Ok(closed?)
}

/// Commits groups until the daemon is gone.
fn commit_all(
    mut channel: Channel,
    store: &mut Store,
    mut recovered: Recovered,
    meter: &Meter,
) -> anyhow::Result<()> {
    let mut batch = Outgoing::new(CHANNEL);
    for (key, value) in std::mem::take(&mut recovered.records) {
        batch.push(&Message::Record(key, Some(value)))?;
        if batch.unsent().len() > BATCH_BYTES {
            batch.send_to(&channel, None, MsgFlags::empty())?;
        }
    }
    batch.push(&Message::Opened(recovered))?;
    batch.send_to(&channel, None, MsgFlags::empty())?;
    let mut group = Group::new();
    while let Some(message) = channel.receive()? {
        match message {
            Message::Record(key, value) => drop(group.insert(key, value)),
            Message::Commit => {
                let outcome = match store.commit(std::mem::take(&mut group)) {
                    Ok(number) => Message::Committed(number, *meter.counts()),
                    Err(error) => Message::Refused(error.to_string()),
                };
                answer(&channel, &outcome)?;
            }
            _ => return Err(Lost::Unexpected.into()),
        }
    }
    Ok(())
}

fn answer(channel: &Channel, message: &Message) -> Result<(), ChannelError> {
    channel.send(message, None, MsgFlags::empty())
}
