//! Specifications for container engines (Container Device Interface): a file names the device nodes of a lease.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use serde_json::json;

/// The newest version that Debian's podman 4.3.1 accepts.
const VERSION: &str = "0.5.0";

/// How long a container engine waits for the hook of a specification, in seconds.
const HOOK_WITHIN_SECS: u32 = 20;

/// What a container with the lease gets.
#[derive(Clone, Copy, Debug)]
pub struct Edits<'a> {
    /// Variables (`NAME=VALUE`).
    pub environment: &'a [String],
    /// Device nodes of the host, and the mode that each has in the container. They belong to the container's root.
    pub nodes: &'a [(&'a Path, u32)],
    /// A program of the host and its arguments. The engine runs it before the container's program (`createRuntime`). If
    /// it fails, the engine does not start the container.
    pub hook: &'a [String],
}

/// The specifications of one class of devices, such as `gpu`, in a directory.
#[derive(Clone, Debug)]
pub struct Cdi {
    directory: PathBuf,
    class: &'static str,
}

impl Cdi {
    /// `directory` is in a tmpfs where container engines look, such as `/run/cdi`.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>, class: &'static str) -> Self {
        Self {
            directory: directory.into(),
            class,
        }
    }

    /// The name by which a container engine gets the devices of a lease, such as `fabricbios/gpu=…`.
    #[must_use]
    pub fn device_name(&self, lease: LeaseId) -> String {
        format!("{}={lease}", self.kind())
    }

    /// Writes the specification of the lease. Only this user can read the file: only root's containers may have the
    /// devices.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, lease: LeaseId, edits: &Edits<'_>) -> Result<(), StepError> {
        let Edits {
            environment,
            nodes,
            hook,
        } = *edits;
        let node = |(path, mode): &(&Path, u32)| json!({"path": path, "uid": 0, "gid": 0, "fileMode": mode});
        let nodes: Vec<_> = nodes.iter().map(node).collect();
        let hook = json!({
            "hookName": "createRuntime",
            "path": hook.first(),
            "args": hook,
            "timeout": HOOK_WITHIN_SECS,
        });
        let spec = json!({
            "cdiVersion": VERSION,
            "kind": self.kind(),
            "devices": [{
                "name": lease.to_string(),
                "containerEdits": {"env": environment, "deviceNodes": nodes, "hooks": [hook]},
            }],
        });
        let at = self.file(lease);
        // Container engines ignore files with this extension.
        let new = at.with_extension("new");
        let written = fs::create_dir_all(&self.directory)
            .and_then(|()| unless_gone(fs::remove_file(&new)))
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                options.open(&new)?.write_all(spec.to_string().as_bytes())?;
                fs::rename(&new, &at)
            });
        written.map_err(|error| failed("write CDI spec", &at, &error))
    }

    /// Whether container engines find the lease.
    #[must_use]
    pub fn exists(&self, lease: LeaseId) -> bool {
        self.file(lease).exists()
    }

    /// Removes the specification: no container that is started later gets the devices. Succeeds also if there is no
    /// file.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        let removed = [at.with_extension("new"), at.clone()]
            .iter()
            .try_for_each(|it| unless_gone(fs::remove_file(it)));
        removed.map_err(|error| failed("remove CDI spec", &at, &error))
    }

    fn kind(&self) -> String {
        format!("fabricbios/{}", self.class)
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.directory.join(format!("fabricbios-{lease}.json"))
    }
}

fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    StepError::new(step, format_args!("{}: {error}", at.display())).with_errno(error.raw_os_error())
}
