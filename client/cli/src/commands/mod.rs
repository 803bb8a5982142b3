//! The commands: requests to the node, and the output of its replies.

mod alloc;
mod block;
mod bulk;
mod debug_bundle;
mod discover;
mod fabric;
mod fence;
mod fleet_leases;
mod gpu;
mod health;
mod identity;
mod inventory;
mod keep;
mod lease;
mod local;
mod mem;
mod mooncake;
mod node;
mod perftest;
mod resource;
mod run_watch;
mod serve;
mod stream;
mod watch;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fabricbios_client::{Identity, Node, NodeId};
use fabricbios_wire::{Reply, Request};

use crate::{
    args::{self, Args, Block, Command, Lease},
    failure::Failure,
    hint::Topic,
    json::{Object, field},
    output::{Output, one_line},
    signals,
};

pub(crate) use alloc::request_of;
pub(crate) use resource::{all as all_resources, not_found};

const NO_IDENTITY: &str = "no identity given; pass --identity FILE or set FABRICBIOS_IDENTITY: the \
    daemon wrote the first one to admin.identity in its state directory, such as /var/lib/fabricbios/admin.identity";

/// Connects to the node, runs the command and closes the connection.
pub(crate) fn run(args: Args, output: Output) -> Result<(), Failure> {
    let Args {
        node,
        node_id,
        identity,
        patience_secs,
        command,
        ..
    } = args;
    let access = Access {
        node,
        node_id,
        identity: identity.filter(|path| !path.as_os_str().is_empty()),
        patience: Duration::from_secs(patience_secs.into()),
    };
    // These commands use this machine only, as the user who runs them.
    let command = match command {
        Command::Block(Block::Detach(place)) => return block::detach(&place, output),
        Command::Run(what) => return local::run(what, &access, output),
        Command::RunWatch(what) => return run_watch::run(&what, &access, output),
        Command::Lease(Lease::Enter(what)) => return local::enter(what, output),
        Command::Fabric(what) => return fabric::run(what, output),
        Command::DebugBundle(what) => return debug_bundle::run(&what, &access, output),
        Command::Page(what) => return page(&what.state_dir, output),
        Command::Discover(what) => return discover::run(&what, access.identity()?, output),
        Command::Identity(args::Identity::Issue {
            tenant,
            role,
            days,
            out,
            fabric_dir: Some(directory),
        }) => return identity::issue_here(&directory, (tenant, role, days), &out, output),
        Command::Health => return health::run(&access, output),
        Command::Gpu(what) if what.is_local() => return gpu::run(None, what, output),
        other => other,
    };
    let ends_by_signal = matches!(
        command,
        Command::Block(Block::Keep(_))
            | Command::Lease(Lease::Keep { .. })
            | Command::Mooncake(_)
            | Command::Perftest(_)
    );
    if ends_by_signal {
        let held = signals::hold();
        held.map_err(|error| Failure::local("hold back signals", &error))?;
    }
    let path = access.identity()?;
    let identity = Identity::load(path)?;
    if !output.json {
        warn_of_readers(path);
    }
    let node = access.connect_as(&identity)?;
    let topic = match node.is_scheduler() {
        true => Topic::Scheduler,
        false => Topic::from(&command),
    };
    let done = dispatch(&node, path, command, output).map_err(|failure| failure.with_hint(topic));
    node.close();
    done
}

/// How the node is reached.
#[derive(Clone)]
struct Access {
    node: String,
    node_id: Option<NodeId>,
    identity: Option<PathBuf>,
    patience: Duration,
}

impl Access {
    fn identity(&self) -> Result<&Path, Failure> {
        let given = self.identity.as_deref();
        given.ok_or_else(|| Failure::usage(NO_IDENTITY))
    }

    fn connect(&self) -> Result<Node, Failure> {
        self.connect_as(&Identity::load(self.identity()?)?)
    }

    fn connect_as(&self, identity: &Identity) -> Result<Node, Failure> {
        Ok(Node::connect_to(
            &self.node,
            identity,
            self.node_id,
            self.patience,
        )?)
    }
}

/// Warns if other users can read the identity file. Not with `--json`, where standard error has only the object of a
/// failure.
fn warn_of_readers(identity: &Path) {
    let Ok(found) = fs::metadata(identity) else {
        return;
    };
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = identity.display();
        let line = format!(
            "fabricctl: identity {path} has mode {mode:04o}, and whoever reads the file can act as you: chmod 600 {path}"
        );
        // Standard error may be closed.
        writeln!(io::stderr(), "{line}").ok();
    }
}

/// Prints the address to log in at, which the node wrote at its start.
fn page(state_dir: &Path, output: Output) -> Result<(), Failure> {
    let file = state_dir.join("page.url");
    let url = fs::read_to_string(&file).map_err(|error| {
        let what = format!(
            "read {} as the user of a daemon that serves its page with --metrics-listen",
            file.display()
        );
        Failure::local(&what, &error)
    })?;
    let json = Object::from([field("url", url.trim())]);
    output.print(&json, || url.trim().to_owned())
}

fn dispatch(node: &Node, identity: &Path, command: Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Ping => ping(node, output),
        Command::Inventory => inventory::show(node, output),
        Command::Lease(command) => lease::run(node, command, output),
        Command::Mem(command) => mem::run(node, command, output),
        Command::Mooncake(what) => mooncake::run(node, what, output),
        Command::Block(command) => block::run(node, identity, command, output),
        Command::Gpu(command) => gpu::run(Some(node), command, output),
        Command::Perftest(what) => perftest::run(node, &what, output),
        // Handled above.
        Command::Run(_)
        | Command::RunWatch(_)
        | Command::Fabric(_)
        | Command::Discover(_)
        | Command::Health
        | Command::DebugBundle(_)
        | Command::Page(_) => Ok(()),
        Command::Node(command) => node::run(node, command, output),
        Command::Fence(command) => fence::run(node, command, output),
        Command::Identity(command) => identity::run(node, identity, command, output),
    }
}

/// Limit for the inventory: the part of the node that makes it may be held up while the rest of the node answers.
const HEALTH_WITHIN: Duration = Duration::from_secs(5);

/// Asks the node on a thread of its own, which ends with the process. `None`: there is no answer within this time.
fn within<T: Send + 'static>(
    patience: Duration,
    node: &Node,
    ask: impl FnOnce(&Node) -> T + Send + 'static,
) -> Option<T> {
    let node = node.clone();
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || answer.send(ask(&node)).ok());
    answered.recv_timeout(patience).ok()
}

/// The health of the node and its reason; `unknown` if the node does not report it.
fn health(node: &Node) -> (String, Option<String>) {
    let unknown = |why: String| ("unknown".to_owned(), Some(why));
    match within(HEALTH_WITHIN, node, Node::inventory) {
        Some(Ok(inventory)) => (inventory.health.to_string(), inventory.health_reason),
        Some(Err(error)) => unknown(format!("no inventory: {error}")),
        None => unknown(format!("no inventory within {} s", HEALTH_WITHIN.as_secs())),
    }
}

fn ping(node: &Node, output: Output) -> Result<(), Failure> {
    const NUMBER: u64 = 0x6661_6272_6963;
    let asked_at = Instant::now();
    match node.call(Request::Ping(NUMBER))? {
        Reply::Pong(NUMBER) => {}
        other => return Err(node.unexpected("the same number", &other).into()),
    }
    let round_trip_us = u64::try_from(asked_at.elapsed().as_micros()).unwrap_or(u64::MAX);
    let (health, health_reason) = health(node);
    let pong = Object::from([
        field("node", node.address()),
        field("round_trip_us", round_trip_us),
        field("health", &*health),
        field("health_reason", health_reason.as_deref()),
    ]);
    output.print(&pong, || {
        let why = match (health_reason.as_deref().map(one_line), &*health) {
            (Some(why), _) => format!(": {why}"),
            (None, "ok") => String::new(),
            (None, _) => "; see `fabricctl inventory`".to_owned(),
        };
        let node = node.address();
        format!("{node} answers after {round_trip_us} µs, health {health}{why}")
    })
}
