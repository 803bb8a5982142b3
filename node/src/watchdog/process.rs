//! `fabricbiosd watchdog`: the process that the daemon leaves behind when it dies.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, Write},
    iter,
    mem::ManuallyDrop,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use fabricbios_premium::nvmet::Shutter;
use fabricbios_wire::{LeaseId, NodeId};
use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
    process::{
        Flock, FlockType, Pid, PidfdFlags, Signal, fcntl_getlk, pidfd_open, pidfd_send_signal,
        setsid,
    },
};

use super::{WATCHING, watch::Watch, word::Word};
use crate::{
    block::CONFIGFS,
    clock,
    mailbox::{Mailbox, Sender},
    workers::raise_priority,
};

/// How long a watchdog of an earlier run may take to be gone, once killed. One that is stuck in the kernel
/// does nothing more when it comes back.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// What the daemon gives it.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// One watchdog at a time has this file locked
    #[arg(long)]
    lock: PathBuf,
    /// Whose subsystems are cut
    #[arg(long)]
    node_id: NodeId,
}

/// What it hears.
enum Heard {
    Word(Word),
    /// The daemon's end of the pipe is closed.
    Orphaned,
}

/// Watches until the daemon is gone and every lease that it left has ended.
#[must_use]
pub fn watchdog_main(arguments: &Arguments) -> ExitCode {
    // Without a thread, which would take the signals that are not to end it.
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
    match watch(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("watchdog: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn watch(arguments: &Arguments) -> anyhow::Result<()> {
    outlive_the_daemon()?;
    raise_priority();
    let (mailbox, sender) = Mailbox::new().context("create a mailbox")?;
    listen(sender)?;
    let shutter = Arc::new(Shutter::new(Path::new(CONFIGFS), arguments.node_id));
    let (unswept, sweeps) = mpsc::channel();
    let sweeper = {
        let shutter = Arc::clone(&shutter);
        let sweep = move || sweep(&shutter, &sweeps);
        let thread = thread::Builder::new().name("sweep".into());
        thread.spawn(sweep).context("start a thread")?
    };
    let mut watch = Watch::default();
    let mut lock = None;
    while !watch.is_done() {
        mailbox.wait(watch.next())?;
        while let Some(heard) = mailbox.take_done() {
            match heard {
                Heard::Word(Word::Begin) => lock = Some(take_over(&arguments.lock)?),
                Heard::Word(word) => watch.hear(word),
                Heard::Orphaned if lock.is_none() => return Ok(()),
                Heard::Orphaned => watch.orphan(),
            }
        }
        // Before it is told to begin, another one does this.
        if lock.is_some() {
            shut_one(&mut watch, &shutter, &unswept);
        }
    }
    drop(unswept);
    sweeper.join().ok();
    Ok(())
}

/// What ends the daemon, a terminal's Ctrl-C or a service manager's stop, must not end its watchdog first.
fn outlive_the_daemon() -> anyhow::Result<()> {
    SigSet::from_iter([
        nix::sys::signal::SIGTERM,
        nix::sys::signal::SIGINT,
        nix::sys::signal::SIGHUP,
    ])
    .thread_block()
    .context("block signals")?;
    match setsid() {
        // It leads a session already: that is as well.
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno).context("leave the daemon's session"),
    }
}

fn listen(sender: Sender<Heard>) -> anyhow::Result<()> {
    let listen = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match line.parse() {
                Ok(word) => sender.done(Heard::Word(word)),
                Err(super::word::NotAWord) => {
                    tracing::error!(line, "watchdog: the daemon says what is not understood");
                    continue;
                }
            };
        }
        sender.done(Heard::Orphaned);
    };
    thread::Builder::new()
        .name("listen".into())
        .spawn(listen)
        .context("start a thread")?;
    Ok(())
}

/// One at a time: what the daemon says meanwhile is heard before the next.
fn shut_one(watch: &mut Watch, shutter: &Shutter, unswept: &mpsc::Sender<(LeaseId, Vec<u16>)>) {
    let now = clock::now().boot;
    let Some((lease, generation)) = watch.take_due(now) else {
        return;
    };
    match shutter.shut(lease) {
        Ok(ports) if ports.is_empty() => {}
        Ok(ports) => {
            tracing::warn!(%lease, ports = ports.len(), "watchdog: cut in the daemon's stead");
            if watch.is_orphan() {
                // The thread ends after this one.
                unswept.send((lease, ports)).ok();
            }
        }
        Err(error) => {
            tracing::error!(%lease, %error, "watchdog: not cut; trying again");
            watch.try_again(now, lease, generation);
        }
    }
}

/// Beside the cuts: none of them waits for the sweep of another. What this leaves, because another watchdog takes
/// over, the daemon's proof sweeps.
fn sweep(shutter: &Shutter, unswept: &mpsc::Receiver<(LeaseId, Vec<u16>)>) {
    while let Ok(first) = unswept.recv() {
        let shut: Vec<_> = iter::once(first).chain(unswept.try_iter()).collect();
        if let Err(error) = shutter.sweep(&shut) {
            tracing::error!(%error, "watchdog: not swept; the next start of the daemon does it");
        }
    }
}

/// Locks the file, ends the watchdog that has it, and says so.
fn take_over(path: &Path) -> anyhow::Result<File> {
    let open = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = open.with_context(|| format!("open {}", path.display()))?;
    while let Some(holder) = try_lock(&file)? {
        let number = holder.as_raw_nonzero();
        let ended = end(&file, holder);
        if !ended.with_context(|| format!("end the earlier watchdog, {number}"))? {
            tracing::error!(
                "watchdog: the earlier one, {number}, is killed and stuck in the kernel; going on beside it"
            );
            lock_when_it_is_gone(&file)?;
            break;
        }
    }
    // A daemon that died meanwhile hears nothing.
    let mut output = io::stdout();
    writeln!(output, "{WATCHING}")
        .and_then(|()| output.flush())
        .ok();
    Ok(file)
}

/// Who has it, if somebody else does. A lock of fcntl(2), because that one tells its holder.
fn try_lock(file: &File) -> anyhow::Result<Option<Pid>> {
    loop {
        match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(None),
            Err(Errno::ACCESS | Errno::AGAIN) => {}
            Err(errno) => return Err(errno).context("lock it"),
        }
        let holder = fcntl_getlk(file, &Flock::from(FlockType::WriteLock));
        // It may have been given back between the two.
        if let Some(lock) = holder.context("ask who has it locked")? {
            let pid = lock.pid.context("its holder is in another PID namespace");
            return pid.map(Some);
        }
    }
}

/// The next watchdog finds this one by the lock.
fn lock_when_it_is_gone(file: &File) -> anyhow::Result<()> {
    // To close any descriptor of the file would give the lock back.
    let file = ManuallyDrop::new(file.try_clone().context("copy a descriptor")?);
    thread::Builder::new()
        .name("lock".into())
        .spawn(move || fcntl_lock(&*file, FlockOperation::LockExclusive))
        .context("start a thread")?;
    Ok(())
}

/// Kills the process that has the lock, and tells whether it is gone; whoever has got its number meanwhile is
/// left alone.
fn end(file: &File, holder: Pid) -> anyhow::Result<bool> {
    let descriptor = match pidfd_open(holder, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(true),
        opened => opened.context("open its descriptor")?,
    };
    if try_lock(file)? != Some(holder) {
        return Ok(true);
    }
    pidfd_send_signal(&descriptor, Signal::KILL).context("kill it")?;
    let mut gone = [PollFd::new(&descriptor, PollFlags::IN)];
    Ok(poll(&mut gone, Some(&Timespec::try_from(TAKE_OVER)?))? > 0)
}
