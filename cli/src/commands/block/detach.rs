//! `block detach`: asks the keeper of a lease to take the device away, or does it in its place.

use std::path::Path;

use fabricbios_wire::RefusalClass;
use serde::Serialize;

use super::{
    in_use, need_root,
    nvme_device::disconnect,
    nvme_host::NvmeHost,
    record::Files,
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

/// The keeper was killed: its record says what is left.
fn without_keeper(files: &Files) -> Result<String, Failure> {
    let Some(record) = files.read()? else {
        return Err(not_attached(files));
    };
    let lock = files.lock()?;
    in_use::check(&record.device)?;
    if let Some(target) = &record.nvmeof {
        disconnect(&NvmeHost::this_machine(), target)?;
    }
    lock.remove();
    Ok(device_text(&record.device))
}

fn device_text(device: &Path) -> String {
    device.display().to_string()
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
