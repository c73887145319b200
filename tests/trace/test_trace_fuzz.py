"""Random damage: never an exception but the one for unreadable input, and never more lost than was hit."""

import gzip
import random

import pytest
from trace_recipes import FIRST_US, document, event_text, write

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import blocks
from profilerkit.formats.registry import read_trace

N_EVENTS = 300
CONTENT = document([event_text(index) for index in range(N_EVENTS)]).encode()
STAMPS = {FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS)}


def damaged(rng):
    text = bytearray(CONTENT)
    at = rng.randrange(len(text))
    length = rng.choice([1, 1, 1, 5, 40])
    kind = rng.choice(["flip", "delete", "insert", "repeat"])
    if kind == "flip":
        text[at] ^= 1 << rng.randrange(8)
    elif kind == "delete":
        del text[at : at + length]
    elif kind == "insert":
        text[at:at] = bytes(rng.choice(b'"{}[],:\\x0\xff\n') for _ in range(length))
    else:
        text[at:at] = text[at : at + length]
    return bytes(text)


@pytest.mark.parametrize("seed", range(200))
def test_one_damaged_spot_costs_at_most_a_few_events(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", rng.choice([4 * 1024, 64 * 1024]))
    content = damaged(rng)
    head_is_whole = content[: CONTENT.index(b'"ph"')] == CONTENT[: CONTENT.index(b'"ph"')]
    try:
        columns = read_trace(write(tmp_path, content))
    except UnreadableInputError:
        assert not head_is_whole
        return
    if head_is_whole:
        assert len(STAMPS - set(columns.ts_ns.tolist())) <= 2


@pytest.mark.parametrize("seed", range(60))
def test_damaged_gzip_reads_or_is_refused(tmp_path, seed):
    rng = random.Random(seed)
    packed = bytearray(gzip.compress(CONTENT))
    for _ in range(rng.choice([1, 3, 20])):
        packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
    try:
        columns = read_trace(write(tmp_path, bytes(packed)))
    except UnreadableInputError:
        return
    is_flagged = columns.damage.truncated or columns.damage.notes or columns.damage.dropped
    assert is_flagged or set(columns.ts_ns.tolist()) == STAMPS


@pytest.mark.parametrize(
    "value",
    ['"sNaN"', '"NaN"', '"1e999999999"', '"-Infinity"', "-1e400", "[" * 100_000, '{"a":' * 100_000, '""', "true"],
)
@pytest.mark.parametrize("key", ["ts", "dur", "correlation"])
def test_absurd_values_cost_at_most_their_event(tmp_path, key, value):
    events = [event_text(index) for index in range(10)]
    events[5] = event_text(5, **{key: value})
    columns = read_trace(write(tmp_path, document(events)))
    assert len(columns) in (9, 10)
    assert len(STAMPS & set(columns.ts_ns.tolist())) >= 9
