"""The 54 damaged and odd files of the trap corpus: how many events each keeps, exactly.

The numbers are those of the corpus, with these differences on purpose: an event with a negative duration (16, 17) and
one without a start (19) are dropped and counted, because no analysis could use them; a stamp or a whole float written
where the format wants another type of number (20, 30) counts as repaired; begin events (28) and events that are no
complete ones are left out with a note.
"""

import gzip
import json
import zlib
from typing import NamedTuple

import msgspec
import pytest
from trace_recipes import FIRST_US, HEAD, MIDDLE, N_EVENTS, TAIL, document, event_text, events_with, write

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.registry import read_trace

OTHERS = N_EVENTS - 1
WHOLE = document([event_text(index) for index in range(N_EVENTS)])
PARSED = json.loads(WHOLE)
MIDDLE_AT = WHOLE.index('"ph"', WHOLE.index(f'"correlation": {MIDDLE - 1}\n'))
SIXTY_PERCENT = WHOLE.index('"ts"', WHOLE.index('"correlation": 1798\n'))


class Trap(NamedTuple):
    """One file, and what must be read of it."""

    what: str
    content: str | bytes
    kept: int = N_EVENTS
    repaired: int = 0
    dropped: int = 0
    truncated: bool = False
    note: str = ""
    middle: dict = {}  # noqa: RUF012 - read only
    name: str = "trace.json"


def middle(what, *, raw=None, replace=None, **expected):
    """A trap in the middle event: changed fields, or a text of its own."""
    changes = expected.pop("changes", {})
    text = event_text(MIDDLE, **changes) if raw is None else raw
    for old, new in (replace or {}).items():
        assert old in text
        text = text.replace(old, new)
    return Trap(what, document(events_with(text)), **expected)


def repaired(what, **changes):
    return middle(what, changes=changes, repaired=1, middle={"correlation": MIDDLE})


def packed(events=WHOLE):
    return gzip.compress(events.encode(), mtime=0)


def cut_gzip():
    """A .gz that ends inside event 1,800 of its text, as far as zlib can inflate it."""
    data = packed()
    for end in range(int(len(data) * 0.6), len(data)):
        held = zlib.decompressobj(wbits=31).decompress(data[:end])
        if held.count(b'"ph"') == 1801 and b'"dur"' in held[held.rindex(b'"ph"') :]:
            return data[:end]
    raise AssertionError


def flipped_gzip():
    """A .gz, stored rather than squeezed so that it inflates to its end, with one flipped bit in the middle event."""
    stored = bytearray(gzip.compress(WHOLE.encode(), 0, mtime=0))
    stored[stored.index(b'"ts"', stored.index(b'"correlation": %d\n' % (MIDDLE - 1))) + 3] ^= 0x10
    return bytes(stored)


def keys_reversed():
    return msgspec.json.format(json.dumps(dict(reversed(PARSED.items()))), indent=2)


EXTRA = ', "nested": [{"a": 1\n  },\n  {"b": 2\n  }]'
NOT_UTF8 = document(events_with(event_text(MIDDLE, name="a?b"))).encode().replace(b"a?b", b"a\xff\xfeb")
NAMED_LIKE_SEPARATOR = json.dumps(PARSED, separators=(",", ":")).replace("kernel_2", "a},{b", 1)
DUR = f'"ts": {FIRST_US + MIDDLE}.001, '

TRAPS = {
    1: Trap("nothing", WHOLE),
    2: repaired("unescaped quote inside a name", name='a "b" c'),
    3: repaired("raw control characters", name="a\x01\x02b"),
    4: repaired("raw newline", name="a\nb"),
    5: repaired("raw tab", name="a\tb"),
    6: Trap("bytes that are not UTF-8", NOT_UTF8, repaired=1),
    7: repaired("lone surrogate", name="a\\ud800b"),
    8: repaired("bad escape", name="C:\\Users"),
    9: repaired("NaN", extra=', "x": NaN'),
    10: repaired("Infinity", extra=', "x": Infinity'),
    11: repaired("-nan", extra=', "x": -nan'),
    12: repaired("inf", extra=', "memory bandwidth (GB/s)": inf'),
    13: repaired("comma at the end of args", extra=","),
    14: repaired("empty value", extra=', "Call stack": '),
    15: Trap("comma after the last event", document(events_with(event_text(MIDDLE)), tail="," + TAIL)),
    16: middle("malformed negative duration", changes={"dur": "-1.-500"}, kept=OTHERS, repaired=1, dropped=1),
    17: middle("negative duration", changes={"dur": "-5"}, kept=OTHERS, dropped=1, note="negative duration"),
    18: middle("no duration", replace={', "dur": 0.500': ""}, middle={"dur_ns": 0}),
    19: middle("no start", replace={DUR: ""}, kept=OTHERS, dropped=1, note="without a start"),
    20: middle("start as text", changes={"ts": f'"{FIRST_US + MIDDLE}.001"'}),
    21: middle("key twice", replace={'"name"': '"name": "first", "name"'}),
    22: middle(
        "args null", raw=f'\n  {{"ph": "X", "name": "n", "ts": {FIRST_US + MIDDLE}.001, "args": null\n  }}'
    )._replace(repaired=1, middle={"correlation": -1}),
    23: middle(
        "args a list", raw=f'\n  {{"ph": "X", "name": "n", "ts": {FIRST_US + MIDDLE}.001, "args": []\n  }}'
    )._replace(repaired=1, middle={"correlation": -1}),
    24: middle("name null", replace={'"kernel_2"': "null"}, repaired=1),
    25: middle(
        "integers of 2**64 - 1",
        changes={"correlation": str(2**64 - 1), "extra": f', "Addr": {2**64 - 1}'},
        middle={"correlation": -1},
    ),
    26: middle("correlation 2**128", changes={"correlation": str(2**128)}, middle={"correlation": -1}),
    27: middle("unknown phase", replace={'"ph": "X"': '"ph": "Z9"'}, kept=OTHERS, dropped=1),
    28: middle("begin event", replace={'"ph": "X"': '"ph": "B"'}, kept=OTHERS, note="begin and end events"),
    29: middle(
        "numbers as text",
        replace={'"stream": 7': '"stream": "0x0", "bytes": "60"', '"device": 0': '"device": "1"'},
        middle={"stream": 0, "bytes": 60, "device": 1},
    ),
    30: repaired("correlation a float", correlation="1500.0"),
    31: Trap("cut at 60 %", WHOLE[:SIXTY_PERCENT], kept=1799, dropped=1, truncated=True),
    32: Trap("cut after event 2,000", HEAD + ",".join(map(event_text, range(2000))), kept=2000, truncated=True),
    33: Trap("cut and then zeros", WHOLE[:SIXTY_PERCENT] + "\0" * 4096, kept=1799, dropped=1, truncated=True),
    34: Trap("two documents", WHOLE + WHOLE, note="another document follows"),
    35: Trap("byte order mark", "\ufeff" + WHOLE),
    36: Trap("bare array", "[" + ",".join(map(event_text, range(N_EVENTS))) + "\n]"),
    40: Trap("events before the metadata", keys_reversed()),
    41: Trap("compact", json.dumps(PARSED, separators=(",", ":"))),
    42: Trap("indent 4", msgspec.json.format(WHOLE, indent=4)),
    43: Trap("one line", json.dumps(PARSED)),
    44: middle("null in place of an event", raw="\n  null", kept=OTHERS, dropped=1),
    45: middle("separator inside args", changes={"extra": EXTRA}),
    46: Trap("separator inside a name", NAMED_LIKE_SEPARATOR),
    47: middle(
        "epoch stamp with decimals", changes={"ts": "1712195496004644.203"}, middle={"ts_ns": 1712195496004644203}
    ),
    48: Trap("gzip", packed(), name="trace.json.gz"),
    49: Trap("gzip cut at 60 %", cut_gzip(), kept=1800, dropped=1, truncated=True, name="trace.json.gz"),
    50: Trap("garbage after gzip", packed() + b"garbage", note="not gzip", name="trace.json.gz"),
    51: Trap("gzip of two members", packed(WHOLE[:99_999]) + packed(WHOLE[99_999:]), name="trace.json.gz"),
    52: Trap("gzip named .json", packed()),
    53: Trap("plain named .json.gz", WHOLE, name="trace.json.gz"),
    54: Trap("flipped byte in gzip", flipped_gzip(), kept=OTHERS, dropped=1, note="checksum", name="trace.json.gz"),
}
REFUSED = {
    37: (HEAD + TAIL, "its list of events is empty"),
    38: ('{"schemaVersion": 1, "other": []}', "no 'traceEvents' list"),
    39: ("", "the file is empty"),
}


@pytest.mark.parametrize("number", TRAPS)
def test_trap_keeps_exactly_the_events_of_the_corpus(tmp_path, number):
    trap = TRAPS[number]
    columns = read_trace(write(tmp_path, trap.content, trap.name))
    damage = columns.damage
    assert (len(columns), damage.repaired, damage.dropped, damage.truncated) == (
        trap.kept,
        trap.repaired,
        trap.dropped,
        trap.truncated,
    )
    assert [trap.note in note for note in damage.notes if trap.note] == ([True] if trap.note else [])
    for column, value in trap.middle.items():
        assert getattr(columns, column)[MIDDLE] == value
    damaged_stamps = {1712195496004644203}
    expected = {FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS)}
    assert set(columns.ts_ns.tolist()) <= expected | damaged_stamps


@pytest.mark.parametrize("number", REFUSED)
def test_trap_without_events_is_refused_with_the_reason(tmp_path, number):
    content, cause = REFUSED[number]
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(write(tmp_path, content))
    assert cause in caught.value.cause
    assert caught.value.hint


def test_flipped_byte_in_squeezed_gzip_keeps_all_it_leaves_readable(tmp_path):
    """Every event but those in the damaged bytes is there, or the file is flagged as ending at the damage."""
    stamps = {FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS)}
    data = packed()
    for place in range(len(data) // 2, len(data) // 2 + 400, 100):
        flipped = bytearray(data)
        flipped[place] ^= 0x10
        columns = read_trace(write(tmp_path, bytes(flipped), "trace.json.gz"))
        inflater, held = zlib.decompressobj(wbits=31), bytearray()
        try:
            for byte in flipped:
                held += inflater.decompress(bytes([byte]))
        except zlib.error:
            pass
        whole = sum(event_text(index).encode() in held for index in range(N_EVENTS))
        assert columns.damage.truncated or "checksum" in columns.damage.notes[0]
        assert len(stamps & set(columns.ts_ns.tolist())) >= whole - 2


def test_all_54_traps_are_here():
    assert sorted([*TRAPS, *REFUSED]) == list(range(1, 55))


@pytest.mark.parametrize("number", [number for number, trap in TRAPS.items() if trap.repaired or trap.dropped])
def test_strict_reading_refuses_the_trap_and_names_the_place(tmp_path, number):
    trap = TRAPS[number]
    with pytest.raises(UnreadableInputError, match="is damaged") as caught:
        read_trace(write(tmp_path, trap.content, trap.name), strict=True)
    event = MIDDLE if trap.kept >= OTHERS else trap.kept
    assert caught.value.cause.startswith(f"event {event} at byte ")


@pytest.mark.parametrize(
    "number",
    [number for number, trap in TRAPS.items() if not (trap.repaired or trap.dropped or trap.truncated or trap.note)],
)
def test_strict_reading_accepts_what_is_odd_but_whole(tmp_path, number):
    trap = TRAPS[number]
    columns = read_trace(write(tmp_path, trap.content, trap.name), strict=True)
    assert len(columns) == N_EVENTS


@pytest.mark.parametrize("number", [32, 34, 50])
def test_strict_reading_refuses_what_is_wrong_with_the_file_as_a_whole(tmp_path, number):
    trap = TRAPS[number]
    with pytest.raises(UnreadableInputError, match="is damaged"):
        read_trace(write(tmp_path, trap.content, trap.name), strict=True)
