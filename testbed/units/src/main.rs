//! `fabricbios-test-units`: a node that leases units and nothing else. `fabricbiosd` knows nothing of it.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
    time::SystemTime,
};

use anyhow::Context;
use clap::{Args, Parser};
use fabricbios_contract::{
    DataPath, Provider, Store,
    remote::{RemotePath, RemoteStore, serve_path, serve_store},
};
use fabricbios_control::Fabric;
use fabricbios_helper::Program;
use fabricbios_node::{
    config::Settings,
    detect::{Detected, resource_id},
    inventory::{Described, ResourceStatus, describe},
    journal,
    past::Past,
    providers::{Continuity, Offered},
    service::Service,
};
use fabricbios_test_units::{UnitPath, UnitStore, offer};
use fabricbios_wire::{NodeId, ResourceInventory, ResourceType, Transport};
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "units0";

/// What to run.
#[derive(Parser)]
enum Command {
    /// The node. READY, the address and the processes of --apart on standard output mean that it serves.
    Serve(Arguments),
    /// The store, for the node that is at the other end of standard input.
    Store(Arguments),
    /// The path, likewise.
    Path(Arguments),
    /// What writes the journal.
    Journal(journal::Arguments),
}

#[derive(Args, Clone)]
struct Arguments {
    /// Identities and the journal.
    #[arg(long)]
    state_dir: PathBuf,
    /// Units, whose they are, and the sockets of leases.
    #[arg(long)]
    directory: PathBuf,
    /// How many there are.
    #[arg(long, default_value_t = 4)]
    units: u32,
    /// So many leases may share one.
    #[arg(long, default_value_t = 2)]
    sharers: u32,
    /// The store and the path have processes of their own.
    #[arg(long)]
    apart: bool,
}

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    match Command::parse() {
        Command::Serve(arguments) => serve(&arguments),
        Command::Store(arguments) => Ok(serve_store(other_end()?, &arguments.store()?)?),
        Command::Path(arguments) => Ok(serve_path(other_end()?, &arguments.path()?)?),
        Command::Journal(arguments) => journal::journal_main(&arguments),
    }
}

fn other_end() -> io::Result<UnixStream> {
    io::stdin().as_fd().try_clone_to_owned().map(Into::into)
}

impl Arguments {
    fn store(&self) -> io::Result<Arc<dyn Store>> {
        let store = UnitStore::open(&self.directory, self.units, self.sharers as usize)?;
        Ok(Arc::new(store))
    }

    fn path(&self) -> io::Result<Arc<dyn DataPath>> {
        Ok(Arc::new(UnitPath::open(&self.directory.join("sockets"))?))
    }

    /// A process that is one of the two, and this end of its socket.
    fn start(&self, program: &Program, what: &str) -> io::Result<(Child, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        let mut command = program.command();
        command.arg(what);
        command.arg("--state-dir").arg(&self.state_dir);
        command.arg("--directory").arg(&self.directory);
        command.arg("--units").arg(self.units.to_string());
        command.arg("--sharers").arg(self.sharers.to_string());
        let child = command.stdin(Stdio::from(OwnedFd::from(there))).spawn()?;
        Ok((child, here))
    }

    /// What the node is given of this kind.
    fn offered(&self, node_id: NodeId, store: Arc<dyn Store>, path: Arc<dyn DataPath>) -> Offered {
        let id = resource_id(&node_id, ResourceType::Cpu, NAME);
        let provider = Provider::new()
            .with_store(id, store)
            // What a lease without a transport goes over.
            .with_path("units", &[Transport::Auto], path);
        let offer = offer(id, self.units, self.sharers);
        let mut offered = Offered::new(
            ResourceType::Cpu,
            offer,
            Arc::new(Units),
            Arc::new(provider),
        );
        for resource in &mut offered.resources {
            // The directory says whose each unit is.
            resource.continuity = Continuity::Known;
        }
        offered
    }
}

/// What inventories say.
#[derive(Debug)]
struct Units;

impl Described for Units {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus) {
        describe(inventory, status, NAME, &[]);
    }

    fn hide(&self, _detected: &mut Detected) {}
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings {
        state_dir: Some(arguments.state_dir.clone()),
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Settings::default()
    };
    let program = Program::of_this_process().context("copy the program that runs")?;
    let mut processes = Vec::new();
    let (store, path): (Arc<dyn Store>, Arc<dyn DataPath>) = if arguments.apart {
        let (child, socket) = arguments.start(&program, "store")?;
        processes.push(child.id());
        let store = RemoteStore::new(socket)?;
        let (child, socket) = arguments.start(&program, "path")?;
        processes.push(child.id());
        (Arc::new(store), Arc::new(RemotePath::new(socket)?))
    } else {
        (arguments.store()?, arguments.path()?)
    };
    let past = Past::open(&program, &settings)?;
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now())?;
    let offered = arguments.offered(fabric.node_id(), store, path);
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut service = Service::start(&settings, &fabric, past, vec![offered])?;
        service.settled().await;
        let processes = processes.iter().map(|it| format!(" {it}"));
        println!(
            "READY {}{}",
            service.local_addr(),
            processes.collect::<String>()
        );
        terminate.recv().await;
        service.drain();
        service.stopped().await?;
        service.close().await;
        anyhow::Ok(())
    })
}
