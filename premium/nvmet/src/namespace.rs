//! Removes a namespace by a process that may wait for ever in our place.
//!
//! The kernel waits for all I/O of the namespace, without a limit and uninterruptibly (`nvmet_ns_disable`).
//! Meanwhile nobody else should look into the subsystem's `namespaces` directory. `enable` is never set to
//! 0: that waits just as long, and with a lock for which every other subsystem then waits.

use std::{cell::RefCell, ffi::OsString, fs, path::Path};

use fabricbios_helper::{Call, Caller, Failure, Supervisor};
use fabricbios_kernfs::Tree;
use serde::{Deserialize, Serialize};

use super::objects::{SILENCE_MAX, Trouble};

/// Removes the namespace at this path. It may be gone already.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RemoveNamespace(OsString);

impl Call for RemoveNamespace {
    const NAME: &'static str = "rmdir";
    type Answer = ();

    /// Waits for an earlier process that is at it, also one of an earlier run of the node: a second one would only wait
    /// behind it, and could not be killed either. Says what it waits for.
    fn make(self, caller: &Caller) -> Result<(), Failure> {
        let path = Path::new(&self.0);
        caller.lock(&path.to_string_lossy(), |pid| {
            caller.progress(format!(
                "process {pid}, started by an earlier try, removes it"
            ))
        })?;
        if let Ok(device) = fs::read_to_string(path.join("device_path")) {
            caller.progress(device.trim_end())?;
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure {
                detail: format!("rmdir {}: {error}", path.display()),
                ..error.into()
            }),
            _ => Ok(()),
        }
    }
}

/// Removes the namespace at `path`. An error names `device`, or the one that is found, and what is waited for.
pub(super) fn remove(
    tree: &Tree,
    supervisor: &Supervisor,
    path: &str,
    device: Option<&Path>,
) -> Result<(), Trouble> {
    let known = device.map(|device| device.display().to_string());
    let known = RefCell::new(Vec::from_iter(known));
    let call = RemoveNamespace(tree.root().join(path).into());
    let note = |what: &str| {
        let mut known = known.borrow_mut();
        if !known.iter().any(|it| it == what) {
            known.push(what.to_owned());
        }
    };
    let removed = supervisor.call(&call, SILENCE_MAX, &note);
    removed.map_err(|error| {
        let trouble = Trouble::from(error);
        Trouble {
            detail: format!("{}: {trouble}", known.borrow().join(", ")),
            ..trouble
        }
    })
}
