//! Access to the units of a lease: a client connects to the socket that has the lease's name.

use std::{
    fs::{self, File},
    io,
    net::Shutdown,
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use fabricbios_contract::{
    DataPath, EndByName, Guard, Part, Revoked,
    remote::{Frame, Kind, encode, write_frame},
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Gate, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{Binding, Generation, LeaseId};
use nix::sys::socket::{Shutdown as How, shutdown};

use crate::{
    failed, leases_in, lock, of_lease,
    session::{self, Units, now},
    unless_gone,
};

/// The path to units, see the module.
#[derive(Debug)]
pub struct UnitPath {
    directory: PathBuf,
    leases: Mutex<Custody<Arc<Entry>>>,
    guard: Option<Arc<dyn Guard>>,
    _lock: File,
}

/// One lease.
#[derive(Debug, Default)]
struct Entry {
    state: Mutex<BindingState>,
    /// The deadline in nanoseconds on the boot-time clock; 0 until the first `extend`.
    deadline: AtomicU64,
    /// Held while a counter is written, never while `state` is.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct BindingState {
    gate: Gate,
    listener: Option<UnixListener>,
    /// The node's ends of the descriptors that clients have.
    sessions: Vec<Weak<UnixStream>>,
}

impl UnitPath {
    /// Takes the directory in which the sockets of leases are.
    ///
    /// # Errors
    /// The directory cannot be made or written.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            leases: Mutex::default(),
            guard: None,
            _lock: lock(directory)?,
        })
    }

    /// Tells the deadlines to the watchdog, which ends leases by name ([`UnitEnd`]).
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Guard>) -> Self {
        self.guard = Some(guard);
        self
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Entry>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        self.leases().find_or_make(lease)
    }

    /// Closes the socket for new clients and ends the connected ones.
    fn shut(&self, lease: LeaseId, state: &mut BindingState) -> io::Result<usize> {
        if let Some(listener) = state.listener.take() {
            shutdown(listener.as_raw_fd(), How::Both)?;
        }
        unless_gone(fs::remove_file(of_lease(&self.directory, lease)))?;
        let sessions: Vec<_> = state.sessions.iter().filter_map(Weak::upgrade).collect();
        for session in &sessions {
            // The client may have closed its end already.
            session.shutdown(Shutdown::Both).ok();
        }
        state.sessions.clear();
        Ok(sessions.len())
    }

    fn open_socket(
        &self,
        entry: &Arc<Entry>,
        state: &mut BindingState,
        binding_id: BindingId,
        units: Units,
    ) -> io::Result<()> {
        let name = of_lease(&self.directory, binding_id.lease_id);
        let listener = UnixListener::bind(name)?;
        let (here, its) = (listener.try_clone()?, Arc::clone(entry));
        let thread = thread::Builder::new().name("units".into());
        thread.spawn(move || listen(&here, &its, binding_id.generation, &Arc::new(units)))?;
        state.listener = Some(listener);
        Ok(())
    }
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, BindingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admits(&self, generation: Generation) -> bool {
        let is_on_time = now().0 < self.deadline.load(Ordering::Acquire);
        is_on_time && self.state().gate.admits(generation)
    }

    /// Gives a client its descriptor.
    fn welcome(
        self: &Arc<Self>,
        client: &UnixStream,
        generation: Generation,
        units: &Arc<Units>,
    ) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let ours = Arc::new(ours);
        {
            let mut state = self.state();
            if !state.gate.admits(generation) {
                return Ok(());
            }
            state.sessions.retain(|it| it.strong_count() > 0);
            state.sessions.push(Arc::downgrade(&ours));
        }
        let (entry, its) = (Arc::clone(self), Arc::clone(units));
        thread::Builder::new().name("unit".into()).spawn(move || {
            let add = |unit, more| {
                let _until_written = entry.writing();
                entry.admits(generation).then(|| its.add(unit, more))
            };
            if let Err(error) = session::serve(&ours, add)
                && error.kind() != io::ErrorKind::UnexpectedEof
            {
                tracing::debug!(%error, "a client of units is gone");
            }
        })?;
        let frame = Frame {
            kind: Kind::Outcome,
            call: 0,
            body: encode(&units.numbers()).map_err(io::Error::other)?,
            descriptor: Some(theirs.into()),
        };
        write_frame(client, &frame)
    }
}

/// Accepts clients until the listener is shut down.
fn listen(here: &UnixListener, entry: &Arc<Entry>, generation: Generation, units: &Arc<Units>) {
    while let Ok((client, _)) = here.accept() {
        if let Err(error) = entry.welcome(&client, generation, units) {
            tracing::warn!(%error, "a client could not be given its units");
        }
    }
}

impl DataPath for UnitPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let binding_id = order.binding_id;
        if let Some(guard) = &self.guard {
            guard.check(order)?;
        }
        let units = Units::of(part).map_err(BindError::Failed)?;
        let entry = self
            .entry(binding_id.lease_id)
            .ok_or(BindError::Cancelled)?;
        let mut state = entry.state();
        if !state.gate.admits(binding_id.generation) {
            return Err(BindError::Cancelled);
        }
        // The previous binding ends here: its clients connect again.
        let before = state.gate.generation();
        let step = |error| {
            failed(
                "open socket",
                &of_lease(&self.directory, binding_id.lease_id),
                &error,
            )
        };
        // Also removes the name that an earlier process has left.
        self.shut(binding_id.lease_id, &mut state)
            .map_err(|error| BindError::Stranded(step(error)))?;
        if let Some(before) = before {
            state.gate.ended(before);
        }
        state.gate.open(binding_id.generation)?;
        entry.deadline.store(0, Ordering::Release);
        let opened = self.open_socket(&entry, &mut state, binding_id, units);
        opened.map_err(|error| {
            let failed = BindError::Failed(step(error));
            match (self.shut(binding_id.lease_id, &mut state), before) {
                (Err(error), _) => BindError::Stranded(step(error)),
                (Ok(_), Some(_)) => failed.lost(),
                (Ok(_), None) => failed,
            }
        })?;
        Ok(Binding::plain(order.terms.resource_type()))
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.leases().find(binding_id.lease_id) {
            Lookup::Here(entry) if !entry.state().gate.is_closed(binding_id.generation) => {
                entry.deadline.store(deadline.0, Ordering::Release);
            }
            Lookup::Here(_) | Lookup::Released => return Err(AlreadyCut),
            // The lease is bound later.
            Lookup::Unknown => {}
        }
        if let Some(guard) = &self.guard {
            guard.extend(binding_id, deadline);
        }
        Ok(())
    }

    fn extends_at_once(&self) -> bool {
        true
    }

    fn revoke(&self, binding_id: BindingId, _farewell: Linger) -> Result<Revoked, StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            let proof = Proof::nothing_to_cut("the lease was removed before");
            return Ok(Revoked::proved(proof));
        };
        let began = Instant::now();
        let mut state = entry.state();
        if let Err(moved_on) = state.gate.revoke(binding_id.generation) {
            return Ok(Revoked::proved(moved_on.into()));
        }
        let shut = self.shut(binding_id.lease_id, &mut state);
        let name = of_lease(&self.directory, binding_id.lease_id);
        let clients = shut.map_err(|error| failed("shut", &name, &error))?;
        state.gate.ended(binding_id.generation);
        drop(state);
        // Writes that began before are complete when this returns.
        drop(entry.writing());
        let mut steps = Proof::default();
        steps.add("shut", began.elapsed(), format_args!("{clients} clients"));
        Ok(Revoked {
            steps,
            ..Revoked::default()
        })
    }

    /// Asks as a client would.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let mut proof = revoked.map(|it| it.steps.clone()).unwrap_or_default();
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(Proof::nothing_to_cut("the lease was removed before"));
        };
        let state = entry.state();
        if let Err(moved_on) = state.gate.check_current(binding_id.generation) {
            return Ok(moved_on.into());
        }
        let began = Instant::now();
        let name = of_lease(&self.directory, binding_id.lease_id);
        match UnixStream::connect(&name) {
            Err(error) if is_refusal(&error) => proof.add("connect", began.elapsed(), error),
            Err(error) => return Err(failed("connect", &name, &error)),
            Ok(_) => {
                let why = format!("{}: somebody answers", name.display());
                return Err(StepError::new("connect", why));
            }
        }
        if let Some(guard) = &self.guard {
            guard.over(binding_id);
        }
        Ok(proof)
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(());
        };
        let mut state = entry.state();
        if state.listener.is_some() {
            let why = format!("{binding_id}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        state.gate.remove();
        drop(state);
        self.leases().release(binding_id.lease_id);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        leases_in(&self.directory)
    }
}

/// Ends leases in the watchdog's process. Clients that are connected are served by the daemon's process; once that is
/// dead or stopped, only the name of the socket is left.
#[derive(Debug)]
pub struct UnitEnd(pub PathBuf);

impl EndByName for UnitEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let name = of_lease(&self.0, lease);
        unless_gone(fs::remove_file(&name)).map_err(|error| failed("unlink", &name, &error))
    }
}

fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}
