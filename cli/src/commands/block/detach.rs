//! `block detach`: asks the keeper of a lease to take the device away, or does it in its place.

use std::path::PathBuf;

use fabricbios_wire::RefusalClass;
use serde::Serialize;

use super::{
    device::failure,
    in_use, need_root,
    nvme_device::disconnect,
    nvme_host::NvmeHost,
    record::{Files, Record},
    socket::{self, Word},
};
use crate::{
    args::Kept,
    failure::{Exit, Failure},
    output::Output,
};

#[derive(Serialize)]
struct Detached {
    lease_id: String,
    device: String,
}

/// Needs no node: a device has to go also when its node is gone.
pub(crate) fn run(place: &Kept, output: Output) -> Result<(), Failure> {
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
    match socket::ask(&path, Word::Detach) {
        Ok(Some(Ok(device))) => Ok(device),
        Ok(Some(Err(why))) => Err(failed("NotDetached", &why)),
        Ok(None) => without_keeper(files),
        Err(error) => Err(Failure::local(
            &format!(
                "hear from the keeper at {}; it may still be at it",
                path.display()
            ),
            &error,
        )),
    }
}

/// The keeper was killed: its record says what is left. One that is still at it has the record locked.
fn without_keeper(files: &Files) -> Result<String, Failure> {
    if !files.record().exists() {
        return Err(not_attached(files));
    }
    let lock = files.lock()?;
    let Some(record) = files.read()? else {
        lock.remove();
        return Err(not_attached(files));
    };
    let host = NvmeHost::this_machine();
    let device = left(&host, &record)?;
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

/// The device that is recorded, or that the kernel has made since.
fn left(host: &NvmeHost, record: &Record) -> Result<Option<PathBuf>, Failure> {
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

fn failed(code: &str, why: &str) -> Failure {
    Failure::new(Exit::Other, RefusalClass::Transient, code, why)
}
