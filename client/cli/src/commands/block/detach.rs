//! `block detach`: asks the block daemon of a lease to detach the device, or does it itself if there is no daemon.

use std::path::PathBuf;

use fabricbios_wire::RefusalClass;
use serde::Serialize;

use super::{
    control_socket::{self, ControlCommand},
    device::failure,
    in_use, need_root,
    nvme_device::disconnect,
    nvme_host::NvmeHost,
    record::{Files, Record},
};
use crate::{
    args::RecordedLease,
    failure::{Exit, Failure},
    output::Output,
};

#[derive(Serialize)]
struct Detached {
    lease_id: String,
    device: String,
}

/// Detaches without asking the node, which may be gone.
pub(crate) fn run(place: &RecordedLease, output: Output) -> Result<(), Failure> {
    need_root()?;
    let files = Files::new(&place.attach_dir, place.id);
    let named = |failure: Failure| failure.at(&format!("lease {}", place.id));
    files.check_dir()?;
    let device = detach(&files).map_err(named)?;
    let detached = Detached {
        lease_id: place.id.to_string(),
        device,
    };
    output.print(&detached, || format!("{} is detached", detached.device))
}

fn detach(files: &Files) -> Result<String, Failure> {
    let path = files.socket();
    match control_socket::ask(&path, ControlCommand::Detach) {
        Ok(Some(Ok(device))) => Ok(device),
        Ok(Some(Err(why))) => Err(Failure::new(
            Exit::Other,
            RefusalClass::Transient,
            "NotDetached",
            why,
        )),
        Ok(None) => without_daemon(files),
        Err(error) => Err(Failure::local(
            &format!(
                "hear from the block daemon at {}; it may still be detaching",
                path.display()
            ),
            &error,
        )),
    }
}

/// Detaches after the daemon was killed: the record names the device. A running daemon has the record locked.
fn without_daemon(files: &Files) -> Result<String, Failure> {
    if !files.record().exists() {
        return Err(not_attached(files));
    }
    let lock = files.lock()?;
    let Some(record) = files.read()? else {
        lock.remove();
        return Err(not_attached(files));
    };
    let host = NvmeHost::this_machine();
    let device = recorded_device(&host, &record)?;
    if let Some(device) = &device {
        in_use::check(device)?;
    }
    if let Some(target) = &record.nvmeof {
        disconnect(&host, target)?;
    }
    lock.remove();
    let connection = || "what was connected".to_owned();
    Ok(device.map_or_else(connection, |device| device.display().to_string()))
}

/// The device in the record, or the device that the kernel has made since the record was written.
fn recorded_device(host: &NvmeHost, record: &Record) -> Result<Option<PathBuf>, Failure> {
    match (&record.device, &record.nvmeof) {
        (None, Some(target)) => host.device(target).map_err(failure),
        (device, _) => Ok(device.clone()),
    }
}

fn not_attached(files: &Files) -> Failure {
    let message = format!(
        "it is not attached to this machine: {} is not there; was it attached on another one, or with \
         another --attach-dir?",
        files.record().display()
    );
    let class = RefusalClass::Permanent;
    Failure::new(Exit::NotFound, class, "NotAttached", message)
}
