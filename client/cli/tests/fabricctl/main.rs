//! The real program against a node that answers by script: JSON, exit statuses, errors, files.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail as loudly as tests"
)]

mod ask;
mod attach;
mod attach_code;
mod block;
mod blocks;
mod bulk;
#[path = "../../../sdk/tests/common/mod.rs"]
mod common;
mod debug_bundle;
mod discover;
mod ended;
mod fabric;
mod fail;
mod fleet;
mod fleet_leases;
mod gpu;
mod gpu_usage;
mod identity;
mod inventory;
mod keep;
mod local;
mod mem;
mod mooncake;
mod named;
mod on_the_node;
mod page;
mod perftest;
mod run_end;
mod show;

use std::process::{Command, Output};

use common::{FakeNode, granted, lease};
use fabricbios_wire::{Answer, Reply, Request};
use serde_json::Value;

pub(crate) const LEASE_TEXT: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const RESOURCE_TEXT: &str = "0000000000000000000000000000feed";

pub(crate) fn command(node: &FakeNode, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricctl"));
    command
        .env_clear()
        .env("FABRICBIOS_NODE", node.addr())
        .env("FABRICBIOS_IDENTITY", node.admin())
        .args(line.split_whitespace());
    command
}

/// Runs a command from [`command`] as root. If this process is not root, the command runs as root of new namespaces of
/// these kinds.
pub(crate) fn as_root(mut command: Command, namespaces: &[&str]) -> Output {
    if !nix::unistd::geteuid().is_root() {
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--map-root-user"]).args(namespaces);
        inside.arg(command.get_program()).args(command.get_args());
        let variables = command.get_envs();
        let variables = variables.filter_map(|(name, value)| Some((name, value?)));
        inside.env_clear().envs(variables);
        command = inside;
    }
    command.output().unwrap()
}

pub(crate) fn run(node: &FakeNode, line: &str) -> Output {
    command(node, line).output().unwrap()
}

/// The JSON output of a successful command.
pub(crate) fn json_of(node: &FakeNode, line: &str) -> Value {
    let output = run(node, &format!("--json {line}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{line}: {stderr}");
    assert!(stderr.is_empty(), "{line}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub(crate) fn text_of(node: &FakeNode, line: &str) -> String {
    let output = run(node, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exit status and error object of a command that failed.
pub(crate) fn failure(output: &Output) -> (i32, Value) {
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stderr).unwrap(),
    )
}

pub(crate) fn fails(node: &FakeNode, line: &str) -> (i32, Value) {
    failure(&run(node, &format!("--json {line}")))
}

/// Exit status and the one line of output of a command that failed.
pub(crate) fn line_of(node: &FakeNode, line: &str) -> (i32, String) {
    let output = run(node, line);
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    (output.status.code().unwrap(), text)
}

pub(crate) fn granting() -> impl FnMut(&Request) -> Answer + Send + 'static {
    |request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(granted(alloc))),
        _ => Ok(Reply::Lease(lease(60_000))),
    }
}

pub(crate) fn saying(answer: Answer) -> FakeNode {
    FakeNode::start(move |_: &Request| answer.clone())
}
