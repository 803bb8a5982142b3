//! The daemon's run: one daemon for each state directory, started from a command line and stopped by signals.

use std::{path::Path, time::Duration};

use anyhow::Context;
use fabricbios_control::Membership;
use fabricbios_helper::Program;
use fabricbios_wire::LeaseId;
use nix::sys::stat::{Mode, umask};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    journal::past::Past,
    kinds::{self, Opening, gpu::GpuParts, local_socket},
    monitor::DataPaths,
    process::{
        descriptors, helpers, membership, program_memory, ready,
        reload::{Hangups, Reloads, Source},
        service::Service,
        service_manager, state_dir,
    },
    settings::{OnStop, Settings},
    watchdog::Watchdog,
};

/// How long the end waits for threads of the control plane.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs `control-server` until a signal stops it.
///
/// # Errors
/// The state directory cannot be used, a device or an address cannot be opened, or leases were not cut.
pub fn control_server(settings: &Settings, source: Source) -> anyhow::Result<()> {
    // New files are readable by this user only.
    umask(Mode::from_bits_truncate(0o077));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime of the control plane")?;
    // A SIGHUP during the start must not end it: it is obeyed when the node serves.
    let hangups = runtime.block_on(async { Hangups::new() })?;
    descriptors::raise()?;
    let _lock = state_dir::lock(settings.state_dir())?;
    let program = Program::of_this_process().context("copy the program that runs")?;
    // The supervisor starts before this process opens a device: a child has a copy of every descriptor until it
    // executes its program.
    let supervisor = helpers::start(&program, settings.state_dir())?;
    // First use of the state disk: a disk that does not answer is reported here.
    service_manager::starts("reading the journal");
    let past = Past::open(&program, settings)?;
    let membership = Membership::new(membership::open(settings)?);
    let watchdog = Watchdog::new(&program, settings.state_dir())?;
    let opened = kinds::open_all(&Opening {
        settings: &settings.kinds,
        node_id: membership.now().node_id(),
        past: &past,
        watchdog: &watchdog,
        supervisor: &supervisor,
        program: &program,
    })?;
    program_memory::lock();
    let mut reloads = Reloads::new(hangups, source, settings, &membership);
    let (mut offered, mut local, mut close) = (Vec::new(), Vec::new(), Vec::new());
    let mut data_paths = DataPaths::new();
    let mut gpus = GpuParts::default();
    for kind in opened {
        if !kind.gpus.found.list().is_empty() {
            gpus = kind.gpus;
        }
        if let (Some(offered), Some(counters)) = (&kind.offered, kind.datagrams) {
            data_paths.push((offered.kind, counters));
        }
        offered.extend(kind.offered);
        local.extend(kind.local);
        close.push(kind.close);
        reloads.kinds.push(kind.reread);
    }
    let told_to = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let join = membership::join(settings, &membership, &reloads.turn);
        reloads.local_socket = local_socket::open(&settings.kinds.shared, local, join)?;
        service_manager::starts("taking over leases of the last run");
        let calls = supervisor.in_flight();
        let mut service = Service::start(
            settings,
            &membership,
            past,
            offered,
            gpus,
            data_paths,
            calls,
        )?;
        reloads.pages = service.reread_pages().map(Into::into);
        service.settled().await;
        ready::announce(
            settings,
            &membership.now(),
            service.local_addr(),
            service.pages_url(),
        );
        tokio::spawn(service_manager::tell_life(service.driver()));
        let told_to = until_stopped(&mut signals, &mut service, &mut reloads).await;
        match told_to {
            Ok(Told::StopAtOnce) => service.halt(),
            Ok(Told::Drain(_) | Told::Keep) | Err(_) => service.close().await,
        }
        told_to
    });
    let on_stop = reloads.on_stop();
    // Closes the local socket.
    drop(reloads);
    // Otherwise the next run cleans up or adopts what remains.
    let is_over = match told_to {
        Ok(Told::Drain(_)) => true,
        Ok(Told::Keep | Told::StopAtOnce) => false,
        Err(_) => on_stop == OnStop::End,
    };
    if is_over {
        // In reverse order of opening.
        close.into_iter().rev().for_each(|close| close());
    }
    // A name service that does not answer a reporter must not keep the lock of the state directory.
    runtime.shutdown_timeout(RUNTIME_TIMEOUT);
    match told_to? {
        Told::Drain(uncut) if !uncut.is_empty() => Err(not_cut(&uncut, settings.state_dir())),
        Told::Drain(_) | Told::Keep | Told::StopAtOnce => Ok(()),
    }
}

/// The error of a run that could not cut all leases.
fn not_cut(leases: &[LeaseId], state_dir: &Path) -> anyhow::Error {
    let shown: Vec<String> = leases.iter().take(SHOWN).map(LeaseId::to_string).collect();
    let more = match leases.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!(" and {more} more"),
        _ => String::new(),
    };
    anyhow::anyhow!(
        "{} leases were not cut: {}{more}. Over RDMA and UDP their access ends with this process; all other \
         access may go on until their deadlines: start the daemon again with --state-dir {}, which cuts what is \
         not fenced, and then clear what `fabricctl fence list` shows with `fabricctl fence clear`",
        leases.len(),
        shown.join(", "),
        state_dir.display()
    )
}

/// Most lease ids in the error; the log has a FENCED line for each.
const SHOWN: usize = 64;

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    keep: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            keep: listen(SignalKind::user_defined1())?,
        })
    }

    /// Waits for a signal to stop. `true`: for a restart, for which the service manager has a signal of its own.
    async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => false,
            _ = self.interrupt.recv() => false,
            _ = self.keep.recv() => true,
        }
    }
}

/// The order that signals gave.
enum Told {
    /// One signal: every lease was revoked, except these.
    Drain(Vec<LeaseId>),
    /// One signal: leases stay as they are.
    Keep,
    /// Two signals: the end of the process cuts the remaining leases.
    StopAtOnce,
}

/// The first signal drains, or halts if leases are kept; the second does not wait. After the first SIGHUP has no effect.
async fn until_stopped(
    signals: &mut Signals,
    service: &mut Service,
    reloads: &mut Reloads,
) -> anyhow::Result<Told> {
    let for_restart = loop {
        tokio::select! {
            outcome = service.stopped() => return outcome.map(Told::Drain),
            for_restart = signals.next() => break for_restart,
            read = reloads.next() => reloads.take_over(read, service),
        }
    };
    reloads.finish(service).await;
    if for_restart {
        reloads.keep_leases();
    }
    service_manager::stopping();
    let on_stop = reloads.on_stop();
    match on_stop {
        OnStop::End => {
            tracing::info!("stopping: taking every lease back");
            service.drain();
        }
        OnStop::Keep => {
            tracing::info!(
                "stopping: leases stay (on-stop = keep, or SIGUSR1). The next start on this state directory adopts them; what is \
                 reached through this process only has no access until then, and memory over RDMA or without a file ends"
            );
            service.halt();
        }
    }
    tokio::select! {
        outcome = service.stopped() => outcome.map(|uncut| match on_stop {
            OnStop::End => Told::Drain(uncut),
            OnStop::Keep => Told::Keep,
        }),
        _ = signals.next() => {
            tracing::warn!("stopping at once: access that is not cut yet ends with this process");
            Ok(Told::StopAtOnce)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_the_node_is_told_what_was_not_cut_and_what_to_do() {
        let one = not_cut(&[LeaseId(0xAB)], Path::new("/var/lib/node")).to_string();
        let expected = "1 leases were not cut: 000000000000000000000000000000ab. Over";
        assert!(one.starts_with(expected), "{one}");
        assert!(
            one.contains("--state-dir /var/lib/node") && !one.contains('\n'),
            "{one}"
        );
        let many: Vec<LeaseId> = (1..=100).map(LeaseId).collect();
        let many = not_cut(&many, Path::new("/")).to_string();
        assert!(
            many.starts_with("100 leases") && many.contains(" and 36 more. "),
            "{many}"
        );
    }
}
