//! Finds resources by their names in the inventory.

use fabricbios_client::{Node, Resource};
use fabricbios_wire::{RefusalClass, ResourceId, ResourceType};

use crate::{
    failure::{Exit, Failure},
    values::Named,
};

/// Most names that an error lists.
const LISTED: usize = 16;

/// The resource with this name, of this kind if one is given. One word of a name of several words is enough, such as a
/// GPU's UUID. The match must be unique.
pub(super) fn find(
    node: &Node,
    named: Named,
    kind: Option<ResourceType>,
) -> Result<ResourceId, Failure> {
    let name = match named {
        Named::Id(id) => return Ok(id),
        Named::Name(name) => name,
    };
    let mut there = all(node)?;
    there.retain(|it| it.name.is_some() && kind.is_none_or(|kind| it.kind == kind));
    let is_it = |it: &&Resource| {
        let its = it.name.as_deref().unwrap_or_default();
        its == name || its.split_whitespace().any(|word| word == name)
    };
    let found: Vec<_> = there.iter().filter(is_it).collect();
    let kind = kind.map_or_else(String::new, |kind| format!("{kind} "));
    match found[..] {
        [one] => Ok(one.id),
        [] => {
            let there: Vec<_> = there.iter().collect();
            let message = format!(
                "no {kind}resource here is named {name:?}; there {}",
                list(&there)
            );
            Err(not_found(message))
        }
        ref several => Err(Failure::usage(format!(
            "{} {kind}resources are named {name:?}, give the id{}: there {}",
            several.len(),
            match node.is_scheduler() {
                true => ", or --affinity required:resource=NAME for any of them",
                false => "",
            },
            list(several)
        ))),
    }
}

/// The resources of the node; of all nodes, if it is a scheduler.
pub(crate) fn all(node: &Node) -> Result<Vec<Resource>, Failure> {
    if !node.is_scheduler() {
        return Ok(node.inventory()?.resources);
    }
    let nodes = node.nodes()?.into_iter();
    Ok(nodes.flat_map(|it| it.inventory.resources).collect())
}

pub(crate) fn not_found(message: String) -> Failure {
    Failure::new(Exit::NotFound, RefusalClass::Permanent, "NotFound", message)
}

fn list(resources: &[&Resource]) -> String {
    let one = |it: &&Resource| {
        let name = it.name.as_deref().unwrap_or_default();
        format!("{name:?} ({} {})", it.kind, it.id)
    };
    let named: Vec<String> = resources.iter().take(LISTED).map(one).collect();
    match resources.len().checked_sub(LISTED) {
        _ if named.is_empty() => "is none".to_owned(),
        Some(more @ 1..) => format!("are {} and {more} more", named.join(", ")),
        _ => format!("is {}", named.join(", ")),
    }
}
