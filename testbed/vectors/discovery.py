"""Datagrams of discovery, for check.py: written from docs/spec/discovery.md alone. Signatures are not verified."""

ANNOUNCE, SOLICIT, WITHDRAW = 1, 2, 3
MORE, LONGEST, ENTRIES_MAX, CERTIFICATE_MAX, SIGNATURE_MAX = 1, 1232, 12, 1024, 72


def read(data, r, need, read_entries, read_endpoint, read_type):
    """The content, from a reader of check.py at the start of the datagram."""
    need(len(data) <= LONGEST, "Malformed")
    need(r.take(4) == b"FBDC" and r.u(1) == 0, "Unsupported")
    kind, flags, reserved = r.u(1), r.u(1), r.u(1)
    need(kind in (ANNOUNCE, SOLICIT, WITHDRAW) and not reserved, "Unsupported")
    need(not flags & ~(MORE if kind == ANNOUNCE else 0), "Unsupported")
    fabric, nonce = list(r.take(16)), r.u(8)
    if kind == SOLICIT:
        need(nonce, "InvalidArgs")
        told = {"fabric": fabric, "nonce": nonce, "resource_type": read_type(r)}
        need(not any(r.take(len(data) - r.at)), "Malformed")
        return {"solicit": told}
    told = {"fabric": fabric, "nonce": nonce, "epoch": r.u(8), "sequence": r.u(8), "sent_unix_ms": r.u(8), "offer": None}
    if kind == ANNOUNCE:
        lifetime = r.u(2)
        need(lifetime, "InvalidArgs")
        told["offer"] = {"lifetime_secs": lifetime, "endpoint": read_endpoint(r.take(18), "InvalidArgs"),
                         "has_more": bool(flags & MORE), "entries": read_entries(r, ENTRIES_MAX)}
    certificate, signature = list(r.bytes(CERTIFICATE_MAX)), list(r.bytes(SIGNATURE_MAX))
    r.end()
    return {"signed": {"told": told, "certificate": certificate, "signature": signature}}


def make(value, make_entries, make_endpoint, make_type):
    """The datagram with this content."""
    (name, v), = value.items()
    told = v if name == "solicit" else v["told"]
    offer = told.get("offer")
    kind = SOLICIT if name == "solicit" else ANNOUNCE if offer else WITHDRAW
    flags = MORE if offer and offer["has_more"] else 0
    out = b"FBDC" + bytes([0, kind, flags, 0]) + bytes(told["fabric"]) + told["nonce"].to_bytes(8, "big")
    if kind == SOLICIT:
        return (out + make_type(told["resource_type"])).ljust(LONGEST, b"\0")
    out += b"".join(told[name].to_bytes(8, "big") for name in ("epoch", "sequence", "sent_unix_ms"))
    if offer:
        out += offer["lifetime_secs"].to_bytes(2, "big") + make_endpoint(offer["endpoint"]) + make_entries(offer["entries"])
    parts = (bytes(v["certificate"]), bytes(v["signature"]))
    return out + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
