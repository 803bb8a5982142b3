//! `identity …`: shows and issues identities. New private keys never leave this machine.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::SystemTime,
};

use fabricbios_client::{Identity, Node};
use fabricbios_fabric::{FabricDirectory, Label};
use fabricbios_wire::{IssueRequest, NodeIdentity, Reply, Request, Role};
use rcgen::{CertificateParams, KeyPair};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    args,
    commands::fabric,
    failure::Failure,
    json::{Object, field},
    output::{Output, one_line, table},
    time_text,
};

const DAY_SECS: u32 = 86_400;

/// `identity`: the identity of the caller.
pub(super) fn run(
    node: &Node,
    identity: &Path,
    command: args::Identity,
    output: Output,
) -> Result<(), Failure> {
    match command {
        args::Identity::Show => show(node, identity, output),
        args::Identity::Issue {
            tenant,
            role,
            days,
            out,
            fabric_dir: _,
        } => issue(
            &what(tenant, role, days),
            &out,
            output,
            |request| match node.call(Request::IdentityIssue(request))? {
                issued @ Reply::Issued { .. } => Ok(issued),
                other => Err(node.unexpected("a certificate", &other).into()),
            },
        ),
    }
}

/// The node and the caller, as the node sees both.
pub(super) fn ask(node: &Node) -> Result<NodeIdentity, Failure> {
    match node.call(Request::GetIdentity)? {
        Reply::Identity(identity) => Ok(identity),
        other => Err(node.unexpected("an identity", &other).into()),
    }
}

fn show(node: &Node, path: &Path, output: Output) -> Result<(), Failure> {
    let identity = Identity::load(path)?;
    let (expires_at, fabric) = (identity.expires_at_unix_secs()?, identity.fabric()?);
    let identity = ask(node)?;
    let labels = match identity.role {
        Role::Node => labels(path)?,
        Role::Tenant | Role::Operator | Role::Scheduler => Vec::new(),
    };
    let NodeIdentity {
        node_id,
        epoch,
        endpoint,
        tenant,
        role,
        version,
    } = identity;
    let expires_at_unix_ms = expires_at.saturating_mul(1_000);
    let version = one_line(&version);
    let json = Object::from([
        field("node_id", node_id.to_string()),
        field("epoch", epoch.0),
        field("endpoint", endpoint.to_string()),
        field("tenant", &*tenant),
        field("role", role.name()),
        field("expires_at_unix_ms", expires_at_unix_ms),
        field("fabric", &*fabric),
        field("labels", labels.clone()),
        field("version", &*version),
    ]);
    output.print(&json, || {
        let row = |what: &str, value: &dyn ToString| vec![what.to_owned(), value.to_string()];
        let you = match labels.is_empty() {
            true => format!("{tenant} ({role})"),
            false => format!("{tenant} ({role} with the labels {})", labels.join(", ")),
        };
        table(&[
            row("you", &you),
            row("valid until", &time_text::utc(expires_at_unix_ms)),
            row("fabric", &fabric),
            row("node", &node_id),
            row("endpoint", &endpoint),
            row("version", &version),
            row("starts", &epoch.0),
        ])
    })
}

/// The labels of a node, from its identity file.
fn labels(path: &Path) -> Result<Vec<String>, Failure> {
    let shown =
        |what: &dyn ToString| Failure::usage(format!("{}: {}", path.display(), what.to_string()));
    let pem = Zeroizing::new(fs::read(path).map_err(|error| shown(&error))?);
    let labels = Label::of_identity(&pem).map_err(|error| shown(&error))?;
    Ok(labels.iter().map(ToString::to_string).collect())
}

/// `identity issue --fabric-dir`: signs with the key in the directory of a fabric.
pub(super) fn issue_here(
    directory: &Path,
    (tenant, role, days): (String, Role, Option<u32>),
    out: &Path,
    output: Output,
) -> Result<(), Failure> {
    let now = SystemTime::now();
    let fabric = FabricDirectory::open(directory, now).map_err(|error| fabric::refused(&error))?;
    issue(&what(tenant, role, days), out, output, |request| {
        let issued = fabric.ca().issue(&request, now);
        issued.map_err(|refusal| fabricbios_client::Error::Refused(refusal).into())
    })
}

/// What is issued, without the key.
fn what(tenant: String, role: Role, days: Option<u32>) -> IssueRequest {
    IssueRequest {
        tenant,
        role,
        valid_secs: days.map_or(0, |days| days.saturating_mul(DAY_SECS)),
        csr_der: Vec::new(),
    }
}

/// Creates the file first, so that no certificate is issued for nothing if the file exists.
fn issue(
    what: &IssueRequest,
    out: &Path,
    output: Output,
    sign: impl FnOnce(IssueRequest) -> Result<Reply, Failure>,
) -> Result<(), Failure> {
    let file = create(out)?;
    let made = make(what, sign).and_then(|pem| write(file, out, &pem));
    if let Err(failure) = made {
        // This call made the file, and it is empty or incomplete.
        fs::remove_file(out).ok();
        return Err(failure);
    }
    let path = out.display().to_string();
    let (tenant, role) = (&*what.tenant, what.role);
    let json = Object::from([
        field("tenant", tenant),
        field("role", role.name()),
        field("path", &*path),
    ]);
    output.print(&json, || format!("{path}: identity of {role} {tenant}"))
}

/// Makes a key and has it signed; returns the identity as PEM.
fn make(
    what: &IssueRequest,
    sign: impl FnOnce(IssueRequest) -> Result<Reply, Failure>,
) -> Result<Zeroizing<String>, Failure> {
    let cannot = |e: &rcgen::Error| Failure::local("make a key", e);
    let mut key = KeyPair::generate().map_err(|e| cannot(&e))?;
    let csr = CertificateParams::default()
        .serialize_request(&key)
        .map_err(|e| cannot(&e))?;
    let request = IssueRequest {
        csr_der: csr.der().to_vec(),
        ..what.clone()
    };
    let key_pem = Zeroizing::new(key.serialize_pem());
    key.zeroize();
    match sign(request)? {
        Reply::Issued {
            certificate_pem,
            ca_pem,
        } => Ok(Zeroizing::new(format!(
            "{certificate_pem}{}{ca_pem}",
            *key_pem
        ))),
        other => Err(Failure::local("sign the key", &format!("{other:?}"))),
    }
}

fn create(out: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(out);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage(format!(
            "{} exists and is not overwritten; move the file away or choose another --out",
            out.display()
        )),
        _ => Failure::usage(format!("cannot create {}: {error}", out.display())),
    })
}

fn write(mut file: File, out: &Path, pem: &str) -> Result<(), Failure> {
    let written = file
        .write_all(pem.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|error| Failure::local(&format!("write {}", out.display()), &error))
}
