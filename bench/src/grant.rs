//! The cost of leasing: a durable grant, requested by the SDK over loopback QUIC, against a PING over the same
//! connection followed by one write and fdatasync, as the group commit of the grant issues them (docs/decisions/0046).
//!
//! The leased memory is a fake without hardware, so the bench measures only the control plane: TLS, codec,
//! table, journal, and the messages between their threads.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use fabricbios_client::{Identity, Node};
use fabricbios_control::Membership;
use fabricbios_fabric::Fabric;
use fabricbios_helper::{InFlight, Program};
use fabricbios_node::{
    journal::past::Past, kinds::gpu::GpuParts, kinds::memory, process::service::Service,
    settings::Settings,
};
use fabricbios_testbed::fakes::FakeMemory;
use fabricbios_wire::{LeaseAllocRequest, Request, ResourceId, ResourceType};

use crate::{
    bare_file::Bare,
    figure::Figure,
    pairs::interleaved_pairs,
    place::{place_in, runtime},
};

const ARENA: ResourceId = ResourceId(1);
const LEASE_BYTES: u64 = 4096;
/// What the commit of a grant writes.
const COMMIT_BYTES: usize = 512;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Directory of the journal; a file system in memory makes the result worthless
    #[arg(long, default_value = "target", value_name = "DIRECTORY")]
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let place = place_in(&options.dir)?;
    let mut bare = Bare::create(&place.path().join("bare"), COMMIT_BYTES)?;
    let runtime = runtime()?;
    let _inside = runtime.enter();
    let (mut service, node) = start(&place.path().join("state"))?;
    let grant = || {
        let start = Instant::now();
        let lease = node.alloc(request())?;
        let took = start.elapsed();
        node.call(Request::LeaseFree(lease.lease_id))?;
        Ok(took)
    };
    let floor = || {
        let start = Instant::now();
        node.call(Request::Ping(1))?;
        let round_trip: Duration = start.elapsed();
        Ok(round_trip + bare.sync()?)
    };
    let pairs = interleaved_pairs(usize::from(options.rounds), grant, floor)?;
    println!("directory {}", options.dir.display());
    let peer = format!("PING + write {COMMIT_BYTES} bytes, fdatasync");
    pairs.print("durable grant", &peer);
    Figure::record_times("grant/one-sync", "durable grant", &pairs, &peer)?;
    service.drain();
    Ok(())
}

fn start(state_dir: &Path) -> anyhow::Result<(Service, Node)> {
    std::fs::create_dir(state_dir)?;
    let mut settings = Settings::default();
    settings.kinds.shared.state_dir = Some(state_dir.into());
    settings.kinds.shared.listen = Some("127.0.0.1:0".parse()?);
    let memory = Arc::new(FakeMemory::new(ARENA, 1 << 30));
    let offered = memory::offered(memory.offer(), memory.provider(), 1 << 30);
    let fabric = Fabric::open_or_create(state_dir, SystemTime::now())?;
    let admin = fabric
        .admin_identity()
        .ok_or_else(|| anyhow::anyhow!("a node alone has an operator"))?
        .to_owned();
    let service = Service::start(
        &settings,
        &Membership::new(fabric),
        Past::open(&Program::of_this_process()?, &settings)?,
        vec![offered],
        GpuParts::default(),
        Vec::new(),
        InFlight::default(),
    )?;
    let identity = Identity::load(admin)?;
    let node = Node::connect(&service.local_addr().to_string(), &identity)?;
    Ok((service, node))
}

fn request() -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_id: Some(ARENA),
        ..LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, 60)
    }
}
