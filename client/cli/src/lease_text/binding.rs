//! The coordinates of a lease as text.

use fabricbios_wire::{
    CpuBinding, GpuBinding, HandOver, KindBinding, LeaseId, LeaseInfo, LeasePhase, NetBinding,
    NvmeofBinding, RdmaBinding, ResourceType, Size,
};

use super::row;
use crate::{cpu_json::list, gid, output::one_line, time_text};

pub(super) fn rows(info: &LeaseInfo, rows: &mut Vec<Vec<String>>) {
    let binding = &info.binding;
    if let Some(limits) = binding.limits {
        let unit = if info.resource_type() == ResourceType::Block {
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
        rows.push(row("udp", format!("{endpoint}; only --json shows the key")));
    }
    match &binding.kind {
        KindBinding::Mem(Some(rdma)) => rdma_rows(rdma, rows),
        KindBinding::Block(Some(nvmeof)) => nvmeof_rows(info.lease_id, nvmeof, rows),
        KindBinding::Cpu(Some(cpu)) => cpu_rows(cpu, rows),
        KindBinding::Net(Some(net)) => net_rows(net, rows),
        KindBinding::Gpu(Some(gpu)) => gpu_rows(gpu, rows),
        _ => {}
    }
    if info.phase == LeasePhase::Active {
        rows.extend(use_of(info).map(|how| row("use", how)));
    }
}

fn cpu_rows(cpu: &CpuBinding, rows: &mut Vec<Vec<String>>) {
    rows.push(row("cpus", list(&cpu.cpus)));
    if let Some(quota) = cpu.quota {
        let cpus = f64::from(quota.quota_us) / f64::from(quota.period_us);
        rows.push(row(
            "",
            format!("shared; at most the time of {cpus:.2} CPUs"),
        ));
    }
    if !cpu.memory_nodes.is_empty() {
        rows.push(row(
            "",
            format!("memory of NUMA node {}", list(&cpu.memory_nodes)),
        ));
    }
    let cgroup = one_line(&cpu.cgroup);
    rows.push(row(
        "cgroup",
        format!("{cgroup}, partition {}", cpu.partition),
    ));
}

fn net_rows(net: &NetBinding, rows: &mut Vec<Vec<String>>) {
    let interface = net
        .interface
        .as_deref()
        .map(|name| format!("interface {}", one_line(name)));
    let function = net.pci_function.map(|it| format!("PCI function {it}"));
    let parts: Vec<String> = interface.into_iter().chain(function).collect();
    rows.push(row("net", parts.join(", ")));
    let vlan = net
        .vlan
        .map_or("untagged".to_owned(), |vlan| format!("VLAN {}", vlan.get()));
    let rate = ResourceType::Net.amount(net.rate_bps);
    rows.push(row("", format!("MAC address {}, {vlan}, {rate}", net.mac)));
    if let Some(device) = &net.cdi_device {
        rows.push(row("cdi device", one_line(device)));
    }
}

fn gpu_rows(gpu: &GpuBinding, rows: &mut Vec<Vec<String>>) {
    rows.push(row(
        "gpu",
        format!("{}, {}", one_line(&gpu.uuid), gpu.vendor),
    ));
    let mut parts = vec![format!("{} of memory", Size(gpu.vram_bytes))];
    parts.extend(
        gpu.compute_slices
            .map(|slices| format!("{slices} compute slices")),
    );
    parts.push(format!("{} queues in a session", gpu.queue_slots));
    rows.push(row("", parts.join(", ")));
    if let Some(endpoint) = gpu.session_endpoint {
        rows.push(row("sessions", format!("at {endpoint}")));
    }
    if let Some(device) = &gpu.cdi_device {
        rows.push(row("cdi device", one_line(device)));
    }
}

/// How the holder uses a lease that has no bytes to read and write.
fn use_of(info: &LeaseInfo) -> Option<String> {
    let lease_id = info.lease_id;
    let net = match &info.binding.kind {
        KindBinding::Cpu(Some(_)) => {
            return Some(format!(
                "on the node, if it has a local socket: `fabricctl run --lease {lease_id} -- COMMAND`"
            ));
        }
        // Leases that share a GPU are for sessions only.
        KindBinding::Gpu(Some(gpu)) => {
            let here = match gpu.cdi_device {
                Some(_) => {
                    format!("; or, on the node, `fabricctl run --lease {lease_id} -- COMMAND`")
                }
                None => String::new(),
            };
            return Some(format!(
                "`fabricctl gpu run --lease {lease_id} --ptx FILE --kernel NAME …`{here}"
            ));
        }
        KindBinding::Net(Some(net)) => net,
        _ => return None,
    };
    Some(match (net.hand_over, net.vfio_group, &net.cdi_device) {
        (HandOver::Netns, ..) => {
            format!(
                "on the node, if it has a local socket: `fabricctl lease enter {lease_id} --netns PATH`"
            )
        }
        (HandOver::Interface, ..) => "on the node, by the name of the interface".to_owned(),
        (HandOver::Vfio, Some(group), None) => format!("on the node, /dev/vfio/{group}"),
        (HandOver::Vfio, Some(group), Some(device)) => {
            let device = one_line(device);
            format!(
                "on the node, /dev/vfio/{group}; in a container, `podman run --device {device} …`"
            )
        }
        (HandOver::Vfio, None, _) => return None,
    })
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
        "`fabricctl block attach {lease_id}` as root; only --json shows the nvme line with the secret"
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
