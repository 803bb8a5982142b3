//! Transfers over UDP. When keys change, the client asks the control plane.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use fabricbios_fallback_udp::{
    ClientError, ClientOptions, Coordinates, MemoryClient, Refresh, RefreshError,
};
use fabricbios_wire::{
    Binding, DataStatus, LeaseError, LeaseId, LeaseInfo, Refusal, RefusalClass, Request,
};

use super::{Job, Transfers, end_error};
use crate::{
    Error, Node,
    runtime::{run, wait},
    shared::SharedLease,
};

/// How long to wait for a lease that is being bound. A node needs milliseconds, unless it waits for a queue pair that
/// does not answer.
const BINDING_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// A client of the data plane, kept between calls.
#[derive(Debug)]
pub(crate) struct UdpConnection<C> {
    client: C,
    set_coordinates: fn(&mut C, Coordinates),
    end: EndError,
    pub(super) options: ClientOptions,
    /// The last change failed, and its datagrams may still be in the network. Only `client` can make sure, with its next
    /// request, that they do not take effect later.
    unsettled: bool,
}

/// The options of a client. `patience`: how long it waits for a node whose port is closed.
pub(super) fn options(transfers: Transfers, patience: Duration) -> ClientOptions {
    let usual = ClientOptions::default();
    let give_up = transfers.give_up.unwrap_or(usual.give_up);
    ClientOptions {
        payload_mac: transfers.payload_mac,
        give_up,
        give_up_closed: patience.min(give_up),
        ..usual
    }
}

/// How the lease ended, if the node has said so during a call.
type EndError = Arc<Mutex<Option<Error>>>;

/// Connects a client.
type Connect<C> =
    fn(Coordinates, ClientOptions, Option<Box<dyn Refresh>>) -> Result<C, ClientError>;

impl<C> UdpConnection<C> {
    pub(super) fn with(
        shared: &SharedLease,
        options: ClientOptions,
        connect: Connect<C>,
        set_coordinates: fn(&mut C, Coordinates),
    ) -> Result<Self, Error> {
        let end = EndError::default();
        let refresher = Refresher {
            shared: shared.me.clone(),
            end: Arc::clone(&end),
            within: options.give_up,
        };
        let refresh: Box<dyn Refresh> = Box::new(refresher);
        match connect(valid_coordinates(shared)?, options, Some(refresh)) {
            Ok(client) => Ok(Self {
                client,
                set_coordinates,
                end,
                options,
                unsettled: false,
            }),
            Err(error) => Err(explain(shared, &end, error, false)),
        }
    }

    /// Makes one call; `changes`: it may change bytes.
    pub(super) fn call<R>(
        &mut self,
        shared: &SharedLease,
        changes: bool,
        call: impl FnOnce(&mut C) -> Result<R, ClientError>,
    ) -> Result<R, Error> {
        // After a failed change the lease may need a new key first, as for a new connection.
        let valid = match self.unsettled {
            true => Some(valid_coordinates(shared)?),
            false => coordinates(shared.lease_id, &shared.info().binding),
        };
        if let Some(valid) = valid {
            (self.set_coordinates)(&mut self.client, valid);
        }
        // Set before the call, because the progress callback may panic.
        self.unsettled |= changes;
        let done = call(&mut self.client);
        self.unsettled &= done.is_err();
        done.map_err(|error| explain(shared, &self.end, error, changes))
    }

    pub(super) fn client(&self) -> &C {
        &self.client
    }

    pub(super) fn into_client(self) -> C {
        self.client
    }

    /// Whether a failed change may still take effect.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }
}

impl UdpConnection<MemoryClient> {
    pub(super) fn open(shared: &SharedLease) -> Result<Self, Error> {
        let connect = MemoryClient::connect;
        let options = options(shared.transfers(), shared.patience());
        Self::with(shared, options, connect, MemoryClient::set_coordinates)
    }

    pub(super) fn carry_out(
        &mut self,
        shared: &SharedLease,
        job: &mut Job<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        self.call(shared, job.changes(), |client| match job {
            Job::Read(offset, into) => client.read(*offset, into, progress),
            Job::Write(offset, from) => client.write(*offset, from, progress),
        })
    }

    /// Makes sure that no earlier write takes effect later: any answer of the node to this client shows this.
    pub(super) fn settle(&mut self, shared: &SharedLease) -> Result<(), Error> {
        if !self.unsettled {
            return Ok(());
        }
        self.carry_out(shared, &mut Job::Read(0, &mut [0]), &mut |_| ())
    }
}

/// Sends LEASE_QUERY for the client.
struct Refresher {
    /// Weak, since the lease owns the client.
    shared: Weak<SharedLease>,
    end: EndError,
    /// Limit for one query. A node that answers neither data nor requests costs a call at most twice this time.
    within: Duration,
}

impl Refresh for Refresher {
    fn refresh(&mut self) -> Result<Coordinates, RefreshError> {
        let shared = self.shared.upgrade().ok_or("the lease was given up")?;
        // One try only: the client asks again while it goes on.
        let (node, query) = (shared.node.clone(), Request::LeaseQuery(shared.lease_id));
        let within = self.within;
        let answer = wait(run(async move {
            let asked = tokio::time::timeout(within, node.lease_async(query)).await;
            Ok(asked.ok())
        }));
        let answer = match answer? {
            Some(answer) => answer.and_then(|info| {
                shared.update(info.clone());
                coordinates_in(&info)
            }),
            None => {
                let secs = within.as_secs_f32();
                return Err(format!("the node does not answer in {secs} s").into());
            }
        };
        match answer {
            Ok(found) => found.ok_or_else(|| NO_COORDINATES.into()),
            Err(error) => {
                let text = error.to_string();
                *self.end.lock().unwrap_or_else(PoisonError::into_inner) = final_error(error);
                Err(text.into())
            }
        }
    }

    fn is_over(&self) -> bool {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.is_some()
    }
}

/// The coordinates in the last answer, or in a new answer, or after a rotation if the lease has no key. Waits while the
/// lease is being bound, for example by a node that has restarted.
fn valid_coordinates(shared: &SharedLease) -> Result<Coordinates, Error> {
    if let Some(known) = coordinates(shared.lease_id, &shared.info().binding) {
        return Ok(known);
    }
    let until = Instant::now() + BINDING_MAX;
    loop {
        if let Some(found) = queried_coordinates(shared, &shared.patient_node())? {
            return Ok(found);
        }
        match new_key(shared) {
            Err(error) if is_busy(&error) && Instant::now() < until => thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
}

fn new_key(shared: &SharedLease) -> Result<Coordinates, Error> {
    let rotated = wait(shared.node.lease_async(Request::LeaseRotate {
        lease_id: shared.lease_id,
        overlap_ms: 0,
    }))?;
    shared.update(rotated.clone());
    coordinates(shared.lease_id, &rotated.binding).ok_or_else(|| Error::Protocol {
        node: shared.node.address().to_owned(),
        why: NO_COORDINATES.to_owned(),
    })
}

fn is_busy(error: &Error) -> bool {
    let code = error.refusal().map(|refusal| refusal.error);
    code == Some(LeaseError::ResourceBusy)
}

/// The coordinates in a new answer; `None`: the lease has no key now, or this tenant may not see it.
fn queried_coordinates(shared: &SharedLease, node: &Node) -> Result<Option<Coordinates>, Error> {
    coordinates_in(&shared.ask_at(node)?)
}

fn coordinates_in(info: &LeaseInfo) -> Result<Option<Coordinates>, Error> {
    match end_error(info) {
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

/// The error, if it is final.
fn final_error(error: Error) -> Option<Error> {
    (matches!(error, Error::InGrace { .. }) || error.is_over()).then_some(error)
}

/// Maps an error of the data plane to one of the SDK. If the lease is over, the node is asked how it ended.
fn explain(shared: &SharedLease, known: &EndError, error: ClientError, changes: bool) -> Error {
    let lease_id = shared.lease_id;
    if let Some(error) = known.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return error;
    }
    let why = error.to_string();
    match error {
        ClientError::NoLease { .. } => shared.check_alive().err().unwrap_or(Error::Ended {
            lease_id,
            cause: None,
            why: "the node does not serve the lease any more".to_owned(),
        }),
        ClientError::Fenced { .. } => refusal(LeaseError::Fenced, RefusalClass::Permanent, why),
        ClientError::OutOfRange { .. } => Error::Usage(why),
        ClientError::Unreachable { call, after, hint } => Error::Unreachable {
            node: call.endpoint.to_string(),
            why: format!("no answer in {} s: {hint}", after.as_secs_f32()),
            may_have_happened: changes,
        },
        ClientError::PortClosed(call) => Error::Unreachable {
            node: call.endpoint.to_string(),
            why: "nothing listens at the node's UDP port any more; has the daemon ended?"
                .to_owned(),
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
