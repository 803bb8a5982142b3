//! Removes a namespace in a helper process, because the removal may wait for ever.
//!
//! The kernel waits uninterruptibly and without limit for all I/O of the namespace (`nvmet_ns_disable`). Meanwhile no
//! other process should read the directory `namespaces` of the subsystem. `enable` is never set to 0: that waits as
//! long, and holds a lock that every other subsystem needs.

use std::{cell::RefCell, ffi::OsString, fs, path::Path};

use fabricbios_helper::{Call, Caller, Failure, Supervisor};
use fabricbios_kernfs::Tree;
use serde::{Deserialize, Serialize};

use super::objects::{ObjectError, SILENCE_MAX};

/// Removes the namespace at this path, if it exists.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RemoveNamespace(OsString);

impl Call for RemoveNamespace {
    const NAME: &'static str = "rmdir";
    type Answer = ();

    /// First waits for an earlier process that removes the same namespace, also one of an earlier run of the node. A
    /// second process in the kernel would only wait behind it, and could not be killed either. Reports what it waits
    /// for.
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

/// Removes the namespace at `path`. An error names `device` and the device that the helper process found, and says what
/// the process waits for.
pub(super) fn remove(
    tree: &Tree,
    supervisor: &Supervisor,
    path: &str,
    device: Option<&Path>,
) -> Result<(), ObjectError> {
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
        let error = ObjectError::from(error);
        ObjectError {
            detail: format!("{}: {error}", known.borrow().join(", ")),
            ..error
        }
    })
}
