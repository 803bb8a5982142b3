//! The blocks of a lease over UDP as a device of this machine: the NBD driver of the kernel has one end of a socket, the
//! client of the lease the other end.
//!
//! The device never hangs: requests that the node does not answer fail when the client gives up. When the lease is
//! over, all requests fail at once and the device is removed.

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
    device::DriverDevice,
    server::{End, Server},
};
use crate::{error::AttachError, wait::wait_for};

/// Longest time until the kernel has set up a device, which is usually immediate.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// A device that a thread of this process serves.
#[derive(Debug)]
pub(crate) struct NbdDevice {
    path: PathBuf,
    /// Closing this end stops the thread.
    stop: UnixStream,
    thread: JoinHandle<Result<End, AttachError>>,
}

impl NbdDevice {
    /// Makes a device of a lease; this needs root. The device follows the keys of the lease.
    pub(crate) fn attach(lease: BlockLease) -> Result<Self, AttachError> {
        let client = lease.open_blocks()?;
        let (stop, stopped) = pair()?;
        let (made, ready) = mpsc::channel();
        let serving = move || {
            let outcome = serve(client, |path| drop(made.send(path.to_owned())), &stopped);
            drop(lease);
            outcome
        };
        let thread = thread::spawn(serving);
        match ready.recv() {
            Ok(path) => Ok(Self { path, stop, thread }),
            // The thread ended before there was a device.
            Err(_gone) => Err(joined(thread)
                .err()
                .unwrap_or_else(|| AttachError::local("make a device", "it was gone at once"))),
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

    /// Whether the device has disappeared: the lease is over, or another program disconnected it.
    pub(crate) fn is_gone(&self) -> bool {
        self.thread.is_finished()
    }

    /// Removes the device after all requests are done and durable. `Err`: some writes may be lost. The device is gone in
    /// any case.
    pub(crate) fn detach(self) -> Result<(), AttachError> {
        drop(self.stop);
        match joined(self.thread)? {
            End::Stopped(Ok(())) | End::Disconnected => Ok(()),
            End::Stopped(Err(error)) | End::Lost(error) => {
                Err(AttachError::local("make durable what was written", error))
            }
        }
    }
}

/// Makes a device and serves it on this thread until `stop` is readable or closed, the lease is over, or another program
/// disconnects the device. `on_ready` gets the path when the device can be opened; its requests are answered after that.
fn serve(
    client: BlockClient,
    on_ready: impl FnOnce(&Path),
    stop: impl AsFd,
) -> Result<End, AttachError> {
    let (ours, kernels) = pair()?;
    let device = DriverDevice::open(&kernels, client.geometry())?;
    drop(kernels);
    let served = run(&device, client, ours, on_ready, stop);
    served.map_err(|error| AttachError::local(format!("serve {}", device.path.display()), error))
}

fn run(
    device: &DriverDevice,
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
    // The socket is closed now, so all further requests of the kernel fail.
    device.disconnect();
    device.clear();
    let ran = driver.join();
    match (end, ran) {
        (Err(_), Ok(Err(error))) => Err(error),
        (end, _) => end,
    }
}

fn pair() -> Result<(UnixStream, UnixStream), AttachError> {
    UnixStream::pair().map_err(|error| AttachError::local("make a socket", error))
}

fn joined(thread: JoinHandle<Result<End, AttachError>>) -> Result<End, AttachError> {
    let panicked = |_| Err(AttachError::local("serve a device", "its thread panicked"));
    thread.join().unwrap_or_else(panicked)
}
