"""Operations of GPU sessions, written only from docs/spec/gpu-sessions.md: what `check.py` needs to read and make them. A layout
is a list of fields; a field is its name, its size in bytes and its limits."""

COPY, MODULE, ANY = (1, 4_194_304), (1, 67_108_864), (0, 2**64 - 1)
SOME = (1, 2**64 - 1)
HANDLE = [("memory", 8, ANY)]
PLACE = HANDLE + [("offset", 8, ANY), ("length", 4, COPY)]
SHARED = HANDLE + [("offset", 8, ANY), ("shared_offset", 8, ANY), ("length", 8, SOME)]
REQUESTS = {
    0x0601: [("lease_id", 16, None), ("session", 8, ANY)],
    0x0602: [("bytes", 8, SOME)],
    0x0603: PLACE,
    0x0604: [("length", 4, MODULE)],
    0x0605: "launch",
    0x0606: [("whole_session", 1, "bool")],
    0x0607: PLACE,
    0x0608: HANDLE,
    0x0609: [("module", 8, ANY)],
    0x060A: [],
    0x060B: [("length", 8, SOME)],
    0x060C: SHARED,
    0x060D: SHARED,
}
REPLIES = {
    0x0601: [("session", 8, SOME), ("vram_bytes", 8, ANY), ("vram_used", 8, ANY), ("queue_slots", 2, ANY), ("device", 255, "text"),
             ("uuid", 96, "text")],
    0x0602: [("memory", 8, ANY), ("address", 8, ANY)],
    0x0604: [("module", 8, ANY)],
    0x0607: [("length", 4, COPY)],
    0x060A: [("wiped_bytes", 8, ANY), ("free_bytes", 8, ANY)],
}
THREE = ("grid", "block")


def read(layout, r, need, quoted):
    """The fields of a layout, from a reader of `check.py`."""
    if layout == "launch":
        return read_launch(r, need, quoted)
    out = []
    for name, size, limits in layout:
        if limits is None:
            out.append((name, r.id()))
        elif limits == "bool":
            out.append((name, r.word(["false", "true"])))
        elif limits == "text":
            out.append((name, quoted(r.text(size))))
        else:
            value = r.u(size)
            need(limits[0] <= value <= limits[1], "InvalidArgs")
            out.append((name, value))
    return out


def read_launch(r, need, quoted):
    """GPU_LAUNCH."""
    module, kernel = r.u(8), r.text(255)
    need(kernel and "\0" not in kernel, "InvalidArgs")
    out = [("module", module), ("kernel", quoted(kernel))]
    out += [(name, ",".join(str(r.u(4)) for _ in range(3))) for name in THREE]
    out.append(("shared_bytes", r.u(4)))

    def argument(r):
        value = r.bytes(4096)
        need(value, "InvalidArgs")
        return value.hex()
    return out + [(f"argument.{n}", value) for n, value in enumerate(r.list(256, argument))]


def make(layout, v, text_bytes):
    """The bytes of the fields."""
    number = lambda value, size: int(value).to_bytes(size, "big")
    counted = lambda data: number(len(data), 4) + data
    if layout == "launch":
        out = number(v["module"], 8) + counted(text_bytes(v["kernel"]))
        out += b"".join(number(part, 4) for name in THREE for part in v[name].split(","))
        arguments = [bytes.fromhex(value) for name, value in v.items() if name.startswith("argument.")]
        return out + number(v["shared_bytes"], 4) + number(len(arguments), 2) + b"".join(map(counted, arguments))
    makers = {None: lambda value, _: bytes.fromhex(value), "bool": lambda value, _: bytes([value == "true"]),
              "text": lambda value, _: counted(text_bytes(value))}
    return b"".join(makers.get(limits, number)(v[name], size) for name, size, limits in layout)
