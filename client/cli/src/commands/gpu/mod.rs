//! `gpu …`: commands that use the session of a lease, over the network or at the node's local socket.

mod run;

use fabricbios_client::{GpuLease, GpuSession, Granted, Node, Wiped};
use fabricbios_wire::{GpuVendor, LeaseId, Size};

use super::alloc;
use crate::{
    args::{Gpu, GpuClose, GpuPlace, Term},
    failure::Failure,
    json::{Field, Object, field},
    kinds::gpu_request,
    output::Output,
};

/// Runs the command. `node`: none if [`Gpu::is_local`].
pub(super) fn run(node: Option<&Node>, command: Gpu, output: Output) -> Result<(), Failure> {
    match command {
        Gpu::Run(what) => run::run(node, what, output),
        Gpu::Close(what) => close(node, what, output),
    }
}

fn wiped_json(wiped: Wiped) -> Object<'static> {
    Object::from([
        field("bytes", wiped.bytes),
        field("free_bytes", wiped.free_bytes),
    ])
}

fn wiped_text(wiped: Wiped) -> String {
    match wiped.bytes {
        0 => "no buffer of the session was left".to_owned(),
        bytes if bytes == wiped.free_bytes => format!("all {} were wiped", Size(bytes)),
        bytes => format!(
            "what was left in the session's buffers, {}, was wiped",
            Size(bytes)
        ),
    }
}

fn close(node: Option<&Node>, what: GpuClose, output: Output) -> Result<(), Failure> {
    let lease = what
        .lease()
        .ok_or_else(|| Failure::usage("name the LEASE"))?;
    let GpuClose { local_socket, .. } = what;
    let wiped = match (&local_socket, node) {
        (Some(socket), _) => GpuSession::end_local(&lease, socket),
        (None, Some(node)) => GpuLease::open(node, lease).and_then(|lease| GpuSession::end(&lease)),
        (None, None) => return Err(Failure::usage("give --local-socket")),
    };
    let wiped = wiped.map_err(|error| Failure::from(error).at(&format!("lease {lease}")))?;
    let json = Object::from([
        field("lease_id", lease.to_string()),
        field("wiped", wiped_json(wiped)),
    ]);
    output.print(&json, || {
        let wiped = wiped_text(wiped);
        format!("lease {lease} has no session any more: {wiped}")
    })
}

/// The session of a lease in which a command works.
struct UsedSession {
    lease_id: LeaseId,
    session: GpuSession,
    /// The vendor of the GPU, if the node has reported it.
    vendor: Option<GpuVendor>,
    /// The node, if the lease is for this command only.
    gives_back_to: Option<Node>,
}

/// The state of a session after a command.
struct Left {
    /// Whether the session ended with the command's connection.
    one_shot: bool,
    /// `None` unless the lease was given back.
    wiped: Option<Wiped>,
}

impl UsedSession {
    /// Opens the session, in a new lease if none is given.
    fn open(node: Option<&Node>, place: GpuPlace) -> Result<Self, Failure> {
        let GpuPlace {
            lease,
            vram,
            secs,
            resource,
            class,
            local_socket,
        } = place;
        let (lease_id, new) = match (lease, vram, node) {
            (Some(lease), ..) => (lease, None),
            (None, Some(vram), Some(node)) => {
                let term = Term {
                    secs: secs.unwrap_or(60),
                    resource,
                    affinity: Vec::new(),
                    avoid_node: Vec::new(),
                    explain: false,
                };
                let request = gpu_request(node, vram, term, class)?;
                let Granted { node, info, .. } = node.acquire(request)?;
                (info.lease_id, Some(node))
            }
            _ => return Err(Failure::usage("give --lease or --vram")),
        };
        let opened = match (&local_socket, new.as_ref().or(node)) {
            (Some(socket), _) => GpuSession::local(&lease_id, socket).map(|it| (it, None)),
            (None, Some(node)) => GpuLease::open(node, lease_id).and_then(|lease| {
                let vendor = lease.binding().gpu().map(|gpu| gpu.vendor);
                Ok((GpuSession::new(&lease)?, vendor))
            }),
            (None, None) => return Err(Failure::usage("give --local-socket")),
        };
        match opened {
            Ok((session, vendor)) => Ok(Self {
                lease_id,
                session,
                vendor,
                gives_back_to: new,
            }),
            Err(error) => {
                let failure = Failure::from(error).at(&format!("lease {lease_id}"));
                Err(match new {
                    Some(node) => failure.and_message(&alloc::give_back(&node, lease_id)),
                    None => failure,
                })
            }
        }
    }

    /// Does `work` in the session, and then gives the lease back if it is for this command only. A lease that was there before
    /// keeps its session.
    fn finish<T>(
        self,
        work: impl FnOnce(&GpuSession) -> Result<T, Failure>,
    ) -> Result<(T, Left), Failure> {
        let Self {
            lease_id,
            session,
            gives_back_to,
            ..
        } = self;
        let named = |failure: Failure| failure.at(&format!("lease {lease_id}"));
        let one_shot = session.info().queue_slots == 1;
        let worked = work(&session).map_err(named);
        let Some(node) = gives_back_to else {
            // The memory and modules of `work` are freed before this program ends.
            let freed = session.sync().map_err(|error| named(error.into()));
            let done = worked?;
            freed?;
            let wiped = None;
            return Ok((done, Left { one_shot, wiped }));
        };
        let closed = worked.and_then(|done| {
            let wiped = session.close().map_err(|error| named(error.into()))?;
            Ok((done, wiped))
        });
        match closed {
            Ok((done, wiped)) => {
                free(&node, lease_id)?;
                let wiped = Some(wiped);
                Ok((done, Left { one_shot, wiped }))
            }
            Err(failure) => Err(failure.and_message(&alloc::give_back(&node, lease_id))),
        }
    }
}

fn free(node: &Node, lease_id: LeaseId) -> Result<(), Failure> {
    let asked = fabricbios_wire::Request::LeaseFree(lease_id);
    super::lease::ask(node, lease_id, asked).map(drop)
}

impl Left {
    fn json(&self) -> [Field<'static>; 2] {
        [
            field("freed", self.wiped.is_some()),
            field("wiped", self.wiped.map(wiped_json)),
        ]
    }

    fn line(&self, used: LeaseId) -> String {
        match self.wiped {
            Some(wiped) => format!("lease {used} was given back: {}", wiped_text(wiped)),
            None if self.one_shot => format!("the session of lease {used} has ended: one_shot"),
            None => format!(
                "the session stays for the next command; `fabricctl gpu close {used}` ends it"
            ),
        }
    }
}
