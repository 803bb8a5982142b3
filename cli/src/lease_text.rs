//! A lease for people. Keys and secrets are not shown: they are for programs, in the JSON.

use fabricbios_wire::{
    Effective, LeaseId, LeaseInfo, LeasePhase, NvmeofBinding, RdmaBinding, ResourceType,
};

use crate::{gid, output, time_text};

/// All of it, a line per part.
pub(crate) fn full(info: &LeaseInfo) -> String {
    let mut rows = vec![
        row("lease", info.lease_id.to_string()),
        row(
            "state",
            format!("{}, generation {}", info.phase, info.generation.0),
        ),
        row(
            "resource",
            format!("{} {}", info.resource_type, info.resource_id),
        ),
        row("capacity", info.resource_type.amount(info.capacity)),
        row("expires", expiry(info)),
    ];
    if info.renewable_at_unix_ms != 0 {
        rows.push(row(
            "renewable",
            format!("from {}", time_text::utc(info.renewable_at_unix_ms)),
        ));
    }
    if info.grace_ends_unix_ms != 0 {
        rows.push(row(
            "contents",
            format!("kept until {}", time_text::utc(info.grace_ends_unix_ms)),
        ));
    }
    rows.push(row("enforced", effective(&info.effective)));
    binding(info, &mut rows);
    output::table(&rows)
}

/// As [`full`], and what its keys of before are still good for.
pub(crate) fn rotated(info: &LeaseInfo, overlap_ms: u32) -> String {
    let old = match (info.binding.nvmeof.is_some(), overlap_ms) {
        (true, _) => {
            "new; with those before nobody connects any more, and a connection that is open goes on"
        }
        (false, 0) => "new; those before open nothing any more",
        (false, _) => "new; those before go on working for the time that was asked for",
    };
    full(info) + &output::table(&[row("keys", old.to_owned())])
}

/// One line of a list.
pub(crate) fn short(info: &LeaseInfo) -> Vec<String> {
    vec![
        info.lease_id.to_string(),
        info.phase.to_string(),
        info.resource_type.to_string(),
        info.resource_type.amount(info.capacity),
        expiry(info),
        info.resource_id.to_string(),
    ]
}

/// The headings of [`short`].
pub(crate) fn headings() -> Vec<String> {
    ["LEASE", "STATE", "TYPE", "CAPACITY", "EXPIRES", "RESOURCE"]
        .map(str::to_owned)
        .to_vec()
}

fn expiry(info: &LeaseInfo) -> String {
    let at = time_text::utc(info.expires_at_unix_ms);
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active => {
            format!("in {} ({at})", time_text::span(info.remaining_ms))
        }
        _ => format!("over ({at})"),
    }
}

fn effective(effective: &Effective) -> String {
    let mut parts = Vec::new();
    parts.extend(
        effective
            .cpu_isolation
            .map(|class| format!("cpu isolation {class}")),
    );
    parts.extend(
        effective
            .gpu_exclusivity
            .map(|class| format!("gpu exclusivity {class}")),
    );
    parts.extend(effective.transport.map(|road| format!("transport {road}")));
    if effective.rotate_on_renew {
        parts.push("rotate on renew".to_owned());
    }
    if effective.read_only {
        parts.push("read-only".to_owned());
    }
    if effective.mutual_auth {
        parts.push("mutual authentication".to_owned());
    }
    if parts.is_empty() {
        "nothing beyond the term".to_owned()
    } else {
        parts.join(", ")
    }
}

fn binding(info: &LeaseInfo, rows: &mut Vec<Vec<String>>) {
    let binding = &info.binding;
    if let Some(limits) = binding.limits {
        let unit = if info.resource_type == ResourceType::Block {
            "blocks"
        } else {
            "bytes"
        };
        rows.push(row(
            "limits",
            format!("{} {unit} from {}", limits.length, limits.offset),
        ));
    }
    if let Some(endpoint) = binding.udp_endpoint {
        rows.push(row(
            "udp",
            format!("{endpoint}; its key is shown by --json only"),
        ));
    }
    if let Some(rdma) = &binding.rdma {
        rdma_rows(rdma, rows);
    }
    if let Some(nvmeof) = &binding.nvmeof {
        nvmeof_rows(info.lease_id, nvmeof, rows);
    }
}

fn nvmeof_rows(lease_id: LeaseId, nvmeof: &NvmeofBinding, rows: &mut Vec<Vec<String>>) {
    let mut heading = "nvme-of";
    for address in &nvmeof.addresses {
        let place = format!("{} at {}", address.transport, address.endpoint);
        rows.push(row(heading, place));
        heading = "";
    }
    let namespace = format!(
        "namespace {} of {}, blocks of {} bytes",
        nvmeof.nsid, nvmeof.subsystem, nvmeof.block_bytes
    );
    rows.push(row("", namespace));
    rows.push(row("", format!("for host {}", nvmeof.host_nqn)));
    let how = format!(
        "`fabricctl block attach {lease_id}` as root; the nvme line with its secret is shown by --json only"
    );
    rows.push(row("connect", how));
}

fn rdma_rows(rdma: &RdmaBinding, rows: &mut Vec<Vec<String>>) {
    let key = match rdma.rkey {
        Some(rkey) => format!("rkey {rkey:#010x} at {:#x}", rdma.remote_addr),
        None => "no key yet: give the client's queue pair with `fabricctl lease bind`".to_owned(),
    };
    rows.push(row("rdma", key));
    let peer = format!(
        "qp {} psn {} gid {} port {}",
        rdma.qp_num,
        rdma.psn,
        gid::text(rdma.gid),
        rdma.port
    );
    rows.push(row("", peer));
    for pair in &rdma.further {
        let further = format!(
            "qp {} psn {} rkey {:#010x}",
            pair.qp_num, pair.psn, pair.rkey
        );
        rows.push(row("", further));
    }
    let atomics = if rdma.atomics {
        "atomics"
    } else {
        "no atomics"
    };
    let manner = format!(
        "path mtu {}, {} reads at once, {atomics}, {}",
        rdma.path_mtu, rdma.max_rd_atomic, rdma.strategy
    );
    rows.push(row("", manner));
    if let Some(old) = rdma.previous {
        let left = time_text::span(old.remaining_ms.into());
        rows.push(row(
            "",
            format!("old rkey {:#010x} works for {left}", old.rkey),
        ));
    }
}

fn row(what: &str, value: String) -> Vec<String> {
    vec![what.to_owned(), value]
}
