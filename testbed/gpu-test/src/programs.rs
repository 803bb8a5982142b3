//! Programs on the node, and containers, that use the device of a lease without a session.

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use nix::{
    libc::EPERM,
    sys::{
        signal::Signal,
        stat::{Mode, SFlag, makedev, mknod},
    },
};
use serde_json::{Value, json};

use crate::{
    Arguments, bare,
    node::{BLUES_UID, Daemon},
    program::{Program, Said, may},
    report::Report,
    scenarios::{check_device, lease},
    shared::device,
};

/// A user who belongs to no tenant.
const STRANGERS_UID: u32 = BLUES_UID + 1;

/// A program of the tenant's user enters a lease, and loses the device with it.
pub(crate) fn program(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let held = lease(&daemon.tenant("blue")?, 60)?;
    let Some(node) = daemon.specification(held.lease_id())?.and_then(own_node) else {
        report.limit("programs in a lease: the node offers none");
        held.free()?;
        return Ok(());
    };
    let (of, other) = (device(&held)?, OtherNode::make());
    let looks = |uid: u32| {
        let mut command = Program::command("look", &of, &node, &other.path);
        Program::start(command.uid(uid).gid(uid))?.said()
    };
    let mut enters = Program::command("enter", &of, &node, &other.path);
    enters.arg(daemon.local_socket());
    enters.arg(held.lease_id().to_string());
    enters.uid(BLUES_UID).gid(BLUES_UID);
    let mut program = Program::start(&mut enters)?;
    let said = program.said()?;
    if let Some(why) = &said.refused {
        report.limit(format!("programs in a lease: {why}"));
        held.free()?;
        return Ok(());
    }
    report.check(
        "a program of the tenant's user enters the lease and computes on the device",
        said.error.is_none() && may(said.device_inside),
        format!("{said:?}"),
    );
    check_others(&said, &other, report);
    let (its, strangers) = (looks(BLUES_UID)?, looks(STRANGERS_UID)?);
    report.check(
        "during the lease its user may open the device, and another user may not",
        may(its.device) && !may(strangers.device),
        format!("errors {} and {}", its.device, strangers.device),
    );
    held.free()?;
    let killed = program.killed()?;
    report.check(
        "the end of the lease kills the program",
        killed == Some(Signal::SIGKILL as i32),
        format!("signal {killed:?}"),
    );
    let its = looks(BLUES_UID)?;
    report.check(
        "its user may not open the device any more",
        !may(its.device),
        format!("error {}", its.device),
    );
    let again = Program::start(&mut enters)?.said()?;
    report.check(
        "no other program enters the lease",
        again.refused.is_some(),
        again.refused.unwrap_or_default(),
    );
    nothing_left("program", said.left, daemon, report)
}

/// The device controller of the lease: another device that the program may open outside cannot be opened inside.
fn check_others(said: &Said, other: &OtherNode, report: &mut Report) {
    if let Some(why) = &other.lacks {
        report.limit(format!("another device for a program in a lease: {why}"));
    } else if !may(said.other) {
        report.limit("another device for a program in a lease: it may open none outside either");
    } else {
        report.check(
            "and it may open no other device there",
            said.other_inside == EPERM,
            format!("error {} outside, {} inside", said.other, said.other_inside),
        );
    }
}

/// A container gets the device as by an engine: with the variables and the hook of the lease's specification.
pub(crate) fn container(_: &Arguments, daemon: &mut Daemon, report: &mut Report) -> Result<()> {
    let held = lease(&daemon.tenant("blue")?, 60)?;
    let (id, of) = (held.lease_id(), device(&held)?);
    let Some(specification) = daemon.specification(id)? else {
        report.limit("containers with a device: the node offers none");
        held.free()?;
        return Ok(());
    };
    let node = own_node(specification.clone()).context("the device's node in the specification")?;
    let edits = &specification["devices"][0]["containerEdits"];
    let mut command = Program::command("wait", &of, &node, Path::new("/dev/null"));
    let variables = edits["env"].as_array().into_iter().flatten();
    let variables = variables.filter_map(|it| it.as_str()?.split_once('='));
    let mut program = Program::start(command.envs(variables))?;
    let group = match Group::of(program.id(), daemon) {
        Ok(group) => group,
        Err(error) => {
            report.limit(format!("containers with a device: {error:#}"));
            held.free()?;
            return Ok(());
        }
    };
    let taken = hook(edits, program.id())?;
    report.check(
        "the lease's hook takes a container with a control group of its own",
        taken.is_ok(),
        taken.err().unwrap_or_default(),
    );
    program.go_on()?;
    let said = program.said()?;
    report.check(
        "the container computes on the device",
        said.error.is_none(),
        format!("{said:?}"),
    );
    held.free()?;
    let killed = program.killed()?;
    report.check(
        "the end of the lease kills the container",
        killed == Some(Signal::SIGKILL as i32),
        format!("signal {killed:?}"),
    );
    drop((program, group));
    let refused = hook(edits, process::id())?;
    report.check(
        "the hook takes no other one, and the specification is gone",
        refused.is_err() && daemon.specification(id)?.is_none(),
        refused.err().unwrap_or_default(),
    );
    nothing_left("container", said.left, daemon, report)
}

/// The next tenant gets the device, without a byte of the program.
fn nothing_left(who: &str, left: u64, daemon: &Daemon, report: &mut Report) -> Result<()> {
    let next = lease(&daemon.tenant("red")?, 60)?;
    let (bytes, looks, found) = bare::search(&device(&next)?)?;
    report.check(
        &format!("{who}: the device is leased again, and nothing of the bytes is left"),
        found == 0 && looks > 0,
        format!("{left} bytes left, {bytes} taken, {looks} looks, {found} saw them"),
    );
    next.free()?;
    check_device(&format!("{who}: the device goes on"), daemon, report)
}

/// The device's own node in a specification for container engines.
fn own_node(specification: Value) -> Option<PathBuf> {
    let nodes = &specification["devices"][0]["containerEdits"]["deviceNodes"];
    let paths = nodes
        .as_array()?
        .iter()
        .filter_map(|it| it["path"].as_str());
    let is_own = |path: &&str| {
        let minor = path.rsplit_once("/nvidia").map(|(_, minor)| minor);
        minor.is_some_and(|it| it.parse::<u32>().is_ok())
    };
    paths.into_iter().find(is_own).map(PathBuf::from)
}

/// Runs the hook of a specification for a container with this first process. `Err`: its refusal.
fn hook(edits: &Value, pid: u32) -> Result<Result<(), String>> {
    let words = edits["hooks"][0]["args"].as_array();
    let words: Vec<&str> = words
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let [path, arguments @ ..] = &words[..] else {
        bail!("the specification names no hook: {edits}");
    };
    let mut hook = Command::new(path)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("the hook {path}"))?;
    let state = json!({"ociVersion": "1.0.2", "id": "gpu-test", "status": "creating", "pid": pid, "bundle": "/"});
    let mut input = hook.stdin.take().context("the hook's input")?;
    input.write_all(state.to_string().as_bytes())?;
    drop(input);
    let output = hook.wait_with_output()?;
    Ok(match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    })
}

/// A control group, with a process as a container's first one.
struct Group(PathBuf);

impl Group {
    fn of(pid: u32, daemon: &Daemon) -> Result<Self> {
        let leases = daemon.cgroup()?;
        let mount = leases.parent().context("the mount of control groups")?;
        let group = Self(mount.join(format!("gpu-test-{pid}")));
        let failed = || group.0.display().to_string();
        fs::create_dir(&group.0).with_context(failed)?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).with_context(failed)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).ok();
    }
}

/// A device node that everybody may open, and that is of no driver.
struct OtherNode {
    path: PathBuf,
    /// Why there is none.
    lacks: Option<String>,
}

impl OtherNode {
    fn make() -> Self {
        let path = PathBuf::from(format!("/dev/gpu-test-{}", process::id()));
        let made = mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(1, 99));
        let made = made.map_err(Into::into);
        let opened = made.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o666)));
        let lacks = opened
            .err()
            .map(|error| format!("{}: {error}", path.display()));
        Self { path, lacks }
    }
}

impl Drop for OtherNode {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}
