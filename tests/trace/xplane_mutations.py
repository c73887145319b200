"""Damage to profiles of XLA, to their bytes and to the pieces they are made of, and what must hold of what is read."""

import gzip
import random
import sys
import time
from pathlib import Path

from nsys_mutations import check_error
from trace_mutations import mutated

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.registry import read_trace
from profilerkit.formats.xspace import BYTES, Message, WireError, fields

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.xplane_recipes import gpu, host, jax_json, number, space, tpu

#: The originals are small, and stay so.
SLOWEST_S = 10.0
#: Messages lie this deep in each other: file, plane, line, event, stat.
_DEEPEST = 5
CHANGES = ("length", "repeat", "drop", "nest", "swap", "number")
#: What one change adds at most.
MOST_BYTES = 200_000
LARGE = (0, 1, 2**7, 2**14, 2**31 - 1, 2**32, 2**63, 2**64 - 1)


def originals(_path=None):
    """Profiles of a GPU and of two TPUs."""
    return [space(gpu(), host()), space(tpu(), tpu(2, device=1))]


def json_originals(_path=None):
    """What JAX makes of such profiles."""
    return [jax_json(), jax_json(6, device="/device:TPU:0")]


def pieces(data, start=0, end=None, depth=0):
    """Begin and end of what each field of length holds, of those that may be messages at any depth."""
    found = []
    end = len(data) if end is None else end
    try:
        for tag, at, stop in fields(data, start, end):
            if tag & 7 == BYTES:
                found.append((at, stop))
                if depth < _DEEPEST:
                    found += pieces(data, at, stop, depth + 1)
    except WireError:
        pass
    return found


def rewired(original, rng):
    """One to three fields, wherever they lie, with another length, value or content, or there many times or not."""
    data = bytearray(original)
    for _ in range(rng.choice([1, 1, 3])):
        known = pieces(Message(data))
        if not known:
            break
        start, end = rng.choice(known)
        other = rng.choice(known)
        change = rng.choice(CHANGES)
        if change == "length":
            data[max(start - 1, 0) : start] = number(rng.choice(LARGE))
        elif change == "repeat":
            most = max(MOST_BYTES // max(end - start, 1), 1)
            data[start:start] = data[max(start - 2, 0) : end] * min(rng.choice([1, 50, 500]), most)
        elif change == "drop":
            del data[max(start - 2, 0) : end]
        elif change == "nest":
            data[start:end] = (b"\x1a" + number(end - start)) * rng.choice([1, 100, 10_000]) + data[start:end]
        elif change == "swap":
            data[start:end] = data[slice(*other)]
        else:
            data[start:end] = b"".join(number(rng.choice(LARGE)) for _ in range(rng.randrange(1, 9)))
    return bytes(data)


def run_seed(profiles, seed, path):
    """Read one damaged profile, plain or packed: columns that keep their promises, or our error; in time."""
    rng = random.Random(seed)
    original = rng.choice(profiles)
    is_wired = rng.random() < 0.6 and not original.startswith(b"{")
    text = rewired(original, rng) if is_wired else mutated(original, rng, rng.choice([1, 1, 2, 6])).text
    path.write_bytes(gzip.compress(text, 1) if rng.random() < 0.3 else text)
    began = time.monotonic()
    try:
        columns = read_trace(path, strict=rng.random() < 0.2)
    except UnreadableInputError as error:
        check_error(error)
        return
    finally:
        assert time.monotonic() - began < SLOWEST_S
    assert (columns.dur_ns >= 0).all()
    assert len(columns) <= len(text)
    assert columns.name.max(initial=0) < len(columns.strings)
    for name in columns.strings:
        name.encode()
