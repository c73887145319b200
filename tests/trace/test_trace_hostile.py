"""Files made to exhaust the reader: each ends in a clear error or a counted loss, in seconds and in bounded memory."""

import gzip
import json
import os
import random
import zlib
from pathlib import Path

import pytest
import trace_recipes as recipes
from trace_mutations import gpu_events, native

from profilerkit.formats import limits
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Wanted
from tests import programs

MIB = 1024 * 1024
HEAD = b'{"schemaVersion": 1, "traceEvents": ['
NAMING = b',{"ph":"M","name":"thread_name","pid":1,"tid":%d,"args":{"name":"%b"}}'
EVENT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":1,"args":{"correlation":1}}'
# Read in a process of its own: what it took, and what came of it, as JSON.
CHILD = """
import json, re, sys, time
from pathlib import Path
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.registry import read_trace

def peak_mib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

before_mib, start_s = peak_mib(), time.process_time()
try:
    columns = read_trace(sys.argv[1])
    found = {"events": len(columns), "dropped": columns.damage.dropped, "truncated": columns.damage.truncated}
    found["notes"] = list(columns.damage.notes)
except UnreadableInputError as error:
    found = {"error": error.cause}
print(json.dumps({**found, "cpu_s": time.process_time() - start_s, "mib": peak_mib() - before_mib}))
"""


def bomb(unit, size, *, head=HEAD + EVENT + b",", tail=b""):
    """A small .gz of a large text: one unit over and over."""
    squeezer = zlib.compressobj(1, wbits=31)
    block = unit * (MIB // len(unit))
    parts = [squeezer.compress(head), *(squeezer.compress(block) for _ in range(size // len(block)))]
    return b"".join([*parts, squeezer.compress(tail), squeezer.flush()])


def members_of_one_byte(text):
    """A .gz whose every member holds one byte."""
    packed = {byte: gzip.compress(bytes([byte])) for byte in set(text)}
    return b"".join(packed[byte] for byte in text)


def spoilt(every):
    """A trace of real shape in which one byte in so many is another."""
    text = bytearray(native(gpu_events(600), recipes.HEAD, recipes.TAIL).encode())
    rng = random.Random(every)
    for at in range(text.index(b"[", text.index(b"traceEvents")) + 1, len(text), every):
        text[at] ^= 1 << rng.randrange(8)
    return bytes(text)


def damaged_events_after(head):
    """Events that no repair can read, of which each holds brackets that might end all events."""
    events = (json.dumps(event).replace('"dur": ', '"dur": 1,') for event in gpu_events(400))
    return head + EVENT + b"," + ",".join(events).encode() + b"]}"


def distinct(count):
    one = '{"ph":"X","cat":"c%d","name":"n%d","pid":%d,"tid":7,"ts":1,"dur":1}'
    return HEAD + ",".join(one % (i, i, i) for i in range(count)).encode() + b"]}"


# What: (content, most CPU seconds, most MiB). The limits are several times what was measured.
HOSTILE = {
    "bomb of spaces": (lambda: bomb(b" ", 400 * MIB), 20, 250),
    "bomb of one string": (lambda: bomb(b"a", 400 * MIB, head=HEAD + EVENT + b',{"ph":"X","name":"'), 20, 250),
    "bomb of zeros after the end": (lambda: bomb(b"\0", 400 * MIB, head=HEAD + EVENT + b"]}"), 20, 250),
    "string of 10**8 characters": (
        lambda: HEAD + EVENT + b',{"name":"' + b"a" * 10**8 + b'"},' + EVENT + b"]}",
        10,
        250,
    ),
    "deep nesting": (lambda: HEAD + EVENT + b',{"ph":"X","args":' + b"[" * 10**6 + b"]" * 10**6 + b"}]}", 10, 250),
    "nesting without end": (lambda: HEAD + EVENT + b"," + b'{"ph":' * 10**6, 15, 250),
    "separators only": (lambda: HEAD + EVENT + b"," + b"},{" * (2 * MIB), 30, 250),
    "broken events only": (lambda: HEAD + EVENT + b"," + b'{"ph":"X","ts":},' * 600_000, 30, 250),
    "opened names": (lambda: HEAD + EVENT + b"," + b'{"name":"a' * MIB, 10, 250),
    "brackets and braces": (lambda: HEAD + EVENT + b"," + b"{}]," * (4 * MIB), 15, 250),
    "lists after the end": (lambda: HEAD + EVENT + b'],"x":[' + b"[]," * (4 * MIB) + b"1]}", 15, 500),
    "lists before the events": (
        lambda: b'{"schemaVersion":1,"x":[' + b"[]," * (4 * MIB) + b'1],"traceEvents":[' + EVENT + b"]}",
        15,
        500,
    ),
    "spaces after the key": (lambda: b'{"traceEvents"' + b" " * (64 * MIB) + b":[" + EVENT + b"]}", 10, 250),
    "distinct names": (lambda: distinct(300_000), 15, 250),
    "members of one byte": (lambda: members_of_one_byte(HEAD + EVENT + b',{"name":"' + b"a" * 100_000), 10, 250),
    "empty members": (lambda: gzip.compress(b"") * 50_000 + gzip.compress(HEAD + EVENT), 15, 250),
    "quotes without end": (lambda: HEAD + EVENT + b',{"ph":"X","name":"' + b'\\"' * 125_000, 5, 250),
    "quotes without end in the first event": (lambda: HEAD + b'{"ph":"X","name":"' + b'\\"' * MIB, 5, 250),
    "texts of quotes": (lambda: HEAD + EVENT + (b',{"ph":"X","name":"' + b'",' * 40_000 + b"}") * 30, 10, 250),
    "nested lists without end": (lambda: HEAD + EVENT + (b',{"ph":"X","x":[' + b"1," * 2000) * 3000, 10, 250),
    "braces without keys": (lambda: HEAD + EVENT + b"," + b"{," * MIB, 10, 250),
    "ends and beginnings": (lambda: HEAD + EVENT + b"," + b"}]" * MIB, 10, 250),
    "every second byte spoilt": (lambda: spoilt(2), 10, 250),
    "a byte in 17 spoilt": (lambda: spoilt(17), 10, 250),
    "a byte in 100 spoilt": (lambda: spoilt(100), 15, 250),
    "broken events after a large head": (
        lambda: damaged_events_after(b'{"x":[' + b"[]," * MIB + b'1],"traceEvents":['),
        15,
        250,
    ),
    "collectives only": (
        lambda: HEAD + b",".join([b'{"ph":"X","ts":1,"args":{"Collective name":"a"}}'] * 400_000) + b"]}",
        15,
        150,
    ),
    "long names of threads": (
        lambda: HEAD + EVENT + b"".join(NAMING % (number, b"a" * 10**5) for number in range(1500)) + b"]}",
        10,
        150,
    ),
}


# Nothing of an event is lost in these.
UNTOLD = {"spaces after the key", "long names of threads"}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_file_ends_in_bounded_time_and_memory(tmp_path, what):
    make, most_s, most_mib = HOSTILE[what]
    path = tmp_path / "trace.json"
    path.write_bytes(make())
    done = programs.run("-c", CHILD, path, check=True)
    found = json.loads(done.stdout)
    assert found["cpu_s"] < most_s
    assert found["mib"] < most_mib
    is_told = found.get("error") or found["dropped"] or found["truncated"] or found["notes"]
    assert is_told or what in UNTOLD
    assert "error" in found or found["events"] >= 1


def test_text_longer_than_any_event_costs_itself_alone(tmp_path):
    long = b'{"ph":"X","name":"' + b"a" * (limits.EVENT_BYTES + 5 * MIB) + b'","pid":1,"tid":1,"ts":9,"dur":1}'
    path = tmp_path / "trace.json"
    path.write_bytes(HEAD + b",".join([EVENT, EVENT, long, EVENT, EVENT]) + b'],"baseTimeNanoseconds": 5}')
    columns = read_trace(path)
    assert (len(columns), columns.damage.dropped, columns.damage.truncated) == (4, 1, False)
    assert columns.meta.base_time_ns == 5


def test_names_past_the_limit_share_one_entry_and_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.formats.values.DISTINCT_TEXTS", 10)
    path = tmp_path / "trace.json"
    path.write_bytes(distinct(50))
    columns = read_trace(path)
    assert len(columns) == 50
    assert (len(columns.strings), len(columns.threads)) == (11, 11)
    assert columns.strings[columns.name[9]] == "n9"
    assert [columns.strings[name] for name in columns.name[[10, 49]]] == ["(other names)"] * 2
    assert columns.damage.notes == ("120 names past the limit on distinct names were put together as one",)


def test_collectives_past_the_limit_are_read_without_their_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.formats.kineto.builder.COLLECTIVES", 2)
    path = tmp_path / "trace.json"
    path.write_text(recipes.plain([recipes.span(ts=ts, **{"Collective name": "a"}) for ts in range(5)]))
    columns = read_trace(path)
    assert (len(columns), [found.row for found in columns.collectives]) == (5, [0, 1])
    assert columns.damage.notes == ("3 collectives past the limit were read without their sizes",)


def test_paths_in_a_trace_are_not_opened(tmp_path, monkeypatch):
    opened = []
    path = tmp_path / "trace.json"
    event = {"ph": "X", "name": "/etc/passwd", "cat": "kernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    link = {"$ref": "file:///etc/passwd", "traceName": "/etc/passwd"}
    path.write_text(json.dumps({**link, "traceEvents": [event]}))
    read_trace(path, wanted=Wanted.EVERYTHING)  # imports what it needs
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: opened.append(path) or real(path, *a, **k))
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: pytest.fail(f"opened {self}"))
    monkeypatch.setattr("builtins.open", lambda *a, **k: pytest.fail(f"opened {a}"))
    columns = read_trace(path, wanted=Wanted.EVERYTHING)
    assert columns.strings == ("/etc/passwd",)
    assert set(opened) == {path}
