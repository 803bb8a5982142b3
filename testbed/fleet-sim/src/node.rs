//! A node in this process: the daemon's own table, driver, control plane and reports, without a thread, a file or a socket
//! of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use fabricbios_control::{Limits, Membership, NoSessions, Server};
use fabricbios_fabric::Fabric;
use fabricbios_lease::{AllocationMode, Durability, FenceScope, LeaseTable, Offer, Policy};
use fabricbios_node::{
    driver::{
        Driver, Input, Requester,
        mailbox::{Mailbox, Sender},
        requests::Requests,
    },
    inventory::{
        Described, Inventory, ResourceStatus, describe,
        detection::{Detection, Found},
    },
    process::{clock, reports::Reporter, service::restore},
};
use fabricbios_wire::{
    Answer, BlockDev, MemArena, NodeId, Request, ResourceId, ResourceInventory, ResourceType, Role,
    Transport,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinSet,
};

use crate::{
    invariants::{Asks, Invariant, Invariants},
    machine::{Disk, Machine},
    switch::{Port, Switch},
};

pub(crate) const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// What a node has and allows, for ever.
#[derive(Clone, Debug)]
pub(crate) struct Make {
    pub(crate) mem: [u64; 2],
    pub(crate) block: u64,
    pub(crate) lease_secs_max: u32,
    /// Its wall clock is so much ahead, milliseconds.
    pub(crate) ahead_ms: i64,
}

impl Make {
    /// Whether a node of this make could grant such a lease if it were empty.
    pub(crate) fn could_grant(&self, kind: ResourceType, bytes: u64, secs: u32) -> bool {
        let largest = match kind {
            ResourceType::Mem => self.mem.into_iter().max(),
            ResourceType::Block => Some(self.block),
            _ => None,
        };
        largest.is_some_and(|it| bytes <= it) && secs <= self.lease_secs_max
    }

    fn offers(&self) -> [(ResourceType, Offer); 3] {
        // With these the journal says when a part is free again.
        use Durability::{Boot, Machine};
        use Transport::{NvmeTcp, Rdma, Udp};
        let offer = |id, bytes, durability, transports| Offer {
            resource_id: ResourceId(id),
            capacity: bytes,
            align: PAGE,
            transports,
            durability,
            fence_scope: FenceScope::Part,
            cut_within: None,
            allocation_mode: AllocationMode::Stretches,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        };
        let [first, second] = self.mem;
        [
            (ResourceType::Mem, offer(1, first, Boot, vec![Rdma, Udp])),
            (ResourceType::Mem, offer(2, second, Boot, vec![Udp])),
            (
                ResourceType::Block,
                offer(3, self.block, Machine, vec![NvmeTcp, Udp]),
            ),
        ]
    }
}

/// A resource in an inventory.
#[derive(Debug)]
struct InMemory {
    kind: ResourceType,
    transports: Vec<Transport>,
}

impl Described for InMemory {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, _: &Found) {
        let (id, capacity) = (status.available.resource_id, status.available.capacity);
        let health = match status.available.fenced {
            true => fabricbios_wire::health::FENCED,
            false => fabricbios_wire::health::OK,
        };
        match self.kind {
            ResourceType::Block => inventory.block_devs.push(BlockDev {
                resource_id: id,
                block_size: 4096,
                capacity,
                flags: 0,
                health,
            }),
            _ => inventory.mem_arenas.push(MemArena {
                resource_id: id,
                base: 0,
                len: capacity,
                align: 4096,
                max_read: 1024,
                max_write: 1024,
                health,
            }),
        }
        let name = format!("r{}", id.0);
        describe(inventory, status, &name, &self.transports);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SimNode {
    pub(crate) id: NodeId,
    pub(crate) make: Make,
    number: u32,
    ip: Ipv4Addr,
    membership: Membership,
    pub(crate) disk: Arc<Disk>,
    /// Requests for leases that have reached it.
    asked: Arc<AtomicU64>,
    invariants: Arc<Invariants>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    server: Server,
    driver: Sender<Input>,
    port: Arc<Port>,
    tasks: JoinSet<()>,
}

impl SimNode {
    pub(crate) fn new(
        number: u32,
        ip: Ipv4Addr,
        fabric: Fabric,
        make: Make,
        invariants: &Arc<Invariants>,
    ) -> Self {
        Self {
            id: fabric.node_id(),
            make,
            number,
            ip,
            membership: Membership::new(fabric),
            disk: Arc::new(Disk::new(number, invariants)),
            asked: Arc::default(),
            invariants: Arc::clone(invariants),
            running: None,
        }
    }

    /// Starts its daemon, on what the journal has.
    pub(crate) fn start(
        &mut self,
        switch: &Arc<Switch>,
        schedulers: &[SocketAddr],
    ) -> anyhow::Result<()> {
        let port = switch.port(self.ip);
        let woken = Arc::new(Notify::new());
        let to = Arc::clone(&woken);
        let (mailbox, driver) = Mailbox::woken_by(move || to.notify_one());
        let recovered = self.disk.read();
        let detection = Arc::new(Detection::fixed(Found::default()));
        let mut inventory = Inventory::new(self.id, recovered.epoch, Arc::clone(&detection));
        let mut table = LeaseTable::new(self.policy());
        let offers = self.make.offers();
        let kinds = offers.iter().map(|(kind, it)| (it.resource_id, *kind));
        let kinds = kinds.collect();
        for (kind, offer) in &offers {
            let described = InMemory {
                kind: *kind,
                transports: offer.transports.clone(),
            };
            inventory.describe(offer.resource_id, Arc::new(described));
            table.offer(*kind, offer.clone());
        }
        restore(
            &mut table,
            clock::now(),
            &clock::boot_id(),
            &recovered,
            &|_| true,
        )?;
        let requests = Requests {
            membership: self.membership.clone(),
            node_id: self.id,
            epoch: recovered.epoch,
            advertise: None,
            detection: Arc::clone(&detection),
            driver: driver.clone(),
        };
        let (disk, count) = (Arc::clone(&self.disk), Arc::clone(&self.asked));
        let server = Server::start_over(
            Arc::clone(&port) as _,
            &self.membership,
            limits(),
            Arc::new(move |asked| {
                let by = &asked.principal.tenant;
                match &asked.request {
                    Request::LeaseRenew { lease_id, .. } => {
                        disk.is_asked(*lease_id, by, Asks::Renewal);
                    }
                    Request::LeaseFree(id) => disk.is_asked(*id, by, Asks::End),
                    Request::LeaseAlloc(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    _ => {}
                }
                requests.take(asked);
            }),
            Arc::new(NoSessions),
        )?;
        let machine = Machine {
            disk: Arc::clone(&self.disk),
            driver: driver.clone(),
            kinds,
            ahead_ms: self.make.ahead_ms,
        };
        let (tell_changed, changed) = watch::channel(());
        let of_node = Driver::new(table, machine, inventory, mailbox);
        let of_node = of_node.with_change_signal(tell_changed);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            of_node.run_as_task(&woken).await.ok();
        });
        let reporter = Reporter {
            membership: self.membership.clone(),
            driver: driver.clone(),
            detection,
            listen: port.address(),
            advertise: None,
            origin: server.origin(),
            changed,
        };
        for scheduler in schedulers {
            tasks.spawn(reporter.clone().run(scheduler.to_string()));
        }
        self.running = Some(Running {
            server,
            driver,
            port,
            tasks,
        });
        Ok(())
    }

    fn policy(&self) -> Policy {
        Policy {
            lease_secs_max: self.make.lease_secs_max,
            tenant_leases_max: usize::MAX,
            tenant_requests_per_sec: 0,
            ..Policy::default()
        }
    }

    /// Ends the daemon without a word, as a loss of power does. It is over when the future is.
    pub(crate) fn dies(&mut self) -> impl Future<Output = ()> + use<> {
        let running = self.running.take();
        if let Some(running) = &running {
            running.port.set_off(true);
        }
        let invariants = Arc::clone(&self.invariants);
        let number = self.number;
        async move {
            if let Some(mut running) = running {
                running.look_for_crashes(number, &invariants);
                running.tasks.shutdown().await;
                running.server.shutdown(Duration::ZERO).await;
            }
        }
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn fabric(&self) -> Arc<Fabric> {
        self.membership.now()
    }

    pub(crate) fn look_for_crashes(&mut self) {
        if let Some(running) = &mut self.running {
            running.look_for_crashes(self.number, &self.invariants);
        }
    }

    pub(crate) fn port(&self) -> Option<&Port> {
        self.running.as_ref().map(|it| &*it.port)
    }

    /// Asks the driver itself, as this tenant.
    pub(crate) async fn ask(&self, tenant: &str, request: Request) -> anyhow::Result<Answer> {
        let running = self.running.as_ref().context("the node is not there")?;
        let (reply, answer) = oneshot::channel();
        let tenant: Arc<str> = tenant.into();
        let input = Input::Request {
            requester: Requester {
                tenant: Arc::clone(&tenant),
                reached: None,
                control: None,
                reply,
            },
            role: Role::Tenant,
            request,
        };
        if running.driver.request(Some(tenant), input).is_err() {
            anyhow::bail!("the node has no place for a request");
        }
        answer.await.context("the driver is gone")
    }
}

impl Running {
    /// No task ends before the daemon does.
    fn look_for_crashes(&mut self, number: u32, invariants: &Invariants) {
        while let Some(ended) = self.tasks.try_join_next() {
            let what = format!("a task of node {number} has ended: {ended:?}");
            invariants.breaks(Invariant::NobodyCrashes, what);
        }
    }
}

/// All clients and schedulers come from one address.
fn limits() -> Limits {
    Limits {
        connections_per_source_max: Limits::default().connections_max,
        ..Limits::default()
    }
}
