//! The calling end.

use std::{
    collections::HashMap,
    fmt, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Condition, Linger, Placement, Proof,
    StepError,
};
use fabricbios_wire::{Binding, LeaseId};
use serde::de::DeserializeOwned;

use super::{
    call::{Call, Told, decode, encode},
    frame::{Frame, Kind, read_frame, write_frame},
};
use crate::{DataPath, Part, Revoked, Store, TellCondition};

/// A socket and the callers that wait for outcomes.
struct Connection {
    socket: UnixStream,
    /// Held while a frame is written.
    writing: Mutex<()>,
    next: AtomicU64,
    /// The callers by the number of the call. `None`: the other end is gone.
    waiting: Mutex<Option<HashMap<u64, Sender<Frame>>>>,
    /// The receiver of the store's condition.
    tell: Mutex<Option<TellCondition>>,
}

impl Connection {
    fn new(socket: UnixStream) -> io::Result<Arc<Self>> {
        let connection = Arc::new(Self {
            socket,
            writing: Mutex::default(),
            next: AtomicU64::new(1),
            waiting: Mutex::new(Some(HashMap::new())),
            tell: Mutex::default(),
        });
        let (reading, socket) = (Arc::downgrade(&connection), connection.socket.try_clone()?);
        thread::Builder::new()
            .name("outcomes".into())
            .spawn(move || {
                let ended = loop {
                    let frame = match read_frame(&socket) {
                        Ok(Some(frame)) => frame,
                        ended => break ended.err(),
                    };
                    let Some(connection) = reading.upgrade() else {
                        return;
                    };
                    connection.hand_out(frame);
                };
                if let Some(connection) = reading.upgrade() {
                    tracing::error!(
                        ?ended,
                        "the process at the other end of a store or path is gone"
                    );
                    // Every waiting caller gets an error.
                    connection.waiting().take();
                    if let Some(tell) = &*connection.tell() {
                        let gone = "the process that has it is gone".to_owned();
                        tell(Condition::Degraded(gone));
                    }
                }
            })?;
        Ok(connection)
    }

    fn tell(&self) -> MutexGuard<'_, Option<TellCondition>> {
        self.tell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_out(&self, frame: Frame) {
        if frame.kind == Kind::Condition {
            if let (Some(tell), Ok(condition)) = (&*self.tell(), decode(&frame.body)) {
                tell(condition);
            }
            return;
        }
        let mut waiting = self.waiting();
        let Some(waiting) = waiting.as_mut() else {
            return;
        };
        let who = match frame.kind {
            Kind::Progress => waiting.get(&frame.call).cloned(),
            _ => waiting.remove(&frame.call),
        };
        if let Some(who) = who {
            // The caller may have panicked.
            who.send(frame).ok();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, Sender<Frame>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the call and waits for the outcome.
    fn call<T: DeserializeOwned>(
        &self,
        call: &Call,
        descriptor: Option<OwnedFd>,
        progress: &dyn Fn(),
    ) -> Result<(T, Option<OwnedFd>), StepError> {
        let gone = |why: &dyn fmt::Display| {
            StepError::new(
                "reach the process that does it",
                format_args!("{call:?}: {why}"),
            )
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = Frame {
            kind: Kind::Call,
            call: number,
            body: encode(call)?,
            descriptor,
        };
        let (tell, outcome) = channel();
        match self.waiting().as_mut() {
            Some(waiting) => waiting.insert(number, tell),
            None => return Err(gone(&"it is gone")),
        };
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write_frame(&self.socket, &frame) {
            if let Some(waiting) = self.waiting().as_mut() {
                waiting.remove(&number);
            }
            return Err(gone(&error));
        }
        drop(writing);
        loop {
            let frame: Frame = outcome.recv().map_err(|_closed| gone(&"it is gone"))?;
            match frame.kind {
                Kind::Progress => progress(),
                Kind::Outcome => return Ok((decode(&frame.body)?, frame.descriptor)),
                Kind::Failed => return Err(gone(&String::from_utf8_lossy(&frame.body))),
                kind => {
                    return Err(gone(&format_args!(
                        "it answers with a frame of kind {kind:?}"
                    )));
                }
            }
        }
    }

    fn ask<T: DeserializeOwned>(&self, call: &Call, progress: &dyn Fn()) -> Result<T, StepError> {
        self.call::<Result<T, StepError>>(call, None, progress)?.0
    }

    fn make<T: DeserializeOwned>(
        &self,
        call: &Call,
        descriptor: Option<OwnedFd>,
    ) -> Result<(T, Option<OwnedFd>), BindError> {
        let made = self.call::<Result<T, BindError>>(call, descriptor, &|| ());
        let (made, descriptor) = made.map_err(BindError::Stranded)?;
        Ok((made?, descriptor))
    }
}

impl fmt::Debug for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemotePath").field(&self.0.socket).finish()
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteStore").field(&self.0.socket).finish()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The thread that reads has a descriptor of its own.
        self.socket.shutdown(std::net::Shutdown::Both).ok();
    }
}

/// A path in another process.
pub struct RemotePath(Arc<Connection>);

/// A store in another process.
pub struct RemoteStore(Arc<Connection>);

impl RemotePath {
    /// A path whose process runs [`super::serve_path`] at the other end.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        Connection::new(socket).map(Self)
    }
}

impl RemoteStore {
    /// A store whose process runs [`super::serve_store`] at the other end.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        Connection::new(socket).map(Self)
    }
}

impl DataPath for RemotePath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let told = Told {
            placement: part.placement.clone(),
            volume: part.volume.clone(),
        };
        let descriptor = part.descriptor.as_ref();
        let descriptor = descriptor
            .map(|it| it.as_fd().try_clone_to_owned())
            .transpose();
        let descriptor = descriptor
            .map_err(|error| BindError::Failed(StepError::new("pass a descriptor", error)))?;
        let bound = self.0.make(&Call::Bind(order.clone(), told), descriptor);
        bound.map(|(binding, _)| binding)
    }

    /// If the process of the path is gone, the lease does not go on: its access is gone or unknown.
    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self
            .0
            .call(&Call::Extend(binding_id, deadline), None, &|| ())
        {
            Ok((told, _)) => told,
            Err(error) => {
                tracing::error!(lease = %binding_id, %error, "a deadline could not be told");
                Err(AlreadyCut)
            }
        }
    }

    fn fenced(&self, binding_id: BindingId) {
        let told = self.0.call::<()>(&Call::Fenced(binding_id), None, &|| ());
        if let Err(error) = told {
            tracing::error!(lease = %binding_id, %error, "a fence could not be told");
        }
    }

    fn extends_at_once(&self) -> bool {
        false
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.0
            .make(&Call::Rotate(binding_id), None)
            .map(|(binding, _)| binding)
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        self.0.ask(&Call::RetireKey(binding_id), &|| ())
    }

    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError> {
        self.0.ask(&Call::Revoke(binding_id, linger), &|| ())
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.0
            .ask(&Call::Verify(binding_id, revoked.cloned()), &|| ())
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.0.ask(&Call::Remove(binding_id), progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.0.ask(&Call::Leases, &|| ())
    }
}

impl Store for RemoteStore {
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        self.0.ask(&Call::Prepare(order.clone()), progress)
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let (told, descriptor) = self.0.make::<Told>(&Call::Open(order.clone()), None)?;
        Ok(Part {
            placement: told.placement,
            volume: told.volume,
            descriptor: descriptor.map(Arc::new),
        })
    }

    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        self.0.ask(&Call::Confirm(binding_id), &|| ())
    }

    fn forget(&self, binding_id: BindingId, placement: &Placement) -> Result<(), StepError> {
        self.0
            .ask(&Call::Forget(binding_id, placement.clone()), &|| ())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        self.0
            .ask(&Call::Release(binding_id, placement.cloned()), progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.0.ask(&Call::Leases, &|| ())
    }

    fn tell_condition(&self, tell: TellCondition) {
        *self.0.tell() = Some(tell);
        let told = self.0.call::<()>(&Call::TellCondition, None, &|| ());
        if let (Err(error), Some(tell)) = (told, &*self.0.tell()) {
            tell(Condition::Degraded(error.to_string()));
        }
    }
}
