//! The serving end.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use fabricbios_lease::{BindError, StepError};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{
    call::{Call, Told, decode, encode},
    frame::{Frame, Kind, invalid, read_frame, write_frame},
};
use crate::{DataPath, Part, Store};

/// Carries out the calls from the socket until the other end closes it. Each call has a thread of its own: a cut waits
/// for no binding. At the end the path is unchanged; the caller decides about its leases.
///
/// # Errors
/// The bytes are no frame of this version.
pub fn serve_path(socket: UnixStream, path: &Arc<dyn DataPath>) -> io::Result<()> {
    serve(socket, |asked| {
        let path = Arc::clone(path);
        move || path_does(&*path, asked)
    })
}

/// Like [`serve_path`], for a store.
///
/// # Errors
/// The bytes are no frame of this version.
pub fn serve_store(socket: UnixStream, store: &Arc<dyn Store>) -> io::Result<()> {
    serve(socket, |asked| {
        let store = Arc::clone(store);
        move || store_does(&*store, asked)
    })
}

/// A received call.
struct Asked {
    call: Call,
    descriptor: Option<OwnedFd>,
    answers: Answers,
}

/// Sends the answers of a call.
#[derive(Clone)]
struct Answers {
    socket: Arc<Mutex<UnixStream>>,
    number: u64,
}

impl Answers {
    fn send(&self, kind: Kind, outcome: &impl Serialize, descriptor: Option<OwnedFd>) {
        let sent = encode(outcome)
            .map_err(io::Error::other)
            .and_then(|body| self.write(kind, body, descriptor));
        if let Err(error) = sent {
            self.fail(&format!("the outcome cannot be sent: {error}"));
        }
    }

    /// The caller waits for an answer, so it gets this one if there is no other.
    fn fail(&self, why: &str) {
        let body = Zeroizing::new(why.as_bytes().to_vec());
        if let Err(error) = self.write(Kind::Failed, body, None) {
            tracing::warn!(%error, why, "nobody heard that a call failed");
        }
    }

    fn write(
        &self,
        kind: Kind,
        body: Zeroizing<Vec<u8>>,
        descriptor: Option<OwnedFd>,
    ) -> io::Result<()> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = Frame {
            kind,
            call: self.number,
            body,
            descriptor,
        };
        write_frame(&socket, &frame)
    }

    fn outcome(&self, outcome: &impl Serialize) {
        self.send(Kind::Outcome, outcome, None);
    }

    fn progress(&self) {
        self.send(Kind::Progress, &(), None);
    }
}

fn serve<W: FnOnce() + Send + 'static>(
    socket: UnixStream,
    work: impl Fn(Asked) -> W,
) -> io::Result<()> {
    let writing = Arc::new(Mutex::new(socket.try_clone()?));
    while let Some(frame) = read_frame(&socket)? {
        if frame.kind != Kind::Call {
            let why = format!("a frame of kind {:?} is no call", frame.kind);
            return Err(invalid(why));
        }
        let answers = Answers {
            socket: Arc::clone(&writing),
            number: frame.call,
        };
        let asked = Asked {
            call: decode(&frame.body).map_err(io::Error::other)?,
            descriptor: frame.descriptor,
            answers: answers.clone(),
        };
        let work = work(asked);
        let thread = thread::Builder::new().name("call".into());
        thread.spawn(move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                answers.fail("its thread panicked");
            }
        })?;
    }
    Ok(())
}

fn path_does(path: &dyn DataPath, asked: Asked) {
    let Asked {
        call,
        descriptor,
        answers,
    } = asked;
    let progress = || answers.progress();
    match call {
        Call::Bind(order, Told { placement, volume }) => {
            let part = Part {
                placement,
                volume,
                descriptor: descriptor.map(Arc::new),
            };
            answers.outcome(&path.bind(&order, &part));
        }
        Call::Extend(binding_id, deadline) => {
            answers.outcome(&path.extend(binding_id, deadline));
        }
        Call::Fenced(binding_id) => answers.outcome(&path.fenced(binding_id)),
        Call::Rotate(binding_id) => answers.outcome(&path.rotate(binding_id)),
        Call::RetireKey(binding_id) => {
            answers.outcome(&path.retire_key(binding_id));
        }
        Call::Revoke(binding_id, linger) => {
            answers.outcome(&path.revoke(binding_id, linger));
        }
        Call::Verify(binding_id, revoked) => {
            answers.outcome(&path.verify(binding_id, revoked.as_ref()));
        }
        Call::Remove(binding_id) => {
            answers.outcome(&path.remove(binding_id, &progress));
        }
        Call::Leases => answers.outcome(&path.leases()),
        other => refuse(&answers, &other, "path"),
    }
}

fn store_does(store: &dyn Store, asked: Asked) {
    let Asked { call, answers, .. } = asked;
    let progress = || answers.progress();
    match call {
        Call::Prepare(order) => {
            answers.outcome(&store.prepare(&order, &progress));
        }
        Call::Open(order) => {
            let opened = store.open(&order);
            let descriptor = opened
                .as_ref()
                .ok()
                .and_then(|part| part.descriptor.clone());
            let descriptor = descriptor.map(|it| it.try_clone()).transpose();
            match descriptor {
                Ok(descriptor) => {
                    let told = opened.map(|part| Told {
                        placement: part.placement,
                        volume: part.volume,
                    });
                    answers.send(Kind::Outcome, &told, descriptor);
                }
                Err(error) => {
                    let error = StepError::new("pass a descriptor", error);
                    let told: Result<Told, _> = Err(BindError::Stranded(error));
                    answers.outcome(&told);
                }
            }
        }
        Call::Confirm(binding_id) => answers.outcome(&store.confirm(binding_id)),
        Call::Forget(binding_id, placement) => {
            answers.outcome(&store.forget(binding_id, &placement));
        }
        Call::Release(binding_id, placement) => {
            answers.outcome(&store.release(binding_id, placement.as_ref(), &progress));
        }
        Call::TellCondition => {
            let tell = answers.clone();
            store.tell_condition(Box::new(move |condition| {
                tell.send(Kind::Condition, &condition, None);
            }));
            answers.outcome(&());
        }
        Call::Leases => answers.outcome(&store.leases()),
        other => refuse(&answers, &other, "store"),
    }
}

/// Refuses a call of the other kind: the two ends do not match.
fn refuse(answers: &Answers, call: &Call, what: &str) {
    let why = StepError::new("serve a call", format_args!("{call:?} is not for a {what}"));
    answers.outcome(&Err::<(), _>(why));
}
