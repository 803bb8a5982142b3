//! `fabricbios-test-units`: a node that leases only units. `fabricbiosd` contains none of this code.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Child, ExitCode, Stdio},
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
    detect::resource_id,
    detection::Found,
    gpu::GpuParts,
    inventory::{Described, ResourceStatus, describe},
    journal,
    past::Past,
    providers::{Continuity, Offered},
    service::Service,
    watchdog::{Watchdog, watchdog_main},
};
use fabricbios_test_units::{UnitEnd, UnitPath, UnitStore, offer};
use fabricbios_wire::{NodeId, ResourceInventory, ResourceType, Transport};
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "units0";

/// The process to run.
#[derive(Parser)]
enum Command {
    /// The node. READY, the address and the processes of --apart on standard output mean that it serves.
    Serve(Arguments),
    /// The store, for the node at the other end of standard input.
    Store(Arguments),
    /// The path, for the node at the other end of standard input.
    Path(Arguments),
    /// The process that writes the journal.
    Journal(journal::Arguments),
    /// The process that ends leases when the node cannot.
    Watchdog {
        /// The directory of the sockets.
        #[arg(long)]
        cpu: PathBuf,
    },
}

#[derive(Args, Clone)]
struct Arguments {
    /// Directory of identities and journal.
    #[arg(long)]
    state_dir: PathBuf,
    /// Directory of the units, their records, and the sockets of leases.
    #[arg(long)]
    directory: PathBuf,
    /// The number of units.
    #[arg(long, default_value_t = 4)]
    units: u32,
    /// How many leases may share a unit.
    #[arg(long, default_value_t = 2)]
    sharers: u32,
    /// Run the store and the path in separate processes.
    #[arg(long)]
    apart: bool,
    /// Let a watchdog end leases by name while the node is dead or stopped.
    #[arg(long, conflicts_with = "apart")]
    guarded: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let command = Command::parse();
    if let Command::Watchdog { cpu } = command {
        // It logs for itself.
        return Ok(watchdog_main(|_| {
            Ok(vec![(ResourceType::Cpu, Box::new(UnitEnd(cpu)))])
        }));
    }
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    match command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Store(arguments) => Ok(serve_store(other_end()?, &arguments.store()?)?),
        Command::Path(arguments) => {
            let path: Arc<dyn DataPath> = Arc::new(arguments.path()?);
            Ok(serve_path(other_end()?, &path)?)
        }
        Command::Journal(arguments) => journal::journal_main(&arguments),
        Command::Watchdog { .. } => Ok(()),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn other_end() -> io::Result<UnixStream> {
    io::stdin().as_fd().try_clone_to_owned().map(Into::into)
}

impl Arguments {
    fn store(&self) -> io::Result<Arc<dyn Store>> {
        let store = UnitStore::open(&self.directory, self.units, self.sharers as usize)?;
        Ok(Arc::new(store))
    }

    fn sockets(&self) -> PathBuf {
        self.directory.join("sockets")
    }

    fn path(&self) -> io::Result<UnitPath> {
        UnitPath::open(&self.sockets())
    }

    /// Starts the process of the store or the path; returns it with this end of its socket.
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

    /// The kind as the node gets it.
    fn offered(&self, node_id: NodeId, store: Arc<dyn Store>, path: Arc<dyn DataPath>) -> Offered {
        let id = resource_id(&node_id, ResourceType::Cpu, NAME);
        let provider = Provider::new()
            .with_store(id, store)
            // Leases without a transport use this path.
            .with_path("units", &[Transport::Auto], path);
        let offer = offer(id, self.units, self.sharers);
        let mut offered = Offered::new(
            ResourceType::Cpu,
            offer,
            Arc::new(Units),
            Arc::new(provider),
        );
        for resource in &mut offered.resources {
            // The directory records which lease has which unit.
            resource.continuity = Continuity::Known;
        }
        offered
    }
}

/// The entry in inventories.
#[derive(Debug)]
struct Units;

impl Described for Units {
    fn overlay(&self, inventory: &mut ResourceInventory, status: ResourceStatus, _: &Found) {
        describe(inventory, status, NAME, &[]);
    }
}

fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings {
        state_dir: Some(arguments.state_dir.clone()),
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Settings::default()
    };
    let program = Program::of_this_process().context("copy the program that runs")?;
    let watchdog = match arguments.guarded {
        true => Some(Watchdog::new(&program, settings.state_dir())?),
        false => None,
    };
    let mut processes = Vec::new();
    let (store, path): (Arc<dyn Store>, Arc<dyn DataPath>) = if arguments.apart {
        let (child, socket) = arguments.start(&program, "store")?;
        processes.push(child.id());
        let store = RemoteStore::new(socket)?;
        let (child, socket) = arguments.start(&program, "path")?;
        processes.push(child.id());
        (Arc::new(store), Arc::new(RemotePath::new(socket)?))
    } else {
        let mut path = arguments.path()?;
        if let Some(watchdog) = &watchdog {
            watchdog.ends(ResourceType::Cpu, arguments.sockets());
            path = path.guarded_by(watchdog.guard(ResourceType::Cpu));
        }
        (arguments.store()?, Arc::new(path))
    };
    let past = Past::open(&program, &settings)?;
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now())?;
    let mut offered = arguments.offered(fabric.node_id(), store, path);
    offered.watchdog = watchdog;
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut service =
            Service::start(&settings, &fabric, past, vec![offered], GpuParts::default())?;
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
