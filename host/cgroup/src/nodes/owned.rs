//! Ownership of a device's own nodes. While the device is on offer, root owns them and no other user may open them; a
//! lease's users may for its term. When the device is no longer on offer, the state found at the start is restored.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    slice,
    sync::{Mutex, PoisonError},
};

use fabricbios_lease::StepError;
use serde::{Deserialize, Serialize};

use super::{
    Node, NodeError,
    acl::{Access, OpenNode},
};
use crate::records;

/// Held while the lists of nodes are read and written: leases of one device may begin and end at the same time.
static LISTS: Mutex<()> = Mutex::new(());

/// The state of a device's nodes from before this node or an earlier run took them, in a file.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The file, which a reboot removes.
    pub at: PathBuf,
    /// The name of the file until it is whole.
    pub new: PathBuf,
}

/// A node, and its access at the start.
#[derive(Serialize, Deserialize)]
struct Found {
    node: Node,
    access: Access,
}

impl Taken {
    /// Makes root the owner of these nodes. Of the users who may open them now, only those in `users` still may.
    ///
    /// # Errors
    /// The nodes cannot be protected, or their state cannot be recorded. The nodes are as before the call.
    pub fn take(&self, nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), NodeError> {
        let taken = || {
            if nodes.is_empty() {
                return Err(NodeError::Unknown);
            }
            self.note(nodes)?;
            for node in nodes {
                let node = OpenNode::of(node)?;
                let mut stay = node.access()?.users().unwrap_or_default();
                stay.retain(|it| users.contains(it));
                node.admit_only(&stay)?;
            }
            check(nodes, users)
        };
        taken().inspect_err(|_| {
            self.give_back().ok();
        })
    }

    /// Records the access of the nodes, unless an earlier run has done so.
    fn note(&self, nodes: &[Node]) -> Result<(), NodeError> {
        let mut all = self.found()?;
        for node in nodes {
            if !all.iter().any(|it| it.node == *node) {
                let access = OpenNode::of(node)?.access()?;
                let node = node.clone();
                all.push(Found { node, access });
            }
        }
        Ok(records::write(&self.at, &self.new, &all)?)
    }

    fn found(&self) -> Result<Vec<Found>, StepError> {
        Ok(records::read(&self.at)?.unwrap_or_default())
    }

    /// Restores the access from before [`Taken::take`]. A node that is gone or replaced stays as it is.
    ///
    /// # Errors
    /// A node cannot be changed, or the file cannot be read or removed.
    pub fn give_back(&self) -> Result<(), StepError> {
        const STEP: &str = "give nodes back";
        for Found { node, access } in self.found()? {
            if let Ok(node) = OpenNode::of(&node) {
                node.restore(&access).map_err(|error| error.of(STEP))?;
            }
        }
        records::remove(STEP, &self.at)
    }
}

/// Checks that nobody but root and `allowed` may open the nodes.
///
/// # Errors
/// A node is gone or replaced, or another user may open it.
pub fn check(nodes: &[Node], allowed: &BTreeSet<u32>) -> Result<(), NodeError> {
    { nodes.iter() }.try_for_each(|node| check_users(node, |user| allowed.contains(&user)))
}

fn check_users(node: &Node, may_open: impl Fn(u32) -> bool) -> Result<(), NodeError> {
    let users = OpenNode::of(node)?.users()?;
    match users.into_iter().find(|user| !may_open(*user)) {
        None => Ok(()),
        Some(user) => Err(NodeError::User {
            path: node.path.clone(),
            user,
        }),
    }
}

/// Lets users open the nodes, and reads the result back.
///
/// # Errors
/// A node is gone or replaced, or others change it.
pub fn admit(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    change(nodes, |them| them.extend(users)).map_err(|error| error.of("open nodes"))
}

/// Stops users from opening the nodes, and reads the result back. A node that is gone counts as closed.
///
/// # Errors
/// A node is replaced, or others change it. The other nodes are closed.
pub fn withdraw(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    let mut outcome = Ok(());
    // A node that cannot be closed must not keep the others open.
    for node in nodes {
        let closed = change(slice::from_ref(node), |them| {
            them.retain(|it| !users.contains(it));
        });
        match closed {
            Ok(()) | Err(NodeError::Gone(_)) => {}
            Err(error) => outcome = outcome.and(Err(error.of("close nodes"))),
        }
    }
    outcome
}

/// Checks that none of these users may open the nodes, nor any user whom no list names.
///
/// # Errors
/// A node is replaced, or may be open to one of them.
pub fn check_withdrawn(nodes: &[Node], users: &BTreeSet<u32>) -> Result<(), StepError> {
    for node in nodes {
        match check_users(node, |user| !users.contains(&user)) {
            Ok(()) | Err(NodeError::Gone(_)) => {}
            Err(error) => return Err(error.of("verify")),
        }
    }
    Ok(())
}

fn change(nodes: &[Node], change: impl Fn(&mut BTreeSet<u32>)) -> Result<(), NodeError> {
    let _one = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    for node in nodes {
        let open = OpenNode::of(node)?;
        let mut users = open.access()?.users().unwrap_or_default();
        change(&mut users);
        open.admit_only(&users)?;
        if open.users()? != users {
            return Err(NodeError::Changed(node.path.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
