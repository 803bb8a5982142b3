//! `fabricbiosd journal`: the process that writes the journal.
//!
//! A thread that waits for a disk cannot be ended, and the process that it belongs to neither: it would keep every port
//! and every queue pair for as long as the disk does not answer. So what the journal does to a disk is this process's,
//! which has nothing but its socket to the daemon, as standard input, and the journal. When the daemon is gone it writes
//! the group that it has, and ends.

use std::io::{self, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use nix::sys::prctl::{set_dumpable, set_name};

use super::Group;
use super::meter::Meter;
use super::store::Store;
use super::talk::{Talk, Word};
use crate::left_behind::outlive_the_daemon;

/// What the daemon gives it.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The journal
    #[arg(long)]
    path: PathBuf,
}

/// Writes what the daemon says until the daemon is gone. Why it could not is told to the daemon.
pub fn journal_main(arguments: &Arguments) -> anyhow::Result<()> {
    outlive_the_daemon()?;
    set_name(c"fb-journal")?;
    set_dumpable(false)?;
    let socket = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    Ok(serve(Talk::over(socket)?, &arguments.path, Arc::default())?)
}

pub(super) fn serve(mut talk: Talk, path: &Path, meter: Arc<Meter>) -> io::Result<()> {
    let opened = match talk.hear()? {
        Word::Begin(Some(boot_id)) => Store::open(path, &boot_id, Arc::clone(&meter)),
        Word::Begin(None) => Store::go_on(path, Arc::clone(&meter)),
        _ => return Err(unexpected()),
    };
    let (mut store, mut recovered) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            talk.say(&Word::Refused(error.to_string()))?;
            talk.flush()?;
            return Err(io::Error::other(error));
        }
    };
    for (key, value) in std::mem::take(&mut recovered.records) {
        talk.say(&Word::Record(key, Some(value)))?;
    }
    talk.say(&Word::Opened(recovered))?;
    talk.flush()?;
    let mut group = Group::new();
    loop {
        match talk.hear() {
            Ok(Word::Record(key, value)) => drop(group.insert(key, value)),
            Ok(Word::Commit) => {
                talk.say(&match store.commit(&group) {
                    Ok(number) => Word::Committed(number, *meter.counts()),
                    Err(error) => Word::Refused(error.to_string()),
                })?;
                talk.flush()?;
                group.clear();
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(_) => return Err(unexpected()),
            Err(error) => return Err(error),
        }
    }
}

/// Said by a program that is not this one.
pub(super) fn unexpected() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a word that does not belong here",
    )
}
