//! `--rdma-cm-listen`: callers with an attach code join the lease of the code through rdma_cm.
//!
//! The listener has a thread of its own. It only carries: the driver decides about each code and each queue pair, and
//! nothing waits for this thread. What callers can fill is bounded: connections that are being made, and those of one
//! tenant among them. Every connection that is made has a queue pair of a lease.

mod caller;
mod told;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    net::{Ipv6Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use fabricbios_rdma::{QueuePairs, RdmaPath};
use fabricbios_verbs::cm::{CmConnection, CmEvent, CmKey, CmListener, CmRequest};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{self, Runtime},
    sync::{Notify, watch},
    task::{LocalSet, spawn_local, yield_now},
    time::sleep,
};

use crate::driver::{Input, mailbox::Sender};
use told::presented;

/// Most connections that are being made at once, and most requests that wait in the kernel.
const MAKING_MAX: u8 = 64;
/// Most of them for the leases of one tenant.
const MAKING_OF_TENANT_MAX: u8 = MAKING_MAX / 2;

/// Pause after a call of the kernel that failed and must not.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The reason for a caller that comes in a flood. Its code stays good.
const BUSY: &str = "the node is too busy; call again with the same attach code";

/// What has become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Making,
    Established,
    Over,
}

/// The callers, and what they share. Only the listener's thread has it.
struct Callers {
    driver: Sender<Input>,
    queue_pairs: Arc<QueuePairs>,
    /// Some queue pair has ended.
    ended: watch::Sender<()>,
    connections: RefCell<HashMap<CmKey, watch::Sender<Stage>>>,
    making: Cell<u8>,
    making_of: RefCell<HashMap<Arc<str>, u8>>,
}

/// Begins to listen. Callers get in as soon as the driver runs.
///
/// # Errors
/// The address is not that of the RDMA device, or is taken, or librdmacm is missing.
pub(super) fn start(at: SocketAddr, rdma: &RdmaPath, driver: Sender<Input>) -> anyhow::Result<()> {
    let facts = rdma.inventory();
    let its = Ipv6Addr::from(facts.gid).to_canonical();
    if at.ip().to_canonical() != its {
        bail!(
            "--rdma-cm-listen {at}: leases are reached at {its} on {}, and so is this listener; name that address",
            facts.device
        );
    }
    let listener = CmListener::bind(at, MAKING_MAX).with_context(|| {
        format!("--rdma-cm-listen {at}: the kernel's connection manager takes no listener there")
    })?;
    let device = listener.device();
    if device.as_deref() != Some(&facts.device) {
        bail!(
            "--rdma-cm-listen {at}: the kernel has this address on RDMA device {}, and leases are on {}; name the other one with --rdma-device",
            device.as_deref().unwrap_or("none"),
            facts.device
        );
    }
    let queue_pairs = rdma.queue_pairs();
    let ends = Arc::new(Notify::new());
    let tell = Arc::clone(&ends);
    // The thread of a cut only leaves word here.
    queue_pairs.on_end(move || tell.notify_one());
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the runtime of the rdma_cm listener")?;
    thread::Builder::new()
        .name("rdma_cm".into())
        .spawn(move || run(&runtime, listener, driver, queue_pairs, &ends))
        .context("start the thread of the rdma_cm listener")?;
    tracing::info!(listen = %at, "leases of memory are joined through rdma_cm");
    Ok(())
}

fn run(
    runtime: &Runtime,
    listener: CmListener,
    driver: Sender<Input>,
    queue_pairs: Arc<QueuePairs>,
    ends: &Notify,
) {
    let callers = Rc::new(Callers {
        driver,
        queue_pairs,
        ended: watch::Sender::new(()),
        connections: RefCell::default(),
        making: Cell::new(0),
        making_of: RefCell::default(),
    });
    let both = async {
        tokio::select! {
            lost = listen(listener, &callers) => lost,
            never = tell_ends(ends, &callers) => never,
        }
    };
    let Err(error) = LocalSet::new().block_on(runtime, both);
    callers.driver.notify(Input::ListenerLost);
    tracing::error!(%error, "nobody can join a lease through rdma_cm any more; a restart of the daemon opens the listener again");
}

/// Wakes every connection after an end of a queue pair. Many ends at once are one.
async fn tell_ends(ends: &Notify, callers: &Callers) -> io::Result<std::convert::Infallible> {
    loop {
        ends.notified().await;
        callers.ended.send_replace(());
    }
}

async fn listen(
    listener: CmListener,
    callers: &Rc<Callers>,
) -> io::Result<std::convert::Infallible> {
    // SAFETY: the listener keeps its channel, and with it this one descriptor, for as long as it lives.
    let listener = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
    let listener = listener.map_err(io::Error::from)?;
    loop {
        let mut ready = listener.readable().await?;
        match listener.get_ref().next() {
            Ok(Some(CmEvent::ListenerLost)) => {
                return Err(io::Error::other("its device is gone"));
            }
            Ok(Some(news)) => callers.hear(news),
            Ok(None) => ready.clear_ready(),
            Err(error) => {
                tracing::warn!(%error, "the connection manager does not tell its news");
                sleep(AFTER_ERROR).await;
            }
        }
        // Connections that are made go on between the requests of a flood.
        yield_now().await;
    }
}

impl Callers {
    fn hear(self: &Rc<Self>, news: CmEvent) {
        match news {
            CmEvent::Request(request) => self.take(request),
            CmEvent::Established(key) => self.advance(key, Stage::Established),
            CmEvent::Over(key) => self.advance(key, Stage::Over),
            CmEvent::ListenerLost | CmEvent::Other => {}
        }
    }

    fn advance(&self, key: CmKey, to: Stage) {
        if let Some(stage) = self.connections.borrow().get(&key) {
            stage.send_if_modified(|is| {
                let is_news = *is != to && *is != Stage::Over;
                if is_news {
                    *is = to;
                }
                is_news
            });
        }
    }

    fn take(self: &Rc<Self>, request: CmRequest) {
        let Some(place) = Place::take(self) else {
            return refuse(&request.connection, BUSY);
        };
        let CmRequest {
            connection,
            caller,
            private_data,
            responder_reads,
        } = request;
        let code = presented(&private_data);
        let heard = Heard::of(self, connection);
        let callers = Rc::clone(self);
        spawn_local(async move {
            callers
                .serve(heard, code, caller, responder_reads, place)
                .await;
        });
    }
}

/// A connection whose events are heard.
struct Heard {
    callers: Rc<Callers>,
    stage: watch::Receiver<Stage>,
    connection: CmConnection,
}

impl Heard {
    fn of(callers: &Rc<Callers>, connection: CmConnection) -> Self {
        let (tell, stage) = watch::channel(Stage::Making);
        let mut connections = callers.connections.borrow_mut();
        connections.insert(connection.key(), tell);
        Self {
            callers: Rc::clone(callers),
            stage,
            connection,
        }
    }
}

impl Drop for Heard {
    /// The entry goes before the connection, whose key the next one may have.
    fn drop(&mut self) {
        let key = self.connection.key();
        self.callers.connections.borrow_mut().remove(&key);
    }
}

/// Refuses a caller, and logs it.
fn refuse(connection: &CmConnection, reason: &str) {
    if let Err(error) = connection.reject(reason) {
        tracing::debug!(%error, "a caller went away before it was refused");
    }
    tracing::info!(reason, "a caller of rdma_cm is refused");
}

/// A place among the connections that are being made.
struct Place {
    callers: Rc<Callers>,
    tenant: Option<Arc<str>>,
}

impl Place {
    fn take(callers: &Rc<Callers>) -> Option<Self> {
        let making = callers.making.get();
        (making < MAKING_MAX).then(|| {
            callers.making.set(making + 1);
            Self {
                callers: Rc::clone(callers),
                tenant: None,
            }
        })
    }

    /// Counts for this tenant too. `false`: the tenant has as many as it may have.
    fn is_of(&mut self, tenant: &Arc<str>) -> bool {
        let mut making_of = self.callers.making_of.borrow_mut();
        let making = making_of.entry(Arc::clone(tenant)).or_default();
        if *making >= MAKING_OF_TENANT_MAX {
            return false;
        }
        *making += 1;
        self.tenant = Some(Arc::clone(tenant));
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let callers = &self.callers;
        callers.making.set(callers.making.get().saturating_sub(1));
        let Some(tenant) = &self.tenant else { return };
        let mut making_of = callers.making_of.borrow_mut();
        if let Some(making) = making_of.get_mut(tenant) {
            *making = making.saturating_sub(1);
            if *making == 0 {
                making_of.remove(tenant);
            }
        }
    }
}
