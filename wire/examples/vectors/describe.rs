//! Values as `name = value` lines, which an implementation in any language can produce and compare.
//! Ids and bytes are hexadecimal, GIDs in eight groups, numbers decimal, texts in quotes, absent parts left out.

use base16ct::lower::encode_string as hex;
use fabricbios_wire::*;

pub(crate) type Lines = Vec<String>;

fn gid(bytes: &[u8; 16]) -> String {
    bytes.chunks(2).map(hex).collect::<Vec<_>>().join(":")
}

macro_rules! lines {
    ($out:ident, $prefix:expr, $($name:literal = $value:expr),* $(,)?) => {{
        $($out.push(format!("{}{} = {}", $prefix, $name, $value));)*
    }};
}

pub(crate) fn header(header: &Header) -> Lines {
    let mut out = vec![];
    let msg_type = format!("0x{:04x}", header.msg_type);
    lines!(
        out,
        "",
        "msg_type" = msg_type,
        "request_id" = header.request_id,
        "nonce" = header.nonce
    );
    out
}

pub(crate) fn request(request: &Request) -> Lines {
    let mut out = vec![];
    match request {
        Request::Ping(number) => lines!(out, "", "number" = number),
        Request::GetIdentity | Request::FenceList => (),
        Request::GetInventory(form) => lines!(out, "", "form" = form),
        Request::LeaseAlloc(it) => alloc(&mut out, it),
        Request::LeaseRenew {
            lease_id,
            lease_secs,
        } => {
            lines!(out, "", "lease_id" = lease_id, "lease_secs" = lease_secs);
        }
        Request::LeaseQuery(id) | Request::LeaseFree(id) | Request::LeaseRevoke(id) => {
            lines!(out, "", "lease_id" = id);
        }
        Request::LeaseList { after, ended } => lines!(out, "", "after" = after, "ended" = ended),
        Request::LeaseBind { lease_id, peers } => {
            lines!(out, "", "lease_id" = lease_id);
            rdma_peers(&mut out, peers);
        }
        Request::LeaseRotate {
            lease_id,
            overlap_ms,
        } => {
            lines!(out, "", "lease_id" = lease_id, "overlap_ms" = overlap_ms);
        }
        Request::FenceClear(id) => lines!(out, "", "resource_id" = id),
        Request::IdentityIssue(it) => lines!(
            out,
            "",
            "role" = it.role,
            "valid_secs" = it.valid_secs,
            "tenant" = format!("{:?}", it.tenant),
            "csr_der" = hex(&it.csr_der),
        ),
    }
    out
}

fn alloc(out: &mut Lines, it: &LeaseAllocRequest) {
    lines!(out, "", "resource_type" = it.resource_type());
    if let Some(id) = it.resource_id {
        lines!(out, "", "resource_id" = id);
    }
    lines!(
        out,
        "",
        "capacity" = it.capacity,
        "lease_secs" = it.lease_secs,
        "grace_secs" = it.grace_secs,
    );
    out.extend(params(it));
}

/// What the TLVs of a LEASE_ALLOC say.
pub(crate) fn params(it: &LeaseAllocRequest) -> Lines {
    let mut out = vec![];
    let stated = || std::iter::once(&it.terms).chain(&it.foreign);
    let block = stated().find_map(LeaseTerms::block);
    let block = block.cloned().unwrap_or_default();
    stated().for_each(|terms| rdma_peers(&mut out, terms.rdma_peers()));
    if let Some(name) = &block.host_nqn {
        lines!(out, "", "host_nqn" = name);
    }
    if let Some(id) = block.host_id {
        lines!(out, "", "host_id" = id);
    }
    if let Some(net) = stated().find_map(LeaseTerms::net) {
        net_terms(&mut out, net);
    }
    kv_cache(&mut out, "", it.intent.kv_cache);
    if let Some(class) = stated().find_map(|it| it.cpu()?.isolation) {
        lines!(out, "", "cpu_isolation" = class);
    }
    if let Some(class) = stated().find_map(|it| it.gpu()?.exclusivity) {
        lines!(out, "", "gpu_exclusivity" = class);
    }
    lines!(
        out,
        "",
        "transport" = it.transport,
        "rotate_on_renew" = it.rotate_on_renew
    );
    block_flags(&mut out, "", block.read_only, block.mutual_auth);
    if let Some(cpu) = stated().find_map(LeaseTerms::cpu) {
        let (mode, width) = (cpu.execution_mode, cpu.execution_width);
        execution(&mut out, "", mode, width, cpu.partition);
    }
    if let Some(gpu) = stated().find_map(LeaseTerms::gpu) {
        gpu_execution(&mut out, "", gpu.execution_mode, gpu.compute_slices);
    }
    affinities(&mut out, "", &it.intent.affinities);
    out
}

fn net_terms(out: &mut Lines, it: &NetTerms) {
    if let Some(mac) = it.mac {
        lines!(out, "", "mac" = mac);
    }
    if let Some(vlan) = it.vlan {
        lines!(out, "", "vlan" = vlan.get());
    }
    if let Some(hand_over) = it.hand_over {
        lines!(out, "", "hand_over" = hand_over);
    }
}

fn kv_cache(out: &mut Lines, p: &str, intent: Option<KvCacheIntent>) {
    if let Some(it) = intent {
        let p = format!("{p}kv_cache_intent.");
        lines!(out, p, "tier" = it.tier, "block_bytes" = it.block_bytes);
    }
}

fn affinities(out: &mut Lines, p: &str, affinities: &[Affinity]) {
    for (n, near) in affinities.iter().enumerate() {
        lines!(
            out,
            format!("{p}affinity.{n}."),
            "category" = near.category,
            "strength" = near.strength,
            "target_type" = near.target_type,
            "target" = hex(&near.target),
        );
    }
}

fn execution(
    out: &mut Lines,
    p: &str,
    mode: Option<CpuExecutionMode>,
    width: Option<u16>,
    partition: Option<CpuPartition>,
) {
    if let Some(mode) = mode {
        lines!(out, p, "cpu_execution_mode" = mode);
    }
    if let Some(width) = width {
        lines!(out, p, "cpu_execution_width" = width);
    }
    if let Some(partition) = partition {
        lines!(out, p, "cpu_partition" = partition);
    }
}

/// Told where they are set.
fn block_flags(out: &mut Lines, prefix: &str, read_only: bool, mutual_auth: bool) {
    if read_only {
        lines!(out, prefix, "read_only" = true);
    }
    if mutual_auth {
        lines!(out, prefix, "mutual_auth" = true);
    }
}

/// The first by its name alone, the others numbered from 1.
fn rdma_peers(out: &mut Lines, peers: &[RdmaPeer]) {
    for (at, peer) in peers.iter().enumerate() {
        match at {
            0 => rdma_peer(out, "rdma_peer.", peer),
            _ => rdma_peer(out, &format!("rdma_peer{at}."), peer),
        }
    }
}

fn rdma_peer(out: &mut Lines, prefix: &str, peer: &RdmaPeer) {
    lines!(
        out,
        prefix,
        "qpn" = peer.qpn,
        "psn" = peer.psn,
        "gid" = gid(&peer.gid),
        "path_mtu" = peer.path_mtu,
    );
}

pub(crate) fn answer(answer: &Answer) -> Lines {
    match answer {
        Ok(it) => [vec!["reply_status = 0".to_owned()], reply(it)].concat(),
        Err(it) => refusal(it),
    }
}

fn refusal(it: &Refusal) -> Lines {
    let mut out = vec![];
    lines!(
        out,
        "",
        "reply_status" = it.error as u16,
        "error" = it.error,
        "class" = it.class,
        "message" = format!("{:?}", it.message),
    );
    if let Some(at) = it.renewable_at_unix_ms {
        lines!(out, "", "renewable_at_unix_ms" = at);
    }
    if let Some(after) = it.retry_after_ms {
        lines!(out, "", "retry_after_ms" = after);
    }
    out
}

fn reply(it: &Reply) -> Lines {
    let mut out = vec![];
    match it {
        Reply::Pong(number) => lines!(out, "", "number" = number),
        Reply::Identity(it) => lines!(
            out,
            "",
            "node_id" = it.node_id,
            "epoch" = it.epoch.0,
            "endpoint" = it.endpoint,
            "role" = it.role,
            "tenant" = format!("{:?}", it.tenant),
            "version" = format!("{:?}", it.version),
        ),
        Reply::FlatInventory(entries) => {
            lines!(out, "", "form" = "flat");
            out.extend(flat(entries));
        }
        Reply::Inventory(it) => {
            lines!(out, "", "form" = "structured");
            out.extend(structured(it));
        }
        Reply::Lease(it) => lease(&mut out, "", it),
        Reply::Leases(page) => {
            if let Some(next) = page.next {
                lines!(out, "", "next" = next);
            }
            let leases = page.leases.iter().enumerate();
            leases.for_each(|(n, it)| lease(&mut out, &format!("lease.{n}."), it));
        }
        Reply::Revoked(outcome) => lines!(out, "", "outcome" = outcome),
        Reply::Fences(fences) => fences.iter().enumerate().for_each(|(n, it)| {
            lines!(
                out,
                format!("fence.{n}."),
                "resource_id" = it.resource_id,
                "resource_type" = it.resource_type,
                "lease_id" = it.lease_id,
                "since_unix_ms" = it.since_unix_ms,
                "reason" = format!("{:?}", it.reason),
            );
        }),
        Reply::FenceCleared => (),
        Reply::Issued {
            certificate_pem,
            ca_pem,
        } => lines!(
            out,
            "",
            "certificate_pem" = format!("{certificate_pem:?}"),
            "ca_pem" = format!("{ca_pem:?}"),
        ),
    }
    out
}

fn lease(out: &mut Lines, p: &str, it: &LeaseInfo) {
    lines!(
        out,
        p,
        "lease_id" = it.lease_id,
        "resource_id" = it.resource_id,
        "resource_type" = it.resource_type(),
        "status" = it.status,
        "phase" = it.phase,
        "generation" = it.generation.0,
        "capacity" = it.capacity,
        "granted_at_unix_ms" = it.granted_at_unix_ms,
        "expires_at_unix_ms" = it.expires_at_unix_ms,
        "renewable_at_unix_ms" = it.renewable_at_unix_ms,
        "grace_ends_unix_ms" = it.grace_ends_unix_ms,
        "remaining_ms" = it.remaining_ms,
    );
    binding(out, p, &it.binding);
    effective(out, &format!("{p}effective."), &it.effective);
    if let Some(it) = &it.intent {
        kv_cache(out, p, it.kv_cache);
        affinities(out, p, &it.affinities);
    }
    if let Some(tenant) = &it.tenant {
        lines!(out, p, "tenant" = format!("{tenant:?}"));
    }
    if let Some(it) = &it.end {
        end(out, &format!("{p}end."), it);
    }
}

fn end(out: &mut Lines, p: &str, it: &LeaseEnd) {
    lines!(out, p, "at_unix_ms" = it.at_unix_ms, "cause" = it.cause);
    if let Some(by) = &it.by {
        lines!(out, p, "by" = format!("{by:?}"));
    }
    for (list, steps) in [("proof", &it.proof), ("cleaning", &it.cleaning)] {
        for (n, step) in steps.iter().enumerate() {
            lines!(
                out,
                format!("{p}{list}.{n}."),
                "step" = format!("{:?}", step.step),
                "took_us" = step.took_us,
                "found" = format!("{:?}", step.found),
            );
        }
    }
}

fn binding(out: &mut Lines, p: &str, it: &Binding) {
    if let Some(key) = &it.dp_key {
        lines!(out, p, "dp_key" = hex(&key.0));
    }
    if let Some(endpoint) = it.udp_endpoint {
        lines!(out, p, "udp_endpoint" = endpoint);
    }
    if let Some(limits) = it.limits {
        lines!(
            out,
            p,
            "limits.offset" = limits.offset,
            "limits.length" = limits.length
        );
    }
    if let Some(rdma) = it.rdma() {
        rdma_binding(out, &format!("{p}rdma."), rdma);
    }
    if let Some(nvmeof) = it.nvmeof() {
        nvmeof_binding(out, &format!("{p}nvmeof."), nvmeof);
    }
    if let Some(net) = it.net() {
        net_binding(out, &format!("{p}net."), net);
    }
    if let Some(gpu) = it.gpu() {
        gpu_binding(out, &format!("{p}gpu."), gpu);
    }
    if let Some(cpu) = it.cpu() {
        cpu_binding(out, &format!("{p}cpu."), cpu);
    }
}

fn net_binding(out: &mut Lines, p: &str, it: &NetBinding) {
    if let Some(function) = it.pci_function {
        lines!(out, p, "pci_function" = function);
    }
    if let Some(interface) = &it.interface {
        lines!(out, p, "interface" = interface);
    }
    lines!(out, p, "mac" = it.mac);
    if let Some(vlan) = it.vlan {
        lines!(out, p, "vlan" = vlan.get());
    }
    lines!(out, p, "rate_bps" = it.rate_bps, "hand_over" = it.hand_over);
    if let Some(group) = it.vfio_group {
        lines!(out, p, "vfio_group" = group);
    }
    if let Some(device) = &it.cdi_device {
        lines!(out, p, "cdi_device" = device);
    }
}

fn gpu_binding(out: &mut Lines, p: &str, it: &GpuBinding) {
    lines!(
        out,
        p,
        "uuid" = it.uuid,
        "vendor" = it.vendor,
        "vram_bytes" = it.vram_bytes
    );
    if let Some(endpoint) = it.session_endpoint {
        lines!(out, p, "session_endpoint" = endpoint);
    }
    if let Some(device) = &it.cdi_device {
        lines!(out, p, "cdi_device" = device);
    }
    if let Some(slices) = it.compute_slices {
        lines!(out, p, "compute_slices" = slices);
    }
    lines!(out, p, "queue_slots" = it.queue_slots);
}

fn cpu_binding(out: &mut Lines, p: &str, it: &CpuBinding) {
    lines!(
        out,
        p,
        "cpus" = ranges(&it.cpus),
        "cgroup" = it.cgroup,
        "partition" = it.partition
    );
    if !it.memory_nodes.is_empty() {
        lines!(out, p, "memory_nodes" = ranges(&it.memory_nodes));
    }
    if let Some(quota) = it.quota {
        lines!(
            out,
            p,
            "quota_us" = quota.quota_us,
            "period_us" = quota.period_us
        );
    }
}

/// As the kernel writes a list.
fn ranges(ranges: &[CpuRange]) -> String {
    let ranges: Vec<_> = ranges.iter().map(CpuRange::to_string).collect();
    ranges.join(",")
}

fn nvmeof_binding(out: &mut Lines, p: &str, it: &NvmeofBinding) {
    for (n, address) in it.addresses.iter().enumerate() {
        lines!(
            out,
            format!("{p}address.{n}."),
            "transport" = address.transport,
            "endpoint" = address.endpoint
        );
    }
    lines!(
        out,
        p,
        "subsystem" = it.subsystem,
        "nsid" = it.nsid,
        "host_nqn" = it.host_nqn,
        "host_id" = it.host_id,
        "dhchap_secret" = it.dhchap_secret.reveal(),
    );
    if let Some(secret) = &it.dhchap_ctrl_secret {
        lines!(out, p, "dhchap_ctrl_secret" = secret.reveal());
    }
    lines!(
        out,
        p,
        "ctrl_loss_secs" = it.ctrl_loss_secs,
        "block_bytes" = it.block_bytes
    );
}

fn rdma_binding(out: &mut Lines, p: &str, it: &RdmaBinding) {
    if let Some(rkey) = it.rkey {
        lines!(out, p, "rkey" = rkey);
    }
    lines!(
        out,
        p,
        "remote_addr" = it.remote_addr,
        "qp_num" = it.qp_num,
        "gid" = gid(&it.gid),
        "port" = it.port,
        "psn" = it.psn,
        "path_mtu" = it.path_mtu,
        "strategy" = it.strategy,
    );
    if let Some(previous) = it.previous {
        let p = format!("{p}previous.");
        lines!(
            out,
            p,
            "rkey" = previous.rkey,
            "remaining_ms" = previous.remaining_ms
        );
    }
    lines!(
        out,
        p,
        "max_rd_atomic" = it.max_rd_atomic,
        "atomics" = it.atomics
    );
    for (n, further) in it.further.iter().enumerate() {
        lines!(
            out,
            format!("{p}further.{n}."),
            "qp_num" = further.qp_num,
            "psn" = further.psn,
            "rkey" = further.rkey
        );
    }
}

fn effective(out: &mut Lines, p: &str, it: &Effective) {
    if let Some(class) = it.cpu_isolation {
        lines!(out, p, "cpu_isolation" = class);
    }
    if let Some(class) = it.gpu_exclusivity {
        lines!(out, p, "gpu_exclusivity" = class);
    }
    if let Some(transport) = it.transport {
        lines!(out, p, "transport" = transport);
    }
    lines!(out, p, "rotate_on_renew" = it.rotate_on_renew);
    block_flags(out, p, it.read_only, it.mutual_auth);
    let (mode, width) = (it.cpu_execution_mode, it.cpu_execution_width);
    execution(out, p, mode, width, it.cpu_partition);
    if let Some(rate) = it.net_rate {
        lines!(out, p, "net_rate" = rate);
    }
    gpu_execution(out, p, it.gpu_execution_mode, it.gpu_compute_slices);
}

fn gpu_execution(out: &mut Lines, p: &str, mode: Option<GpuExecutionMode>, slices: Option<u16>) {
    if let Some(mode) = mode {
        lines!(out, p, "gpu_execution_mode" = mode);
    }
    if let Some(slices) = slices {
        lines!(out, p, "gpu_compute_slices" = slices);
    }
}

pub(crate) fn gpu_request(request: &GpuRequest) -> Lines {
    let mut out = vec![];
    match request {
        GpuRequest::Open { lease_id, session } => {
            lines!(out, "", "lease_id" = lease_id, "session" = session);
        }
        GpuRequest::MemAlloc { bytes } => lines!(out, "", "bytes" = bytes),
        GpuRequest::MemWrite {
            memory,
            offset,
            length,
        }
        | GpuRequest::MemRead {
            memory,
            offset,
            length,
        } => {
            lines!(
                out,
                "",
                "memory" = memory,
                "offset" = offset,
                "length" = length
            );
        }
        GpuRequest::ModuleLoad { length } => lines!(out, "", "length" = length),
        GpuRequest::Launch(launch) => {
            let kernel = format!("{:?}", launch.kernel);
            lines!(out, "", "module" = launch.module, "kernel" = kernel);
            for (word, three) in [("grid", launch.grid), ("block", launch.block)] {
                let [x, y, z] = three;
                out.push(format!("{word} = {x},{y},{z}"));
            }
            lines!(out, "", "shared_bytes" = launch.shared_bytes);
            for (n, argument) in launch.arguments.iter().enumerate() {
                out.push(format!("argument.{n} = {}", hex(argument)));
            }
        }
        GpuRequest::Sync { whole_session } => lines!(out, "", "whole_session" = whole_session),
        GpuRequest::MemFree { memory } => lines!(out, "", "memory" = memory),
        GpuRequest::ModuleUnload { module } => lines!(out, "", "module" = module),
        GpuRequest::Close => (),
        GpuRequest::MemShare { length } => lines!(out, "", "length" = length),
        GpuRequest::MemWriteShared(copy) | GpuRequest::MemReadShared(copy) => lines!(
            out,
            "",
            "memory" = copy.memory,
            "offset" = copy.offset,
            "shared_offset" = copy.shared_offset,
            "length" = copy.length
        ),
    }
    out
}

pub(crate) fn gpu_answer(answer: &Result<GpuReply, Refusal>) -> Lines {
    match answer {
        Ok(it) => [vec!["reply_status = 0".to_owned()], gpu_reply(it)].concat(),
        Err(it) => refusal(it),
    }
}

fn gpu_reply(reply: &GpuReply) -> Lines {
    let mut out = vec![];
    match reply {
        GpuReply::Opened(it) => lines!(
            out,
            "",
            "session" = it.session,
            "vram_bytes" = it.vram_bytes,
            "vram_used" = it.vram_used,
            "queue_slots" = it.queue_slots,
            "device" = format!("{:?}", it.device),
            "uuid" = format!("{:?}", it.uuid)
        ),
        GpuReply::Memory { memory, address } => {
            lines!(out, "", "memory" = memory, "address" = address);
        }
        GpuReply::Module { module } => lines!(out, "", "module" = module),
        GpuReply::Data { length } => lines!(out, "", "length" = length),
        GpuReply::Closed {
            wiped_bytes,
            free_bytes,
        } => {
            lines!(
                out,
                "",
                "wiped_bytes" = wiped_bytes,
                "free_bytes" = free_bytes
            );
        }
        GpuReply::Done => (),
    }
    out
}

pub(crate) fn flat(entries: &[FlatEntry]) -> Lines {
    let mut out = vec![];
    for (n, it) in entries.iter().enumerate() {
        lines!(
            out,
            format!("entry.{n}."),
            "resource_id" = it.resource_id,
            "resource_type" = it.resource_type,
            "flags" = it.flags,
            "capacity" = it.capacity,
            "available" = it.available,
        );
    }
    out
}

pub(crate) fn structured(it: &ResourceInventory) -> Lines {
    let mut out = vec![];
    lines!(
        out,
        "",
        "node_id" = it.node_id,
        "epoch" = it.epoch.0,
        "health" = it.health
    );
    for (n, a) in it.mem_arenas.iter().enumerate() {
        lines!(
            out,
            format!("mem.{n}."),
            "resource_id" = a.resource_id,
            "base" = a.base,
            "len" = a.len,
            "align" = a.align,
            "max_read" = a.max_read,
            "max_write" = a.max_write,
            "health" = a.health,
        );
    }
    for (n, b) in it.block_devs.iter().enumerate() {
        lines!(
            out,
            format!("block.{n}."),
            "resource_id" = b.resource_id,
            "block_size" = b.block_size,
            "capacity" = b.capacity,
            "flags" = b.flags,
            "health" = b.health,
        );
    }
    for (n, c) in it.cpu_caps.iter().enumerate() {
        lines!(
            out,
            format!("cpu.{n}."),
            "resource_id" = c.resource_id,
            "cores" = c.cores,
            "threads" = c.threads,
            "max_mhz" = c.max_mhz,
            "flags" = c.flags,
            "health" = c.health,
        );
    }
    for (n, i) in it.nics.iter().enumerate() {
        lines!(
            out,
            format!("nic.{n}."),
            "resource_id" = i.resource_id,
            "speed_bps" = i.speed_bps,
            "mtu" = i.mtu,
            "flags" = i.flags,
            "health" = i.health,
        );
    }
    for (n, g) in it.gpus.iter().enumerate() {
        lines!(
            out,
            format!("gpu.{n}."),
            "resource_id" = g.resource_id,
            "vram_bytes" = g.vram_bytes,
            "compute_units" = g.compute_units,
            "flags" = g.flags,
            "health" = g.health,
        );
    }
    out.extend(it.extensions.iter().map(extension));
    out
}

fn extension(it: &InventoryExtension) -> String {
    match it {
        InventoryExtension::Name(id, name) => format!("name.{id} = {name:?}"),
        InventoryExtension::HealthReason(id, why) => format!("health_reason.{id} = {why:?}"),
        InventoryExtension::Available(id, units) => format!("available.{id} = {units}"),
        InventoryExtension::FencedPart(id, units) => format!("fenced_part.{id} = {units}"),
        InventoryExtension::Classes {
            resource_id,
            default,
            supported,
        } => {
            format!("classes.{resource_id} = {default:02x}/{}", hex(supported))
        }
        InventoryExtension::Transports(id, transports) => {
            let transports: Vec<_> = transports
                .iter()
                .map(|transport| transport.name())
                .collect();
            format!("transports.{id} = {}", transports.join(","))
        }
        InventoryExtension::ClassEnforcement(id, classes) => {
            let classes: Vec<_> = { classes.iter() }
                .map(|(class, it)| format!("{class:02x} {it}"))
                .collect();
            format!("class_enforcement.{id} = {}", classes.join(","))
        }
        InventoryExtension::ClassAvailable(id, classes) => {
            let classes: Vec<_> = { classes.iter() }
                .map(|(class, units)| format!("{class:02x} {units}"))
                .collect();
            format!("class_available.{id} = {}", classes.join(","))
        }
        InventoryExtension::VirtualFunctions {
            resource_id,
            total,
            free,
        } => format!("virtual_functions.{resource_id} = {free}/{total}"),
        InventoryExtension::GpuSlots {
            resource_id,
            compute_slices,
            compute_slices_free,
            session_slots,
            session_slots_free,
            queue_slots,
        } => format!(
            "gpu_slots.{resource_id} = {compute_slices_free}/{compute_slices} {session_slots_free}/{session_slots} {queue_slots}"
        ),
    }
}
