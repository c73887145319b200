"""Real-shaped traces, random damage to their bytes, and what must hold of whatever is read after it."""

import gzip
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from unittest.mock import patch

import trace_recipes as recipes

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import blocks
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import ANALYZED, Damage, Wanted

N_STEPS = 12
SLOWEST_S = 10.0
KINDS = ("cut", "flip", "delete", "duplicate", "insert", "overwrite")
SIZES = (1, 1, 2, 7, 40, 300, 3000)
NOISE = b'"{}[],:\\x0\xff\n-.e]}'


def gpu_events(n_steps, seed=1):
    """Host operators with their launches, kernels, flow links and memory instants, as a GPU training writes them."""
    rng = random.Random(seed)
    events = [
        {"name": "process_name", "ph": "M", "ts": 0, "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"name": "thread_name", "ph": "M", "ts": 0, "pid": 7, "tid": 9, "args": {"name": "thread 9 (python)"}},
    ]
    at = 4458676524648.5
    for step in range(n_steps):
        began = at
        for op in ("aten::conv2d", "void at::native::(anonymous namespace)::k<float, 4>(int)", "aten::mm"):
            number = len(events)
            host = {"pid": 7, "tid": 9}
            device = {"pid": 0, "tid": 20}
            shapes = {"Input Dims": [[8, 3], [], [number % 5]], "Input type": ["float", "", "Scalar"]}
            start = round(at + rng.random(), 3)
            args = {"External id": number, "Ev Idx": number, **shapes}
            events.append({"ph": "X", "cat": "cpu_op", "name": op, **host, "ts": start, "dur": 41.017, "args": args})
            args = {"correlation": number, "External id": number, "cbid": 211}
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": round(start + 2.25, 3)}
            events.append({**call, "dur": 5.5, "args": args})
            link = {"id": number, "cat": "ac2g", "name": "ac2g"}
            events.append({"ph": "s", **link, **host, "ts": call["ts"]})
            args = {"device": 0, "stream": 20, "correlation": number, "grid": [8, 1, 1], "est. achieved occupancy %": 0}
            kernel = {"ph": "X", "cat": "kernel", "name": f"{op}_kernel", **device, "ts": round(start + 9.125, 3)}
            events.append({**kernel, "dur": round(20 + rng.random(), 3), "args": args})
            events.append({"ph": "f", **link, **device, "ts": kernel["ts"], "bp": "e"})
            args = {"Bytes": 512, "Total Allocated": 1024, "Total Reserved": 2048, "Device Type": 1, "Device Id": 0}
            events.append(
                {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **host, "ts": start, "args": args}
            )
            at += 50
        name = f"ProfilerStep#{step}"
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 9, "ts": began, "dur": 150.5}
        )
    return events


def native(events, head, tail):
    """The old layout of Kineto: several keys to a line."""
    texts = []
    for event in events:
        keys = {key: json.dumps(value) for key, value in event.items()}
        args = keys.pop("args", None)
        line = ", ".join(f'"{key}": {value}' for key, value in keys.items())
        texts.append(f"\n  {{\n    {line}" + (f',\n    "args": {args[:-1]}\n    }}' if args else "") + "\n  }")
    return head + ",".join(texts) + tail


def traces():
    """Name to bytes: native, one key to a line with Python frames, and compact with the keys after the events."""
    events = gpu_events(N_STEPS)
    frames = [
        {
            **event,
            "cat": "python_function",
            "name": f"train.py({i}): step",
            "args": {"Python id": i, "Python parent id": None},
        }
        for i, event in enumerate(events)
        if event["ph"] == "X"
    ]
    fields = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100"}],
        "baseTimeNanoseconds": 1711964646000000000,
    }
    stacked = {**fields, "traceEvents": [*events, *frames], "traceName": "t.json"}
    compact = {"traceEvents": events, **fields}
    return {
        "native": native(events, recipes.HEAD, recipes.TAIL).encode(),
        "stacked": json.dumps(stacked, indent=2).encode(),
        "compact": json.dumps(compact, separators=(",", ":")).encode(),
    }


def legacy():
    """Name to bytes: the list that ``torch.autograd.profiler`` wrote before Kineto, without categories."""
    events = []
    for number in range(6 * N_STEPS):
        host = {"name": "aten::mm", "ph": "X", "ts": 434.706 + 50 * number, "dur": 41.25, "tid": 1}
        work = {"name": "mm_kernel", "ph": "X", "ts": 440.5 + 50 * number, "dur": 20.125, "tid": 0}
        link = {"id": number, "cat": "cpu_to_cuda", "name": "aten::mm"}
        events += [
            {**host, "pid": "CPU functions", "args": {}},
            {**link, "ph": "s", "ts": host["ts"], "tid": 1, "pid": "CPU functions", "args": {}},
            {**link, "ph": "f", "ts": work["ts"], "tid": 0, "pid": "CUDA functions", "args": {}},
            {**work, "pid": "CUDA functions", "args": {}},
        ]
    return {"spaced": json.dumps(events).encode(), "lines": json.dumps(events, indent=1).encode()}


TRACES = traces()


@dataclass
class Mutation:
    """One damaged text; ``touched`` are byte ranges of the original that were changed or removed."""

    text: bytes
    kinds: list[str]
    touched: list[tuple[int, int]]


def mutated(original, rng, count=1):
    """``count`` changes, one after the other from the end to the beginning of the text."""
    text, touched, kinds = bytearray(original), [], []
    end = len(text)
    for at in sorted((rng.randrange(len(text)) for _ in range(count)), reverse=True):
        kind = rng.choice(KINDS)
        size = min(1 if kind == "flip" else rng.choice(SIZES), end - at)
        _change(text, rng, kind, at, size)
        touched.append((at, len(original) if kind == "cut" else at + size))
        kinds.append(kind)
        end = at
    return Mutation(bytes(text), kinds, touched)


def _change(text, rng, kind, at, size):
    if kind == "cut":
        del text[at:]
    elif kind == "flip":
        text[at : at + 1] = bytes(byte ^ 1 << rng.randrange(8) for byte in text[at : at + 1])
    elif kind == "delete":
        del text[at : at + size]
    elif kind == "duplicate":
        text[at:at] = text[at : at + size]
    elif kind == "insert":
        text[at:at] = bytes(rng.choice(NOISE) for _ in range(min(size, 40)))
    else:
        text[at : at + size] = bytes(rng.choice(NOISE) for _ in range(size))


def rows(columns):
    """Each event as what makes it the same event."""
    strings, threads = columns.strings, columns.threads
    names, stamps = columns.name.tolist(), zip(columns.ts_ns.tolist(), columns.dur_ns.tolist(), strict=True)
    return [
        (strings[name], ts, dur, threads[thread])
        for name, (ts, dur), thread in zip(names, stamps, columns.thread.tolist(), strict=True)
    ]


class Original:
    """A whole trace, where its events stand, and what is read of it."""

    def __init__(self, text, path):
        self.text = text
        path.write_bytes(text)
        self.rows = rows(read_trace(path, wanted=Wanted.EVERYTHING, strict=True))
        self.places = _places(text)
        self.events_end = self.places[-1][1]
        assert len(self.places) == len(self.rows)

    def touched(self, mutation):
        """How many events overlap the change, or stand right beside it."""
        return sum(any(start <= high and low <= end for low, high in mutation.touched) for start, end in self.places)


def _places(text):
    """The byte range of each complete event."""
    decoded, places = text.decode(), []
    decoder = json.JSONDecoder()
    at = 0 if decoded.startswith("[") else decoded.index("[", decoded.index('"traceEvents"')) + 1
    while (at := decoded.find("{", at)) >= 0:
        between = decoded[places[-1][1] if places else at : at]
        event, end = decoder.raw_decode(decoded, at)
        if "]" in between or "ph" not in event:
            break
        places.append((at, end, event["ph"]))
        at = end
    return [(start, end) for start, end, phase in places if phase == "X"]


def spans_by_json(text):
    """How many complete events ``json`` sees in a text, None when it cannot read it.

    What the reader takes without a word is no damage: bytes that are not UTF-8 in texts it does not keep, control
    characters for white space, commas too many.
    """
    plain = _COMMAS.sub(",", text.decode("utf-8", "replace").translate(_CONTROL))
    try:
        document = json.loads(_LAST_COMMA.sub(r"\1", plain))
    except ValueError:
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return sum(isinstance(event, dict) and event.get("ph") == "X" for event in events or ())


_CONTROL = dict.fromkeys(range(32), " ")
_COMMAS = re.compile(r",(?:\s*,)+")
_LAST_COMMA = re.compile(r",(\s*\])")


def check(original, mutation, path, *, packed=False, wanted=Wanted.EVERYTHING):
    """Raise AssertionError when reading the damaged text breaks a promise.

    No crash and no hang. No event is returned that is not in the original, but for repaired ones and those that the
    change itself made: JSON does not show that a digit is another or that the middle of two events is gone. No event
    outside the change is lost but the two beside it. Whatever is lost is counted, and what is no JSON is told.
    """
    path.write_bytes(gzip.compress(mutation.text, 1) if packed else mutation.text)
    start = time.perf_counter()
    by_json = spans_by_json(mutation.text)
    try:
        columns = read_trace(path, wanted=wanted)
    except UnreadableInputError:
        assert not by_json, "refused although json can read it"
        assert original.touched(mutation) >= len(original.places) - 1, "refused although events are whole"
        return
    finally:
        assert time.perf_counter() - start < SLOWEST_S
    damage = columns.damage
    if by_json is None:
        assert damage != Damage(), "text that is no JSON is not told"
    elif by_json:
        assert by_json <= len(columns) + damage.dropped, "events that json sees are lost untold"
        # Of a list that a duplicate puts into an event, json sees one event.
        assert len(columns) <= by_json or "duplicate" in mutation.kinds, "more events than json sees"
    found, wanted_rows = Counter(rows(columns)), Counter(original.rows)
    changed = sum(2 for kind in mutation.kinds if kind != "cut")
    foreign = sum(count for row, count in found.items() if row not in wanted_rows)
    assert foreign <= damage.repaired + changed, f"{foreign} events invented"
    extra = original.touched(mutation) if "duplicate" in mutation.kinds else 0
    assert len(columns) <= len(original.rows) + changed + extra, "events returned twice"
    lost = sum((wanted_rows - found).values())
    allowed = original.touched(mutation) + changed
    assert lost <= allowed, f"{lost} events lost, {allowed} allowed"
    is_told = damage.dropped or damage.repaired or damage.truncated or damage.notes
    assert is_told or lost <= original.touched(mutation), "a loss is not told"


def originals(path):
    """The whole traces, read once."""
    return [Original(text, path) for text in TRACES.values()]


def legacy_originals(path):
    """The lists of before Kineto, read once."""
    return [Original(text, path) for text in legacy().values()]


def run_seed(traces, seed, path):
    """Make one damaged text and check what is read of it, with everything drawn from the seed."""
    rng = random.Random(seed)
    original = rng.choice(traces)
    mutation = mutated(original.text, rng, rng.choice([1, 1, 2, 3, 6]))
    block_bytes, feed_bytes = rng.choice([200, 512, 4096, 65536, 262144]), rng.choice([64, 1024, 16384])
    with patch.multiple(blocks, BLOCK_BYTES=block_bytes, FEED_BYTES=feed_bytes):
        packed, wanted = rng.random() < 0.2, rng.choice([Wanted.EVERYTHING, ANALYZED])
        check(original, mutation, path, packed=packed, wanted=wanted)
