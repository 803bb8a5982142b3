//! A lease's blocks over UDP as a device of this machine: the kernel's NBD driver at one end of a socket,
//! the lease's client at the other.
//!
//! The device never hangs: what the node does not answer fails after the client's patience, and when the
//! lease is over everything fails at once and the device goes.

mod device;
mod protocol;
mod server;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use fabricbios_client::{BlockClient, BlockLease};

use self::{
    device::Device,
    server::{End, Server},
};
use super::block::wait_for;
use crate::failure::Failure;

/// The kernel sets a device up at once.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// A device that a thread of this process serves.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    path: PathBuf,
    /// Closing it asks the thread to stop.
    stop: UnixStream,
    thread: JoinHandle<Result<End, Failure>>,
}

impl NbdDevice {
    /// Makes a device of a lease; it needs root. The lease's keys are followed for as long as the device
    /// is there.
    pub(crate) fn attach(lease: BlockLease) -> Result<Self, Failure> {
        let client = lease.open_blocks()?;
        let (stop, stopped) = pair()?;
        let (told, ready) = mpsc::channel();
        let serving = move || {
            let outcome = serve(client, |path| drop(told.send(path.to_owned())), &stopped);
            drop(lease);
            outcome
        };
        let thread = thread::spawn(serving);
        match ready.recv() {
            Ok(path) => Ok(Self { path, stop, thread }),
            // It ended without having had a device.
            Err(_gone) => Err(joined(thread)
                .err()
                .unwrap_or_else(|| Failure::local("make a device", &"it was gone at once"))),
        }
    }

    /// Whether this kernel has the driver, loaded or built in.
    pub(crate) fn has_driver() -> bool {
        Path::new("/sys/block/nbd0").exists()
    }

    /// `/dev/nbdN`
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has gone by itself: the lease is over, or somebody disconnected it.
    pub(crate) fn is_gone(&self) -> bool {
        self.thread.is_finished()
    }

    /// Takes it away, after all that was asked of it is done and durable. `Err`: not all of it is. The
    /// device is gone in any case, also if it had gone before.
    pub(crate) fn detach(self) -> Result<(), Failure> {
        drop(self.stop);
        match joined(self.thread)? {
            End::Stopped(Ok(())) | End::Disconnected => Ok(()),
            End::Stopped(Err(error)) | End::Lost(error) => {
                Err(Failure::local("make durable what was written", &error))
            }
        }
    }
}

/// Makes a device and serves it on this thread until `stop` is readable or closed, the lease is over, or
/// somebody disconnects it. `on_ready` gets its path as soon as it can be opened; reads of it are answered
/// after that.
fn serve(
    client: BlockClient,
    on_ready: impl FnOnce(&Path),
    stop: impl AsFd,
) -> Result<End, Failure> {
    let (ours, kernels) = pair()?;
    let device = Device::open(&kernels, client.geometry())?;
    drop(kernels);
    let served = run(&device, client, ours, on_ready, stop);
    served.map_err(|error| Failure::local(&format!("serve {}", device.path.display()), &error))
}

fn run(
    device: &Device,
    client: BlockClient,
    ours: UnixStream,
    on_ready: impl FnOnce(&Path),
    stop: impl AsFd,
) -> io::Result<End> {
    let running = device.try_clone()?;
    let driver = thread::spawn(move || running.run());
    let look = || Ok::<_, io::Error>((device.is_ready() || driver.is_finished()).then_some(()));
    wait_for(APPEARS_WITHIN, look)?;
    let end = if device.is_ready() {
        on_ready(&device.path);
        Server::new(client, ours).and_then(|server| server.run(stop))
    } else {
        drop(ours);
        Err(io::Error::other("the kernel did not start it"))
    };
    // The socket is closed by now: whatever the kernel still has for it fails.
    device.disconnect();
    device.clear();
    let ran = driver.join();
    match (end, ran) {
        (Err(_), Ok(Err(error))) => Err(error),
        (end, _) => end,
    }
}

fn pair() -> Result<(UnixStream, UnixStream), Failure> {
    UnixStream::pair().map_err(|error| Failure::local("make a socket", &error))
}

fn joined(thread: JoinHandle<Result<End, Failure>>) -> Result<End, Failure> {
    let panicked = |_| Err(Failure::local("serve a device", &"its thread panicked"));
    thread.join().unwrap_or_else(panicked)
}
