//! The node's fabric: a start opens it, `node-request` and `node-accept` join another one, and `renew-ca` renews that of a
//! node alone.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use fabricbios_control::Membership;
use fabricbios_fabric::{Accepted, Fabric, FabricDirectory, FabricId, IdentityError};
use fabricbios_local::{AskError, Join};
use fabricbios_wire::{LeaseError, NodeId, Refusal, RefusalClass};
use nix::sys::stat::{Mode, umask};

use crate::{
    process::{check::Findings, state_dir},
    settings::{NodeAccept, NodeRequest, RenewCa, Settings},
};

/// Opens the node's identity at a start, which has locked the state directory.
///
/// # Errors
/// A file of the node or of the fabric's directory cannot be used.
pub(crate) fn open(settings: &Settings) -> anyhow::Result<Fabric> {
    let fabric = read_or_make(settings)?;
    let former = fabric.certified().len().saturating_sub(1);
    tracing::info!(node_id = %fabric.node_id(), fabric = %fabric.id(), former, "the node's fabric");
    Ok(fabric)
}

fn read_or_make(settings: &Settings) -> anyhow::Result<Fabric> {
    let (state_dir, now) = (settings.state_dir(), SystemTime::now());
    let fabric = match &settings.fabric_dir {
        None => Fabric::open_or_create(state_dir, now)?,
        Some(path) => {
            let directory = FabricDirectory::open(path, now);
            let directory = directory.with_context(|| named(path))?;
            let certified = Fabric::open_certified(state_dir, &directory, now)?;
            if certified.left.is_some() {
                tracing::warn!("--fabric-dir: {}", told(&certified));
            }
            certified.fabric
        }
    };
    if fabric.not_after().is_none_or(|end| end < now + LEFT_MIN) {
        tracing::warn!(
            "the node's certificate has ended or ends within 30 days, and then no client of fabric {} accepts the node: \
             `fabricbiosd node-request`, `fabricctl fabric sign` and `node-accept`, or renew-ca on a node alone, renew it",
            fabric.id()
        );
    }
    Ok(fabric)
}

/// Checks the files as [`open`] does, and changes nothing. Warns of a move to another fabric.
pub(crate) fn check(settings: &Settings, found: &mut Findings) -> anyhow::Result<Option<NodeId>> {
    let (state_dir, now) = (settings.state_dir(), SystemTime::now());
    let node = Fabric::check(state_dir, now)?;
    if let Some(path) = &settings.fabric_dir {
        let directory = FabricDirectory::open(path, now).with_context(|| named(path))?;
        if node.is_some() && Fabric::joined(state_dir)? != Some(directory.id()) {
            found.warns(format_args!(
                "{}: this start moves the node to fabric {}; identities of the fabric that it leaves keep their live leases \
                 and get no new ones",
                named(path),
                directory.id()
            ));
        }
    }
    Ok(node)
}

/// A start warns of a certificate that is valid for less than this.
const LEFT_MIN: Duration = Duration::from_secs(30 * 86_400);

fn named(directory: &Path) -> String {
    format!("--fabric-dir {}", directory.display())
}

/// Reads the identity of a node that runs again, as [`open`] at a start, and replaces it if it is another one. `true`: it
/// is. The caller holds the turn of [`join`].
///
/// # Errors
/// A file cannot be used, or is of another node. Nothing has changed then.
pub(crate) fn reopen(settings: &Settings, membership: &Membership) -> anyhow::Result<bool> {
    let state_dir = settings.state_dir();
    // Where the files are missing, another node would be made.
    Fabric::refuse_lost_node(state_dir)?;
    let (now, new) = (membership.now(), read_or_make(settings)?);
    if new.node_id() != now.node_id() {
        bail!(
            "{} has the identity of node {}, and this is node {}: put its own back",
            state_dir.display(),
            new.node_id(),
            now.node_id()
        );
    }
    let is_other = new.certified() != now.certified();
    if is_other {
        membership.replace(new);
    }
    Ok(is_other)
}

/// Whose turn it is to change the identity of a node that runs.
pub(crate) type Turn = Arc<Mutex<()>>;

/// Waits for the turn. The lock has no data that a panic could leave half done.
pub(crate) fn take(turn: &Turn) -> MutexGuard<'_, ()> {
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the local socket does with the answer to a `node-request`: this daemon joins, and says so. With `fabric-dir` it
/// takes no answer of another fabric, because its next start would take the node back.
pub(crate) fn join(settings: &Settings, membership: &Membership, turn: &Turn) -> Join {
    let (state_dir, membership) = (settings.state_dir().to_owned(), membership.clone());
    let fabric_dir = settings.fabric_dir.as_deref();
    let held = fabric_dir.map(|path| (named(path), membership.now().id()));
    let turn = Arc::clone(turn);
    Arc::new(move |answer| {
        let _turn = take(&turn);
        let now = SystemTime::now();
        if let Some((setting, fabric)) = &held {
            let found = Fabric::check_accept(&state_dir, answer, now).map_err(|it| refused(&it))?;
            if found != *fabric {
                return Err(held_by(setting, *fabric, found));
            }
        }
        let accepted = Fabric::accept(&state_dir, answer, now).map_err(|it| refused(&it))?;
        let told = told(&accepted);
        match accepted.unfinished {
            None => tracing::info!(fabric = %accepted.fabric.id(), left = ?accepted.left, "{told}"),
            Some(_) => {
                tracing::warn!(fabric = %accepted.fabric.id(), left = ?accepted.left, "{told}");
            }
        }
        membership.replace(accepted.fabric);
        Ok(told)
    })
}

fn refused(error: &IdentityError) -> Refusal {
    tracing::warn!(%error, "the node has not joined a fabric");
    let message = error.to_string();
    Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, message)
}

fn held_by(setting: &str, fabric: FabricId, found: FabricId) -> Refusal {
    tracing::warn!(%found, "the node has not joined a fabric: {setting} names another one");
    let message = format!(
        "the certificate is of fabric {found}, and this daemon runs with {setting}, which takes the node into fabric {fabric} \
         at each start; nothing has changed. Remove fabric-dir from its settings, start it again, and repeat the command"
    );
    Refusal::new(LeaseError::NotPermitted, RefusalClass::Policy, message)
}

fn told(accepted: &Accepted) -> String {
    let Accepted {
        fabric,
        left,
        labels,
        unfinished,
    } = accepted;
    let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
    let labels = match labels.is_empty() {
        true => "without labels".to_owned(),
        false => format!("with the labels {}", labels.join(", ")),
    };
    let left = left.map(|it| {
        format!("; identities of fabric {it} keep their live leases here and get no new ones")
    });
    let unfinished = unfinished.as_ref().map(|error| {
        format!(". This holds, but a step after it failed: {error}. Then repeat the command")
    });
    let (node, id) = (fabric.node_id(), fabric.id());
    format!(
        "node {node} is one of fabric {id}, {labels}{}{}",
        left.unwrap_or_default(),
        unfinished.unwrap_or_default()
    )
}

/// Runs `node-request`. Returns the request, PEM.
///
/// # Errors
/// The state directory has no node whose identity can be read.
pub(crate) fn node_request(arguments: &NodeRequest) -> anyhow::Result<String> {
    Ok(Fabric::request(&arguments.state_dir)?)
}

/// Most bytes of an answer: two certificates as PEM.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// Runs `node-accept`. Returns the message for the operator.
///
/// # Errors
/// The answer cannot be read or is not for this node, or the daemon that runs cannot be told.
pub(crate) fn node_accept(arguments: &NodeAccept) -> anyhow::Result<String> {
    let NodeAccept {
        answer: path,
        fabric,
        state_dir,
        local_socket,
    } = arguments;
    umask(Mode::from_bits_truncate(0o077));
    let answer = read(path).with_context(|| format!("read {}", path.display()))?;
    if !state_dir.is_dir() {
        bail!(
            "there is no state directory {}: name that of the node with --state-dir",
            state_dir.display()
        );
    }
    let has_daemon = state_dir::look(state_dir)?;
    let found = Fabric::check_accept(state_dir, &answer, SystemTime::now())
        .with_context(|| path.display().to_string())?;
    if let Some(expected) = fabric.filter(|it| *it != found) {
        bail!(
            "{}: the certificate is of fabric {found}, and --fabric expects {expected}; nothing has changed. Ask the operator \
             of the fabric which fingerprint it has, and for an answer of its CA",
            path.display()
        );
    }
    if !has_daemon {
        let _lock = state_dir::lock(state_dir)?;
        let accepted = Fabric::accept(state_dir, &answer, SystemTime::now());
        return Ok(told(&accepted.with_context(|| path.display().to_string())?));
    }
    fabricbios_local::join(local_socket, &answer).map_err(|error| match error {
        AskError::Refused(refusal) => anyhow::anyhow!("{}: {}", path.display(), refusal.message),
        AskError::Unreachable { socket, error } => anyhow::anyhow!(
            "a daemon runs on {} and cannot be told at {}: {error}. Name its --local-socket, or stop it, repeat this, and \
             start it again (a daemon that runs with on-stop = keep keeps leases over a stop, of memory only those with a mem-file)",
            state_dir.display(),
            socket.display()
        ),
        AskError::Unanswered { socket, why } => anyhow::anyhow!(
            "the daemon at {} {why}; repeat the command: the same answer twice does no harm",
            socket.display()
        ),
        AskError::Unexpected(why) => anyhow::anyhow!("{why}: is another version of the daemon running?"),
        AskError::Local(call, error) => anyhow::anyhow!("{call}: {error}"),
    })
}

fn read(path: &Path) -> io::Result<String> {
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path)?),
    };
    let mut text = String::new();
    source.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Runs `renew-ca`. Returns the message for the operator.
///
/// # Errors
/// A daemon runs on the state directory, or its certificates and keys cannot be read or written.
pub(crate) fn renew_ca(arguments: &RenewCa) -> anyhow::Result<String> {
    let RenewCa { state_dir, new_key } = arguments;
    umask(Mode::from_bits_truncate(0o077));
    if !state_dir.is_dir() {
        anyhow::bail!(
            "there is no state directory {}: name that of the node with --state-dir",
            state_dir.display()
        );
    }
    let _lock = state_dir::lock(state_dir)?;
    let left = Fabric::joined(state_dir).ok().flatten();
    let left = left.map_or_else(String::new, |it| {
        format!(
            "; the node has left fabric {it}, whose identities cannot connect any more: leases that they hold go on to their \
             ends unless you revoke them"
        )
    });
    let fabric = Fabric::renew(state_dir, *new_key, SystemTime::now())?;
    let others = match new_key {
        true => {
            "every identity that it had issued is void: issue new ones with `fabricctl identity issue`"
        }
        false => "identities that it has issued stay valid",
    };
    Ok(format!(
        "the CA of node {} is renewed, and its new certificate is in {}; {others}{left}",
        fabric.node_id(),
        state_dir.join("ca.pem").display()
    ))
}
