//! The end of leases of cores by name, and of those that an earlier run has left.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use fabricbios_contract::EndByName;
use fabricbios_cpu::{CpuEnd, CpuStore, Root};
use fabricbios_kernfs::Tree;

use crate::kinds::Ending;

/// The file in the state directory with the path of the root cgroup that the last run with `--cpus` used.
pub(super) const LAST_ROOT: &str = "cpu-cgroup";

/// See [`crate::kinds::Kind::end`].
pub(super) fn end(cgroup: &OsStr, _: &Ending<'_>) -> anyhow::Result<Box<dyn EndByName>> {
    let end = CpuEnd::at(Path::new(cgroup))?;
    Ok(Box::new(end))
}

/// Ends the leases in the root cgroup that the last run with `--cpus` used, unless that root cgroup is `at`.
pub(super) fn end_elsewhere(
    last_root: &Path,
    at: &Path,
    end_all: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let last = match fs::read(last_root) {
        Ok(last) => PathBuf::from(OsString::from_vec(last)),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| last_root.display().to_string()),
    };
    if last == at {
        return Ok(());
    }
    end_in(&last, end_all)
}

/// Ends the leases in a root cgroup that this run does not use.
pub(super) fn end_in(
    root: &Path,
    end_all: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    end_all(root).with_context(|| {
        let root = root.display();
        format!(
            "--cpus: an earlier run had its leases of CPU cores in {root}, and they cannot be ended there; start with --cpus, \
             --cpu-cgroup {root} and the rights of that run (its drop-in, if systemd starts the node), or end what is named \
             below and remove {root}"
        )
    })
}

/// Stores the path of the root cgroup for the next start. The cgroups do not outlive the machine, so the file need not
/// be durable.
pub(super) fn record(last_root: &Path, at: &Path) -> anyhow::Result<()> {
    let new = last_root.with_extension("new");
    let open = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new);
    open.and_then(|mut file| file.write_all(at.as_os_str().as_bytes()))
        .and_then(|()| fs::rename(&new, last_root))
        .with_context(|| last_root.display().to_string())
}

/// Ends the leases that an earlier run with `--cpus` has left in this root cgroup.
pub(super) fn end_all(at: &Path) -> anyhow::Result<()> {
    if !at.exists() {
        return Ok(());
    }
    let root = Root::at(at).map_err(|why| anyhow!("{why}"))?;
    CpuStore::end_all(&root, Tree::new("/sys"), Tree::new("/proc"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_root_cgroup_that_is_not_used_any_more_has_its_leases_ended_first() {
        let state_dir = tempfile::tempdir().unwrap();
        let file = state_dir.path().join(LAST_ROOT);
        let nothing = |_: &Path| -> anyhow::Result<()> { panic!("nothing is to be ended") };
        let (old, new) = (Path::new("/cgroup/old"), Path::new("/cgroup/new"));
        end_elsewhere(&file, old, nothing).unwrap();
        record(&file, old).unwrap();
        end_elsewhere(&file, old, nothing).unwrap();
        let fails = |_: &Path| bail!("pid 7 does not die");
        for refused in [end_elsewhere(&file, new, fails), end_in(old, fails)] {
            let error = format!("{:#}", refused.unwrap_err());
            for text in ["--cpu-cgroup /cgroup/old", "pid 7 does not die"] {
                assert!(error.contains(text), "{error}");
            }
        }
        let mut ended = Vec::new();
        let ends = |at: &Path| {
            ended.push(at.to_owned());
            Ok(())
        };
        end_elsewhere(&file, new, ends).unwrap();
        assert_eq!(ended, [old]);
        record(&file, new).unwrap();
        end_elsewhere(&file, new, nothing).unwrap();
    }
}
