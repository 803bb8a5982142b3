#!/usr/bin/env python3
"""Checks the golden vectors with an independent implementation.

This file was written only from docs/spec/fabricbios-wire-encoding-v0.md (beside it data_plane.py only from
data-plane-over-udp.md, and gpu_session.py only from gpu-sessions.md) and uses only the standard library; a client in another language needs no more. It
decodes every vector and compares the values with the `value` lines. If the file says that the bytes are
canonical, it also encodes them again from those lines. Exits 1 on any difference, and if there was nothing
to check.

Usage: python3 vectors/check.py [FOLDER]
"""

import ipaddress
import json
import pathlib
import re
import sys
import uuid

import data_plane
import gpu_session

STATUS = ["ok", "InvalidIntent", "InvalidArgs", "CapacityExceeded", "ResourceBusy", "NotFound", "Expired",
          "Revoked", "Fenced", "NotPermitted", "RenewTooEarly", "Unsupported", "Malformed", "Internal",
          "Unavailable"]
CPU = ["best_effort", "whole_core", "strict_isolated"]
MODE = ["single_threaded", "shared_memory"]
PARTITION = ["member", "root", "isolated"]
HAND_OVER = ["interface", "netns", "vfio"]
ENFORCEMENT = ["best_effort", "enforced"]
GPU = ["shared", "session", "device", "partition"]
GPU_MODE = ["one_shot", "session"]
GPU_VENDOR = ["nvidia", "amd"]
TRANSPORT = ["auto", "rdma", "udp", "both", "nvme-tcp", "nvme-rdma"]
TIER = ["hot", "warm", "cold"]
BOOL = ["false", "true"]
FORM = ["flat", "structured"]
ROLE = ["tenant", "operator"]
LEASE_STATUS = ["active", "expired", "revoked"]
PHASE = ["binding", "active", "grace", "expired", "revoked", "freed", "fenced"]
CAUSE = ["expired", "freed", "revoked", "node_stopped", "node_restarted", "key_not_retired", "binding_failed",
         "displaced"]
STRATEGY = ["window", "region"]
OUTCOME = ["torn_down", "fenced", "not_found"]
CLASS = ["permanent", "transient", "policy"]
TYPES = {1: "cpu", 2: "mem", 3: "block", 4: "net", 5: "gpu", 0x10: "scheduler", 0xFF: "vendor"}
KNOWN_TAGS = {*range(0x0101, 0x0105), *range(0x0201, 0x020D), 0x0210, *range(0x0301, 0x030A), 0x0310, 0x0311,
              *range(0x0401, 0x0409), 0x0410, 0x0411, 0x0412, *range(0x0501, 0x0508), *range(0x0601, 0x0606),
              *range(0x0901, 0x090E), 0x0910,
              0x0A01, 0x0A02, 0x0A03, 0x0A04, *range(0x0B01, 0x0B0A), *range(0x0C01, 0x0C05)}
MAX_PAYLOAD = 65_536
QUEUE_PAIRS_MAX = 8
PROOF_STEPS_MAX = 64
CLEANING_STEPS_MAX = 16
CPU_RANGES_MAX = 4_096
NVMEOF_TRANSPORT = {1: "rdma", 3: "tcp"}
NQN = re.compile(r"nqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[A-Za-z0-9][-A-Za-z0-9._:+=@]*", re.ASCII)
SECRET = re.compile(r"DHHC-1:0[0-3]:[A-Za-z0-9+/=]+:", re.ASCII)
MTUS = (0, 256, 512, 1024, 2048, 4096)
TENANT_LETTERS = set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


class Refused(Exception):
    """The bytes are refused; the argument is the name of the refusal."""


def need(condition, name):
    if not condition:
        raise Refused(name)


# ---- section 1: ground rules -------------------------------------------------------------------------

class Reader:
    """Reads fields from the front. `short` is the refusal if bytes are missing."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        need(len(self.data) - self.at >= size, "Malformed")
        self.at += size
        return self.data[self.at - size:self.at]

    def u(self, size):
        return int.from_bytes(self.take(size), "big")

    def id(self):
        value = self.u(16)
        need(value, "InvalidArgs")
        return f"{value:032x}"

    def word(self, words):
        value = self.u(1)
        need(value < len(words), "InvalidArgs")
        return words[value]

    def bytes(self, limit):
        size = self.u(4)
        need(size <= limit, "Malformed")
        return self.take(size)

    def text(self, limit):
        return utf8(self.bytes(limit), "Malformed")

    def area(self):
        return Area(self.bytes(MAX_PAYLOAD))

    def list(self, limit, item):
        count = self.u(2)
        need(count <= limit, "Malformed")
        return [item(self) for _ in range(count)]

    def end(self):
        need(self.at == len(self.data), "Malformed")


def utf8(data, refusal):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(refusal) from None


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


# ---- section 3: TLVs ---------------------------------------------------------------------------------

class Area:
    def __init__(self, data):
        self.tlvs, at = [], 0
        while at < len(data):
            need(len(data) - at >= 4, "Malformed")
            tag, size = int.from_bytes(data[at:at + 2], "big"), int.from_bytes(data[at + 2:at + 4], "big")
            value = data[at + 4:at + 4 + size]
            need(len(value) == size, "InvalidIntent" if tag in KNOWN_TAGS else "Malformed")
            self.tlvs.append((tag, value))
            at += 4 + size

    def one(self, tag, size=None):
        found = [value for known, value in self.tlvs if known == tag]
        need(len(found) <= 1, "InvalidIntent")
        need(not found or size is None or len(found[0]) == size, "InvalidIntent")
        return found[0] if found else None

    def must(self, tag, size=None):
        value = self.one(tag, size)
        need(value is not None, "InvalidIntent")
        return value

    def several(self, tag, most):
        found = [value for known, value in self.tlvs if known == tag]
        need(len(found) <= most, "InvalidIntent")
        return found

    def number(self, tag, size, most=None):
        value = int.from_bytes(self.must(tag, size), "big")
        need(most is None or value <= most, "InvalidIntent")
        return value

    def word(self, tag, words):
        value = self.one(tag, 1)
        if value is None:
            return None
        need(value[0] < len(words), "InvalidIntent")
        return words[value[0]]


def number(data):
    return int.from_bytes(data, "big")


def endpoint(data, refusal):
    address, port = ipaddress.IPv6Address(data[:16]), number(data[16:])
    four = address.ipv4_mapped
    need(port and int(address) and (four is None or int(four)), refusal)
    return f"{four}:{port}" if four else f"[{address}]:{port}"


def read_nqn(data):
    need(len(data) <= 223 and NQN.fullmatch(utf8(data, "InvalidIntent")), "InvalidIntent")
    return data.decode()


def read_secret(data):
    need(len(data) <= 128 and SECRET.fullmatch(utf8(data, "InvalidIntent")), "InvalidIntent")
    return data.decode()


def read_host_id(data):
    need(any(data), "InvalidIntent")
    return uuid.UUID(bytes=data)


def read_word(data, most):
    need(1 <= len(data) <= most and all(0x21 <= byte <= 0x7E for byte in data), "InvalidIntent")
    return data.decode("ascii")


def read_interface(data):
    name = read_word(data, 15)
    need(name not in (".", "..") and not set(name) & set("/:"), "InvalidIntent")
    return name


def read_mac(data):
    need(any(data) and not data[0] & 1, "InvalidIntent")
    return data.hex(":")


def read_vlan(data):
    need(1 <= number(data) <= 4094, "InvalidIntent")
    return number(data)


def read_ranges(data):
    need(len(data) % 4 == 0 and len(data) <= 4 * CPU_RANGES_MAX, "InvalidIntent")
    words, before = [], -2
    for at in range(0, len(data), 4):
        first, last = number(data[at:at + 2]), number(data[at + 2:at + 4])
        need(before + 1 < first <= last, "InvalidIntent")
        words.append(f"{first}" if first == last else f"{first}-{last}")
        before = last
    return ",".join(words)


def mapped(value, read):
    return None if value is None else read(value)


def read_net_terms(area):
    return present([("mac", mapped(area.one(0x0410, 6), read_mac)), ("vlan", mapped(area.one(0x0411, 2), read_vlan)),
                    ("hand_over", area.word(0x0412, HAND_OVER))])


def read_execution(area):
    mode, width, partition = area.word(0x0908, MODE), area.one(0x0909, 2), area.word(0x090A, PARTITION)
    need((width is None or number(width)) and partition != "member", "InvalidIntent")
    return present([("cpu_execution_mode", mode), ("cpu_execution_width", mapped(width, number)),
                    ("cpu_partition", partition)])


def read_gpu_execution(area):
    mode, slices = area.word(0x090C, GPU_MODE), area.one(0x090D, 2)
    need(slices is None or number(slices), "InvalidIntent")
    return present([("gpu_execution_mode", mode), ("gpu_compute_slices", mapped(slices, number))])


def read_flags(area):
    flags = [("read_only", area.word(0x0906, BOOL)), ("mutual_auth", area.word(0x0907, BOOL))]
    return [(key, value) for key, value in flags if value == "true"]


def read_peers(area):
    out = []
    for n, value in enumerate(area.several(0x0210, QUEUE_PAIRS_MAX)):
        out += read_peer(f"rdma_peer{n or ''}", value)
    return out


def read_peer(name, value):
    need(len(value) == 28, "InvalidIntent")
    qpn, psn, gid, mtu = number(value[:4]), number(value[4:8]), value[8:24], number(value[24:26])
    need(1 <= qpn <= 0xFFFFFF and psn <= 0xFFFFFF and mtu in MTUS and value[26:] == b"\0\0", "InvalidIntent")
    return [(f"{name}.qpn", qpn), (f"{name}.psn", psn), (f"{name}.gid", gid.hex(":", 2)), (f"{name}.path_mtu", mtu)]


def read_affinity(n, value):
    need(len(value) >= 5 and number(value[3:5]) == len(value) - 5, "InvalidIntent")
    category, strength, kind, target = value[0], value[1], value[2], value[5:]
    need(1 <= category <= 5 and 1 <= strength <= 3 and 1 <= kind <= 4, "InvalidIntent")
    if kind in (1, 2):
        need(len(target) == 16 and any(target), "InvalidIntent")
    elif kind == 3:
        need(len(target) == 32, "InvalidIntent")
    else:
        need(1 <= len(target) <= 255, "InvalidIntent")
        utf8(target, "InvalidIntent")
    fields = [("category", category), ("strength", strength), ("target_type", kind), ("target", target.hex())]
    return [(f"affinity.{n}.{key}", value) for key, value in fields]


def read_params(area):
    out = read_peers(area)
    name, host = area.one(0x0310), area.one(0x0311, 16)
    out += present([("host_nqn", None if name is None else read_nqn(name)),
                    ("host_id", None if host is None else read_host_id(host))])
    out += read_net_terms(area) + read_kv_cache(area)
    out += present([("cpu_isolation", area.word(0x0902, CPU)), ("gpu_exclusivity", area.word(0x0903, GPU))])
    out.append(("transport", area.word(0x0904, TRANSPORT) or "auto"))
    out.append(("rotate_on_renew", area.word(0x0905, BOOL) or "false"))
    return out + read_flags(area) + read_execution(area) + read_gpu_execution(area) + read_affinities(area)


def read_kv_cache(area):
    intent = area.one(0x0901, 8)
    if intent is None:
        return []
    need(intent[0] == 1 and intent[1] < len(TIER) and intent[2:4] == b"\0\0", "InvalidIntent")
    return [("kv_cache_intent.tier", TIER[intent[1]]), ("kv_cache_intent.block_bytes", number(intent[4:]))]


def read_affinities(area):
    return [field for n, value in enumerate(area.several(0x0910, 16)) for field in read_affinity(n, value)]


def present(pairs):
    return [(key, value) for key, value in pairs if value is not None]


# ---- sections 4 to 8: messages -----------------------------------------------------------------------

def resource_type(r):
    code = r.u(2)
    return TYPES.get(code, f"unknown(0x{code:04x})")


def at_least_1(value):
    need(value >= 1, "InvalidArgs")
    return value


def read_alloc(r):
    out = [("resource_type", resource_type(r))]
    resource_id = r.u(16)
    if resource_id:
        out.append(("resource_id", f"{resource_id:032x}"))
    out += [("capacity", at_least_1(r.u(8))), ("lease_secs", at_least_1(r.u(4))), ("grace_secs", r.u(4))]
    return out + read_params(r.area())


def read_issue(r):
    role, secs, tenant = r.word(ROLE), r.u(4), r.text(64)
    need(tenant and set(tenant) <= TENANT_LETTERS, "InvalidArgs")
    csr = r.bytes(4096)
    need(csr, "InvalidArgs")
    return [("role", role), ("valid_secs", secs), ("tenant", quoted(tenant)), ("csr_der", csr.hex())]


def read_bind(r):
    lease_id = r.id()
    peers = read_peers(r.area())
    need(peers, "InvalidIntent")
    return [("lease_id", lease_id)] + peers


def read_rotate(r):
    lease_id, overlap = r.id(), r.u(4)
    need(overlap <= 60_000, "InvalidArgs")
    return [("lease_id", lease_id), ("overlap_ms", overlap)]


def read_lease_id(r):
    return [("lease_id", r.id())]


REQUESTS = {
    0x0001: lambda r: [("number", r.u(8))],
    0x0002: lambda r: [],
    0x0100: lambda r: [("form", r.word(FORM))],
    0x0200: read_alloc,
    0x0201: lambda r: [("lease_id", r.id()), ("lease_secs", r.u(4))],
    0x0202: read_lease_id,
    0x0203: read_lease_id,
    0x0204: lambda r: [("after", f"{r.u(16):032x}"), ("ended", r.word(BOOL))],
    0x0205: read_bind,
    0x0206: read_rotate,
    0x020A: read_lease_id,
    0x0300: lambda r: [],
    0x0301: lambda r: [("resource_id", r.id())],
    0x0400: read_issue,
}


def read_lease(r):
    lease_id = r.id()
    out = [("lease_id", lease_id), ("resource_id", r.id()), ("resource_type", resource_type(r)),
           ("status", r.word(LEASE_STATUS)), ("phase", r.word(PHASE)), ("generation", r.u(4))]
    for key in ("capacity", "granted_at_unix_ms", "expires_at_unix_ms", "renewable_at_unix_ms",
                "grace_ends_unix_ms", "remaining_ms"):
        out.append((key, r.u(8)))
    area = r.area()
    need(area.must(0x0101, 16).hex() == lease_id, "InvalidIntent")
    return (out + read_binding(area) + read_echo(area) + read_kv_cache(area) + read_affinities(area)
            + read_end(area))


def read_binding(area):
    key, place, limits = area.one(0x0102, 32), area.one(0x0103, 18), area.one(0x0104, 16)
    out = present([("dp_key", key and key.hex()), ("udp_endpoint", place and endpoint(place, "InvalidIntent"))])
    if limits is not None:
        offset, length = number(limits[:8]), number(limits[8:])
        need(offset + length < 1 << 64, "InvalidIntent")
        out += [("limits.offset", offset), ("limits.length", length)]
    if any(0x0201 <= tag <= 0x020C for tag, _ in area.tlvs):
        out += [(f"rdma.{key}", value) for key, value in read_rdma(area)]
    if any(0x0301 <= tag <= 0x0309 for tag, _ in area.tlvs):
        out += [(f"nvmeof.{key}", value) for key, value in read_nvmeof(area)]
    if any(0x0401 <= tag <= 0x0408 for tag, _ in area.tlvs):
        out += [(f"net.{key}", value) for key, value in read_net(area)]
    if any(0x0501 <= tag <= 0x0507 for tag, _ in area.tlvs):
        out += [(f"gpu.{key}", value) for key, value in read_gpu(area)]
    if any(0x0601 <= tag <= 0x0605 for tag, _ in area.tlvs):
        out += [(f"cpu.{key}", value) for key, value in read_cpu(area)]
    return out


def read_net(area):
    function, group, cdi = area.one(0x0401, 4), area.one(0x0407, 4), area.one(0x0408)
    out = present([("pci_function", mapped(function, pci_function)),
                   ("interface", mapped(area.one(0x0402), read_interface))])
    out.append(("mac", read_mac(area.must(0x0403, 6))))
    out += present([("vlan", mapped(area.one(0x0404, 2), read_vlan))])
    out += [("rate_bps", area.number(0x0405, 8)), ("hand_over", HAND_OVER[area.number(0x0406, 1, 2)])]
    need(dict(out)["rate_bps"], "InvalidIntent")
    return out + present([("vfio_group", mapped(group, number)),
                          ("cdi_device", mapped(cdi, lambda data: read_word(data, 128)))])


def read_gpu(area):
    place, cdi, slices = area.one(0x0504, 18), area.one(0x0505), area.one(0x0506, 2)
    need(slices is None or number(slices), "InvalidIntent")
    out = [("uuid", read_word(area.must(0x0501), 96)), ("vendor", GPU_VENDOR[area.number(0x0502, 1, 1)]),
           ("vram_bytes", area.number(0x0503, 8))]
    out += present([("session_endpoint", place and endpoint(place, "InvalidIntent")),
                    ("cdi_device", mapped(cdi, lambda data: read_word(data, 128))), ("compute_slices", mapped(slices, number))])
    return out + [("queue_slots", area.number(0x0507, 2))]


def pci_function(value):
    return f"{number(value[:2]):04x}:{value[2]:02x}:{value[3] >> 3:02x}.{value[3] & 7}"


def read_cpu(area):
    cpus, nodes, quota = area.must(0x0601), area.one(0x0604), area.one(0x0605, 8)
    need(cpus, "InvalidIntent")
    out = [("cpus", read_ranges(cpus)), ("cgroup", read_word(area.must(0x0602), 512)),
           ("partition", PARTITION[area.number(0x0603, 1, 2)])]
    if nodes:
        out.append(("memory_nodes", read_ranges(nodes)))
    if quota is not None:
        out += [("quota_us", number(quota[:4])), ("period_us", number(quota[4:]))]
        need(all(value for _, value in out[-2:]), "InvalidIntent")
    return out


def read_nvmeof(area):
    addresses, ctrl = area.several(0x0301, 8), area.one(0x0307)
    need(addresses, "InvalidIntent")
    out = numbered("address", map(read_address, addresses))
    out += [("subsystem", read_nqn(area.must(0x0302))), ("nsid", area.number(0x0303, 4, 0xFFFFFFFE)),
            ("host_nqn", read_nqn(area.must(0x0304))), ("host_id", read_host_id(area.must(0x0305, 16))),
            ("dhchap_secret", read_secret(area.must(0x0306)))]
    out += present([("dhchap_ctrl_secret", None if ctrl is None else read_secret(ctrl))])
    out += [("ctrl_loss_secs", area.number(0x0308, 4, 30)), ("block_bytes", area.number(0x0309, 4))]
    need(dict(out)["nsid"] and dict(out)["block_bytes"] in [1 << bits for bits in range(9, 17)], "InvalidIntent")
    return out


def read_address(value):
    need(len(value) == 19 and value[0] in NVMEOF_TRANSPORT, "InvalidIntent")
    return [("transport", NVMEOF_TRANSPORT[value[0]]), ("endpoint", endpoint(value[1:], "InvalidIntent"))]


def read_rdma(area):
    rkey, previous = area.one(0x0201, 4), area.one(0x0209, 8)
    out = [] if rkey is None else [("rkey", number(rkey))]
    out += [("remote_addr", area.number(0x0202, 8)), ("qp_num", area.number(0x0203, 4, 0xFFFFFF)),
            ("gid", area.must(0x0204, 16).hex(":", 2)), ("port", area.number(0x0205, 1)),
            ("psn", area.number(0x0206, 4, 0xFFFFFF)), ("path_mtu", area.number(0x0207, 2)),
            ("strategy", STRATEGY[area.number(0x0208, 1, 1)])]
    need(dict(out)["path_mtu"] in MTUS, "InvalidIntent")
    if previous is not None:
        out += [("previous.rkey", number(previous[:4])), ("previous.remaining_ms", number(previous[4:]))]
    out += [("max_rd_atomic", area.number(0x020A, 1)), ("atomics", BOOL[area.number(0x020B, 1, 1)])]
    return out + numbered("further", map(read_queue_pair, area.several(0x020C, QUEUE_PAIRS_MAX - 1)))


def read_queue_pair(value):
    need(len(value) == 12, "InvalidIntent")
    qp_num, psn, rkey = number(value[:4]), number(value[4:8]), number(value[8:])
    need(qp_num <= 0xFFFFFF and psn <= 0xFFFFFF, "InvalidIntent")
    return [("qp_num", qp_num), ("psn", psn), ("rkey", rkey)]


def read_echo(area):
    out = present([("cpu_isolation", area.word(0x0902, CPU)), ("gpu_exclusivity", area.word(0x0903, GPU)),
                   ("transport", area.word(0x0904, TRANSPORT))])
    out.append(("rotate_on_renew", area.word(0x0905, BOOL) or "false"))
    out += read_flags(area) + read_execution(area)
    out += present([("net_rate", area.word(0x090B, ENFORCEMENT))]) + read_gpu_execution(area)
    return [(f"effective.{key}", value) for key, value in out]


def short_text(data, limit):
    need(len(data) <= limit, "InvalidIntent")
    return quoted(utf8(data, "InvalidIntent"))


def read_end(area):
    tenant, end = area.one(0x0C01), area.one(0x0C02)
    out = present([("tenant", None if tenant is None else short_text(tenant, 64))])
    if end is None:
        return out
    need(len(end) >= 9 and end[8] < len(CAUSE), "InvalidIntent")
    out += [("end.at_unix_ms", number(end[:8])), ("end.cause", CAUSE[end[8]])]
    out += present([("end.by", short_text(end[9:], 64) if end[9:] else None)])
    out += numbered("end.proof", map(read_step, area.several(0x0C03, PROOF_STEPS_MAX)))
    return out + numbered("end.cleaning", map(read_step, area.several(0x0C04, CLEANING_STEPS_MAX)))


def read_step(value):
    need(len(value) >= 5 and value[4] <= min(len(value) - 5, 64), "InvalidIntent")
    name, found = value[5:5 + value[4]], value[5 + value[4]:]
    return [("step", short_text(name, 64)), ("took_us", number(value[:4])), ("found", short_text(found, 256))]


def read_identity(r):
    return [("node_id", r.take(32).hex()), ("epoch", r.u(8)), ("endpoint", endpoint(r.take(18), "InvalidArgs")),
            ("role", r.word(ROLE)), ("tenant", quoted(r.text(64))), ("version", quoted(r.text(64)))]


def numbered(prefix, items):
    return [(f"{prefix}.{n}.{key}", value) for n, item in enumerate(items) for key, value in item]


def read_flat(r):
    return numbered("entry", r.list(1800, lambda r: [
        ("resource_id", r.id()), ("resource_type", resource_type(r)), ("flags", r.u(2)),
        ("capacity", r.u(8)), ("available", r.u(8))]))


LISTS = {
    "mem": [("base", 8), ("len", 8), ("align", 4), ("max_read", 4), ("max_write", 4), ("health", 4)],
    "block": [("block_size", 4), ("capacity", 8), ("flags", 4), ("health", 4)],
    "cpu": [("cores", 2), ("threads", 2), ("max_mhz", 4), ("flags", 4), ("health", 4)],
    "nic": [("speed_bps", 8), ("mtu", 4), ("flags", 4), ("health", 4)],
    "gpu": [("vram_bytes", 8), ("compute_units", 4), ("flags", 4), ("health", 4)],
}


def read_structured(r):
    out = [("node_id", r.take(32).hex()), ("epoch", r.u(8)), ("health", r.u(4))]
    for name, fields in LISTS.items():
        out += numbered(name, r.list(256, lambda r: [("resource_id", r.id())] + [(k, r.u(n)) for k, n in fields]))
    extensions = [read_extension(tag, value) for tag, value in r.area().tlvs if 0x0B01 <= tag <= 0x0B0A]
    need(len(extensions) <= 2048, "InvalidIntent")
    return out + extensions


def read_extension(tag, value):
    # Resource 0 of a reason is the node itself.
    need(len(value) >= 16 and (any(value[:16]) or tag == 0x0B0A), "InvalidIntent")
    resource_id, rest = value[:16].hex(), value[16:]
    if tag == 0x0B01:
        need(len(rest) <= 255, "InvalidIntent")
        return f"name.{resource_id}", quoted(utf8(rest, "InvalidIntent"))
    if tag == 0x0B0A:
        need(len(rest) <= 200, "InvalidIntent")
        return f"health_reason.{resource_id}", quoted(utf8(rest, "InvalidIntent"))
    if tag in (0x0B02, 0x0B05):
        need(len(rest) == 8, "InvalidIntent")
        return f"{'available' if tag == 0x0B02 else 'fenced_part'}.{resource_id}", number(rest)
    if tag == 0x0B03:
        need(1 <= len(rest) <= 17, "InvalidIntent")
        return f"classes.{resource_id}", f"{rest[:1].hex()}/{rest[1:].hex()}"
    if tag == 0x0B06:
        classes = by_class(rest, 1)
        need(all(number(it) < len(ENFORCEMENT) for _, it in classes), "InvalidIntent")
        return f"class_enforcement.{resource_id}", told(classes, lambda it: ENFORCEMENT[it])
    if tag == 0x0B07:
        return f"class_available.{resource_id}", told(by_class(rest, 8), str)
    if tag == 0x0B09:
        need(len(rest) == 10, "InvalidIntent")
        slices, slices_free, sessions, sessions_free, queues = (number(rest[at:at + 2]) for at in range(0, 10, 2))
        need(slices_free <= slices and sessions_free <= sessions, "InvalidIntent")
        return f"gpu_slots.{resource_id}", f"{slices_free}/{slices} {sessions_free}/{sessions} {queues}"
    if tag == 0x0B08:
        need(len(rest) == 8, "InvalidIntent")
        total, free = number(rest[:4]), number(rest[4:])
        need(free <= total, "InvalidIntent")
        return f"virtual_functions.{resource_id}", f"{free}/{total}"
    need(len(rest) <= 8 and all(transport < len(TRANSPORT) for transport in rest), "InvalidIntent")
    return f"transports.{resource_id}", ",".join(TRANSPORT[transport] for transport in rest)


def by_class(data, size):
    """Pairs of a class and its value of `size` bytes; at most 16, ascending."""
    each = size + 1
    need(len(data) % each == 0 and len(data) <= 16 * each, "InvalidIntent")
    pairs = [(data[at], data[at + 1:at + each]) for at in range(0, len(data), each)]
    classes = [known for known, _ in pairs]
    need(classes == sorted(set(classes)), "InvalidIntent")
    return pairs


def told(pairs, word):
    return ",".join(f"{known:02x} {word(number(value))}" for known, value in pairs)


def read_inventory(r):
    form = r.word(FORM)
    return [("form", form)] + (read_flat(r) if form == "flat" else read_structured(r))


def read_page(r):
    more = [("next", r.id())] if r.word(BOOL) == "true" else []
    return more + numbered("lease", r.list(128, read_lease))


def read_fences(r):
    return numbered("fence", r.list(128, lambda r: [
        ("resource_id", r.id()), ("resource_type", resource_type(r)), ("lease_id", f"{r.u(16):032x}"),
        ("since_unix_ms", r.u(8)), ("reason", quoted(r.text(400)))]))


REPLIES = {
    0x0001: lambda r: [("number", r.u(8))],
    0x0002: read_identity,
    0x0100: read_inventory,
    **dict.fromkeys((0x0200, 0x0201, 0x0202, 0x0203, 0x0205, 0x0206), read_lease),
    0x0204: read_page,
    0x020A: lambda r: [("outcome", r.word(OUTCOME))],
    0x0300: read_fences,
    0x0301: lambda r: [],
    0x0400: lambda r: [("certificate_pem", quoted(r.text(16_384))), ("ca_pem", quoted(r.text(16_384)))],
}


# ---- sections 2 and 9: frames, replies ---------------------------------------------------------------

def read_header(data):
    need(len(data) >= 20, "Malformed")
    r = Reader(data)
    version, flags = r.u(1), r.u(1)
    header = {"msg_type": r.u(2), "request_id": r.u(4), "nonce": r.u(8)}
    need(version == 0 and flags & 0x7F == 0, "Unsupported")
    size = r.u(4)
    need(size <= MAX_PAYLOAD and size == len(data) - 20, "Malformed")
    return flags, header, Reader(data[20:])


def read_request(data):
    flags, header, r = read_header(data)
    need(flags == 0 and header["msg_type"] in REQUESTS, "Unsupported")
    out = [("msg_type", f"0x{header['msg_type']:04x}"), ("request_id", header["request_id"]),
           ("nonce", header["nonce"])] + REQUESTS[header["msg_type"]](r)
    r.end()
    return out


def read_answer(data, asked, replies):
    flags, header, r = read_header(data)
    need(flags == 0x80 and header == asked, "Malformed")
    status = r.u(2)
    need(status < len(STATUS), "InvalidArgs")
    out = [("reply_status", status)]
    out += replies(header["msg_type"], r) if status == 0 else read_refusal(status, r)
    r.end()
    return out


def read_gpu_request(data):
    flags, header, r = read_header(data)
    need(flags == 0 and header["msg_type"] in gpu_session.REQUESTS, "Unsupported")
    out = [("msg_type", f"0x{header['msg_type']:04x}"), ("request_id", header["request_id"]), ("nonce", header["nonce"])]
    out += gpu_session.read(gpu_session.REQUESTS[header["msg_type"]], r, need, quoted)
    r.end()
    return out


def read_gpu_reply(code, r):
    return gpu_session.read(gpu_session.REPLIES.get(code, []), r, need, quoted)


def read_refusal(status, r):
    area = r.area()
    need(area.one(0x0A01) is not None, "InvalidIntent")
    text, at, after = area.must(0x0A02), area.one(0x0A03, 8), area.one(0x0A04, 4)
    need(len(text) <= 1024, "InvalidIntent")
    return present([("error", STATUS[status]), ("class", area.word(0x0A01, CLASS)),
                    ("message", quoted(utf8(text, "InvalidIntent"))),
                    ("renewable_at_unix_ms", None if at is None else number(at)),
                    ("retry_after_ms", None if after is None else number(after))])


def read_whole(data, read):
    r = Reader(data)
    out = read(r)
    r.end()
    return out


# ---- the other direction: bytes from values ----------------------------------------------------------

def be(value, size):
    return int(value).to_bytes(size, "big")


def counted(data):
    return be(len(data), 4) + data


def tlv(tag, value):
    return be(tag, 2) + be(len(value), 2) + value


def type_code(word):
    known = [code for code, name in TYPES.items() if name == word]
    return be(known[0] if known else int(word[len("unknown("):-1], 16), 2)


def text_bytes(value):
    return json.loads(value).encode()


def place_bytes(value):
    host, port = value.rsplit(":", 1)
    address = ipaddress.ip_address(host.strip("[]"))
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    return packed + be(port, 2)


def gid_bytes(value):
    return bytes.fromhex(value.replace(":", ""))


def below(values, prefix):
    return {key[len(prefix):]: value for key, value in values.items() if key.startswith(prefix)}


def items(values, prefix):
    count = len({key.split(".")[1] for key in values if key.startswith(prefix + ".")})
    return [below(values, f"{prefix}.{n}.") for n in range(count)]


def make_peers(v):
    names = ["rdma_peer."] + [f"rdma_peer{n}." for n in range(1, QUEUE_PAIRS_MAX)]
    return b"".join(make_peer(below(v, name)) for name in names if name + "qpn" in v)


def make_peer(v):
    return tlv(0x0210, be(v["qpn"], 4) + be(v["psn"], 4) + gid_bytes(v["gid"]) + be(v["path_mtu"], 2) + b"\0\0")


def make_params(v):
    out = make_peers(v)
    if "host_nqn" in v:
        out += tlv(0x0310, v["host_nqn"].encode())
    if "host_id" in v:
        out += tlv(0x0311, uuid.UUID(v["host_id"]).bytes)
    if "mac" in v:
        out += tlv(0x0410, mac_bytes(v["mac"]))
    if "vlan" in v:
        out += tlv(0x0411, be(v["vlan"], 2))
    out += make_word(v, "hand_over", 0x0412, HAND_OVER) + make_kv_cache(v)
    out += make_word(v, "cpu_isolation", 0x0902, CPU) + make_word(v, "gpu_exclusivity", 0x0903, GPU)
    if v["transport"] != "auto":
        out += tlv(0x0904, bytes([TRANSPORT.index(v["transport"])]))
    if v["rotate_on_renew"] == "true":
        out += tlv(0x0905, b"\1")
    return out + make_flags(v) + make_execution(v) + make_gpu_execution(v) + make_affinities(v)


def make_word(v, key, tag, words):
    return tlv(tag, bytes([words.index(v[key])])) if key in v else b""


def make_kv_cache(v):
    if "kv_cache_intent.tier" not in v:
        return b""
    tier, block = TIER.index(v["kv_cache_intent.tier"]), v["kv_cache_intent.block_bytes"]
    return tlv(0x0901, bytes([1, tier, 0, 0]) + be(block, 4))


def make_affinities(v):
    out = b""
    for near in items(v, "affinity"):
        target = bytes.fromhex(near["target"])
        kind = [int(near[key]) for key in ("category", "strength", "target_type")]
        out += tlv(0x0910, bytes(kind) + be(len(target), 2) + target)
    return out


def make_execution(v):
    width = tlv(0x0909, be(v["cpu_execution_width"], 2)) if "cpu_execution_width" in v else b""
    mode = make_word(v, "cpu_execution_mode", 0x0908, MODE)
    return mode + width + make_word(v, "cpu_partition", 0x090A, PARTITION)


def make_gpu_execution(v):
    slices = tlv(0x090D, be(v["gpu_compute_slices"], 2)) if "gpu_compute_slices" in v else b""
    return make_word(v, "gpu_execution_mode", 0x090C, GPU_MODE) + slices


def mac_bytes(value):
    return bytes.fromhex(value.replace(":", ""))


def ranges_bytes(value):
    ends = [word.split("-") for word in value.split(",")]
    return b"".join(be(end[0], 2) + be(end[-1], 2) for end in ends)


def make_flags(v):
    return (tlv(0x0906, b"\1") if "read_only" in v else b"") + (tlv(0x0907, b"\1") if "mutual_auth" in v else b"")


def make_lease(v):
    out = bytes.fromhex(v["lease_id"] + v["resource_id"]) + type_code(v["resource_type"])
    out += bytes([LEASE_STATUS.index(v["status"]), PHASE.index(v["phase"])]) + be(v["generation"], 4)
    for key in ("capacity", "granted_at_unix_ms", "expires_at_unix_ms", "renewable_at_unix_ms",
                "grace_ends_unix_ms", "remaining_ms"):
        out += be(v[key], 8)
    told_back = make_kv_cache(v) + make_echo(v) + make_affinities(v)
    return out + counted(tlv(0x0101, bytes.fromhex(v["lease_id"])) + make_binding(v) + told_back + make_end(v))


def make_binding(v):
    out = b""
    if "dp_key" in v:
        out += tlv(0x0102, bytes.fromhex(v["dp_key"]))
    if "udp_endpoint" in v:
        out += tlv(0x0103, place_bytes(v["udp_endpoint"]))
    if "limits.offset" in v:
        out += tlv(0x0104, be(v["limits.offset"], 8) + be(v["limits.length"], 8))
    makers = {"rdma.": make_rdma, "nvmeof.": make_nvmeof, "net.": make_net, "gpu.": make_gpu, "cpu.": make_cpu}
    return out + b"".join(make(below(v, prefix)) for prefix, make in makers.items() if below(v, prefix))


def make_net(v):
    out = b""
    if "pci_function" in v:
        domain, bus, device, function = re.split("[:.]", v["pci_function"])
        out += tlv(0x0401, bytes.fromhex(domain + bus) + bytes([int(device, 16) << 3 | int(function)]))
    if "interface" in v:
        out += tlv(0x0402, v["interface"].encode())
    out += tlv(0x0403, mac_bytes(v["mac"]))
    if "vlan" in v:
        out += tlv(0x0404, be(v["vlan"], 2))
    out += tlv(0x0405, be(v["rate_bps"], 8)) + make_word(v, "hand_over", 0x0406, HAND_OVER)
    if "vfio_group" in v:
        out += tlv(0x0407, be(v["vfio_group"], 4))
    return out + (tlv(0x0408, v["cdi_device"].encode()) if "cdi_device" in v else b"")


def make_gpu(v):
    out = tlv(0x0501, v["uuid"].encode()) + make_word(v, "vendor", 0x0502, GPU_VENDOR) + tlv(0x0503, be(v["vram_bytes"], 8))
    if "session_endpoint" in v:
        out += tlv(0x0504, place_bytes(v["session_endpoint"]))
    if "cdi_device" in v:
        out += tlv(0x0505, v["cdi_device"].encode())
    if "compute_slices" in v:
        out += tlv(0x0506, be(v["compute_slices"], 2))
    return out + tlv(0x0507, be(v["queue_slots"], 2))


def make_cpu(v):
    out = tlv(0x0601, ranges_bytes(v["cpus"])) + tlv(0x0602, v["cgroup"].encode())
    out += make_word(v, "partition", 0x0603, PARTITION)
    if "memory_nodes" in v:
        out += tlv(0x0604, ranges_bytes(v["memory_nodes"]))
    return out + (tlv(0x0605, be(v["quota_us"], 4) + be(v["period_us"], 4)) if "quota_us" in v else b"")


def make_nvmeof(v):
    types = {word: code for code, word in NVMEOF_TRANSPORT.items()}
    out = b"".join(tlv(0x0301, bytes([types[place["transport"]]]) + place_bytes(place["endpoint"]))
                   for place in items(v, "address"))
    out += tlv(0x0302, v["subsystem"].encode()) + tlv(0x0303, be(v["nsid"], 4))
    out += tlv(0x0304, v["host_nqn"].encode()) + tlv(0x0305, uuid.UUID(v["host_id"]).bytes)
    out += tlv(0x0306, v["dhchap_secret"].encode())
    if "dhchap_ctrl_secret" in v:
        out += tlv(0x0307, v["dhchap_ctrl_secret"].encode())
    return out + tlv(0x0308, be(v["ctrl_loss_secs"], 4)) + tlv(0x0309, be(v["block_bytes"], 4))


def make_rdma(v):
    out = tlv(0x0201, be(v["rkey"], 4)) if "rkey" in v else b""
    out += tlv(0x0202, be(v["remote_addr"], 8)) + tlv(0x0203, be(v["qp_num"], 4))
    out += tlv(0x0204, gid_bytes(v["gid"])) + tlv(0x0205, be(v["port"], 1)) + tlv(0x0206, be(v["psn"], 4))
    out += tlv(0x0207, be(v["path_mtu"], 2)) + tlv(0x0208, bytes([STRATEGY.index(v["strategy"])]))
    if "previous.rkey" in v:
        out += tlv(0x0209, be(v["previous.rkey"], 4) + be(v["previous.remaining_ms"], 4))
    out += tlv(0x020A, be(v["max_rd_atomic"], 1)) + tlv(0x020B, bytes([BOOL.index(v["atomics"])]))
    return out + b"".join(tlv(0x020C, be(pair["qp_num"], 4) + be(pair["psn"], 4) + be(pair["rkey"], 4))
                          for pair in items(v, "further"))


def make_echo(values):
    v = below(values, "effective.")
    out = make_word(v, "cpu_isolation", 0x0902, CPU) + make_word(v, "gpu_exclusivity", 0x0903, GPU)
    out += make_word(v, "transport", 0x0904, TRANSPORT)
    out += (tlv(0x0905, b"\1") if v["rotate_on_renew"] == "true" else b"") + make_flags(v)
    return out + make_execution(v) + make_word(v, "net_rate", 0x090B, ENFORCEMENT) + make_gpu_execution(v)


def make_end(v):
    out = tlv(0x0C01, text_bytes(v["tenant"])) if "tenant" in v else b""
    end = below(v, "end.")
    if not end:
        return out
    by = text_bytes(end["by"]) if "by" in end else b""
    out += tlv(0x0C02, be(end["at_unix_ms"], 8) + bytes([CAUSE.index(end["cause"])]) + by)
    steps = [make_step(0x0C03, step) for step in items(end, "proof")]
    return out + b"".join(steps + [make_step(0x0C04, step) for step in items(end, "cleaning")])


def make_step(tag, v):
    name = text_bytes(v["step"])
    return tlv(tag, be(v["took_us"], 4) + bytes([len(name)]) + name + text_bytes(v["found"]))


def make_flat(v):
    entries = items(v, "entry")
    return be(len(entries), 2) + b"".join(
        bytes.fromhex(e["resource_id"]) + type_code(e["resource_type"]) + be(e["flags"], 2)
        + be(e["capacity"], 8) + be(e["available"], 8) for e in entries)


def make_structured(v):
    out = bytes.fromhex(v["node_id"]) + be(v["epoch"], 8) + be(v["health"], 4)
    for name, fields in LISTS.items():
        rows = items(v, name)
        out += be(len(rows), 2)
        for row in rows:
            out += bytes.fromhex(row["resource_id"]) + b"".join(be(row[key], size) for key, size in fields)
    return out + counted(b"".join(make_extension(key, value) for key, value in v.items()))


def make_extension(key, value):
    kind, _, resource_id = key.partition(".")
    makers = {
        "name": (0x0B01, text_bytes),
        "available": (0x0B02, lambda value: be(value, 8)),
        "fenced_part": (0x0B05, lambda value: be(value, 8)),
        "classes": (0x0B03, lambda value: bytes.fromhex(value.replace("/", ""))),
        "class_enforcement": (0x0B06, lambda value: class_bytes(value, lambda word: bytes([ENFORCEMENT.index(word)]))),
        "class_available": (0x0B07, lambda value: class_bytes(value, lambda word: be(word, 8))),
        "virtual_functions": (0x0B08, lambda value: b"".join(be(word, 4) for word in reversed(value.split("/")))),
        "gpu_slots": (0x0B09, slots_bytes),
        "health_reason": (0x0B0A, text_bytes),
        "transports": (0x0B04, lambda value: bytes(TRANSPORT.index(transport) for transport in value.split(",") if transport)),
    }
    if kind not in makers:
        return b""
    tag, make = makers[kind]
    return tlv(tag, bytes.fromhex(resource_id) + make(value))


def slots_bytes(value):
    slices, sessions, queues = value.split(" ")
    words = [*reversed(slices.split("/")), *reversed(sessions.split("/")), queues]
    return b"".join(be(word, 2) for word in words)


def class_bytes(value, make):
    pairs = [pair.split(" ") for pair in value.split(",") if pair]
    return b"".join(bytes.fromhex(known) + make(word) for known, word in pairs)


def make_request_payload(code, v):
    if code == 0x0200:
        resource_id = bytes.fromhex(v.get("resource_id", "00" * 16))
        fixed = type_code(v["resource_type"]) + resource_id + be(v["capacity"], 8)
        return fixed + be(v["lease_secs"], 4) + be(v["grace_secs"], 4) + counted(make_params(v))
    if code == 0x0205:
        return bytes.fromhex(v["lease_id"]) + counted(make_peers(v))
    if code == 0x0400:
        head = bytes([ROLE.index(v["role"])]) + be(v["valid_secs"], 4)
        return head + counted(text_bytes(v["tenant"])) + counted(bytes.fromhex(v["csr_der"]))
    makers = {
        "number": lambda value: be(value, 8), "form": lambda value: bytes([FORM.index(value)]),
        "lease_id": bytes.fromhex, "resource_id": bytes.fromhex, "after": bytes.fromhex,
        "lease_secs": lambda value: be(value, 4), "overlap_ms": lambda value: be(value, 4),
        "ended": lambda value: bytes([BOOL.index(value)]),
    }
    return b"".join(makers[key](value) for key, value in v.items() if key in makers)


def make_reply_payload(v, body):
    if v["reply_status"] != "0":
        area = tlv(0x0A01, bytes([CLASS.index(v["class"])])) + tlv(0x0A02, text_bytes(v["message"]))
        if "renewable_at_unix_ms" in v:
            area += tlv(0x0A03, be(v["renewable_at_unix_ms"], 8))
        if "retry_after_ms" in v:
            area += tlv(0x0A04, be(v["retry_after_ms"], 4))
        return be(v["reply_status"], 2) + counted(area)
    return b"\0\0" + body()


def make_body(code, v):
    if code == 0x0001:
        return be(v["number"], 8)
    if code == 0x0002:
        head = bytes.fromhex(v["node_id"]) + be(v["epoch"], 8) + place_bytes(v["endpoint"])
        texts = counted(text_bytes(v["tenant"])) + counted(text_bytes(v["version"]))
        return head + bytes([ROLE.index(v["role"])]) + texts
    if code == 0x0100:
        return bytes([FORM.index(v["form"])]) + (make_flat(v) if v["form"] == "flat" else make_structured(v))
    if code == 0x0204:
        leases = items(v, "lease")
        more = b"\1" + bytes.fromhex(v["next"]) if "next" in v else b"\0"
        return more + be(len(leases), 2) + b"".join(map(make_lease, leases))
    if code == 0x020A:
        return bytes([OUTCOME.index(v["outcome"])])
    if code == 0x0300:
        fences = items(v, "fence")
        return be(len(fences), 2) + b"".join(
            bytes.fromhex(f["resource_id"]) + type_code(f["resource_type"]) + bytes.fromhex(f["lease_id"])
            + be(f["since_unix_ms"], 8) + counted(text_bytes(f["reason"])) for f in fences)
    if code == 0x0301:
        return b""
    if code == 0x0400:
        return counted(text_bytes(v["certificate_pem"])) + counted(text_bytes(v["ca_pem"]))
    return make_lease(v)


def make_frame(flags, header, payload):
    head = bytes([0, flags]) + be(header["msg_type"], 2) + be(header["request_id"], 4) + be(header["nonce"], 8)
    return head + counted(payload)


# ---- the files ---------------------------------------------------------------------------------------

def parse_file(text):
    keys, values, data = {}, [], ""
    for line in text.splitlines():
        if not line.startswith("# "):
            data += line
        else:
            key, _, value = line[2:].partition(": ")
            if key == "value":
                values.append(value)
            else:
                keys[key] = value
    return keys, values, bytes.fromhex(data)


def asked_header(keys):
    fields = dict(part.split(" = ") for part in keys["asked"].split(", "))
    return {key: int(value, 0) for key, value in fields.items()}


def read_datagram(judge, data):
    refusal = judge(data)
    need(refusal is None, refusal)
    return data_plane.lines(data)


def decode(keys, data):
    readers = {
        "request": lambda: read_request(data),
        "answer": lambda: read_answer(data, asked_header(keys), lambda code, r: REPLIES[code](r)),
        "gpu_request": lambda: read_gpu_request(data),
        "gpu_answer": lambda: read_answer(data, asked_header(keys), read_gpu_reply),
        "tlv": lambda: read_params(Area(data)),
        "flat": lambda: read_whole(data, read_flat),
        "structured": lambda: read_whole(data, read_structured),
        "data_request": lambda: read_datagram(data_plane.judge_request, data),
        "data_reply": lambda: read_datagram(data_plane.judge_reply, data),
    }
    return [f"{key} = {value}" for key, value in readers[keys["kind"]]()]


def encode(keys, lines):
    v = dict(line.split(" = ", 1) for line in lines)
    if keys["kind"] in ("request", "gpu_request"):
        header = {key: int(v.pop(key), 0) for key in ("msg_type", "request_id", "nonce")}
        code = header["msg_type"]
        if keys["kind"] == "request":
            return make_frame(0, header, make_request_payload(code, v))
        return make_frame(0, header, gpu_session.make(gpu_session.REQUESTS[code], v, text_bytes))
    if keys["kind"] in ("answer", "gpu_answer"):
        header = asked_header(keys)
        code = header["msg_type"]
        bodies = {"answer": lambda: make_body(code, v),
                  "gpu_answer": lambda: gpu_session.make(gpu_session.REPLIES.get(code, []), v, text_bytes)}
        return make_frame(0x80, header, make_reply_payload(v, bodies[keys["kind"]]))
    makers = {"tlv": make_params, "flat": make_flat, "structured": make_structured,
              "data_request": data_plane.make, "data_reply": data_plane.make}
    return makers[keys["kind"]](v)


def check(text):
    """Returns the fault of a vector, or None."""
    keys, values, data = parse_file(text)
    try:
        got = decode(keys, data)
    except Refused as refused:
        got = f"refused {refused}"
    if keys["expect"].startswith("refused "):
        return None if got == keys["expect"] else f"expected {keys['expect']}, got {got}"
    if got != values:
        return f"expected {values}, got {got}"
    if keys["expect"] == "ok" and encode(keys, values) != data:
        return f"expected {data.hex()}, made {encode(keys, values).hex()}"
    return None


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "v0"
    counts, wrong = {}, 0
    for path in sorted(folder.glob("*.hex")):
        text = path.read_text(encoding="utf-8")
        problem = check(text)
        kind = parse_file(text)[0]["kind"]
        counts[kind] = counts.get(kind, 0) + 1
        if problem:
            wrong += 1
            print(f"{path.name}: {problem}", file=sys.stderr)
    missing = {"request", "answer", "tlv", "flat", "structured", "data_request", "data_reply", "gpu_request",
               "gpu_answer"} - counts.keys()
    if missing:
        print(f"{folder}: no vectors of kind {', '.join(sorted(missing))}", file=sys.stderr)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())), f"checked, {wrong} wrong")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
