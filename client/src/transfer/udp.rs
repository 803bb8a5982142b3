//! Over UDP: the client of the data plane, with the control plane to ask when keys change.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use fabricbios_fallback_udp::{ClientError, ClientOptions, Coordinates, MemoryClient, Refresh};
use fabricbios_wire::{Binding, DataStatus, LeaseError, LeaseId, Refusal, RefusalClass, Request};

use super::{Job, Transfers, over};
use crate::{Error, runtime::wait, shared::Shared};

/// How long a lease without a key is waited for while somebody gives it one. A node takes
/// milliseconds, unless it waits for a queue pair that does not answer.
const BEING_BOUND: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// A client of the data plane, kept between calls.
#[derive(Debug)]
pub(crate) struct Connection<C> {
    client: C,
    set_coordinates: fn(&mut C, Coordinates),
    over: Over,
    pub(super) options: ClientOptions,
    /// The last change did not end well: something of it may still be on its way. Only `client` knows what, and closes it
    /// before it does anything else.
    unsettled: bool,
}

/// What the caller wants, in the data plane's words.
pub(super) fn options(transfers: Transfers) -> ClientOptions {
    let usual = ClientOptions::default();
    ClientOptions {
        payload_mac: transfers.payload_mac,
        give_up: transfers.give_up.unwrap_or(usual.give_up),
        ..usual
    }
}

/// How the lease ended, if the node said so while somebody waited for datagrams.
type Over = Arc<Mutex<Option<Error>>>;

/// Connects a client.
type Connect<C> = fn(Coordinates, ClientOptions, Box<dyn Refresh>) -> Result<C, ClientError>;

impl<C> Connection<C> {
    pub(super) fn with(
        shared: &Shared,
        connect: Connect<C>,
        set_coordinates: fn(&mut C, Coordinates),
    ) -> Result<Self, Error> {
        let options = options(shared.transfers());
        let over = Over::default();
        let asker = Asker {
            shared: shared.me.clone(),
            over: Arc::clone(&over),
        };
        match connect(known_or_new(shared)?, options, Box::new(asker)) {
            Ok(client) => Ok(Self {
                client,
                set_coordinates,
                over,
                options,
                unsettled: false,
            }),
            Err(error) => Err(explain(shared, &over, error, false)),
        }
    }

    /// One call, which may change bytes or not.
    pub(super) fn call<R>(
        &mut self,
        shared: &Shared,
        changes: bool,
        call: impl FnOnce(&mut C) -> Result<R, ClientError>,
    ) -> Result<R, Error> {
        // After a failure somebody may have to give the lease a key first, as for a new connection.
        let valid = match self.unsettled {
            true => Some(known_or_new(shared)?),
            false => coordinates(shared.lease_id, &shared.info().binding),
        };
        if let Some(valid) = valid {
            (self.set_coordinates)(&mut self.client, valid);
        }
        // Before it begins: the progress of a call may panic.
        self.unsettled |= changes;
        let done = call(&mut self.client);
        self.unsettled &= done.is_err();
        done.map_err(|error| explain(shared, &self.over, error, changes))
    }

    pub(super) fn client(&self) -> &C {
        &self.client
    }

    pub(super) fn into_client(self) -> C {
        self.client
    }

    /// Whether something may still be done of a change that did not end well.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }
}

impl Connection<MemoryClient> {
    pub(super) fn open(shared: &Shared) -> Result<Self, Error> {
        let connect = MemoryClient::connect_with_refresh;
        Self::with(shared, connect, MemoryClient::set_coordinates)
    }

    pub(super) fn carry_out(
        &mut self,
        shared: &Shared,
        job: &mut Job<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        self.call(shared, job.changes(), |client| match job {
            Job::Read(offset, into) => client.read(*offset, into, progress),
            Job::Write(offset, from) => client.write(*offset, from, progress),
        })
    }

    /// Gets the node's answer that nothing of an earlier write is done later any more: any answer to
    /// this client says so.
    pub(super) fn settle(&mut self, shared: &Shared) -> Result<(), Error> {
        if !self.unsettled {
            return Ok(());
        }
        self.carry_out(shared, &mut Job::Read(0, &mut [0]), &mut |_| ())
    }
}

/// Asks LEASE_QUERY on behalf of the client.
struct Asker {
    /// The lease has the client, so the client has the lease only weakly.
    shared: Weak<Shared>,
    over: Over,
}

impl Refresh for Asker {
    fn refresh(&mut self) -> Result<Coordinates, String> {
        let shared = self.shared.upgrade().ok_or("the lease was given up")?;
        match fresh(&shared) {
            Ok(fresh) => fresh.ok_or_else(|| NO_COORDINATES.to_owned()),
            Err(error) => {
                let text = error.to_string();
                *self.over.lock().unwrap_or_else(PoisonError::into_inner) = ended(error);
                Err(text)
            }
        }
    }

    fn is_over(&self) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.is_some()
    }
}

/// What was told last; what is valid now if that was nothing; a new key if there is none. Somebody
/// else may be giving it one, such as a node that was started again: that is waited for.
fn known_or_new(shared: &Shared) -> Result<Coordinates, Error> {
    if let Some(known) = coordinates(shared.lease_id, &shared.info().binding) {
        return Ok(known);
    }
    let until = Instant::now() + BEING_BOUND;
    loop {
        if let Some(fresh) = fresh(shared)? {
            return Ok(fresh);
        }
        match new_key(shared) {
            Err(error) if is_busy(&error) && Instant::now() < until => thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

fn new_key(shared: &Shared) -> Result<Coordinates, Error> {
    let rotated = wait(shared.node.lease(Request::LeaseRotate {
        lease_id: shared.lease_id,
        overlap_ms: 0,
    }))?;
    shared.told(rotated.clone());
    coordinates(shared.lease_id, &rotated.binding).ok_or_else(|| Error::Protocol {
        node: shared.node.address().to_owned(),
        why: NO_COORDINATES.to_owned(),
    })
}

fn is_busy(error: &Error) -> bool {
    let code = error.refusal().map(|refusal| refusal.error);
    code == Some(LeaseError::ResourceBusy)
}

/// What is valid now; `None`: the lease has no key at the moment, or nobody may be told of it.
fn fresh(shared: &Shared) -> Result<Option<Coordinates>, Error> {
    let info = shared.ask_blocking()?;
    match over(&info) {
        Some(error) => Err(error),
        None => Ok(coordinates(info.lease_id, &info.binding)),
    }
}

const NO_COORDINATES: &str = "the lease has no coordinates over UDP at the moment: it is being bound, \
    or the node does not know by which address it is reached and needs --advertise";

fn coordinates(lease_id: LeaseId, binding: &Binding) -> Option<Coordinates> {
    Some(Coordinates {
        lease_id,
        dp_key: binding.dp_key.clone()?,
        endpoint: binding.udp_endpoint?.into(),
    })
}

/// Only what is final.
fn ended(error: Error) -> Option<Error> {
    (matches!(error, Error::Ended { .. }) || error.is_over()).then_some(error)
}

/// The data plane's error in the SDK's words. What became of a lease that is over is asked of the
/// node.
fn explain(shared: &Shared, known: &Over, error: ClientError, changes: bool) -> Error {
    let lease_id = shared.lease_id;
    if let Some(error) = known.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return error;
    }
    let why = error.to_string();
    match error {
        ClientError::NoLease { .. } => shared.check_alive().err().unwrap_or(Error::Ended {
            lease_id,
            why: "its node serves it no more".to_owned(),
        }),
        ClientError::Fenced { .. } => refusal(LeaseError::Fenced, RefusalClass::Permanent, why),
        ClientError::OutOfRange { .. } => Error::Usage(why),
        ClientError::Unreachable {
            endpoint,
            after,
            hint,
            ..
        } => Error::Unreachable {
            node: endpoint.to_string(),
            why: format!("no answer in {} s: {hint}", after.as_secs_f32()),
            may_have_happened: changes,
        },
        ClientError::Refused { status, .. } if status == DataStatus::Busy as u8 => {
            refusal(LeaseError::Unavailable, RefusalClass::Transient, why)
        }
        ClientError::ReadOnly { .. } => {
            refusal(LeaseError::NotPermitted, RefusalClass::Policy, why)
        }
        ClientError::Storage { .. } => refusal(LeaseError::Internal, RefusalClass::Permanent, why),
        ClientError::WritesLost { .. } => Error::WritesLost(why),
        ClientError::Local { what, source, .. } => Error::Local {
            what,
            why: source.to_string(),
        },
        other => Error::Protocol {
            node: shared.node.address().to_owned(),
            why: other.to_string(),
        },
    }
}

fn refusal(error: LeaseError, class: RefusalClass, message: String) -> Error {
    Error::Refused(Refusal::new(error, class, message))
}
