//! Announces readiness: READY for scripts, a first command for people, and sd_notify(3) for systemd.

use std::{
    env,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::{linux::net::SocketAddrExt, unix::net},
};

use fabricbios_fabric::Fabric;

use crate::settings::Settings;

/// The identity of the first operator, in the directory of a fabric.
const ADMIN: &str = "admin.identity";

/// Announces that clients are served.
pub(crate) fn announce(
    settings: &Settings,
    fabric: &Fabric,
    listen: SocketAddr,
    metrics: Option<SocketAddr>,
) {
    let dial = SocketAddr::new(dial_ip(settings, listen), listen.port());
    let of_directory = settings.fabric_dir.as_ref().map(|it| it.join(ADMIN));
    let try_next = match fabric.admin_identity().or(of_directory.as_deref()) {
        Some(identity) => format!(
            "try: fabricctl --node {dial} --identity {} inventory",
            identity.display()
        ),
        None => format!(
            "try: fabricctl --node {dial} inventory, with an identity of fabric {} in FABRICBIOS_IDENTITY",
            fabric.id()
        ),
    };
    let metrics = metrics.map_or_else(String::new, |at| format!(" metrics=http://{at}/metrics"));
    let text = format!(
        "READY node={} listen={listen}{metrics}\n{try_next}\n",
        fabric.node_id()
    );
    let mut out = io::stdout().lock();
    // The node serves even if standard output is closed.
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "cannot say READY on standard output");
    }
    notify("READY=1");
}

/// Announces that the daemon stops.
pub(crate) fn stopping() {
    notify("STOPPING=1");
}

/// The address of the control plane for a client on this machine.
fn dial_ip(settings: &Settings, listen: SocketAddr) -> IpAddr {
    let bound = Some(listen.ip()).filter(|ip| !ip.is_unspecified());
    bound
        .or(settings.advertise)
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(path.as_encoded_bytes(), state) {
        tracing::warn!(%error, ?path, "cannot notify the service manager");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let socket = net::UnixDatagram::unbound()?;
    let address = match path.strip_prefix(b"@") {
        Some(name) => net::SocketAddr::from_abstract_name(name)?,
        None => net::SocketAddr::from_pathname(String::from_utf8_lossy(path).as_ref())?,
    };
    socket
        .send_to_addr(state.as_bytes(), &address)
        .map(|_bytes| ())
}
