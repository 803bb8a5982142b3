//! The daemon's side of sessions: starts workers, connects to them and ends them.

mod ask;

use std::{
    env,
    fs::File,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use fabricbios_cgroup::Process;
use fabricbios_cgroup::records::{failed, remove};
use fabricbios_channel::Channel;
use fabricbios_helper::Program;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass};
use nix::sys::{socket::MsgFlags, stat::stat};

use crate::{
    Device, Libraries,
    record::{Record, Records, Worker},
    steps::passed,
    worker::{LIBRARY_PATH, STAND_INS, WorkerOrder},
};
use ask::{ask_to_close, dial};

/// The subcommand of the program that runs [`crate::worker::worker_main`].
const SUBCOMMAND: &str = "gpu-worker";

/// How long a worker may take until it serves: opening a context takes some seconds if the driver is not in use yet.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// How long a killed worker may take to end: the driver tears down its context before the process ends.
pub(crate) const ENDS_WITHIN: Duration = Duration::from_secs(8);

/// The variables of the daemon's environment that a worker gets, because its libraries read them.
const ENVIRONMENT: [&str; 3] = [LIBRARY_PATH, "HSA_OVERRIDE_GFX_VERSION", STAND_INS];

/// Most bytes that are read of a worker's report that it closed its session: a worker can write anything there, in any
/// amount.
const CLOSED_BYTES: u64 = 32;

/// First user id of workers. No account of the machine has any of these 2^30 ids.
pub(crate) const FIRST_UID: u32 = 0x4000_0000;

/// Starts workers and finds running ones.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) program: Program,
    pub(crate) libraries: Libraries,
    pub(crate) records: Records,
}

/// A worker's answer to its order: the parts of its isolation that this machine does not allow, or why the worker does
/// not serve.
type Started = Result<Vec<String>, String>;

impl Sessions {
    /// Connects to the worker of a lease. With session 0 a worker is started if none runs; otherwise the worker must
    /// have this session. `enter` puts a new worker into the lease's cgroup, and fails if the lease is over by then: a
    /// cut that began earlier does not kill this worker. A cut that begins later kills the worker, which also ends the
    /// wait for its answer. Call it under the lease's lock.
    pub(crate) fn connect(
        &self,
        lease: LeaseId,
        device: &Device,
        record: &mut Record,
        session: u64,
        enter: impl FnOnce(i32) -> Result<(), StepError>,
    ) -> Result<UnixStream, Refusal> {
        if let Some(worker) = record.worker {
            if session != 0 && session != worker.session {
                let why = format!(
                    "session {session} is over: lease {lease} has session {}; open it with session 0",
                    worker.session
                );
                return Err(Refusal::new(
                    LeaseError::NotFound,
                    RefusalClass::Permanent,
                    why,
                ));
            }
            if worker.process.is_there() {
                match dial(&self.records.socket(lease)) {
                    Ok(stream) => return Ok(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let why = format!(
                            "the worker of lease {lease} has more connections waiting than it takes"
                        );
                        let busy = LeaseError::ResourceBusy;
                        return Err(Refusal::new(busy, RefusalClass::Transient, why));
                    }
                    // The worker is ending.
                    Err(_) => {}
                }
            }
        }
        if session != 0 {
            let why =
                format!("session {session} is over; lease {lease} opens a new one with session 0");
            return Err(Refusal::new(
                LeaseError::NotFound,
                RefusalClass::Permanent,
                why,
            ));
        }
        let internal = |error: StepError| {
            let why = format!("lease {lease}: no session can be opened: {error}");
            Refusal::new(LeaseError::Internal, RefusalClass::Transient, why)
        };
        self.note_end(lease, record).map_err(internal)?;
        self.start(lease, device, record, enter).map_err(internal)?;
        dial(&self.records.socket(lease)).map_err(|error| {
            internal(failed(
                "connect to worker",
                &self.records.socket(lease),
                &error,
            ))
        })
    }

    /// If the last worker has ended, records whether it wiped its memory.
    pub(crate) fn note_end(&self, lease: LeaseId, record: &mut Record) -> Result<(), StepError> {
        if record.worker.is_none_or(|it| it.process.is_there()) {
            return Ok(());
        }
        record.is_dirty = self.is_dirty(lease, record);
        record.worker = None;
        self.records.write(lease, record)
    }

    /// True if a worker of the lease has ended without wiping its memory.
    pub(crate) fn is_dirty(&self, lease: LeaseId, record: &Record) -> bool {
        let has_closed = |session: u64| {
            let mut closed = String::new();
            let file = File::open(self.records.closed(lease));
            let read = file.and_then(|it| it.take(CLOSED_BYTES).read_to_string(&mut closed));
            read.is_ok() && closed.trim() == session.to_string()
        };
        let ended = record.worker.filter(|it| !it.process.is_there());
        record.is_dirty || ended.is_some_and(|it| !has_closed(it.session))
    }

    fn start(
        &self,
        lease: LeaseId,
        device: &Device,
        record: &mut Record,
        enter: impl FnOnce(i32) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let socket = self.records.socket(lease);
        remove("start worker", &socket)?;
        let on_file = |error: io::Error| failed("start worker", &socket, &error);
        let listener = UnixListener::bind(&socket).map_err(on_file)?;
        let closed = File::create(self.records.closed(lease)).map_err(on_file)?;
        let fail = |why: String| StepError::new("start worker", why);
        let pair = Channel::pair(WorkerOrder::CHANNEL).map_err(|error| fail(error.to_string()))?;
        let (mut channel, its) = pair;
        let mut command: Command = self.program.command();
        let variables = ENVIRONMENT.map(|name| Some((name, env::var_os(name)?)));
        let spawned = command
            .arg(SUBCOMMAND)
            .env_clear()
            .envs(variables.into_iter().flatten())
            .current_dir("/")
            .stdin(its)
            .stdout(closed)
            .stderr(Stdio::null())
            .spawn();
        let mut child = spawned.map_err(|error| fail(error.to_string()))?;
        // `command` holds the worker's end of the channel. Without this copy the channel closes when the worker ends.
        drop(command);
        let pid = i32::try_from(child.id()).map_err(|error| fail(error.to_string()))?;
        let process = Process::of(pid);
        thread::spawn(move || {
            let how = match child.wait() {
                Ok(status) if status.success() => "it was closed".to_owned(),
                Ok(status) => format!("without wiping its memory, {status}"),
                Err(error) => error.to_string(),
            };
            tracing::debug!(lease_id = %lease, pid, "a session has ended: {how}");
        });
        let process = process.ok_or_else(|| fail(format!("worker {pid} ended at once")))?;
        let session = random_session().map_err(|error| fail(error.to_string()))?;
        record.worker = Some(Worker { process, session });
        // The record is written before the worker can have any bytes of the tenant.
        self.records.write(lease, record)?;
        let begun = enter(pid).and_then(|()| {
            let order = WorkerOrder {
                lease_id: lease,
                session,
                device: device.clone(),
                libraries: self.libraries.clone(),
                vram_bytes: record.vram_bytes,
                one_shot: record.one_shot,
                scrub_at_close: record.scrub_at_close,
                uid: user_of(lease),
                gids: groups(device),
            };
            order_worker(&mut channel, &order, &listener).map_err(fail)
        });
        let lacks = begun.inspect_err(|_| {
            // The worker has not served, so it has nothing of the tenant. A worker that does not die stays in the
            // record.
            if process.kill("start worker", ENDS_WITHIN).is_ok() {
                record.worker = None;
                self.records.write(lease, record).ok();
            }
        })?;
        for lack in lacks {
            tracing::warn!(lease_id = %lease, lack, "this machine does not allow a part of a worker's isolation");
        }
        tracing::debug!(lease_id = %lease, pid, session, "a session begins");
        passed("start worker");
        Ok(())
    }

    /// Asks the worker to wipe its memory and to end, and waits for the answer. `false`: no answer came within
    /// `patience`.
    pub(crate) fn close(&self, lease: LeaseId, record: &Record, patience: Duration) -> bool {
        let Some(worker) = record.worker.filter(|it| it.process.is_there()) else {
            return true;
        };
        let closed = ask_to_close(&self.records.socket(lease), lease, patience);
        match &closed {
            Ok(()) => passed("close worker"),
            Err(error) => {
                tracing::debug!(lease_id = %lease, session = worker.session, %error, "not closed");
            }
        }
        closed.is_ok()
    }
}

/// Sends the order with the listening socket, and waits for the answer.
fn order_worker(
    channel: &mut Channel,
    order: &WorkerOrder,
    listener: &UnixListener,
) -> Result<Vec<String>, String> {
    let sent = channel.send(order, Some(listener.as_fd()), MsgFlags::MSG_DONTWAIT);
    sent.map_err(|error| error.to_string())?;
    let started = channel.receive_within::<Started>(STARTS_WITHIN);
    let started = started.map_err(|error| match error.is_silence() {
        true => format!("it does not serve after {} s", STARTS_WITHIN.as_secs()),
        false => error.to_string(),
    })?;
    started.ok_or("it ended before it served")?
}

/// The user of a lease's worker.
pub(crate) fn user_of(lease: LeaseId) -> u32 {
    FIRST_UID | u32::try_from(lease.0 & 0x3fff_ffff).unwrap_or_default()
}

/// The groups that may open the device's nodes.
fn groups(device: &Device) -> Vec<u32> {
    let nodes = device.nodes.iter();
    let mut groups: Vec<u32> = nodes
        .filter_map(|node| stat(&node.path).ok())
        .map(|it| it.st_gid)
        .collect();
    groups.retain(|gid| *gid != 0);
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// A random number, different from those of earlier sessions, that no client can guess.
fn random_session() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}
