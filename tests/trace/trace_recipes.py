"""Small Kineto traces with known contents, as text."""

import json
from pathlib import Path

N_EVENTS = 3000
MIDDLE = 1500
FIRST_US = 4458676524648  # in the range where float64 only just tells nanoseconds apart
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85018279936, "computeMajor": 9, "computeMinor": 0, "numSms": 132
    },
    {
      "id": 1, "name": "NVIDIA H100", "totalGlobalMem": 85018279936, "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "traceEvents": ["""
TAIL = """
  ],
  "traceName": "worker0.json", "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000
}
"""


def event_text(index, **changes):
    """One kernel as old Kineto writes it; event ``index`` starts at ``FIRST_US`` + index µs + 1 ns and lasts 0.5 µs."""
    fields = {
        "name": f"kernel_{index % 7}",
        "ts": f"{FIRST_US + index}.001",
        "dur": "0.500",
        "correlation": str(index),
        "extra": "",
    } | changes
    return (
        '\n  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n'
        '    "ts": {ts}, "dur": {dur},\n'
        '    "args": {{\n      "External id": 5, "device": 0, "stream": 7, "correlation": {correlation}{extra}\n'
        "    }}\n  }}"
    ).format(**fields)


def document(events, head=HEAD, tail=TAIL):
    return head + ",".join(events) + tail


_EVENTS = [event_text(index) for index in range(N_EVENTS)]


def events_with(middle):
    """``N_EVENTS`` events of which the one in the middle is replaced."""
    return [*_EVENTS[:MIDDLE], middle, *_EVENTS[MIDDLE + 1 :]]


def write(directory, content, name="trace.json"):
    path = Path(directory) / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def plain(events, **fields):
    """A trace from event dicts, as json.dumps writes it."""
    return json.dumps({"schemaVersion": 1, **fields, "traceEvents": events})


def span(name="op", cat="cpu_op", ts=1000, dur=10, pid=1, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
