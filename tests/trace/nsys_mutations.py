"""Random damage to exports, and what must hold of whatever is read after it."""

import random
import struct
import time

import numpy as np
from nsys_exports import training

from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import TraceColumns

#: Reading takes 10 s and 1 s for each MB at most; the originals are small.
SLOWEST_S = 30.0
KINDS = ("cut", "flip", "overwrite", "delete", "insert", "page", "pointer", "varint", "zero")
SIZES = (1, 2, 8, 100, 4096)


def mutated(original, rng):
    """One to six changes of bytes, of whole pages, or of what points at them."""
    text = bytearray(original)
    for _ in range(rng.randint(1, 6)):
        if len(text) < 200:
            break
        _change(text, rng, rng.choice(KINDS))
    return bytes(text)


def _change(text, rng, kind):
    # The header and the definitions of the tables are hit as often as all rows together.
    at = rng.randrange(min(len(text), 8192)) if rng.random() < 0.5 else rng.randrange(len(text))
    size = rng.choice(SIZES)
    pages = max(len(text) // 4096, 1)
    if kind == "cut":
        del text[max(at, 100) :]
    elif kind == "flip":
        text[at] ^= 1 << rng.randrange(8)
    elif kind == "overwrite":
        text[at : at + size] = rng.randbytes(len(text[at : at + size]))
    elif kind == "delete":
        del text[at : at + size]
    elif kind == "insert":
        text[at:at] = rng.randbytes(min(size, 100))
    elif kind == "page":
        source, target = rng.randrange(pages) * 4096, rng.randrange(pages) * 4096
        text[target : target + 4096] = text[source : source + 4096]
    elif kind == "pointer":
        at -= at % 4
        number = struct.pack(">I", rng.choice((0, 1, rng.randrange(pages + 1), 2**31, 2**32 - 1)))
        text[at : at + 4] = number[: len(text[at : at + 4])]
    elif kind == "varint":
        text[at : at + 9] = b"\xff" * len(text[at : at + 9])
    else:
        text[at : at + size] = bytes(len(text[at : at + size]))


def run_seed(originals, seed, path):
    """Read one damaged export: columns that keep their promises, or our error; in time, and nothing beside the file.

    Returns:
        Whether it was read.
    """
    rng = random.Random(seed)
    text = mutated(originals[seed % len(originals)], rng)
    path.write_bytes(text)
    began = time.monotonic()
    try:
        columns = read_trace(path)
    except UnreadableInputError as error:
        check_error(error)
        return False
    finally:
        assert time.monotonic() - began < SLOWEST_S
        assert path.read_bytes() == text
        assert {entry.name for entry in path.parent.iterdir()} == {path.name}
    check(columns, len(text))
    if not seed % 10:
        trace_facts(columns)
    return True


def check_error(error):
    assert error.what
    assert error.cause
    assert error.hint


def check(columns: TraceColumns, file_bytes):
    n = len(columns)
    assert 0 < n <= file_bytes
    for values in (columns.name, columns.category, columns.thread, columns.stream, columns.device, columns.bytes):
        assert values.shape == (n,)
    assert columns.name.min() >= 0
    assert columns.name.max() < len(columns.strings)
    assert columns.thread.min() >= 0
    assert columns.thread.max() < len(columns.threads)
    assert columns.dur_ns.min() >= 0
    assert columns.bytes.min() >= -1
    assert np.isfinite(columns.blocks_per_sm).all()
    for text in columns.strings:
        text.encode()


def originals(path):
    """An export with steps and one with two processes."""
    two = training(9, pid=9, device=1, export=training(9))
    found = [export.write(path).read_bytes() for export in (training(20), two)]
    path.unlink()
    return found
