//! Leases as windows on a real kernel's RDMA device: bind, use, cut, rotate and release, as a client sees them.
//!
//! Needs a device; soft-RoCE over a veth pair with address 10.77.0.1/24 is enough. In the lab: `FABRICBIOS_LAB=1
//! rxe_window --ignored --test-threads=1`. Elsewhere these tests are ignored.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on panics, and its numbers are small"
)]

mod lab;
mod lives;

use std::{sync::Arc, time::Duration};

use fabricbios_arena::{Arena, Source};
use fabricbios_rdma::Strategy;
use fabricbios_verbs::{
    Access, CompletionQueue, Connection, Context, DeviceList, Local, MemoryRegion,
    ProtectionDomain, QueuePair, QueueSizes, Remote, Rights, Window, WorkError,
};
use fabricbios_wire::RdmaStrategy;
use lab::{Lab, PAGE, binding_id, kernel_objects, pages};
use lives::faults::fails_then_recovers;
use nix::errno::Errno;

pub(crate) const STRATEGY: Strategy = Strategy::Window;

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_are_windows() {
    let lab = Lab::open();
    println!("{:?}", lab.rdma.inventory());
    assert_eq!(lab.rdma.inventory().strategy, RdmaStrategy::Window);
    lab.close();
}

#[test]
fn a_device_asked_for_by_name_must_be_there() {
    let config = fabricbios_rdma::RdmaConfig {
        device: Some("nosuch0".into()),
        arenas: [(
            lab::RESOURCE,
            Arc::new(Arena::open(&Source::default(), PAGE).unwrap()),
        )]
        .into(),
        strategy: STRATEGY,
    };
    let error = fabricbios_rdma::RdmaPath::open(config).unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_window_that_cannot_be_taken_away_fails_the_cut() {
    fails_then_recovers(&["local_inv", "dealloc_mw"], "dealloc_mw");
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn an_invalidated_window_is_proof_enough_and_release_takes_it_away() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut tenant, rdma) = lab.grant(1, pages(0, 1));
    lab.fail_next(&["dealloc_mw"]);
    let proof = lab.cut(binding_id(1, 1));
    assert!(
        proof.contains("local_inv ok") && proof.contains("dealloc_mw EIO"),
        "{proof}"
    );
    assert!(
        tenant
            .write(rdma.rkey.unwrap(), rdma.remote_addr, &[1])
            .is_err()
    );
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    tenant.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}

/// soft-RoCE waits 50 s for a bound window whose queue pair is destroyed.
#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_is_not_destroyed_while_a_window_may_be_bound_to_it() {
    let _turn = lab::turn();
    let before = kernel_objects();
    let objects = Objects::open();
    let [used, other] = [objects.queue_pair(), objects.queue_pair()];
    let mut windows = [(); 2].map(|()| used.window_maker().alloc().unwrap());

    let of_other = objects.bind(&other, &mut windows[0]);
    assert_eq!(of_other, Err(WorkError::Post(Errno::EINVAL)));
    other.destroy().unwrap();

    windows
        .iter_mut()
        .for_each(|it| objects.bind(&used, it).unwrap());
    let (used, busy) = used.destroy().unwrap_err();
    assert_eq!(busy, Errno::EBUSY);
    let [mut invalid, gone] = windows;
    used.post_invalidate(WORK, invalid.rkey()).unwrap();
    objects.completions.wait(WORK, LIMIT).unwrap();
    invalid.set_invalid();
    let (used, busy) = used.destroy().unwrap_err();
    assert_eq!(busy, Errno::EBUSY);
    gone.dealloc().unwrap();
    used.destroy().unwrap();
    invalid.dealloc().unwrap();
    objects.close();
    assert_eq!(kernel_objects(), before);
}

const WORK: u64 = 1;
const LIMIT: Duration = Duration::from_secs(30);

/// What queue pairs need, without a path.
struct Objects {
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    region: MemoryRegion,
    completions: CompletionQueue,
    gid: [u8; 16],
}

impl Objects {
    fn open() -> Self {
        let client = lab::client();
        let gid = client.peer().gid;
        client.close().unwrap();
        let context = DeviceList::get().unwrap().open("rxe0").unwrap();
        let domain = ProtectionDomain::alloc(&context).unwrap();
        let arena = Arc::new(Arena::open(&Source::default(), PAGE).unwrap());
        let access = Access::UnderWindows;
        Self {
            region: MemoryRegion::register(&domain, &arena, (0, PAGE), access).unwrap(),
            completions: CompletionQueue::create(&context, 8).unwrap(),
            context,
            domain,
            gid,
        }
    }

    /// A queue pair that is connected to itself.
    fn queue_pair(&self) -> QueuePair {
        let sizes = QueueSizes {
            send: 4,
            receive: 1,
        };
        let made = QueuePair::create(&self.domain, &self.completions, sizes).unwrap();
        let itself = Connection {
            local: Local {
                port: 1,
                gid_index: 1,
                psn: 0,
            },
            remote: Remote {
                qp_num: made.number(),
                psn: 0,
                gid: self.gid,
            },
            mtu_bytes: 1024,
            responder_reads: 1,
            initiator_reads: 1,
        };
        made.init(1, Rights::ReadWrite).unwrap();
        made.ready_to_receive(&itself).unwrap();
        made.ready_to_send(&itself).unwrap();
        made
    }

    fn bind(&self, queue_pair: &QueuePair, window: &mut Window) -> Result<(), WorkError> {
        let key = window.rkey() ^ 1;
        let range = (self.region.arena().mapping().address(), PAGE);
        queue_pair
            .post_bind(WORK, window, key, &self.region, range, Rights::ReadWrite)
            .map_err(WorkError::Post)?;
        self.completions.wait(WORK, LIMIT)?;
        window.set_rkey(key);
        Ok(())
    }

    fn close(self) {
        self.completions.destroy().unwrap();
        self.region.dereg().unwrap();
        let domain = Arc::into_inner(self.domain).unwrap();
        domain.dealloc().unwrap();
        Arc::into_inner(self.context).unwrap().close().unwrap();
    }
}
