//! The process of a session. It holds the one context of a lease and serves the tenant's streams; the daemon passes
//! their bytes on unread. So a module or a kernel that breaks the vendor's driver breaks only this process.
//!
//! The worker reads its order ([`WorkerOrder`]) and a listening socket from standard input, isolates itself from the
//! machine's files, becomes another user, opens the context, gives up all other rights, answers, and serves. The worker
//! outlives the daemon, and the next daemon finds its socket. The worker ends with the session. If everything of the
//! tenant was wiped, the worker has written the session's number to its original standard output before.

mod connection;
mod engine;
mod files;
mod filter;
mod image;
mod launch;
mod modules;
mod order;
mod queue;
mod refusal;
mod sandbox;
mod server;
mod share;
mod start;
mod trial;

use std::{
    fs::File,
    io::{stdin, stdout},
    os::{fd::AsFd, unix::net::UnixListener},
    process::ExitCode,
    sync::Arc,
};

use fabricbios_channel::Channel;
use nix::{sys::socket::MsgFlags, unistd::dup2_stdout};

pub(crate) use files::{LIBRARY_PATH, STAND_INS};
pub use order::WorkerOrder;
pub(crate) use sandbox::THREADS_MAX;
pub use trial::Trial;

use self::{engine::Engine, files::Files, server::Server, start::StartError};
use crate::driver::Driver;

/// Serves the session in the order on standard input, until the session ends. The process must have one thread, and
/// must not have loaded anything of the vendor's. The answer to the order is a `Result<Vec<String>, String>`: the parts
/// of the isolation that this machine does not allow, or why the worker does not serve.
///
/// Exit status 0: the session was closed and everything wiped. 3: the context was lost, or memory could not be wiped.
/// 1: the session did not begin.
#[must_use]
pub fn worker_main() -> ExitCode {
    let left = sandbox::leave_daemon();
    // If this fails, no channel is left for an error: the caller sees that it is closed.
    let Ok(socket) = stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let mut channel = Channel::over(WorkerOrder::CHANNEL, socket);
    let started = left
        .and_then(|()| take_stdout())
        .and_then(|mark| start(&mut channel, mark));
    let answer = started
        .as_ref()
        .map(|(_, _, lacks)| lacks)
        .map_err(ToString::to_string);
    let sent = channel.send(&answer, None, MsgFlags::empty());
    match started {
        Ok((server, listener, _)) if sent.is_ok() => server.serve(&listener),
        _ => ExitCode::FAILURE,
    }
}

/// The file that was standard output. Standard output itself leads nowhere from now on, because the driver writes the
/// output of kernels there.
fn take_stdout() -> Result<File, StartError> {
    let taken = stdout().as_fd().try_clone_to_owned().and_then(|mark| {
        dup2_stdout(File::options().write(true).open("/dev/null")?)?;
        Ok(File::from(mark))
    });
    taken.map_err(StartError::Output)
}

type Started = (Arc<Server>, UnixListener, Vec<String>);

fn start(channel: &mut Channel, mark: File) -> Result<Started, StartError> {
    let order = channel.receive::<WorkerOrder>();
    let order = order.map_err(StartError::Receive)?;
    let order = order.ok_or(StartError::Lacks("order came"))?;
    let listener = channel.take_descriptor();
    let listener = listener.ok_or(StartError::Lacks("socket came with the order"))?;
    let mut lacks = sandbox::separate();
    let device = &order.device;
    Files::of(&order.libraries, &device.nodes).shut_in()?;
    let failed = |error| StartError::Context {
        uuid: device.uuid.clone(),
        error,
    };
    // The library is loaded now, because the worker's user may not be able to read it.
    let driver = Driver::load(&order.libraries, device.vendor, &device.visible).map_err(failed)?;
    // The user changes before the context opens, because the driver gives a context the rights of its process: root's
    // context may have privileged channels.
    lacks.extend(sandbox::become_user(order.uid, &order.gids)?);
    let context = driver.open(&device.uuid).map_err(failed)?;
    sandbox::close()?;
    let server = Arc::new(Server::new(Engine::new(order, context), mark));
    Ok((server, UnixListener::from(listener), lacks))
}
