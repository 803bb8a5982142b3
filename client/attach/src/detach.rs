//! Asks the block daemon of a lease to detach the device, or detaches the device itself if there is no daemon.

use std::path::PathBuf;

use crate::{
    attach::need_root,
    control_socket::{self, ControlCommand},
    error::AttachError,
    in_use,
    nvme::{NvmeHost, disconnect},
    record::{AttachRecord, LeaseFiles},
};

/// Detaches a lease without asking the node, which may be gone. Returns the path of the device that was detached.
///
/// # Errors
/// If the caller is not root, if the lease is not attached, if its device is in use, or if this machine fails to detach it.
pub fn detach(files: &LeaseFiles) -> Result<String, AttachError> {
    need_root()?;
    files.check_dir()?;
    let path = files.socket();
    match control_socket::ask(&path, ControlCommand::Detach) {
        Ok(Some(answer)) => answer.map_err(AttachError::NotDetached),
        Ok(None) => without_daemon(files),
        Err(error) => Err(AttachError::local(
            format!(
                "hear from the block daemon at {}; it may still be detaching",
                path.display()
            ),
            error,
        )),
    }
}

/// Detaches after the daemon was killed: the record names the device. A running daemon has the record locked.
fn without_daemon(files: &LeaseFiles) -> Result<String, AttachError> {
    if !files.record().exists() {
        return Err(AttachError::NotAttached(files.record()));
    }
    let lock = files.lock()?;
    let Some(record) = files.read()? else {
        lock.remove();
        return Err(AttachError::NotAttached(files.record()));
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
fn recorded_device(host: &NvmeHost, record: &AttachRecord) -> Result<Option<PathBuf>, AttachError> {
    match (&record.device, &record.nvmeof) {
        (None, Some(target)) => Ok(host.device(target)?),
        (device, _) => Ok(device.clone()),
    }
}
