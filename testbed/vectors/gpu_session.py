"""Operations of GPU sessions, written only from docs/spec/gpu-sessions.md, for check.py, which reads and makes them. A
message is its name and its layout: a list of fields, each with its name, its size in bytes and its limits."""

COPY, MODULE, ANY = (1, 4_194_304), (1, 67_108_864), (0, 2**64 - 1)
SOME = (1, 2**64 - 1)
HANDLE = [("memory", 8, ANY)]
PLACE = HANDLE + [("offset", 8, ANY), ("length", 4, COPY)]
SHARED = HANDLE + [("offset", 8, ANY), ("shared_offset", 8, ANY), ("length", 8, SOME)]
REQUESTS = {
    0x0601: ("open", [("lease_id", 16, None), ("session", 8, ANY)]),
    0x0602: ("mem_alloc", [("bytes", 8, SOME)]),
    0x0603: ("mem_write", PLACE),
    0x0604: ("module_load", [("length", 4, MODULE)]),
    0x0605: ("launch", [("module", 8, ANY), ("kernel", 255, "name"), ("grid", 4, "three"), ("block", 4, "three"),
                        ("shared_bytes", 4, ANY), ("arguments", 4096, "list")]),
    0x0606: ("sync", [("whole_session", 1, "bool")]),
    0x0607: ("mem_read", PLACE),
    0x0608: ("mem_free", HANDLE),
    0x0609: ("module_unload", [("module", 8, ANY)]),
    0x060A: ("close", []),
    0x060B: ("mem_share", [("length", 8, SOME)]),
    0x060C: ("mem_write_shared", SHARED),
    0x060D: ("mem_read_shared", SHARED),
}
REPLIES = {
    0x0601: ("opened", [("session", 8, SOME), ("vram_bytes", 8, ANY), ("vram_used", 8, ANY), ("queue_slots", 2, ANY),
                        ("device", 255, "text"), ("uuid", 96, "text")]),
    0x0602: ("memory", [("memory", 8, ANY), ("address", 8, ANY)]),
    0x0604: ("module", [("module", 8, ANY)]),
    0x0607: ("data", [("length", 4, COPY)]),
    0x060A: ("closed", [("wiped_bytes", 8, ANY), ("free_bytes", 8, ANY)]),
}
DONE = ("done", [])


def read(message, r, need):
    """The content of a message under its name, from a reader of `check.py`; only the name if the message has no
    fields."""
    name, layout = message
    return {name: {field: read_field(size, limits, r, need) for field, size, limits in layout}} if layout else name


def read_field(size, limits, r, need):
    if limits is None:
        return r.id()
    if limits == "bool":
        return r.word([False, True])
    if limits == "three":
        return [r.u(size) for _ in range(3)]
    if limits == "list":
        return r.list(256, lambda r: read_argument(size, r, need))
    if limits in ("text", "name"):
        text = r.text(size)
        need(limits == "text" or (text and "\0" not in text), "InvalidArgs")
        return text
    value = r.u(size)
    need(limits[0] <= value <= limits[1], "InvalidArgs")
    return value


def read_argument(size, r, need):
    value = r.bytes(size)
    need(value, "InvalidArgs")
    return list(value)


def make(messages, told):
    """The bytes of one of these messages with this content."""
    if isinstance(told, str):
        return b""
    (name, fields), = told.items()
    return b"".join(make_field(size, limits, fields[field]) for field, size, limits in dict(messages)[name])


def number(value, size):
    return value.to_bytes(size, "big")


def counted(data):
    return number(len(data), 4) + data


def make_field(size, limits, value):
    makers = {None: lambda: bytes.fromhex(value), "bool": lambda: bytes([value]), "text": lambda: counted(value.encode()),
              "name": lambda: counted(value.encode()), "three": lambda: b"".join(number(part, size) for part in value),
              "list": lambda: number(len(value), 2) + b"".join(counted(bytes(it)) for it in value)}
    return makers.get(limits, lambda: number(value, size))()
