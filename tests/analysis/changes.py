"""What can be done to a trace document without changing what it tells, or by a known amount. All take and give one."""

import bisect
import random
import re
import tempfile
from pathlib import Path

import msgspec

from profilerkit import analyze

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync", "Kernel", "Memcpy", "Memset")
#: Parts of a report that tell where and when it was made, or how much was read.
_CIRCUMSTANCES = ("run", "trust")
_TIMES = ("start_ns", "range_ns")


def analyzed(documents):
    """The report on the traces of one job."""
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / f"rank{number}.json" for number in range(len(documents))]
        for path, document in zip(paths, documents, strict=True):
            path.write_bytes(msgspec.json.encode(document))
        return analyze(*paths)


def told(report, *, moments=True):
    """Everything a report says of the run itself; without ``moments`` also without times on the trace's clock."""
    plain = msgspec.to_builtins(report)
    for name in _CIRCUMSTANCES:
        del plain[name]
    for lane in (plain["median_step"] or {}).get("lanes", ()):
        lane["name"] = re.sub(r"\d+", "N", lane["name"])  # streams and threads are called by their numbers
    return _rounded(plain if moments else _without_moments(plain))


def _rounded(value):
    """Ratios without the last digits, which the order of a sum decides."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _without_moments(value):
    if isinstance(value, dict):
        return {key: _without_moments(entry) for key, entry in value.items() if key not in _TIMES}
    return [_without_moments(entry) for entry in value] if isinstance(value, list | tuple) else value


def changed(document, change):
    """The document with every event changed; ``change`` may give several events, or none."""
    events = []
    for event in document["traceEvents"]:
        found = change(event)
        events += found if isinstance(found, list) else [found]
    return {**document, "traceEvents": events}


def shuffled(document, seed=0):
    events = list(document["traceEvents"])
    random.Random(seed).shuffle(events)
    return {**document, "traceEvents": events}


def doubled(document):
    return changed(document, lambda event: [event, event])


def shifted(document, microseconds):
    def change(event):
        return {**event, "ts": round(event["ts"] + microseconds, 3)} if "ts" in event else event

    return changed(document, change)


def scaled(document, ratio):
    """All times about the first one."""
    zero = min(event["ts"] for event in document["traceEvents"] if event.get("ph") == "X")

    def change(event):
        if "ts" not in event:
            return event
        moved = {**event, "ts": round(zero + ratio * (event["ts"] - zero), 3)}
        return {**moved, "dur": round(ratio * event["dur"], 3)} if "dur" in event else moved

    return changed(document, change)


def warped(document, seed, noise_ratio=0.01, segment_us=200.0):
    """All times on a clock that runs up to 1 % fast or slow, anew in every stretch: what nests goes on nesting."""
    moments = [event["ts"] for event in document["traceEvents"] if event.get("ph") == "X"]
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"] if event.get("ph") == "X"]
    source = random.Random(seed)
    edges, values = [min(moments)], [min(moments)]
    while edges[-1] < max(ends):
        edges.append(edges[-1] + segment_us)
        values.append(values[-1] + segment_us * (1 + source.uniform(-noise_ratio, noise_ratio)))

    def on_clock(moment):
        at = min(max(bisect.bisect_right(edges, moment) - 1, 0), len(edges) - 2)
        slope = (values[at + 1] - values[at]) / segment_us
        return round(values[at] + (moment - edges[at]) * slope, 3)

    def change(event):
        if "ts" not in event:
            return event
        start = on_clock(event["ts"])
        return {**event, "ts": start} | (
            {"dur": round(on_clock(event["ts"] + event["dur"]) - start, 3)} if "dur" in event else {}
        )

    return changed(document, change)


def renumbered(document):
    """Other numbers for processes, threads, streams, correlations and flows; rows of devices keep their process.

    External ids keep their order, as operators are numbered as they begin, and so do streams: without process groups
    their order tells which stream of one rank belongs to which of another.
    """

    def change(event):
        on_device, args = event.get("cat") in DEVICE, {**event.get("args", {})}
        for key in ("correlation", "wait_on_cuda_event_record_corr_id"):
            if isinstance(args.get(key), int) and args[key] >= 0:
                args[key] = 9_000_000_000 - args[key]
        for key in ("External id", "external id"):
            if isinstance(args.get(key), int):
                args[key] += 1_000_000
        for key in ("stream", "wait_on_stream"):
            if isinstance(args.get(key), int) and 0 <= args[key] < 1_000:
                args[key] += 1_000
        event = {**event, "args": args}
        if isinstance(event.get("tid"), int) and event["tid"] >= 0:
            event["tid"] = 1_000 + event["tid"] if on_device else 900_000_000_000 - event["tid"]
        if not on_device and isinstance(event.get("pid"), int) and event["pid"] > 16:
            event["pid"] += 77
        if event.get("ph") in ("s", "f") and isinstance(event.get("id"), int):
            event["id"] = 9_000_000_000 - event["id"]
        return event

    return changed(document, change)


def halved(document):
    """Every kernel as two, one ending where the other starts."""

    def change(event):
        if event.get("cat") != "kernel" or event["dur"] < 0.002:
            return event
        half = round(event["dur"] / 2, 3)
        second = {**event, "ts": round(event["ts"] + half, 3), "dur": round(event["dur"] - half, 3)}
        return [{**event, "dur": half}, second]

    return changed(document, change)


def between(document, low, high):
    """Only what starts in ``[low, high)``, µs."""
    return changed(document, lambda event: event if "ts" not in event or low <= event["ts"] < high else [])


def steps_of(document):
    """The step markers, by time."""
    marks = [
        e for e in document["traceEvents"] if e.get("cat") == "user_annotation" and e["name"].startswith("Profiler")
    ]
    return sorted(marks, key=lambda event: event["ts"])
