#!/usr/bin/env python3
"""Checks the golden vectors with an independent implementation.

This file was written only from docs/spec/fabricbios-wire-encoding-v0.md (beside it data_plane.py only from
data-plane-over-udp.md, gpu_session.py only from gpu-sessions.md, and discovery.py only from discovery.md) and uses only the standard library; a client in another language needs no more.
It decodes every vector and compares what it says with the `value`, which is JSON. If the file says that the bytes are
canonical, it also encodes them again from that. Exits 1 on any difference, and if there was nothing to check.

Usage: python3 testbed/vectors/check.py [FOLDER]
"""

import ipaddress
import json
import pathlib
import re
import sys
import uuid

import data_plane
import discovery
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
BOOL = [False, True]
FORM = ["flat", "structured"]
ROLE = ["tenant", "operator", "node", "scheduler"]
LEASE_STATUS = ["active", "expired", "revoked"]
PHASE = ["binding", "active", "grace", "expired", "revoked", "freed", "fenced"]
CAUSE = ["expired", "freed", "revoked", "node_stopped", "node_restarted", "key_not_retired", "binding_failed",
         "displaced"]
STRATEGY = ["window", "region"]
OUTCOME = ["torn_down", "fenced", "not_found"]
CLASS = ["permanent", "transient", "policy"]
TYPES = {1: "cpu", 2: "mem", 3: "block", 4: "net", 5: "gpu", 0x10: "scheduler", 0xFF: "vendor"}
KNOWN_TAGS = {*range(0x0101, 0x0105), *range(0x0201, 0x020F), *range(0x0210, 0x0214), *range(0x0301, 0x030A), 0x0310, 0x0311,
              *range(0x0401, 0x0409), 0x0410, 0x0411, 0x0412, *range(0x0501, 0x0508), *range(0x0601, 0x0606),
              *range(0x0901, 0x0913),
              0x0A01, 0x0A02, 0x0A03, 0x0A04, *range(0x0B01, 0x0B0D), *range(0x0C01, 0x0C05)}
MAX_PAYLOAD = 65_536
PEERS_MAX, QUEUE_PAIRS_MAX = 8, 64
REDIRECT, EXPLAINED, CANDIDATES_MAX = 15, 16, 8
REDIRECTED = (0x0200, 0x0201, 0x0202, 0x0203, 0x0205, 0x0206, 0x020A)
TENANT_KEY = re.compile(r"[a-z0-9._-]{1,64}(@[0-9a-f]{32})?", re.ASCII)
PART = ["changes", "begin", "next", "end", "whole"]
REPORT_BYTES_MAX = 57_344
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
    return {"addr": list(data[:16]), "port": port}


def read_nqn(data):
    need(len(data) <= 223 and NQN.fullmatch(utf8(data, "InvalidIntent")), "InvalidIntent")
    return data.decode()


def read_secret(data):
    need(len(data) <= 128 and SECRET.fullmatch(utf8(data, "InvalidIntent")), "InvalidIntent")
    return data.decode()


def read_host_id(data):
    need(any(data), "InvalidIntent")
    return str(uuid.UUID(bytes=data))


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
    ranges, before = [], -2
    for at in range(0, len(data), 4):
        first, last = number(data[at:at + 2]), number(data[at + 2:at + 4])
        need(before + 1 < first <= last, "InvalidIntent")
        ranges.append({"first": first, "last": last})
        before = last
    return ranges


def mapped(value, read):
    return None if value is None else read(value)


def read_peers(area, tag=0x0210):
    return [read_peer(value) for value in area.several(tag, PEERS_MAX)]


def read_peer(value):
    need(len(value) == 28, "InvalidIntent")
    qpn, psn, mtu = number(value[:4]), number(value[4:8]), number(value[24:26])
    need(1 <= qpn <= 0xFFFFFF and psn <= 0xFFFFFF and mtu in MTUS and value[26:] == b"\0\0", "InvalidIntent")
    return {"qpn": qpn, "psn": psn, "gid": list(value[8:24]), "path_mtu": mtu}


def read_affinity(value):
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
    return {"category": category, "strength": strength, "target_type": kind, "target": list(target)}


def read_kv_cache(value):
    need(value[0] == 1 and value[1] < len(TIER) and value[2:4] == b"\0\0", "InvalidIntent")
    return {"tier": TIER[value[1]], "block_bytes": number(value[4:])}


def read_intent(area):
    return {"kv_cache": mapped(area.one(0x0901, 8), read_kv_cache),
            "affinities": [read_affinity(value) for value in area.several(0x0910, 16)]}


def read_token(data):
    need(any(data), "InvalidIntent")
    return data.hex()


def read_width(data):
    need(number(data), "InvalidIntent")
    return number(data)


def read_partition(area):
    partition = area.word(0x090A, PARTITION)
    need(partition != "member", "InvalidIntent")
    return partition


def read_terms(area):
    """The properties that leases of every kind can have."""
    return {
        "cpu": {"isolation": area.word(0x0902, CPU), "execution_mode": area.word(0x0908, MODE),
                "execution_width": mapped(area.one(0x0909, 2), read_width), "partition": read_partition(area)},
        "mem": {"rdma_peers": read_peers(area)},
        "block": {"read_only": bool(area.word(0x0906, BOOL)), "host_nqn": mapped(area.one(0x0310), read_nqn),
                  "host_id": mapped(area.one(0x0311, 16), read_host_id), "mutual_auth": bool(area.word(0x0907, BOOL))},
        "net": {"mac": mapped(area.one(0x0410, 6), read_mac), "vlan": mapped(area.one(0x0411, 2), read_vlan),
                "hand_over": area.word(0x0412, HAND_OVER)},
        "gpu": {"exclusivity": area.word(0x0903, GPU), "execution_mode": area.word(0x090C, GPU_MODE),
                "compute_slices": mapped(area.one(0x090D, 2), read_width)},
    }


# ---- sections 4 to 8: messages -----------------------------------------------------------------------

def resource_type(r):
    code = r.u(2)
    return TYPES.get(code, {"unknown": code})


def of_kind(kind, of_kinds):
    """The part of this kind, under the name of the kind."""
    return {kind: of_kinds[kind]} if isinstance(kind, str) and kind in of_kinds else {"other": kind}


def at_least_1(value):
    need(value >= 1, "InvalidArgs")
    return value


def read_tried(value):
    need(len(value) == 35 and number(value[32:34]) < len(STATUS) and value[34] < len(CLASS), "InvalidIntent")
    status = number(value[32:34])
    return {"node_id": value[:32].hex(), "refused": STATUS[status] if status else None, "class": CLASS[value[34]]}


def read_alloc(r):
    kind, resource_id = resource_type(r), r.u(16)
    out = {"resource_id": f"{resource_id:032x}" if resource_id else None, "capacity": at_least_1(r.u(8)),
           "lease_secs": at_least_1(r.u(4)), "grace_secs": r.u(4)}
    area = r.area()
    terms = read_terms(area)
    foreign = [{other: stated} for other, stated in terms.items() if other != kind and any(stated.values())]
    return out | {"intent": read_intent(area), "transport": area.word(0x0904, TRANSPORT) or "auto",
                  "rotate_on_renew": bool(area.word(0x0905, BOOL)), "request_token": mapped(area.one(0x090E, 16), read_token),
                  "follows_redirect": bool(area.word(0x090F, BOOL)),
                  "tried": [read_tried(value) for value in area.several(0x0911, 16)],
                  "explain": bool(area.word(0x0912, BOOL)), "terms": of_kind(kind, terms), "foreign": foreign}


def read_issue(r):
    role, secs, tenant = r.word(ROLE[:2]), r.u(4), r.text(64)
    need(tenant and set(tenant) <= TENANT_LETTERS, "InvalidArgs")
    csr = r.bytes(4096)
    need(csr, "InvalidArgs")
    return {"tenant": tenant, "role": role, "valid_secs": secs, "csr_der": list(csr)}


def read_bind(r):
    lease_id, area = r.id(), r.area()
    need(len({tag for tag, _ in area.tlvs if 0x0210 <= tag <= 0x0213}) == 1, "InvalidIntent")
    if peers := read_peers(area):
        return {"lease_bind": {"lease_id": lease_id, "peers": peers}}
    if joining := read_peers(area, 0x0211):
        return {"lease_peers": {"lease_id": lease_id, "change": {"add": joining}}}
    if area.one(0x0213, 0) is not None:
        return {"lease_attach": lease_id}
    leaving = [read_queue_pair_number(value) for value in area.several(0x0212, PEERS_MAX)]
    return {"lease_peers": {"lease_id": lease_id, "change": {"remove": leaving}}}


def read_queue_pair_number(value):
    need(len(value) == 4 and 1 <= number(value) <= 0xFFFFFF, "InvalidIntent")
    return number(value)


def read_rotate(r):
    lease_id, overlap = r.id(), r.u(4)
    need(overlap <= 60_000, "InvalidArgs")
    return {"lease_id": lease_id, "overlap_ms": overlap}


def read_report(r):
    out = {"sequence": r.u(8), "endpoint": endpoint(r.take(18), "InvalidArgs")}
    at = r.at
    out |= {"inventory": read_structured(r)}
    need(r.at - at <= REPORT_BYTES_MAX, "Malformed")
    return out


def read_lease_report(r):
    out = {"sequence": r.u(8), "part": r.word(PART), "leases": r.list(256, read_reported_lease), "gone": r.list(256, Reader.id)}
    need(out["part"] == "changes" or not out["gone"], "InvalidArgs")
    return out


def read_reported_lease(r):
    out = {"lease_id": r.id(), "resource_id": r.id(), "resource_type": resource_type(r), "phase": r.word(PHASE),
           "capacity": r.u(8), "expires_at_unix_ms": r.u(8), "tenant": r.text(97)}
    need(TENANT_KEY.fullmatch(out["tenant"]), "InvalidArgs")
    return out


# The name of each message and its content, if it has any. Without a name, the reader returns both.
REQUESTS = {
    0x0001: ("ping", lambda r: r.u(8)),
    0x0002: ("get_identity", None),
    0x0100: ("get_inventory", lambda r: r.word(FORM)),
    0x0200: ("lease_alloc", read_alloc),
    0x0201: ("lease_renew", lambda r: {"lease_id": r.id(), "lease_secs": r.u(4)}),
    0x0202: ("lease_query", Reader.id),
    0x0203: ("lease_free", Reader.id),
    0x0204: ("lease_list", lambda r: {"after": f"{r.u(16):032x}", "ended": r.word(BOOL)}),
    0x0205: (None, read_bind),
    0x0206: ("lease_rotate", read_rotate),
    0x020A: ("lease_revoke", Reader.id),
    0x0300: ("fence_list", None),
    0x0301: ("fence_clear", Reader.id),
    0x0400: ("identity_issue", read_issue),
    0x0500: ("node_report", read_report),
    0x0501: ("node_list", lambda r: r.take(32).hex()),
    0x0502: ("node_leases", read_lease_report),
    0x0503: ("fleet_leases", lambda r: {"after": r.take(16).hex(), "after_node": r.take(32).hex()}),
    0x0504: ("node_forget", lambda r: r.take(32).hex()),
}


def named(message, r):
    name, read = message
    if name is None:
        return read(r)
    return {name: read(r)} if read else name


LEASE_NUMBERS = ("capacity", "granted_at_unix_ms", "expires_at_unix_ms", "renewable_at_unix_ms", "grace_ends_unix_ms",
                 "remaining_ms")


def read_lease(r):
    lease_id, resource_id, kind = r.id(), r.id(), resource_type(r)
    out = {"lease_id": lease_id, "resource_id": resource_id, "status": r.word(LEASE_STATUS), "phase": r.word(PHASE),
           "generation": r.u(4)}
    out |= {key: r.u(8) for key in LEASE_NUMBERS}
    area = r.area()
    need(area.must(0x0101, 16).hex() == lease_id, "InvalidIntent")
    intent = read_intent(area)
    return out | {"effective": read_effective(area), "intent": intent if any(intent.values()) else None,
                  "request_token": mapped(area.one(0x090E, 16), read_token),
                  "binding": read_binding(area, kind), "tenant": mapped(area.one(0x0C01), lambda it: short_text(it, 64)),
                  "end": read_end(area)}


def read_binding(area, kind):
    readers = {"mem": (0x0201, 0x020E, read_rdma), "block": (0x0301, 0x0309, read_nvmeof), "net": (0x0401, 0x0408, read_net),
               "gpu": (0x0501, 0x0507, read_gpu), "cpu": (0x0601, 0x0605, read_cpu)}
    found = {name: read(area) if any(first <= tag <= last for tag, _ in area.tlvs) else None
             for name, (first, last, read) in readers.items()}
    return {"dp_key": mapped(area.one(0x0102, 32), list), "udp_endpoint": read_place(area, 0x0103),
            "limits": mapped(area.one(0x0104, 16), read_limits), "kind": of_kind(kind, found)}


def read_place(area, tag):
    return mapped(area.one(tag, 18), lambda place: endpoint(place, "InvalidIntent"))


def read_limits(value):
    offset, length = number(value[:8]), number(value[8:])
    need(offset + length < 1 << 64, "InvalidIntent")
    return {"offset": offset, "length": length}


def read_device(area, tag):
    return mapped(area.one(tag), lambda data: read_word(data, 128))


def read_net(area):
    out = {"pci_function": mapped(area.one(0x0401, 4), read_pci_function),
           "interface": mapped(area.one(0x0402), read_interface), "mac": read_mac(area.must(0x0403, 6)),
           "vlan": mapped(area.one(0x0404, 2), read_vlan), "rate_bps": area.number(0x0405, 8),
           "hand_over": HAND_OVER[area.number(0x0406, 1, 2)], "vfio_group": mapped(area.one(0x0407, 4), number),
           "cdi_device": read_device(area, 0x0408)}
    need(out["rate_bps"], "InvalidIntent")
    return out


def read_pci_function(value):
    return {"domain": number(value[:2]), "bus": value[2], "device": value[3] >> 3, "function": value[3] & 7}


def read_gpu(area):
    return {"uuid": read_word(area.must(0x0501), 96), "vendor": GPU_VENDOR[area.number(0x0502, 1, 1)],
            "vram_bytes": area.number(0x0503, 8), "session_endpoint": read_place(area, 0x0504),
            "cdi_device": read_device(area, 0x0505), "compute_slices": mapped(area.one(0x0506, 2), read_width),
            "queue_slots": area.number(0x0507, 2)}


def read_cpu(area):
    cpus = area.must(0x0601)
    need(cpus, "InvalidIntent")
    return {"cpus": read_ranges(cpus), "cgroup": read_word(area.must(0x0602), 512),
            "partition": PARTITION[area.number(0x0603, 1, 2)], "memory_nodes": read_ranges(area.one(0x0604) or b""),
            "quota": mapped(area.one(0x0605, 8), read_quota)}


def read_quota(value):
    quota = {"quota_us": number(value[:4]), "period_us": number(value[4:])}
    need(all(quota.values()), "InvalidIntent")
    return quota


def read_nvmeof(area):
    addresses = area.several(0x0301, 8)
    need(addresses, "InvalidIntent")
    out = {"addresses": [read_address(value) for value in addresses], "subsystem": read_nqn(area.must(0x0302)),
           "nsid": area.number(0x0303, 4, 0xFFFFFFFE), "host_nqn": read_nqn(area.must(0x0304)),
           "host_id": read_host_id(area.must(0x0305, 16)), "dhchap_secret": read_secret(area.must(0x0306)),
           "dhchap_ctrl_secret": mapped(area.one(0x0307), read_secret), "ctrl_loss_secs": area.number(0x0308, 4, 30),
           "block_bytes": area.number(0x0309, 4)}
    need(out["nsid"] and out["block_bytes"] in [1 << bits for bits in range(9, 17)], "InvalidIntent")
    return out


def read_address(value):
    need(len(value) == 19 and value[0] in NVMEOF_TRANSPORT, "InvalidIntent")
    return {"transport": NVMEOF_TRANSPORT[value[0]], "endpoint": endpoint(value[1:], "InvalidIntent")}


def read_rdma(area):
    out = {"rkey": mapped(area.one(0x0201, 4), number), "remote_addr": area.number(0x0202, 8),
           "qp_num": area.number(0x0203, 4, 0xFFFFFF), "gid": list(area.must(0x0204, 16)), "port": area.number(0x0205, 1),
           "psn": area.number(0x0206, 4, 0xFFFFFF), "path_mtu": area.number(0x0207, 2),
           "strategy": STRATEGY[area.number(0x0208, 1, 1)], "previous": mapped(area.one(0x0209, 8), read_previous),
           "max_rd_atomic": area.number(0x020A, 1), "atomics": BOOL[area.number(0x020B, 1, 1)],
           "further": [read_queue_pair(value) for value in area.several(0x020C, QUEUE_PAIRS_MAX - 1)],
           "prepared_rkey": mapped(area.one(0x020D, 4), number), "attach": mapped(area.one(0x020E, 34), read_attach)}
    need(out["path_mtu"] in MTUS, "InvalidIntent")
    return out


def read_attach(value):
    return {"code": list(value[:16]), "endpoint": endpoint(value[16:], "InvalidIntent")}


def read_previous(value):
    return {"rkey": number(value[:4]), "remaining_ms": number(value[4:])}


def read_queue_pair(value):
    need(len(value) == 12, "InvalidIntent")
    qp_num, psn, rkey = number(value[:4]), number(value[4:8]), number(value[8:])
    need(qp_num <= 0xFFFFFF and psn <= 0xFFFFFF, "InvalidIntent")
    return {"qp_num": qp_num, "psn": psn, "rkey": rkey}


def read_effective(area):
    return {"cpu_isolation": area.word(0x0902, CPU), "gpu_exclusivity": area.word(0x0903, GPU),
            "transport": area.word(0x0904, TRANSPORT), "rotate_on_renew": bool(area.word(0x0905, BOOL)),
            "read_only": bool(area.word(0x0906, BOOL)), "mutual_auth": bool(area.word(0x0907, BOOL)),
            "cpu_execution_mode": area.word(0x0908, MODE), "cpu_execution_width": mapped(area.one(0x0909, 2), read_width),
            "cpu_partition": read_partition(area), "net_rate": area.word(0x090B, ENFORCEMENT),
            "gpu_execution_mode": area.word(0x090C, GPU_MODE),
            "gpu_compute_slices": mapped(area.one(0x090D, 2), read_width)}


def short_text(data, limit):
    need(len(data) <= limit, "InvalidIntent")
    return utf8(data, "InvalidIntent")


def read_end(area):
    end = area.one(0x0C02)
    if end is None:
        return None
    need(len(end) >= 9 and end[8] < len(CAUSE), "InvalidIntent")
    return {"at_unix_ms": number(end[:8]), "cause": CAUSE[end[8]], "by": short_text(end[9:], 64) if end[9:] else None,
            "proof": [read_step(value) for value in area.several(0x0C03, PROOF_STEPS_MAX)],
            "cleaning": [read_step(value) for value in area.several(0x0C04, CLEANING_STEPS_MAX)]}


def read_step(value):
    need(len(value) >= 5 and value[4] <= min(len(value) - 5, 64), "InvalidIntent")
    name, found = value[5:5 + value[4]], value[5 + value[4]:]
    return {"step": short_text(name, 64), "took_us": number(value[:4]), "found": short_text(found, 256)}


def read_identity(r):
    out = {"node_id": r.take(32).hex(), "epoch": r.u(8), "endpoint": endpoint(r.take(18), "InvalidArgs"),
           "role": r.word(ROLE)}
    return out | {"tenant": r.text(64), "version": r.text(64)}


def read_flat(r, limit=1800):
    return r.list(limit, lambda r: {"resource_id": r.id(), "resource_type": resource_type(r), "flags": r.u(2),
                                    "capacity": r.u(8), "available": r.u(8)})


LISTS = {
    "mem_arenas": [("base", 8), ("len", 8), ("align", 4), ("max_read", 4), ("max_write", 4), ("health", 4)],
    "block_devs": [("block_size", 4), ("capacity", 8), ("flags", 4), ("health", 4)],
    "cpu_caps": [("cores", 2), ("threads", 2), ("max_mhz", 4), ("flags", 4), ("health", 4)],
    "nics": [("speed_bps", 8), ("mtu", 4), ("flags", 4), ("health", 4)],
    "gpus": [("vram_bytes", 8), ("compute_units", 4), ("flags", 4), ("health", 4)],
}


def read_structured(r):
    out = {"node_id": r.take(32).hex(), "epoch": r.u(8), "health": r.u(4)}
    for name, fields in LISTS.items():
        out[name] = r.list(256, lambda r: {"resource_id": r.id()} | {key: r.u(size) for key, size in fields})
    extensions = [read_extension(tag, value) for tag, value in r.area().tlvs if 0x0B01 <= tag <= 0x0B0C]
    need(len(extensions) <= 2048, "InvalidIntent")
    return out | {"extensions": extensions}


SLOTS = ("compute_slices", "compute_slices_free", "session_slots", "session_slots_free", "queue_slots")


def read_extension(tag, value):
    # Resource 0 of a reason or of limits stands for the node itself.
    need(len(value) >= 16 and (any(value[:16]) or tag in (0x0B0A, 0x0B0B)), "InvalidIntent")
    resource_id, rest = value[:16].hex(), value[16:]
    if tag == 0x0B01:
        return {"name": [resource_id, short_text(rest, 255)]}
    if tag == 0x0B0A:
        return {"health_reason": [resource_id, short_text(rest, 200)]}
    if tag == 0x0B0B:
        need(len(rest) == 9 and not any(value[:16]) and rest[8] < 2, "InvalidIntent")
        return {"limits": {"lease_secs_max": number(rest[:4]), "grace_secs_max": number(rest[4:8]), "bare_metal": rest[8] == 1}}
    if tag == 0x0B0C:
        return {"admission": {"resource_id": resource_id} | read_admission(rest)}
    if tag in (0x0B02, 0x0B05):
        need(len(rest) == 8, "InvalidIntent")
        return {"available" if tag == 0x0B02 else "fenced_part": [resource_id, number(rest)]}
    if tag == 0x0B03:
        need(1 <= len(rest) <= 17, "InvalidIntent")
        return {"classes": {"resource_id": resource_id, "default": rest[0], "supported": list(rest[1:])}}
    if tag == 0x0B06:
        classes = by_class(rest, 1)
        need(all(it < len(ENFORCEMENT) for _, it in classes), "InvalidIntent")
        return {"class_enforcement": [resource_id, [[known, ENFORCEMENT[it]] for known, it in classes]]}
    if tag == 0x0B07:
        return {"class_available": [resource_id, by_class(rest, 8)]}
    if tag == 0x0B09:
        need(len(rest) == 10, "InvalidIntent")
        slots = {name: number(rest[2 * at:2 * at + 2]) for at, name in enumerate(SLOTS)}
        need(slots["compute_slices_free"] <= slots["compute_slices"], "InvalidIntent")
        need(slots["session_slots_free"] <= slots["session_slots"], "InvalidIntent")
        return {"gpu_slots": {"resource_id": resource_id} | slots}
    if tag == 0x0B08:
        need(len(rest) == 8, "InvalidIntent")
        total, free = number(rest[:4]), number(rest[4:])
        need(free <= total, "InvalidIntent")
        return {"virtual_functions": {"resource_id": resource_id, "total": total, "free": free}}
    need(len(rest) <= 8 and all(transport < len(TRANSPORT) for transport in rest), "InvalidIntent")
    return {"transports": [resource_id, [TRANSPORT[transport] for transport in rest]]}


def read_admission(rest):
    need(len(rest) >= 2 and rest[1] <= 16 and len(rest) >= 2 + rest[1], "InvalidIntent")
    forbidden, rows = list(rest[2:2 + rest[1]]), rest[2 + rest[1]:]
    need(len(rows) % 17 == 0 and len(rows) <= 8 * 17 and forbidden == sorted(set(forbidden)), "InvalidIntent")
    rows = [rows[at:at + 17] for at in range(0, len(rows), 17)]
    most = [[row[0], number(row[1:9]), number(row[9:])] for row in rows]
    ways = [how for how, _, _ in most]
    need(ways == sorted(set(ways)), "InvalidIntent")
    return {"flags": rest[0], "forbidden": forbidden, "most": most}


def by_class(data, size):
    """Pairs of a class and its value of `size` bytes; at most 16, ascending."""
    each = size + 1
    need(len(data) % each == 0 and len(data) <= 16 * each, "InvalidIntent")
    pairs = [[data[at], number(data[at + 1:at + each])] for at in range(0, len(data), each)]
    classes = [known for known, _ in pairs]
    need(classes == sorted(set(classes)), "InvalidIntent")
    return pairs


def read_inventory(r):
    return {"flat_inventory": read_flat(r)} if r.word(FORM) == "flat" else {"inventory": read_structured(r)}


def read_page(r):
    after = r.id() if r.word(BOOL) else None
    return {"leases": r.list(128, read_lease), "next": after}


def read_fences(r):
    return r.list(128, lambda r: {"resource_id": r.id(), "resource_type": resource_type(r), "lease_id": f"{r.u(16):032x}",
                                  "since_unix_ms": r.u(8), "reason": r.text(400)})


def read_nodes(r):
    after = r.take(32).hex() if r.word(BOOL) else None
    return {"nodes": r.list(256, read_node), "away": r.list(256, read_away), "next": after}


def read_away(r):
    out = {"node_id": r.take(32).hex(), "endpoint": endpoint(r.take(18), "InvalidArgs"), "last_seen_unix_ms": r.u(8)}
    return out | {"labels": r.list(16, lambda r: r.text(255))}


def read_node(r):
    out = {"node_id": r.take(32).hex(), "endpoint": endpoint(r.take(18), "InvalidArgs"), "since_unix_ms": r.u(8)}
    return out | {"labels": r.list(16, lambda r: r.text(255)),
                  "inventory": read_whole(r.bytes(REPORT_BYTES_MAX), read_structured)}


def read_fleet_leases(r):
    more = r.word(BOOL)
    return {"leases": r.list(256, lambda r: {"node_id": r.take(32).hex(), "lease": read_reported_lease(r)}), "more": more}


def read_redirect(r, status):
    candidates = r.list(CANDIDATES_MAX, lambda r: {"node_id": r.take(32).hex(), "endpoint": endpoint(r.take(18), "InvalidArgs"),
                                                   "resource_id": r.id()})
    need(candidates, "InvalidArgs")
    if status == EXPLAINED:
        return {"explained": {"candidates": candidates, "why": r.text(4_096)}}
    return {"redirect": candidates}


REPLIES = {
    0x0001: ("pong", lambda r: r.u(8)),
    0x0002: ("identity", read_identity),
    **dict.fromkeys((0x0200, 0x0201, 0x0202, 0x0203, 0x0205, 0x0206), ("lease", read_lease)),
    0x0204: ("leases", read_page),
    0x020A: ("revoked", lambda r: r.word(OUTCOME)),
    0x0300: ("fences", read_fences),
    0x0301: ("fence_cleared", None),
    0x0400: ("issued", lambda r: {"certificate_pem": r.text(16_384), "ca_pem": r.text(16_384)}),
    0x0500: ("reported", None),
    0x0501: ("nodes", read_nodes),
    0x0502: ("reported", None),
    0x0503: ("fleet_leases", read_fleet_leases),
    0x0504: ("forgotten", None),
}


def read_reply(code, r):
    return read_inventory(r) if code == 0x0100 else named(REPLIES[code], r)


# ---- sections 2 and 9: frames, replies ---------------------------------------------------------------

def read_header(data):
    need(len(data) >= 20, "Malformed")
    r = Reader(data)
    version = r.u(1)
    header = {"flags": r.u(1), "msg_type": r.u(2), "request_id": r.u(4), "nonce": r.u(8), "payload_len": r.u(4)}
    need(version == 0 and header["flags"] & 0x7F == 0, "Unsupported")
    need(header["payload_len"] <= MAX_PAYLOAD and header["payload_len"] == len(data) - 20, "Malformed")
    return header, Reader(data[20:])


def read_request(data, requests, read):
    header, r = read_header(data)
    need(header["flags"] == 0 and header["msg_type"] in requests, "Unsupported")
    out = [header, read(requests[header["msg_type"]], r)]
    r.end()
    return out


def read_answer(data, asked, replies):
    header, r = read_header(data)
    repeated = all(header[key] == asked[key] for key in ("msg_type", "request_id", "nonce"))
    need(header["flags"] == 0x80 and repeated, "Malformed")
    status = r.u(2)
    if (status == REDIRECT and header["msg_type"] in REDIRECTED) or (status == EXPLAINED and header["msg_type"] == 0x0200):
        out = {"Ok": read_redirect(r, status)}
    else:
        need(status < len(STATUS), "InvalidArgs")
        out = {"Ok": replies(header["msg_type"], r)} if status == 0 else {"Err": read_refusal(status, r)}
    r.end()
    return out


def read_gpu_message(message, r):
    return gpu_session.read(message, r, need)


def read_gpu_reply(code, r):
    return read_gpu_message(gpu_session.REPLIES.get(code, gpu_session.DONE), r)


def make_gpu_reply(reply):
    return gpu_session.make(gpu_session.REPLIES.values(), reply)


def read_refusal(status, r):
    area = r.area()
    need(area.one(0x0A01) is not None, "InvalidIntent")
    text = area.must(0x0A02)
    need(len(text) <= 1024, "InvalidIntent")
    return {"error": STATUS[status], "class": area.word(0x0A01, CLASS), "message": utf8(text, "InvalidIntent"),
            "renewable_at_unix_ms": mapped(area.one(0x0A03, 8), number),
            "retry_after_ms": mapped(area.one(0x0A04, 4), number)}


def read_whole(data, read):
    r = Reader(data)
    out = read(r)
    r.end()
    return out


# ---- the other direction: bytes from values ----------------------------------------------------------

def be(value, size):
    return value.to_bytes(size, "big")


def counted(data):
    return be(len(data), 4) + data


def text_bytes(value):
    return counted(value.encode())


def tlv(tag, value):
    return be(tag, 2) + be(len(value), 2) + value


def some(tag, value, make):
    """The TLV of a value, or nothing for None."""
    return b"" if value is None else tlv(tag, make(value))


def some_number(tag, value, size):
    return some(tag, value, lambda value: be(value, size))


def some_word(tag, value, words):
    return some(tag, value, lambda value: bytes([words.index(value)]))


def flag(tag, value):
    return tlv(tag, b"\1") if value else b""


def type_code(kind):
    return be(kind["unknown"] if isinstance(kind, dict) else {word: code for code, word in TYPES.items()}[kind], 2)


def kind_of(part):
    """The kind that this part belongs to, and the part."""
    (kind, content), = part.items()
    return (content, None) if kind == "other" else (kind, content)


def place_bytes(value):
    return bytes(value["addr"]) + be(value["port"], 2)


def mac_bytes(value):
    return bytes.fromhex(value.replace(":", ""))


def uuid_bytes(value):
    return uuid.UUID(value).bytes


def ranges_bytes(ranges):
    return b"".join(be(it["first"], 2) + be(it["last"], 2) for it in ranges)


def make_peers(peers, tag=0x0210):
    return b"".join(tlv(tag, be(it["qpn"], 4) + be(it["psn"], 4) + bytes(it["gid"]) + be(it["path_mtu"], 2) + b"\0\0")
                    for it in peers)


def make_params(v):
    stated = {}
    for part in [v["terms"], *v["foreign"]]:
        stated |= part
    plain = read_terms(Area(b""))
    cpu, mem, block, net, gpu = (stated.get(kind, plain[kind]) for kind in ("cpu", "mem", "block", "net", "gpu"))
    transport = v["transport"] if v["transport"] != "auto" else None
    out = make_peers(mem["rdma_peers"])
    out += some(0x0310, block["host_nqn"], str.encode) + some(0x0311, block["host_id"], uuid_bytes)
    out += some(0x0410, net["mac"], mac_bytes) + some_number(0x0411, net["vlan"], 2)
    out += some_word(0x0412, net["hand_over"], HAND_OVER) + make_kv_cache(v["intent"])
    out += some_word(0x0902, cpu["isolation"], CPU) + some_word(0x0903, gpu["exclusivity"], GPU)
    out += some_word(0x0904, transport, TRANSPORT) + flag(0x0905, v["rotate_on_renew"])
    out += flag(0x0906, block["read_only"]) + flag(0x0907, block["mutual_auth"])
    out += make_execution(cpu["execution_mode"], cpu["execution_width"], cpu["partition"])
    out += make_gpu_execution(gpu["execution_mode"], gpu["compute_slices"]) + some(0x090E, v["request_token"], bytes.fromhex)
    return out + flag(0x090F, v["follows_redirect"]) + make_affinities(v["intent"]) + make_tried(v["tried"]) + flag(0x0912, v["explain"])


def make_tried(tried):
    return b"".join(tlv(0x0911, bytes.fromhex(it["node_id"]) + be(STATUS.index(it["refused"] or "ok"), 2)
                        + bytes([CLASS.index(it["class"])])) for it in tried)


def make_kv_cache(intent):
    return some(0x0901, intent["kv_cache"], lambda it: bytes([1, TIER.index(it["tier"]), 0, 0]) + be(it["block_bytes"], 4))


def make_affinities(intent):
    return b"".join(tlv(0x0910, bytes([it["category"], it["strength"], it["target_type"]]) + be(len(it["target"]), 2)
                        + bytes(it["target"])) for it in intent["affinities"])


def make_execution(mode, width, partition):
    return some_word(0x0908, mode, MODE) + some_number(0x0909, width, 2) + some_word(0x090A, partition, PARTITION)


def make_gpu_execution(mode, slices):
    return some_word(0x090C, mode, GPU_MODE) + some_number(0x090D, slices, 2)


def make_lease(v):
    kind, coordinates = kind_of(v["binding"]["kind"])
    out = bytes.fromhex(v["lease_id"] + v["resource_id"]) + type_code(kind)
    out += bytes([LEASE_STATUS.index(v["status"]), PHASE.index(v["phase"])]) + be(v["generation"], 4)
    out += b"".join(be(v[key], 8) for key in LEASE_NUMBERS)
    intent = v["intent"] or {"kv_cache": None, "affinities": []}
    area = tlv(0x0101, bytes.fromhex(v["lease_id"])) + make_binding(v["binding"])
    if coordinates:
        makers = {"mem": make_rdma, "block": make_nvmeof, "net": make_net, "gpu": make_gpu, "cpu": make_cpu}
        area += makers[kind](coordinates)
    area += make_kv_cache(intent) + make_effective(v["effective"]) + some(0x090E, v["request_token"], bytes.fromhex)
    area += make_affinities(intent)
    return out + counted(area + some(0x0C01, v["tenant"], str.encode) + make_end(v["end"]))


def make_binding(v):
    limits = some(0x0104, v["limits"], lambda it: be(it["offset"], 8) + be(it["length"], 8))
    return some(0x0102, v["dp_key"], bytes) + some(0x0103, v["udp_endpoint"], place_bytes) + limits


def make_net(v):
    function = some(0x0401, v["pci_function"],
                    lambda it: be(it["domain"], 2) + bytes([it["bus"], it["device"] << 3 | it["function"]]))
    out = function + some(0x0402, v["interface"], str.encode) + tlv(0x0403, mac_bytes(v["mac"]))
    out += some_number(0x0404, v["vlan"], 2) + some_number(0x0405, v["rate_bps"], 8)
    out += some_word(0x0406, v["hand_over"], HAND_OVER) + some_number(0x0407, v["vfio_group"], 4)
    return out + some(0x0408, v["cdi_device"], str.encode)


def make_gpu(v):
    out = tlv(0x0501, v["uuid"].encode()) + some_word(0x0502, v["vendor"], GPU_VENDOR)
    out += some_number(0x0503, v["vram_bytes"], 8) + some(0x0504, v["session_endpoint"], place_bytes) + some(0x0505, v["cdi_device"], str.encode)
    return out + some_number(0x0506, v["compute_slices"], 2) + some_number(0x0507, v["queue_slots"], 2)


def make_cpu(v):
    out = tlv(0x0601, ranges_bytes(v["cpus"])) + tlv(0x0602, v["cgroup"].encode())
    out += some_word(0x0603, v["partition"], PARTITION) + some(0x0604, v["memory_nodes"] or None, ranges_bytes)
    return out + some(0x0605, v["quota"], lambda it: be(it["quota_us"], 4) + be(it["period_us"], 4))


def make_nvmeof(v):
    types = {word: code for code, word in NVMEOF_TRANSPORT.items()}
    out = b"".join(tlv(0x0301, bytes([types[it["transport"]]]) + place_bytes(it["endpoint"])) for it in v["addresses"])
    out += tlv(0x0302, v["subsystem"].encode()) + some_number(0x0303, v["nsid"], 4)
    out += tlv(0x0304, v["host_nqn"].encode()) + tlv(0x0305, uuid_bytes(v["host_id"]))
    out += tlv(0x0306, v["dhchap_secret"].encode()) + some(0x0307, v["dhchap_ctrl_secret"], str.encode)
    return out + some_number(0x0308, v["ctrl_loss_secs"], 4) + some_number(0x0309, v["block_bytes"], 4)


def make_rdma(v):
    out = some_number(0x0201, v["rkey"], 4) + some_number(0x0202, v["remote_addr"], 8) + some_number(0x0203, v["qp_num"], 4)
    out += tlv(0x0204, bytes(v["gid"])) + some_number(0x0205, v["port"], 1) + some_number(0x0206, v["psn"], 4)
    out += some_number(0x0207, v["path_mtu"], 2) + some_word(0x0208, v["strategy"], STRATEGY)
    out += some(0x0209, v["previous"], lambda it: be(it["rkey"], 4) + be(it["remaining_ms"], 4))
    out += some_number(0x020A, v["max_rd_atomic"], 1) + some_word(0x020B, v["atomics"], BOOL)
    out += b"".join(tlv(0x020C, be(it["qp_num"], 4) + be(it["psn"], 4) + be(it["rkey"], 4)) for it in v["further"])
    out += some_number(0x020D, v["prepared_rkey"], 4)
    return out + some(0x020E, v["attach"], lambda it: bytes(it["code"]) + place_bytes(it["endpoint"]))


def make_effective(v):
    out = some_word(0x0902, v["cpu_isolation"], CPU) + some_word(0x0903, v["gpu_exclusivity"], GPU)
    out += some_word(0x0904, v["transport"], TRANSPORT) + flag(0x0905, v["rotate_on_renew"])
    out += flag(0x0906, v["read_only"]) + flag(0x0907, v["mutual_auth"])
    out += make_execution(v["cpu_execution_mode"], v["cpu_execution_width"], v["cpu_partition"])
    out += some_word(0x090B, v["net_rate"], ENFORCEMENT)
    return out + make_gpu_execution(v["gpu_execution_mode"], v["gpu_compute_slices"])


def make_end(end):
    if end is None:
        return b""
    out = tlv(0x0C02, be(end["at_unix_ms"], 8) + bytes([CAUSE.index(end["cause"])]) + (end["by"] or "").encode())
    out += b"".join(make_step(0x0C03, step) for step in end["proof"])
    return out + b"".join(make_step(0x0C04, step) for step in end["cleaning"])


def make_step(tag, v):
    name = v["step"].encode()
    return tlv(tag, be(v["took_us"], 4) + bytes([len(name)]) + name + v["found"].encode())


def make_flat(entries):
    return be(len(entries), 2) + b"".join(
        bytes.fromhex(e["resource_id"]) + type_code(e["resource_type"]) + be(e["flags"], 2)
        + be(e["capacity"], 8) + be(e["available"], 8) for e in entries)


def make_structured(v):
    out = bytes.fromhex(v["node_id"]) + be(v["epoch"], 8) + be(v["health"], 4)
    for name, fields in LISTS.items():
        out += be(len(v[name]), 2)
        for row in v[name]:
            out += bytes.fromhex(row["resource_id"]) + b"".join(be(row[key], size) for key, size in fields)
    return out + counted(b"".join(map(make_extension, v["extensions"])))


def make_extension(extension):
    (kind, value), = extension.items()
    makers = {
        "name": (0x0B01, str.encode),
        "available": (0x0B02, lambda units: be(units, 8)),
        "classes": (0x0B03, lambda it: bytes([it["default"], *it["supported"]])),
        "transports": (0x0B04, lambda words: bytes(TRANSPORT.index(word) for word in words)),
        "fenced_part": (0x0B05, lambda units: be(units, 8)),
        "class_enforcement": (0x0B06, lambda pairs: b"".join(bytes([it, ENFORCEMENT.index(word)]) for it, word in pairs)),
        "class_available": (0x0B07, lambda pairs: b"".join(bytes([it]) + be(units, 8) for it, units in pairs)),
        "virtual_functions": (0x0B08, lambda it: be(it["total"], 4) + be(it["free"], 4)),
        "gpu_slots": (0x0B09, lambda it: b"".join(be(it[name], 2) for name in SLOTS)),
        "health_reason": (0x0B0A, str.encode),
        "limits": (0x0B0B, lambda it: be(it["lease_secs_max"], 4) + be(it["grace_secs_max"], 4) + bytes([it["bare_metal"]])),
        "admission": (0x0B0C, lambda it: bytes([it["flags"], len(it["forbidden"]), *it["forbidden"]])
                      + b"".join(bytes([how]) + be(now, 8) + be(empty, 8) for how, now, empty in it["most"])),
    }
    resource_id, content = value if isinstance(value, list) else (value.get("resource_id", "00" * 16), value)
    tag, make = makers[kind]
    return tlv(tag, bytes.fromhex(resource_id) + make(content))


def make_change(change):
    if "add" in change:
        return make_peers(change["add"], 0x0211)
    return b"".join(tlv(0x0212, be(number, 4)) for number in change["remove"])


def make_request(request):
    if isinstance(request, str):
        return b""
    (name, v), = request.items()
    makers = {
        "ping": lambda: be(v, 8),
        "get_inventory": lambda: bytes([FORM.index(v)]),
        "lease_alloc": lambda: make_alloc(v),
        "lease_renew": lambda: bytes.fromhex(v["lease_id"]) + be(v["lease_secs"], 4),
        "lease_list": lambda: bytes.fromhex(v["after"]) + bytes([v["ended"]]),
        "lease_bind": lambda: bytes.fromhex(v["lease_id"]) + counted(make_peers(v["peers"])),
        "lease_peers": lambda: bytes.fromhex(v["lease_id"]) + counted(make_change(v["change"])),
        "lease_attach": lambda: bytes.fromhex(v) + counted(tlv(0x0213, b"")),
        "lease_rotate": lambda: bytes.fromhex(v["lease_id"]) + be(v["overlap_ms"], 4),
        "identity_issue": lambda: bytes([ROLE.index(v["role"])]) + be(v["valid_secs"], 4) + text_bytes(v["tenant"])
        + counted(bytes(v["csr_der"])),
        "node_leases": lambda: be(v["sequence"], 8) + bytes([PART.index(v["part"])]) + be(len(v["leases"]), 2)
        + b"".join(map(make_reported_lease, v["leases"])) + be(len(v["gone"]), 2) + b"".join(map(bytes.fromhex, v["gone"])),
        "fleet_leases": lambda: bytes.fromhex(v["after"]) + bytes.fromhex(v["after_node"]),
        "node_report": lambda: be(v["sequence"], 8) + place_bytes(v["endpoint"]) + make_structured(v["inventory"]),
    }
    # The other messages are only an id.
    return makers.get(name, lambda: bytes.fromhex(v))()


def make_alloc(v):
    kind, _ = kind_of(v["terms"])
    fixed = type_code(kind) + bytes.fromhex(v["resource_id"] or "00" * 16) + be(v["capacity"], 8)
    return fixed + be(v["lease_secs"], 4) + be(v["grace_secs"], 4) + counted(make_params(v))


def make_answer(answer, reply):
    if "Ok" in answer:
        status = REDIRECT if "redirect" in answer["Ok"] else EXPLAINED if "explained" in answer["Ok"] else 0
        return be(status, 2) + reply(answer["Ok"])
    v = answer["Err"]
    area = some_word(0x0A01, v["class"], CLASS) + tlv(0x0A02, v["message"].encode())
    area += some_number(0x0A03, v["renewable_at_unix_ms"], 8) + some_number(0x0A04, v["retry_after_ms"], 4)
    return be(STATUS.index(v["error"]), 2) + counted(area)


def make_candidates(v):
    return be(len(v), 2) + b"".join(
        bytes.fromhex(it["node_id"]) + place_bytes(it["endpoint"]) + bytes.fromhex(it["resource_id"]) for it in v)


def make_reply(reply):
    if isinstance(reply, str):
        return b""
    (name, v), = reply.items()
    makers = {
        "pong": lambda: be(v, 8),
        "identity": lambda: bytes.fromhex(v["node_id"]) + be(v["epoch"], 8) + place_bytes(v["endpoint"])
        + bytes([ROLE.index(v["role"])]) + text_bytes(v["tenant"]) + text_bytes(v["version"]),
        "flat_inventory": lambda: b"\0" + make_flat(v),
        "inventory": lambda: b"\1" + make_structured(v),
        "lease": lambda: make_lease(v),
        "leases": lambda: (b"\1" + bytes.fromhex(v["next"]) if v["next"] else b"\0") + be(len(v["leases"]), 2)
        + b"".join(map(make_lease, v["leases"])),
        "revoked": lambda: bytes([OUTCOME.index(v)]),
        "fences": lambda: be(len(v), 2) + b"".join(
            bytes.fromhex(f["resource_id"]) + type_code(f["resource_type"]) + bytes.fromhex(f["lease_id"])
            + be(f["since_unix_ms"], 8) + text_bytes(f["reason"]) for f in v),
        "issued": lambda: text_bytes(v["certificate_pem"]) + text_bytes(v["ca_pem"]),
        "redirect": lambda: make_candidates(v),
        "explained": lambda: make_candidates(v["candidates"]) + text_bytes(v["why"]),
        "nodes": lambda: (b"\1" + bytes.fromhex(v["next"]) if v["next"] else b"\0") + be(len(v["nodes"]), 2)
        + b"".join(map(make_node, v["nodes"])) + be(len(v["away"]), 2) + b"".join(map(make_away, v["away"])),
        "fleet_leases": lambda: bytes([v["more"]]) + be(len(v["leases"]), 2)
        + b"".join(bytes.fromhex(it["node_id"]) + make_reported_lease(it["lease"]) for it in v["leases"]),
    }
    return makers[name]()


def make_reported_lease(v):
    out = bytes.fromhex(v["lease_id"]) + bytes.fromhex(v["resource_id"]) + type_code(v["resource_type"])
    out += bytes([PHASE.index(v["phase"])]) + be(v["capacity"], 8) + be(v["expires_at_unix_ms"], 8)
    return out + text_bytes(v["tenant"])


def make_away(v):
    out = bytes.fromhex(v["node_id"]) + place_bytes(v["endpoint"]) + be(v["last_seen_unix_ms"], 8) + be(len(v["labels"]), 2)
    return out + b"".join(map(text_bytes, v["labels"]))


def make_node(v):
    out = bytes.fromhex(v["node_id"]) + place_bytes(v["endpoint"]) + be(v["since_unix_ms"], 8) + be(len(v["labels"]), 2)
    return out + b"".join(map(text_bytes, v["labels"])) + counted(make_structured(v["inventory"]))


def make_frame(flags, header, payload):
    head = bytes([0, flags]) + be(header["msg_type"], 2) + be(header["request_id"], 4) + be(header["nonce"], 8)
    return head + counted(payload)


# ---- the files ---------------------------------------------------------------------------------------

def parse_file(text):
    """The keys of a vector file, and its bytes."""
    lines = text.splitlines()
    keys = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    return keys, bytes.fromhex("".join(line for line in lines if not line.startswith("# ")))


def read_datagram(judge, data):
    refusal = judge(data)
    need(refusal is None, refusal)
    return data_plane.value(data)


# The smallest LEASE_ALLOC, of memory, without its params.
SMALLEST = b"\0\2" + bytes(16) + be(1, 8) + be(1, 4) + be(0, 4)


def decode(keys, data):
    readers = {
        "request": lambda: read_request(data, REQUESTS, named),
        "answer": lambda: read_answer(data, json.loads(keys["asked"]), read_reply),
        "gpu_request": lambda: read_request(data, gpu_session.REQUESTS, read_gpu_message),
        "gpu_answer": lambda: read_answer(data, json.loads(keys["asked"]), read_gpu_reply),
        "tlv": lambda: read_whole(SMALLEST + counted(data), read_alloc),
        "flat": lambda: read_whole(data, read_flat),
        "structured": lambda: read_whole(data, read_structured),
        "data_request": lambda: read_datagram(data_plane.judge_request, data),
        "data_reply": lambda: read_datagram(data_plane.judge_reply, data),
        "discovery": lambda: discovery.read(data, Reader(data), need, read_flat, endpoint, resource_type),
    }
    return readers[keys["kind"]]()


def encode(keys, v):
    makers = {
        "request": lambda: make_frame(0, v[0], make_request(v[1])),
        "answer": lambda: make_frame(0x80, json.loads(keys["asked"]), make_answer(v, make_reply)),
        "gpu_request": lambda: make_frame(0, v[0], gpu_session.make(gpu_session.REQUESTS.values(), v[1])),
        "gpu_answer": lambda: make_frame(0x80, json.loads(keys["asked"]), make_answer(v, make_gpu_reply)),
        "tlv": lambda: make_params(v),
        "flat": lambda: make_flat(v),
        "structured": lambda: make_structured(v),
        "data_request": lambda: data_plane.make(v),
        "data_reply": lambda: data_plane.make(v),
        "discovery": lambda: discovery.make(v, make_flat, place_bytes, type_code),
    }
    return makers[keys["kind"]]()


def check(text):
    """Returns the fault of a vector, or None."""
    keys, data = parse_file(text)
    try:
        got = decode(keys, data)
    except Refused as refused:
        got = f"refused {refused}"
    if keys["expect"].startswith("refused "):
        return None if got == keys["expect"] else f"expected {keys['expect']}, got {got}"
    value = json.loads(keys["value"])
    if got != value:
        return f"expected {value}, got {got}"
    if keys["expect"] == "ok" and encode(keys, value) != data:
        return f"expected {data.hex()}, made {encode(keys, value).hex()}"
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
               "gpu_answer", "discovery"} - counts.keys()
    if missing:
        print(f"{folder}: no vectors of kind {', '.join(sorted(missing))}", file=sys.stderr)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())), f"checked, {wrong} wrong")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
