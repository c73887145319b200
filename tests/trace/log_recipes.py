"""Logs as tools write them: nvidia-smi's in its dialects, and memory snapshots."""

import pickle
import random

from damage import check_report, damaged, refused

from profilerkit.api import analyze
from profilerkit.formats.registry import files_of, read_files

FRAMES = {
    "model": [
        {"filename": "/opt/venv/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
        {"filename": "/data/job/train.py", "line": 33, "name": "step"},
        {"filename": "??", "line": 0, "name": "main"},
    ],
    "load": [{"filename": "/data/job/data.py", "line": 7, "name": "load"}],
}
KIB = 1024
MIB = 1024 * KIB


def frame(file, function, line=1):
    return {"filename": file, "line": line, "name": function}


def node(name):
    """A frame of C++, as stacks have them of the backward pass."""
    return frame("??", f"torch::autograd::generated::{name}::apply(std::vector<at::Tensor>&&)")


_FUNCTIONAL, _MODULE = "/opt/torch/nn/functional.py", "/opt/torch/nn/modules/module.py"
_STEP = frame("/data/job/train.py", "step", 33)
#: Stacks of a training step, innermost first.
STACKS = {
    "weights": [frame(_MODULE, "convert"), frame(_MODULE, "to"), frame("/data/job/train.py", "main", 5)],
    "optimizer": [frame("/opt/torch/optim/adam.py", "_init_group", 180), _STEP],
    "block": [frame(_FUNCTIONAL, "gelu"), frame("/data/job/model.py", "forward", 21), _STEP],
    "loss": [frame(_FUNCTIONAL, "cross_entropy", 3104), frame("/data/job/model.py", "forward", 88), _STEP],
    "backward": [frame("??", "torch::autograd::Engine::evaluate_function(std::shared_ptr)"), node("MmBackward0")],
    "again": [frame("/data/job/model.py", "forward", 21), node("CheckpointBackward0")],
    "function": [frame("/data/job/model.py", "backward", 40)],
    "compiled": [
        frame("/tmp/torchinductor_me/ab/cab.py", "call", 90),
        frame("/opt/torch/_functorch/_aot_autograd/runtime_wrappers.py", "backward", 2000),
    ],
    "batch": [frame("/data/job/evaluate.py", "evaluate", 12)],
    "none": [],
}
FRAMES |= STACKS


def out_of_memory(*, loss=True, layers=4, free=64 * MIB, idle=0, optimizer=2, asked=1024 * MIB):
    """A history from an empty device to a request that failed: weights, state and activations in blocks of 128 MiB."""
    held = [*["weights"] * 2, *["optimizer"] * optimizer, *["block"] * layers]
    size = 128 * MIB
    events = [event("alloc", 0x1000 + place, size, frames=stack) for place, stack in enumerate(held)]
    blocks = [block(0x1000 + place, size, frames=stack) for place, stack in enumerate(held)]
    total = len(held) * size + idle
    events = [event("segment_alloc", 1, total), *events]
    events.append({**event("oom", 0, asked, frames="loss" if loss else "block"), "device_free": free})
    empty = [block(0x9000, idle, state="inactive")] if idle else []
    return snapshot([segment(1, *blocks, *empty)], events)


def cycles(count=12, *, leak=0, size=200 * MIB, lines=("block", "backward", "load")):
    """Rises to ``size`` and back, each of which leaves ``leak`` bytes. ``lines`` ask for most, rest, leak."""
    first, then, leaks = lines
    events = []
    for number in range(count):
        events.append(event("alloc", number, size - MIB, frames=first))
        events.append(event("alloc", 20_000 + number, MIB, frames=then))
        if leak:
            events.append(event("alloc", 10_000 + number, leak, frames=leaks))
        events.append(event("free_completed", number, size - MIB))
        events.append(event("free_completed", 20_000 + number, MIB))
    events.append(event("alloc", count, size, frames=first))
    kept = [block(10_000 + number, leak, frames=leaks) for number in range(count)] if leak else []
    return snapshot([segment(1, block(count, size, frames=first), *kept)], events)


SAMPLES = """\
timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu
2026/11/22 12:00:00.100, 0, NVIDIA A100, 98 %, 1129 MiB, 40960 MiB, 33.09 W, 41
2026/11/22 12:00:00.101, 1, NVIDIA A100, [N/A], 1130 MiB, 40960 MiB, [Not Supported], 42
2026/11/22 12:00:01.100, 0, NVIDIA A100, 100 %, 2048 MiB, 40960 MiB, 250.00 W, 43
2026/11/22 12:00:01.101, 1, NVIDIA A100, 50 %, 1130 MiB, 40960 MiB, -, 44
"""


_TOKENS = [b"-1", b"1e308", b"99999999999999999999", b"[N/A]", b",,,,", b"\n", b"\0"]
#: A report is made of one of so many.
_ANALYZED_EACH = 5
_CODES = b"\x85\x86\x87\x94(.}]seutahj"


def smi(rows, *, columns="timestamp, index, utilization.gpu [%], temperature.gpu, power.draw [W]"):
    """A log of rows of cells."""
    return "\n".join([columns, *(", ".join(map(str, row)) for row in rows), ""])


def gpus(*heats, watts=300.0, seconds=20, start="2026-11-22T12:00:{:02}Z", use="98 %", **more):
    """A log of as many devices as there are temperatures; ``more`` is the power of the device ``gpu1`` and so on."""
    rows = [
        (start.format(second), gpu, use, heat, f"{more.get(f'gpu{gpu}', watts):.2f} W")
        for second in range(seconds)
        for gpu, heat in enumerate(heats)
    ]
    return smi(rows)


def event(action, address, size, *, at=0, frames="model", **more):
    known = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": FRAMES[frames]}
    return {**known, **more}


def block(address, size, *, state="active_allocated", frames="model"):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": FRAMES[frames]}


def segment(address, *blocks, device=0):
    total = sum(entry["size"] for entry in blocks)
    return {"device": device, "address": address, "total_size": total, "stream": 0, "blocks": list(blocks)}


def snapshot(segments, events=(), *, start_us=0):
    """A snapshot of one device: 3 MiB older than the history, whatever the events leave in the segments."""
    timed = [{**entry, "time_us": start_us + 1000 * place} for place, entry in enumerate(events)]
    return {
        "segments": list(segments),
        "device_traces": [timed, []],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def grown(*, oom=False, start_us=0):
    """16 KiB reserved, of which 4 KiB are older than the history, 10 KiB at the peak and 6 KiB in the end in use."""
    events = [
        event("alloc", 0x2000, 4 * KIB),
        event("alloc", 0x3000, 2 * KIB, frames="load"),
        event("free_requested", 0x2000, 4 * KIB),
        event("free_completed", 0x2000, 4 * KIB),
    ]
    if oom:
        events.append({**event("oom", 0, 64 * KIB), "device_free": 1 * KIB})
    held = segment(
        0x1000,
        block(0x1000, 4 * KIB, frames="load"),
        block(0x2000, 4 * KIB, state="inactive"),
        block(0x3000, 2 * KIB, frames="load"),
        block(0x3800, 6 * KIB, state="inactive"),
    )
    return snapshot([held], events, start_us=start_us)


def pickled(document, protocol=4):
    return pickle.dumps(document, protocol=protocol)


def smi_originals(_path=None):
    """Logs of ``nvidia-smi --query-gpu``: with units and missing values, and of three devices."""
    return [SAMPLES.encode(), gpus(38, 60, 37, gpu1=330.0).encode()]


def dmon_originals(_path=None):
    """The text of ``nvidia-smi dmon``, without and with times."""
    rows = "    0   300    60    98    20\n    1   310    61     -    20\n"
    plain = "# gpu   pwr gtemp    sm   mem\n# Idx     W     C     %     %\n" + rows * 9
    timed = "#Date       Time        gpu    pwr\n#YYYYMMDD   HH:MM:SS    Idx      W\n" + "".join(
        f" 20261122   12:00:{second:02}      0    300\n" for second in range(20)
    )
    return [plain.encode(), timed.encode()]


def snapshot_originals(_path=None):
    """Memory snapshots, with and without a request that failed, of a new and an old protocol."""
    return [pickled(grown(oom=True)), pickled(grown(), protocol=2)]


def run_seed(logs, seed, path):
    """One damaged log, which must be read or refused; whatever else is raised breaks a promise."""
    rng = random.Random(seed)
    path.write_bytes(damaged(rng.choice(logs), rng, _TOKENS, _CODES))
    with refused():
        if seed % _ANALYZED_EACH:
            read_files(files_of([path], "log"), strict=False)
        else:
            check_report(analyze(path))
