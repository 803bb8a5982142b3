//! `fabricbiosd watchdog`: the process that the daemon leaves behind when it dies.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use fabricbios_premium::nvmet::Target;
use fabricbios_wire::NodeId;
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
    clock, lanes,
    mailbox::{Mailbox, Sender},
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
    lanes::hurry();
    let (mailbox, sender) = Mailbox::new().context("create a mailbox")?;
    listen(sender)?;
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
            shut_one(&mut watch, arguments.node_id);
        }
    }
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
fn shut_one(watch: &mut Watch, node_id: NodeId) {
    let now = clock::now().boot;
    let Some((lease, generation)) = watch.take_due(now) else {
        return;
    };
    match Target::shut(Path::new(CONFIGFS), node_id, lease, watch.is_orphan()) {
        Ok(0) => {}
        Ok(ports) => tracing::warn!(%lease, ports, "watchdog: cut in the daemon's stead"),
        Err(error) => {
            tracing::error!(%lease, %error, "watchdog: not cut; trying again");
            watch.try_again(now, lease, generation);
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
        end(&file, holder).with_context(|| format!("end the earlier watchdog, {number}"))?;
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

/// Kills the process that has the lock; whoever has got its number meanwhile is left alone.
fn end(file: &File, holder: Pid) -> anyhow::Result<()> {
    let descriptor = match pidfd_open(holder, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        opened => opened.context("open its descriptor")?,
    };
    if try_lock(file)? != Some(holder) {
        return Ok(());
    }
    pidfd_send_signal(&descriptor, Signal::KILL).context("kill it")?;
    let mut gone = [PollFd::new(&descriptor, PollFlags::IN)];
    match poll(&mut gone, Some(&Timespec::try_from(TAKE_OVER)?))? {
        0 => bail!("it does not go: it is stuck in the kernel"),
        _ => Ok(()),
    }
}
