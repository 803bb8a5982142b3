//! The backend: orders of the lease table, carried out on one device and one arena.
//!
//! Each order finds the slot of its lease, asks it what may be done, and does that: with the
//! slot's lock only where access opens, without any lock where the kernel may take its time.

use std::{fs::File, io, sync::Arc};

use fabricbios_lease::{Backend, BindError, BindOrder, Extent, Offer, StepError, Tag};
use fabricbios_wire::{Binding, Generation, LeaseId, ResourceId, Transport};

use super::{
    arena::{ALIGN, Arena},
    connect::{Hardware, Parts},
    device::{Device, Found},
    permits::Permits,
    slot::{BindStep, CutStep, Life, ReleaseStep, Slot, State},
    table::{Known, Table},
    verbs::{ProtectionDomain, QueuePairState, Window},
};

/// What to lease, and over which device.
#[derive(Debug)]
pub struct RdmaConfig {
    /// Name of the device; without one the first that can carry leases.
    pub device: Option<String>,
    /// Size of the arena: a positive multiple of 4096.
    pub arena_bytes: u64,
    /// The resource that the arena is.
    pub resource_id: ResourceId,
    /// A file in memory, tmpfs or hugetlbfs that has the bytes; without one a new one is made.
    pub arena_file: Option<File>,
}

/// What came of opening.
#[derive(Debug)]
pub enum RdmaOpened {
    /// Leases can be carried.
    Ready(Box<RdmaBackend>),
    /// There is no device that could, and none was asked for by name. Said once, for people.
    Absent(String),
}

/// Facts for inventories and the start message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaInventory {
    /// Name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// GID that clients connect to.
    pub gid: [u8; 16],
    /// Where it is in the port's table.
    pub gid_index: u8,
    /// Path MTU of the port in bytes.
    pub mtu_bytes: u16,
    /// Largest message in bytes.
    pub message_bytes: u32,
    /// Whether windows of type 2B exist.
    pub has_type_2b: bool,
    /// Whether keys allow atomics.
    pub atomics: bool,
    /// Whether the device keeps a window's holder to the window. Where it does not, every lease
    /// has a region of its own under its window, which costs a registration per grant.
    pub windows_have_bounds: bool,
}

/// Leases of memory over RDMA: a queue pair and a type 2B window each.
#[derive(Debug)]
pub struct RdmaBackend {
    hardware: Hardware,
    resource_id: ResourceId,
    table: Table,
    bring_ups: Permits,
}

impl RdmaBackend {
    /// Opens the device, registers the arena and checks that the kernel's resource tracker can be
    /// asked. `Err` when a device named is absent or unfit, or the arena cannot be registered.
    pub fn open(config: RdmaConfig) -> Result<RdmaOpened, StepError> {
        if config.arena_bytes == 0 || !config.arena_bytes.is_multiple_of(ALIGN) {
            let detail = format!(
                "{} bytes is no positive multiple of {ALIGN}",
                config.arena_bytes
            );
            return Err(StepError::new("size arena", detail));
        }
        let device = match Device::find(config.device.as_deref())? {
            Found::Device(device) => *device,
            Found::Nothing(reason) => return Ok(RdmaOpened::Absent(reason)),
        };
        let domain = ProtectionDomain::alloc(&device.context).map_err(|errno| {
            StepError::new("alloc_pd", format_args!("{}: {errno}", device.name()))
        })?;
        let arena = Arena::open(&domain, config.arena_file, config.arena_bytes)?;
        let mut hardware = Hardware::new(device, domain, arena);
        let tag = own_tag(config.resource_id);
        hardware.check_tracker(tag)?;
        hardware.windows_have_bounds = hardware.windows_have_bounds(tag)?;
        Ok(RdmaOpened::Ready(Box::new(Self {
            hardware,
            resource_id: config.resource_id,
            table: Table::default(),
            bring_ups: Permits::new(),
        })))
    }

    /// Facts for inventories.
    pub fn inventory(&self) -> RdmaInventory {
        let device = &self.hardware.device;
        RdmaInventory {
            device: device.name().to_owned(),
            port: device.port,
            gid: device.gid.bytes,
            gid_index: device.gid.index,
            mtu_bytes: device.state.mtu_bytes,
            message_bytes: device.state.message_bytes,
            has_type_2b: device.limits.has_type_2b,
            atomics: device.limits.atomics,
            windows_have_bounds: self.hardware.windows_have_bounds,
        }
    }

    /// The arena's file, for another road over the same bytes.
    pub fn arena_file(&self) -> io::Result<File> {
        self.hardware.arena.file().try_clone()
    }

    /// Cuts what is left and gives the device back, for an orderly end.
    pub fn close(self) -> Result<(), StepError> {
        for (lease_id, slot) in self.table.all() {
            let generation = slot.lock().generation;
            self.cut(Tag {
                lease_id,
                generation,
                resource_id: self.resource_id,
            })?;
        }
        let Hardware {
            device,
            domain,
            arena,
            ..
        } = self.hardware;
        let failed = |step: &str, errno| StepError::new(step, format_args!("{errno}"));
        arena.close()?;
        if let Some(domain) = Arc::into_inner(domain) {
            domain
                .dealloc()
                .map_err(|(_, errno)| failed("dealloc_pd", errno))?;
        }
        match Arc::into_inner(device.context) {
            Some(context) => context
                .close()
                .map_err(|(_, errno)| failed("close_device", errno)),
            None => Ok(()),
        }
    }

    fn check_order(&self, order: &BindOrder) -> Result<(), StepError> {
        let road = matches!(
            order.transport,
            Transport::Rdma | Transport::Both | Transport::Auto
        );
        if order.tag.resource_id != self.resource_id || !road {
            let detail = format!(
                "{:?} on {} is not ours",
                order.transport, order.tag.resource_id
            );
            return Err(StepError::new("check order", detail));
        }
        order
            .peer
            .as_ref()
            .map_or(Ok(()), |peer| self.hardware.check_peer(peer))?;
        self.hardware.arena.check(order.extent)
    }

    fn claim(&self, order: &BindOrder) -> Result<Arc<Slot<Parts>>, BindError> {
        let Known::Slot(slot) = self.table.find_or_make(order.tag.lease_id) else {
            return Err(BindError::Cancelled);
        };
        self.table
            .claim(order.tag.lease_id, order.extent)
            .map_err(|other| {
                let detail = format!("the bytes still belong to lease {other}");
                BindError::Failed(self.hardware.error("claim extent", order.tag, detail))
            })?;
        Ok(slot)
    }

    /// Until the slot is Connecting and this thread owns a queue pair in INIT.
    fn queue_pair_for(&self, slot: &Slot<Parts>, order: &BindOrder) -> Result<Parts, BindError> {
        let tag = order.tag;
        loop {
            match slot.begin_bind(tag.generation, order.peer.is_some()) {
                BindStep::Fresh => return self.fresh(slot, order),
                BindStep::Connect(parts) if parts.extent == order.extent => return Ok(parts),
                BindStep::Connect(parts) => {
                    let why = "it was prepared for other bytes";
                    let why = BindError::Failed(self.hardware.error("bind", tag, why));
                    return Err(self.undo(slot, parts, tag, why));
                }
                BindStep::CutFirst(parts) => {
                    slot.finish_cut(self.hardware.dismantle(parts, tag))
                        .map_err(BindError::Stranded)?;
                }
                BindStep::Cancelled => return Err(BindError::Cancelled),
                BindStep::Stranded(error) => return Err(BindError::Stranded(error)),
                BindStep::Refuse(why) => {
                    return Err(BindError::Failed(self.hardware.error("bind", tag, why)));
                }
                BindStep::Wait => {}
            }
        }
    }

    fn fresh(&self, slot: &Slot<Parts>, order: &BindOrder) -> Result<Parts, BindError> {
        let tag = order.tag;
        self.hardware
            .prepare(tag, order.extent)
            .map_err(|(left, error)| {
                let why = BindError::Failed(error);
                match left {
                    Some(parts) => self.undo(slot, parts, tag, why),
                    None => {
                        slot.set(State::Cut {
                            proof: "nothing was made".into(),
                            leftover: None,
                        });
                        why
                    }
                }
            })
    }

    /// Takes down what a bind has made so far; `why` unless that fails.
    fn undo(&self, slot: &Slot<Parts>, parts: Parts, tag: Tag, why: BindError) -> BindError {
        match slot.finish_cut(self.hardware.dismantle(parts, tag)) {
            Ok(_) => why,
            Err(error) => BindError::Stranded(error),
        }
    }

    /// From a queue pair in INIT to what the order asks for.
    fn establish(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        mut parts: Parts,
    ) -> Result<Binding, BindError> {
        let undo = |parts, why| Err(self.undo(slot, parts, order.tag, why));
        let window = match self.connect(slot, order, &mut parts) {
            Ok(window) => window,
            // A cut may have come while the kernel looked for the peer in vain.
            Err(_) if slot.is_cancelled() => return undo(parts, BindError::Cancelled),
            Err(why) => return undo(parts, why),
        };
        let mut life = slot.lock();
        // From here to the end of the bind a cut waits for the lock: microseconds, at most
        // BIND_LIMIT when the device has died.
        if life.is_cancelled() {
            drop(life);
            parts.windows.extend(window);
            return undo(parts, BindError::Cancelled);
        }
        match self.open_access(&mut life, order, parts, window) {
            Ok(binding) => {
                drop(life);
                slot.wake();
                Ok(binding)
            }
            Err((parts, error)) => {
                life.state = State::Cutting;
                drop(life);
                undo(parts, BindError::Failed(error))
            }
        }
    }

    /// Brings the queue pair up towards the peer, if there is one, and makes its window.
    fn connect(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        parts: &mut Parts,
    ) -> Result<Option<Window>, BindError> {
        let Some(peer) = &order.peer else {
            return Ok(None);
        };
        let permit = self
            .bring_ups
            .acquire(|| slot.is_cancelled())
            .ok_or(BindError::Cancelled)?;
        self.hardware
            .bring_up(parts, order.tag, peer)
            .map_err(BindError::Refused)?;
        drop(permit);
        self.hardware
            .new_window(order.tag)
            .map(Some)
            .map_err(BindError::Failed)
    }

    fn open_access(
        &self,
        life: &mut Life<Parts>,
        order: &BindOrder,
        mut parts: Parts,
        window: Option<Window>,
    ) -> Result<Binding, (Parts, StepError)> {
        let connected = window.is_some();
        parts.windows.extend(window);
        if connected && let Err(error) = self.hardware.bind_newest(&mut parts, order.tag) {
            return Err((parts, error));
        }
        let binding = self.hardware.binding(&parts);
        life.extent = Some(order.extent);
        life.state = if connected {
            State::Live(parts)
        } else {
            State::Prepared(parts)
        };
        Ok(binding)
    }

    /// A bind that left nothing behind and that no cut knows of leaves no trace here either.
    fn forget_if_nothing(&self, slot: &Slot<Parts>, order: &BindOrder) {
        let life = slot.lock();
        let nothing = matches!(life.state, State::Empty | State::Cut { leftover: None, .. });
        if nothing && life.cut_through.is_none() && life.extent.is_none() {
            drop(life);
            slot.set(State::Gone);
            self.table.forget(order.tag.lease_id);
        }
    }

    fn scrub(
        &self,
        slot: &Slot<Parts>,
        leftover: Option<Parts>,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let leftover = match leftover.map(|parts| self.hardware.dismantle(parts, tag)) {
            None | Some(Ok((_, None))) => None,
            Some(Ok((_, Some(parts))) | Err((parts, _))) => Some(parts),
        };
        let scrubbed = self.hardware.arena.scrub(extent, progress);
        let result = match &leftover {
            Some(_) => {
                Err(self
                    .hardware
                    .error("tidy up", tag, "verbs objects cannot be destroyed"))
            }
            None => scrubbed,
        };
        if let Err(error) = &result {
            slot.set(State::Dirty {
                leftover,
                error: error.clone(),
            });
        } else {
            slot.set(State::Gone);
            self.table.released(tag.lease_id);
        }
        result
    }

    /// A lease that this backend never bound, or whose bind came to nothing.
    fn scrub_unknown(
        &self,
        tag: Tag,
        extent: Extent,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if let Some(other) = self.table.holder_besides(tag.lease_id, extent) {
            let detail = format!("the bytes belong to lease {other} by now");
            return Err(self.hardware.error("scrub", tag, detail));
        }
        self.hardware.arena.scrub(extent, progress)?;
        self.table.released(tag.lease_id);
        Ok(())
    }

    fn live<'a>(
        &self,
        life: &'a mut Life<Parts>,
        tag: Tag,
        step: &str,
    ) -> Result<&'a mut Parts, StepError> {
        let fresh = life.generation <= tag.generation && !life.is_cancelled();
        match &mut life.state {
            State::Live(parts) if fresh => Ok(parts),
            _ => Err(self
                .hardware
                .error(step, tag, "the lease has no window now")),
        }
    }

    fn slot(&self, tag: Tag, step: &str) -> Result<Arc<Slot<Parts>>, StepError> {
        match self.table.find(tag.lease_id) {
            Known::Slot(slot) => Ok(slot),
            _ => Err(self
                .hardware
                .error(step, tag, "the lease is not bound here")),
        }
    }

    /// Whether a second key can be made.
    fn check_rotation(&self, slot: &Slot<Parts>, tag: Tag) -> Result<(), StepError> {
        let mut life = slot.lock();
        let parts = self.live(&mut life, tag, "rotate")?;
        if parts.windows.len() > 1 {
            let detail = "the key before the last rotation is not retired yet";
            return Err(self.hardware.error("rotate", tag, detail));
        }
        match parts.state() {
            Ok(QueuePairState::ReadyToSend) => Ok(()),
            Ok(_) => {
                let detail = "the queue pair has failed: bind the lease again with a new one";
                Err(self.hardware.error("rotate", tag, detail))
            }
            Err(errno) => Err(self.hardware.error("query_qp", tag, errno)),
        }
    }

    fn add_key(
        &self,
        slot: &Slot<Parts>,
        tag: Tag,
        window: &mut Option<Window>,
    ) -> Result<Binding, StepError> {
        let mut life = slot.lock();
        let parts = self.live(&mut life, tag, "rotate")?;
        parts.windows.extend(window.take());
        if let Err(error) = self.hardware.bind_newest(parts, tag) {
            // Not bound, so not the lease's: the caller takes it away.
            *window = parts.windows.pop();
            return Err(error);
        }
        let binding = self.hardware.binding(parts);
        life.generation = life.generation.max(tag.generation);
        Ok(binding)
    }

    fn reset_slot(&self, lease_id: LeaseId, slot: &Slot<Parts>) -> Result<(), StepError> {
        let (generation, extent, failed) = {
            let life = slot.lock();
            let failed = matches!(life.state, State::Failed { .. } | State::Dirty { .. });
            (life.generation, life.extent, failed)
        };
        let tag = Tag {
            lease_id,
            generation,
            resource_id: self.resource_id,
        };
        match (failed, extent) {
            (false, _) => Ok(()),
            (true, Some(extent)) => {
                self.cut(tag)?;
                self.release(tag, extent, &|| ())
            }
            (true, None) => {
                self.cut(tag)?;
                slot.set(State::Gone);
                self.table.released(lease_id);
                Ok(())
            }
        }
    }
}

/// For steps that no lease asked for.
fn own_tag(resource_id: ResourceId) -> Tag {
    Tag {
        lease_id: LeaseId(0),
        generation: Generation(0),
        resource_id,
    }
}

impl Backend for RdmaBackend {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        Ok(vec![Offer {
            resource_id: self.resource_id,
            capacity: self.hardware.arena.bytes(),
            align: ALIGN,
            transports: vec![Transport::Rdma],
        }])
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        self.check_order(order).map_err(BindError::Refused)?;
        let slot = self.claim(order)?;
        let result = self
            .queue_pair_for(&slot, order)
            .and_then(|parts| self.establish(&slot, order, parts));
        if result.is_err() {
            self.forget_if_nothing(&slot, order);
        }
        result
    }

    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        let slot = self.slot(tag, "rotate").map_err(BindError::Refused)?;
        self.check_rotation(&slot, tag)
            .map_err(BindError::Refused)?;
        let mut window = Some(self.hardware.new_window(tag).map_err(BindError::Failed)?);
        self.add_key(&slot, tag, &mut window)
            .map_err(|error| match window.map(Window::dealloc) {
                Some(Err((_, errno))) => {
                    BindError::Stranded(self.hardware.error("dealloc_mw", tag, errno))
                }
                _ if slot.is_cancelled() => BindError::Cancelled,
                _ => BindError::Failed(error),
            })
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.slot(tag, "retire key")?;
        let mut life = slot.lock();
        let parts = self.live(&mut life, tag, "retire key")?;
        if parts.windows.len() > 1 {
            self.hardware.retire_oldest(parts, tag)?;
        }
        Ok(self.hardware.binding(parts))
    }

    fn cut(&self, tag: Tag) -> Result<String, StepError> {
        let Known::Slot(slot) = self.table.find_or_make(tag.lease_id) else {
            return Ok("it was released before".into());
        };
        let step = slot.begin_cut(tag.generation)?;
        self.bring_ups.wake();
        match step {
            CutStep::Cut(parts) => slot.finish_cut(self.hardware.dismantle(parts, tag)),
            CutStep::Unreachable(why) => Ok(why),
            CutStep::Wait => Err(self
                .hardware
                .error("cut", tag, "an earlier cut does not end")),
        }
    }

    fn release(&self, tag: Tag, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        self.hardware.arena.check(extent)?;
        let slot = match self.table.find(tag.lease_id) {
            Known::Slot(slot) => slot,
            Known::Released => return Ok(()),
            Known::No => return self.scrub_unknown(tag, extent, progress),
        };
        let refuse = |why: String| Err(self.hardware.error("release", tag, why));
        match slot.begin_release(tag.generation) {
            ReleaseStep::Scrub(left) => self.scrub(&slot, left, tag, extent, progress),
            ReleaseStep::Done => Ok(()),
            ReleaseStep::Refuse(why) => refuse(why),
            ReleaseStep::Wait => refuse("another order does not end".into()),
        }
    }

    fn reset(&self, resource_id: ResourceId) -> Result<(), StepError> {
        if resource_id != self.resource_id {
            return Err(StepError::new(
                "reset",
                format_args!("{resource_id} is not ours"),
            ));
        }
        for (lease_id, slot) in self.table.all() {
            self.reset_slot(lease_id, &slot)?;
        }
        Ok(())
    }
}
