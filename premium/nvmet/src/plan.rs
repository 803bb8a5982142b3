//! The steps of an export, in order, and the inverse of each step. Pure data.

use std::path::PathBuf;

use fabricbios_wire::{DhchapSecret, LeaseId, NvmeofTransport};

use super::{
    PortSetting,
    credentials::Credential,
    names::{self, MODEL},
};

/// One step: a state to establish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// One of [`STEPS`](super::STEPS).
    pub(super) name: &'static str,
    pub(super) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// An object exists at this path.
    Object(String),
    /// A namespace exists. If it is enabled, its removal waits for its device.
    Namespace(String),
    /// The attribute has this value.
    Attribute(String, Value),
    /// A link exists.
    Link { target: String, at: String },
    /// The volume can be read. Skipped if the namespace is enabled already: then the target has the device open, and a
    /// client may be using it.
    Readable { volume: PathBuf, enabled: String },
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Plain(String),
    Secret(DhchapSecret),
}

/// How to undo a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Inverse {
    RemoveObject(String),
    RemoveNamespace(String),
    Unlink(String),
}

impl Step {
    /// `None`: nothing to undo. The change goes with its object; in an object that existed before, the change stays,
    /// because the next try needs it too.
    pub(super) fn inverse(&self) -> Option<Inverse> {
        match &self.action {
            Action::Object(path) => Some(Inverse::RemoveObject(path.clone())),
            Action::Namespace(path) => Some(Inverse::RemoveNamespace(path.clone())),
            Action::Link { at, .. } => Some(Inverse::Unlink(at.clone())),
            Action::Attribute(..) | Action::Readable { .. } => None,
        }
    }
}

fn object(name: &'static str, path: &str) -> Step {
    let action = Action::Object(path.to_owned());
    Step { name, action }
}

fn plain(name: &'static str, path: String, value: impl Into<String>) -> Step {
    let action = Action::Attribute(path, Value::Plain(value.into()));
    Step { name, action }
}

fn secret(name: &'static str, path: String, value: &DhchapSecret) -> Step {
    let action = Action::Attribute(path, Value::Secret(value.clone()));
    Step { name, action }
}

fn link(name: &'static str, target: String, at: String) -> Step {
    let action = Action::Link { target, at };
    Step { name, action }
}

/// The steps of an export before its [`links`]; until these are made, no host can connect.
pub(super) fn export(
    lease: LeaseId,
    subsystem: &str,
    volume: PathBuf,
    device_path: &str,
    mark: &str,
    credential: &Credential,
) -> Vec<Step> {
    let base = names::subsystem_path(subsystem);
    let namespace = names::namespace_path(subsystem);
    let enable = format!("{namespace}/enable");
    let of_namespace = |attribute: &str| format!("{namespace}/{attribute}");
    let readable = Action::Readable {
        volume,
        enabled: enable.clone(),
    };
    let uuid = names::uuid(lease);
    let mut steps = vec![
        object("subsystem", &base),
        plain("allow_any_host", format!("{base}/attr_allow_any_host"), "0"),
        plain(
            "serial",
            format!("{base}/attr_serial"),
            names::serial(lease),
        ),
        plain("model", format!("{base}/attr_model"), MODEL),
        Step {
            name: "read volume",
            action: readable,
        },
        Step {
            name: "namespace",
            action: Action::Namespace(namespace.clone()),
        },
        plain("device_path", of_namespace("device_path"), device_path),
        plain("device_uuid", of_namespace("device_uuid"), uuid.clone()),
        plain("device_nguid", of_namespace("device_nguid"), uuid),
    ];
    steps.push(object("mark host", &names::subsystem_path(mark)));
    steps.extend(host(credential));
    steps.push(plain("enable", enable, "1"));
    steps
}

/// The last steps of an export, which a cut undoes: they allow the host and link the ports.
pub(super) fn links(
    subsystem: &str,
    host: &str,
    ports: impl IntoIterator<Item = u16>,
) -> Vec<Step> {
    let allowed = names::allowed_host_path(subsystem, host);
    let mut steps = vec![link("allow host", names::host_path(host), allowed)];
    steps.extend(ports.into_iter().map(|port| port_link(port, subsystem)));
    steps
}

fn host(credential: &Credential) -> Vec<Step> {
    let base = names::host_path(credential.host_nqn.as_str());
    let key = |attribute: &str| format!("{base}/{attribute}");
    let mut steps = vec![
        object("host", &base),
        secret("dhchap_key", key("dhchap_key"), &credential.secret),
    ];
    let ctrl = credential.ctrl_secret.iter();
    steps.extend(ctrl.map(|value| secret("dhchap_ctrl_key", key("dhchap_ctrl_key"), value)));
    steps
}

/// The steps that give an existing host new keys.
pub(super) fn rekey(credential: &Credential) -> Vec<Step> {
    let mut steps = host(credential).split_off(1);
    for step in &mut steps {
        step.name = match step.name {
            "dhchap_key" => "rekey dhchap_key",
            _ => "rekey dhchap_ctrl_key",
        };
    }
    steps
}

/// The step that makes a port serve the subsystem.
pub(super) fn port_link(port: u16, subsystem: &str) -> Step {
    let at = names::port_link_path(port, subsystem);
    link("link port", names::subsystem_path(subsystem), at)
}

/// The steps for the subsystem that keeps ports listening. It has no namespace and allows no host.
pub(super) fn anchor(subsystem: &str) -> Vec<Step> {
    let base = names::subsystem_path(subsystem);
    let any_host = format!("{base}/attr_allow_any_host");
    vec![
        object("anchor subsystem", &base),
        plain("anchor allow_any_host", any_host, "0"),
    ]
}

/// The steps for a port, before it listens.
pub(super) fn port(number: u16, setting: PortSetting) -> Vec<Step> {
    let base = names::port_path(number);
    let attribute = |name: &str| format!("{base}/{name}");
    let [trtype, adrfam, traddr, trsvcid] = setting.attributes();
    vec![
        object("port", &base),
        plain("port addr_trtype", attribute("addr_trtype"), trtype),
        plain("port addr_adrfam", attribute("addr_adrfam"), adrfam),
        plain("port addr_traddr", attribute("addr_traddr"), traddr),
        plain("port addr_trsvcid", attribute("addr_trsvcid"), trsvcid),
    ]
}

/// The step that makes a port listen.
pub(super) fn anchor_link(number: u16, anchor: &str) -> Step {
    let at = names::port_link_path(number, anchor);
    link("link anchor", names::subsystem_path(anchor), at)
}

impl PortSetting {
    /// The values of `addr_trtype`, `addr_adrfam`, `addr_traddr` and `addr_trsvcid`.
    pub(super) fn attributes(&self) -> [String; 4] {
        let family = if self.address.is_ipv4() {
            "ipv4"
        } else {
            "ipv6"
        };
        let kind = match self.transport {
            NvmeofTransport::Tcp => "tcp",
            NvmeofTransport::Rdma => "rdma",
        };
        let address = self.address.ip().to_string();
        let service = self.address.port().to_string();
        [kind.to_owned(), family.to_owned(), address, service]
    }
}
