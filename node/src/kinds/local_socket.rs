//! `--local-socket`: users of this machine put a process or a network namespace into a lease.

use std::sync::Arc;

use anyhow::Context;
use fabricbios_contract::LocalAccess;
use fabricbios_local::{
    Join, LocalServer, Tenants, check_absolute, check_directory, check_passable, is_shared,
};

use crate::{kinds::settings::SharedSettings, process::check::Findings};

/// Checks the place of the socket, and makes nothing.
pub(crate) fn check(settings: &SharedSettings, found: &mut Findings) {
    let Some(path) = &settings.local_socket else {
        return;
    };
    let named = || format!("--local-socket {}", path.display());
    let directory = path.parent().unwrap_or(path);
    if !directory.exists() {
        found.refused_if(check_absolute(directory).with_context(named));
        return;
    }
    let checked = check_directory(
        directory,
        "put a socket of their own in the place of the node's",
    );
    found.refused_if(checked.with_context(named));
    // Without tenants only root uses the socket.
    if settings.tenant_uid.is_empty() {
        return;
    }
    match check_passable(directory) {
        Err(why) if is_shared(directory) => found.warns(format_args!(
            "{}: {why}; a start sets its mode to 0755",
            named()
        )),
        checked => {
            found.refused_if(checked.with_context(named));
        }
    }
}

/// Opens the socket, if the operator wants one, for these kinds.
///
/// # Errors
/// The socket cannot be opened.
pub(crate) fn open(
    settings: &SharedSettings,
    kinds: Vec<Arc<dyn LocalAccess>>,
    join: Join,
) -> anyhow::Result<Option<LocalServer>> {
    let Some(path) = &settings.local_socket else {
        if !kinds.is_empty() {
            tracing::warn!(
                "leases are granted that no user of this machine can enter with `fabricctl run` or `fabricctl lease enter`: \
                 --local-socket PATH opens the socket for that"
            );
        }
        return Ok(None);
    };
    let tenants = tenants(settings);
    let users = tenants.len();
    let server = LocalServer::open(path, tenants, kinds, Some(join))
        .with_context(|| format!("--local-socket {}", path.display()))?;
    tracing::info!(path = %path.display(), users, "users of this machine may enter leases of their tenants");
    Ok(Some(server))
}

/// Takes over the users of `tenant-uid`.
///
/// # Errors
/// They cannot reach the socket; nothing has changed then.
pub(crate) fn change_tenants(
    server: &LocalServer,
    settings: &SharedSettings,
) -> anyhow::Result<()> {
    let changed = server.change_tenants(tenants(settings));
    changed.context("tenant-uid")
}

fn tenants(settings: &SharedSettings) -> Tenants {
    let mut tenants = Tenants::new();
    for it in &settings.tenant_uid {
        tenants.entry(it.uid).or_default().push(it.tenant.clone());
    }
    tenants
}
