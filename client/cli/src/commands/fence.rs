//! `fence …`: lists fenced resources and clears fences.

use fabricbios_client::Node;
use fabricbios_wire::{Fence, LeaseId, Reply, Request, ResourceId};

use super::resource;
use crate::{
    args,
    failure::Failure,
    json::{Json, Object, field},
    output::{Output, headed_table, one_line},
    time_text,
};

pub(super) fn run(node: &Node, command: args::Fence, output: Output) -> Result<(), Failure> {
    match command {
        args::Fence::List => list(node, output),
        args::Fence::Clear { resource } => {
            clear(node, resource::find(node, resource, None)?, output)
        }
    }
}

fn list(node: &Node, output: Output) -> Result<(), Failure> {
    let fences = match node.call(Request::FenceList)? {
        Reply::Fences(fences) => fences,
        other => return Err(node.unexpected("a list of fences", &other).into()),
    };
    let all: Vec<Object<'_>> = fences.iter().map(json).collect();
    let json = Object::from([field("fences", all)]);
    output.print(&json, || {
        if fences.is_empty() {
            return "nothing is fenced".to_owned();
        }
        let headings = ["RESOURCE", "TYPE", "SINCE", "LEFT BY LEASE", "REASON"];
        headed_table(headings, fences.iter().map(columns))
    })
}

fn columns(fence: &Fence) -> Vec<String> {
    vec![
        fence.resource_id.to_string(),
        fence.resource_type.to_string(),
        time_text::utc(fence.since_unix_ms),
        culprit(fence).unwrap_or_else(|| "none".to_owned()),
        one_line(&fence.reason),
    ]
}

/// The lease that left the fence.
fn culprit(fence: &Fence) -> Option<String> {
    (fence.lease_id != LeaseId(0)).then(|| fence.lease_id.to_string())
}

fn clear(node: &Node, resource: ResourceId, output: Output) -> Result<(), Failure> {
    match node.call(Request::FenceClear(resource))? {
        Reply::FenceCleared => {
            let json = Object::from([
                field("resource_id", resource.to_string()),
                field("cleared", true),
            ]);
            output.print(&json, || {
                format!("resource {resource} is verified clean and in service")
            })
        }
        other => Err(node.unexpected("a cleared fence", &other).into()),
    }
}

/// The lease is null if the resource failed by itself.
fn json(fence: &Fence) -> Object<'_> {
    Object::from([
        field("resource_id", fence.resource_id.to_string()),
        field("resource_type", fence.resource_type.to_string()),
        field("lease_id", culprit(fence).map_or(Json::Null, Json::from)),
        field("since_unix_ms", fence.since_unix_ms),
        field("reason", &*fence.reason),
    ])
}
