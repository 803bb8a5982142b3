//! Announces readiness: READY for scripts, a first command for people, and a message to the service manager.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use fabricbios_fabric::Fabric;

use crate::{process::service_manager, settings::Settings};

/// The identity of the first operator, in the directory of a fabric.
const ADMIN: &str = "admin.identity";

/// Announces that clients are served.
pub(crate) fn announce(
    settings: &Settings,
    fabric: &Fabric,
    listen: SocketAddr,
    pages: Option<String>,
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
    let metrics = pages.map_or_else(String::new, |at| format!(" metrics={at}/metrics"));
    let text = format!(
        "READY node={} listen={listen}{metrics}\n{try_next}\n",
        fabric.node_id()
    );
    let mut out = io::stdout().lock();
    // The node serves even if standard output is closed.
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(%error, "cannot say READY on standard output");
    }
    service_manager::ready(listen, None);
}

/// The address of the control plane for a client on this machine.
fn dial_ip(settings: &Settings, listen: SocketAddr) -> IpAddr {
    let bound = Some(listen.ip()).filter(|ip| !ip.is_unspecified());
    bound
        .or(settings.advertise)
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}
