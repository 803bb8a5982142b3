//! Ownership of a device's own nodes. While the device is on offer, root owns them and no other user may open them; a
//! lease's users may for its term. When the device is no longer on offer, the state found at the start is restored.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use fabricbios_lease::StepError;
use fabricbios_wire::GpuVendor;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Node,
    acl::{Access, OpenNode, Trouble},
    management::Roots,
    record::{Records, read, remove_file, write},
};

/// The options that NVIDIA's driver was loaded with. nvidia-modprobe, which every user may run, resets the mode of the
/// nodes unless `ModifyDeviceFiles` is 0.
const PARAMETERS: &str = "driver/nvidia/params";

/// Held while the lists of nodes are read and written: leases of one device may begin and end at the same time.
static LISTS: Mutex<()> = Mutex::new(());

/// A node, and its access at the start.
#[derive(Serialize, Deserialize)]
struct Found {
    node: Node,
    access: Access,
}

/// Makes root the owner of the device's own nodes. Of the users who may open them now, only those in `users` still may.
///
/// # Errors
/// The nodes cannot be protected; for people. The nodes are as before the call.
pub(crate) fn take(
    records: &Records,
    device: &Device,
    users: &BTreeSet<u32>,
) -> Result<(), String> {
    let own = device.own_nodes();
    let taken = || {
        if own.is_empty() {
            return Err("the node does not know its device nodes".into());
        }
        if device.vendor == GpuVendor::Nvidia {
            check_parameters(&Roots::real())?;
        }
        note(records, device, &own)?;
        for node in &own {
            let node = OpenNode::of(node).map_err(Trouble::text)?;
            let mut stay = node.access()?.users().unwrap_or_default();
            stay.retain(|it| users.contains(it));
            node.admit_only(&stay)?;
        }
        check(&own, users)
    };
    taken().inspect_err(|_| {
        give_back(records, &device.uuid).ok();
    })
}

fn check_parameters(roots: &Roots) -> Result<(), String> {
    let shown = roots.proc.root().join(PARAMETERS);
    let shown = shown.display();
    let hint = "load the module nvidia with NVreg_ModifyDeviceFiles=0";
    let text = roots.proc.read(PARAMETERS);
    let text = text.map_err(|error| format!("{error}: {hint}"))?;
    let mut values = text
        .lines()
        .filter_map(|it| it.strip_prefix("ModifyDeviceFiles:"));
    match values.next().map(str::trim) {
        Some("0") => Ok(()),
        value => Err(format!(
            "{shown} says ModifyDeviceFiles: {}, so every user may have nvidia-modprobe put the mode of its nodes back: {hint}",
            value.unwrap_or("nothing")
        )),
    }
}

/// Records the access of the nodes, unless an earlier run has done so.
fn note(records: &Records, device: &Device, own: &[Node]) -> Result<(), String> {
    let at = records.nodes(&device.uuid);
    let mut all = found(&at).map_err(|error| error.to_string())?;
    for node in own {
        if !all.iter().any(|it| it.node == *node) {
            let access = OpenNode::of(node).map_err(Trouble::text)?.access()?;
            let node = node.clone();
            all.push(Found { node, access });
        }
    }
    let new = records.of_device(&device.uuid, ".new");
    write(&at, &new, &all).map_err(|error| error.to_string())
}

fn found(at: &Path) -> Result<Vec<Found>, StepError> {
    Ok(read(at)?.unwrap_or_default())
}

/// Restores the access from before [`take`]. A node that is gone or replaced stays as it is.
pub(crate) fn give_back(records: &Records, uuid: &str) -> Result<(), StepError> {
    let at = records.nodes(uuid);
    for Found { node, access } in found(&at)? {
        if let Ok(node) = OpenNode::of(&node) {
            let restored = node.restore(&access);
            restored.map_err(|why| StepError::new("give nodes back", why))?;
        }
    }
    remove_file("give nodes back", &at)
}

/// The devices whose nodes an earlier run has taken.
pub(crate) fn taken(records: &Records) -> Vec<String> {
    let entries = fs::read_dir(records.directory()).into_iter().flatten();
    let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
    names
        .filter_map(|it| Some(it.strip_suffix(Records::NODES)?.to_owned()))
        .collect()
}

/// Checks that nobody but root and `allowed` may open the nodes.
///
/// # Errors
/// A node is gone or replaced, or another user may open it; for people.
pub(crate) fn check(nodes: &[Node], allowed: &BTreeSet<u32>) -> Result<(), String> {
    for node in nodes {
        let shown = node.path.display();
        let open = OpenNode::of(node).map_err(Trouble::text)?;
        let users = open.access()?.users();
        let users = users.map_err(|why| format!("{shown}: {why}, so others may open it"))?;
        if let Some(other) = users.difference(allowed).next() {
            return Err(format!("{shown}: user {other} may open it"));
        }
    }
    Ok(())
}

/// Lets users open the nodes, and reads the result back.
pub(crate) fn admit(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    change(nodes, |them| them.extend(users)).map_err(|it| StepError::new("open nodes", it.text()))
}

/// Stops users from opening the nodes, and reads the result back. A node that is gone counts as closed.
pub(crate) fn withdraw(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    let mut outcome = Ok(());
    // A node that cannot be closed must not keep the others open.
    for node in nodes {
        let closed = change(std::slice::from_ref(node), |them| {
            them.retain(|it| !users.contains(it));
        });
        match closed {
            Ok(()) | Err(Trouble::Gone(_)) => {}
            Err(other) => outcome = outcome.and(Err(StepError::new("close nodes", other.text()))),
        }
    }
    outcome
}

/// Checks that none of these users may open the nodes, nor any user without a lease.
pub(crate) fn check_withdrawn(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    for node in nodes {
        let found = match OpenNode::of(node) {
            Ok(open) => open.access().and_then(|it| it.users()),
            Err(Trouble::Gone(_)) => continue,
            Err(Trouble::Other(why)) => Err(why),
        };
        let shown = node.path.display();
        let found = found.map_err(|why| StepError::new("verify", format!("{shown}: {why}")))?;
        if let Some(user) = found.intersection(users).next() {
            let why = format!("{shown}: user {user} may open it");
            return Err(StepError::new("verify", why));
        }
    }
    Ok(())
}

fn change(nodes: &[Node], change: impl Fn(&mut BTreeSet<u32>)) -> Result<(), Trouble> {
    let _one = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    for node in nodes {
        let open = OpenNode::of(node)?;
        let changed = || {
            let mut users = open.access()?.users().unwrap_or_default();
            change(&mut users);
            open.admit_only(&users)?;
            match open.access()?.users()? == users {
                true => Ok(()),
                false => Err(format!("{}: others change it", node.path.display())),
            }
        };
        changed().map_err(Trouble::Other)?;
    }
    Ok(())
}

impl Records {
    /// Suffix of the files that [`take`] writes.
    const NODES: &str = ".nodes";

    /// The file with the state of the device's nodes at the start.
    fn nodes(&self, uuid: &str) -> PathBuf {
        self.of_device(uuid, Self::NODES)
    }
}

#[cfg(test)]
mod tests;
