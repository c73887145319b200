"""Small XPlane profiles with known contents, and the JSON that JAX makes of them."""

import gzip
import json


def number(value):
    """A varint; negative numbers take ten bytes, as in protocol buffers."""
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def piece(key, value):
    """One field of a message."""
    if isinstance(value, int):
        return number(key << 3) + number(value)
    content = value.encode() if isinstance(value, str) else value
    return number(key << 3 | 2) + number(len(content)) + content


class Plane:
    """A plane, built line by line; its names are numbered as they are met."""

    def __init__(self, name, **stats):
        self.name = name
        self.lines = []
        self.events = {}
        self.stats = {}
        self.own = b"".join(piece(6, self.stat(key, value)) for key, value in stats.items())

    def line(self, name, *events, start_ns=0):
        """Add a line of ``(name, offset_ps, duration_ps)`` or ``(name, offset_ps, duration_ps, stats)``."""
        texts = [self.event(*event) for event in events]
        return self.line_of(name, *(piece(4, text) for text in texts), start_ns=start_ns)

    def line_of(self, name, *pieces, start_ns=0):
        """Add a line whose events are given as they stand in the file."""
        head = piece(1, len(self.lines) + 1) + piece(2, name) + (piece(3, start_ns) if start_ns else b"")
        self.lines.append(head + b"".join(pieces))
        return self

    def event(self, name, offset_ps, duration_ps, stats=None):
        key = self.events.setdefault(name, len(self.events) + 1)
        said = b"".join(piece(4, self.stat(stat, value)) for stat, value in (stats or {}).items())
        return piece(1, key) + piece(2, offset_ps) + piece(3, duration_ps) + said

    def stat(self, name, value):
        key = self.stats.setdefault(name, len(self.stats) + 1)
        if isinstance(value, Reference):
            return piece(1, key) + piece(7, self.stats.setdefault(value.text, len(self.stats) + 1))
        return piece(1, key) + piece(5 if isinstance(value, str) else 4, value)

    def bytes(self):
        """The message. Names are written behind the lines, as XLA's profiler does."""
        texts = [piece(1, 1), piece(2, self.name), *(piece(3, line) for line in self.lines)]
        for name, key in self.events.items():
            full, shown = name if isinstance(name, tuple) else (name, "")
            named = piece(1, key) + piece(2, full) + (piece(4, shown) if shown else b"")
            texts.append(piece(4, piece(1, key) + piece(2, named)))
        texts += [
            piece(5, piece(1, key) + piece(2, piece(1, key) + piece(2, name))) for name, key in self.stats.items()
        ]
        return b"".join([*texts, self.own])


class Reference:
    """The value of a stat that is the name of another one."""

    def __init__(self, text):
        self.text = text


def space(*planes):
    """A file of planes, and of one that says nothing."""
    return b"".join(piece(1, plane.bytes()) for plane in planes) + piece(4, "localhost")


def gpu(steps=12, *, busy_ps=8_000_000_000, step_ps=10_000_000_000, device=0, marks="Steps"):
    """A GPU's plane: each step copies a batch, runs two kernels and an all-reduce, and then idles."""
    plane = Plane(f"/device:GPU:{device}", core_count=108, compute_cap_major=8, compute_cap_minor=0)
    copies, kernels, marked = [], [], []
    details = {"memcpy_details": "kind_src:pinned kind_dst:device size:1048576 dest:0 async:1"}
    for step in range(steps):
        at = step * step_ps
        marked.append((str(step + 5), at, step_ps))
        copies.append(("MemcpyH2D", at, busy_ps // 8, details))
        kernels += [
            ("ampere_sgemm_128x64_tn", at + busy_ps // 8, busy_ps // 2),
            ("loop_add_fusion", at + busy_ps * 5 // 8, busy_ps // 8),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + busy_ps * 6 // 8, busy_ps // 4),
        ]
    plane.line("Stream #14(MemcpyH2D)", *copies, start_ns=1_000)
    plane.line("Stream #16(Compute)", *kernels, start_ns=1_000)
    if marks:
        plane.line(marks, *marked, start_ns=1_000)
    return plane


def tpu(steps=12, *, device=0):
    """A TPU's plane: each step is a loop of two operations, waits for a copy, and reduces over all devices."""
    plane = Plane(f"/device:TPU:{device}", device_type_string="TPU v4")
    ms = 1_000_000_000
    operations, modules, beside = [], [], []
    for step in range(steps):
        at = step * 10 * ms
        modules.append(("jit_train_step(1234567890)", at, 9 * ms))
        operations += [
            ("%while.3 = (f32[]) while((f32[]) %tuple)", at, 5 * ms),
            (("%fusion.1 = f32[8]{0} fusion(f32[8]{0} %p)", "fusion.1"), at, 3 * ms),
            (("%fusion.2 = f32[8]{0} fusion(f32[8]{0} %p)", "fusion.2"), at + 3 * ms, 2 * ms),
            ("%copy-done.1 = f32[8]{0} copy-done((f32[8]{0}) %copy-start.1)", at + 5 * ms, 1 * ms),
            ("%all-reduce.7 = f32[8]{0} all-reduce(f32[8]{0} %fusion.2)", at + 6 * ms, 2 * ms),
            ("infeed.1", at + 8 * ms, 1 * ms),
        ]
        beside.append(("%copy-start.1 = (f32[8]{0}) copy-start(f32[8]{0} %p)", at + 4 * ms, 2 * ms))
    plane.line("XLA Modules", *modules)
    plane.line("XLA Ops", *operations)
    plane.line("Async XLA Ops", *beside)
    plane.line("XLA TraceMe", ("barrier-cores", 0, 9 * ms))
    return plane


def host(steps=12, *, step_ps=10_000_000_000):
    """The host's plane, on whose first line the loop annotates its steps."""
    plane = Plane("/host:CPU")
    marks = [("train", step * step_ps, step_ps, {"_r": 1, "step_num": step + 3}) for step in range(steps)]
    calls = [("PjitFunction(train_step)", step * step_ps, 1_000_000, {"_r": 0}) for step in range(steps)]
    plane.line("python3", *marks, *calls, start_ns=1_000)
    return plane


def jax_json(steps=12, *, device="/device:GPU:0", packed=False):
    """The same as JSON, as JAX writes it: without categories, with an empty object at the end of the list."""
    names = [(1, 0, "process_name", device), (701, 0, "process_name", "/host:CPU")]
    lines = {16: "Stream #16(Kernel)", 14: "Stream #14(MemcpyH2D)", 1: "Steps", 2: "XLA Modules", 3: "XLA Ops"}
    names += [(1, tid, "thread_name", line) for tid, line in lines.items()] + [(701, 9, "thread_name", "python")]
    events = [
        {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {"name": said}} for pid, tid, name, said in names
    ]
    events.append({"ph": "M", "pid": 1, "name": "process_sort_index", "args": {"sort_index": 1}})
    for step in range(steps):
        at = 1_000 + 10_000 * step
        for tid, name, start, length in (
            (1, str(step + 5), 0, 10_000),
            (2, "jit_train_step(123)", 0, 8_000),
            (3, "fusion.1", 1_000, 5_000),
            (14, "MemcpyH2D", 0, 1_000),
            (16, "ampere_sgemm_128x64_tn", 1_000.25, 5_000.5),
            (16, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6_001, 1_999),
        ):
            events.append({"ph": "X", "pid": 1, "tid": tid, "ts": at + start, "dur": length, "name": name, "args": {}})
        events.append({"ph": "X", "pid": 701, "tid": 9, "ts": at, "dur": 9_000, "name": "$train.py:12 train_step"})
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text) if packed else text
