"""What a damaged or odd text loses: never more than the events that are damaged."""

import bz2
import gzip
import json
import lzma

import msgspec
import pytest
import trace_recipes as recipes
from trace_recipes import FIRST_US, HEAD, MIDDLE, N_EVENTS, TAIL, document, event_text, events_with, write

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import blocks
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Damage


@pytest.fixture(params=[4 * 1024, 64 * 1024, 256 * 1024], ids=["4KiB", "64KiB", "256KiB"], autouse=True)
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


def read(tmp_path, content):
    return read_trace(write(tmp_path, content))


def assert_others_intact(columns, missing=()):
    """All events but the missing ones are there, in order, exact in time."""
    expected = [FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS) if index not in missing]
    assert columns.ts_ns.tolist() == expected


ONE_EVENT_REPAIRED = {
    "unescaped quote": ({"name": 'a "quoted" name'}, 'a "quoted" name'),
    "unescaped quote before a comma": ({"name": 'f("x", "y") const'}, 'f("x", "y") const'),
    "control characters": ({"name": "a\x01b\x02"}, "a\x01b\x02"),
    "raw newline": ({"name": "a\nb"}, "a\nb"),
    "raw tab": ({"name": "a\tb"}, "a\tb"),
    "lone surrogate": ({"name": "a\\ud800b"}, "a?b"),
    "bad escape": ({"name": "C:\\Users\\q"}, "C:\\Users\\q"),
    "NaN": ({"name": "n", "extra": ', "x": NaN'}, "n"),
    "Infinity": ({"name": "n", "extra": ', "x": Infinity'}, "n"),
    "-nan": ({"name": "n", "extra": ', "x": -nan'}, "n"),
    "inf": ({"name": "n", "extra": ', "memory bandwidth (GB/s)": inf'}, "n"),
    "N/A": ({"name": "n", "extra": ', "x": N/A'}, "n"),
    "trailing comma in args": ({"name": "n", "extra": ","}, "n"),
    "empty value": ({"name": "n", "extra": ', "Call stack": '}, "n"),
    "float correlation": ({"name": "n", "correlation": "1500.0"}, "n"),
}


@pytest.mark.parametrize(("changes", "name"), ONE_EVENT_REPAIRED.values(), ids=ONE_EVENT_REPAIRED)
def test_one_damaged_event_is_repaired_and_counted(tmp_path, changes, name):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE, **changes))))
    assert_others_intact(columns)
    assert (columns.damage.repaired, columns.damage.dropped, columns.damage.truncated) == (1, 0, False)
    assert columns.strings[columns.name[MIDDLE]] == name
    assert columns.correlation[MIDDLE] == MIDDLE
    assert len(columns.damage.samples) == 1
    assert columns.meta.base_time_ns == 1711964646000000000


def test_stamp_written_as_text_is_read_exactly(tmp_path):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE, ts=f'"{FIRST_US + MIDDLE}.001"'))))
    assert_others_intact(columns)
    assert columns.damage.dropped == 0


def test_bytes_that_are_not_utf8_become_replacement_characters(tmp_path):
    content = document(events_with(event_text(MIDDLE, name="a?b"))).encode().replace(b"a?b", b"a\xff\xfeb")
    columns = read(tmp_path, content)
    assert_others_intact(columns)
    assert columns.damage.repaired == 1
    assert columns.strings[columns.name[MIDDLE]] == "a\ufffd\ufffdb"


@pytest.mark.parametrize("args", ["null", "[]", '"text"', "5"])
def test_args_that_are_no_object_count_as_none(tmp_path, args):
    text = f'\n  {{"ph": "X", "name": "n", "ts": {FIRST_US + MIDDLE}.001, "dur": 1, "args": {args}\n  }}'
    columns = read(tmp_path, document(events_with(text)))
    assert_others_intact(columns)
    assert (columns.damage.repaired, columns.damage.dropped) == (1, 0)
    assert columns.correlation[MIDDLE] == -1


def test_null_name_is_an_empty_name(tmp_path):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE).replace('"kernel_2"', "null"))))
    assert_others_intact(columns)
    assert columns.damage.repaired == 1
    assert columns.strings[columns.name[MIDDLE]] == ""


NO_EVENTS = {
    "unknown phase": event_text(MIDDLE).replace('"ph": "X"', '"ph": "Z9"'),
    "no phase": event_text(MIDDLE).replace('"ph": "X", ', ""),
    "null": "\n  null",
    "number": "\n  5",
    "text": '\n  "text"',
    "list": "\n  []",
    "empty object": "\n  {}",
    "lost brace": event_text(MIDDLE, name="open {[").replace('"args": {', '"args": '),
}


@pytest.mark.parametrize("middle", NO_EVENTS.values(), ids=NO_EVENTS)
def test_what_is_no_event_is_dropped_and_counted(tmp_path, middle):
    columns = read(tmp_path, document(events_with(middle)))
    assert_others_intact(columns, missing={MIDDLE})
    assert (columns.damage.repaired, columns.damage.dropped, columns.damage.truncated) == (0, 1, False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dur": "-5"}, "negative duration"),
        ({"dur": "-1"}, "negative duration"),
        ({"dur": "4e14"}, "more than ten years"),
        ({"dur": "1e300"}, "more than ten years"),
        ({"dur": "9" * 400}, "more than ten years"),
        ({"ts": "9300000000000000"}, "no clock can show"),
        ({"ts": "1e300"}, "no clock can show"),
        ({"ts": "9" * 400}, "no clock can show"),
        ({"ts": "9220000000000000", "dur": "300000000000000"}, "no clock can show"),
    ],
)
def test_impossible_times_are_dropped_with_the_reason(tmp_path, changes, reason):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE, **changes))))
    assert_others_intact(columns, missing={MIDDLE})
    assert columns.damage.dropped == 1
    assert [reason in note for note in columns.damage.notes] == [True]


def test_badly_written_negative_duration_is_repaired_and_then_dropped(tmp_path):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE, dur="-1.-500"))))
    assert_others_intact(columns, missing={MIDDLE})
    assert (columns.damage.repaired, columns.damage.dropped) == (1, 1)


def test_event_without_a_start_is_dropped_rather_than_put_at_zero(tmp_path):
    middle = event_text(MIDDLE).replace(f'"ts": {FIRST_US + MIDDLE}.001, ', "")
    columns = read(tmp_path, document(events_with(middle)))
    assert_others_intact(columns, missing={MIDDLE})
    assert columns.damage.notes == ("1 events without a start were dropped",)


def test_event_without_a_duration_lasts_nothing_and_is_kept(tmp_path):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE).replace(', "dur": 0.500', ""))))
    assert_others_intact(columns)
    assert columns.damage.dropped == 0
    assert columns.dur_ns[MIDDLE] == 0
    assert columns.dur_ns[0] == 500


CONTROL = document(events_with(event_text(MIDDLE)))
CLEAN = {
    "control": CONTROL,
    "duplicate key": document(events_with(event_text(MIDDLE).replace('"tid": 7', '"tid": 1, "tid": 7'))),
    "comma after the last event": document(events_with(event_text(MIDDLE)), tail="," + TAIL),
    "byte order mark": "\ufeff" + CONTROL,
    "compact": json.dumps(json.loads(CONTROL), separators=(",", ":")),
    "one line": json.dumps(json.loads(CONTROL)),
    "indent 4": msgspec.json.format(CONTROL, indent=4),
    "separator inside args": document(
        events_with(event_text(MIDDLE, extra=', "nested": [{"a": 1\n  },\n  {"b": 2\n  },\n  {"c": 3}]'))
    ),
    "keys after the events": msgspec.json.format(json.dumps(dict(reversed(json.loads(CONTROL).items()))), indent=2),
    "compact, keys after the events": json.dumps(dict(reversed(json.loads(CONTROL).items())), separators=(",", ":")),
}


@pytest.mark.parametrize("content", CLEAN.values(), ids=CLEAN)
def test_layout_does_not_matter(tmp_path, content):
    columns = read(tmp_path, content)
    assert_others_intact(columns)
    assert columns.damage == Damage()
    assert columns.meta.base_time_ns == 1711964646000000000
    assert (columns.meta.rank, columns.meta.world_size, columns.meta.backend) == (3, 8, "nccl")
    assert columns.meta.devices[1].name == "NVIDIA H100"
    assert columns.correlation.tolist() == list(range(N_EVENTS))


@pytest.mark.parametrize("separators", [(",", ":"), None], ids=["compact", "one line"])
def test_separator_inside_a_name_or_nested_events_do_not_split_an_event(tmp_path, separators):
    nested = [recipes.span("inner"), recipes.span("inner")]
    spans = [
        recipes.span("a},{b" if index % 50 == 3 else "c", ts=FIRST_US + index, x=nested if index % 70 == 5 else 1)
        for index in range(N_EVENTS)
    ]
    content = json.dumps({"traceEvents": spans, "deviceProperties": [{"id": 0}, {"id": 1}]}, separators=separators)
    columns = read(tmp_path, content)
    assert columns.ts_ns.tolist() == [1000 * (FIRST_US + index) for index in range(N_EVENTS)]
    assert columns.damage == Damage()
    assert sorted(columns.strings) == ["a},{b", "c"]


def test_begin_and_end_events_are_left_out_with_a_note(tmp_path):
    begin = '\n  {"ph": "B", "name": "b", "ts": 1, "pid": 0, "tid": 0\n  }'
    columns = read(tmp_path, document([*events_with(event_text(MIDDLE)), begin]))
    assert_others_intact(columns)
    assert columns.damage.dropped == 0
    assert columns.damage.notes == ("1 begin and end events are not complete events and were left out",)


def cut_inside_the_middle():
    return CONTROL[: CONTROL.index('"kernel_2"', CONTROL.index(f'"correlation": {MIDDLE - 1}\n'))]


@pytest.mark.parametrize("padding", ["", "\0" * 4096], ids=["", "zeros"])
def test_text_cut_inside_an_event_keeps_all_before_it(tmp_path, padding):
    columns = read(tmp_path, cut_inside_the_middle() + padding)
    assert_others_intact(columns, missing=range(MIDDLE, N_EVENTS))
    assert (columns.damage.dropped, columns.damage.truncated) == (1, True)
    assert columns.meta.rank == 3
    assert columns.meta.base_time_ns is None


@pytest.mark.parametrize("end", ["", ",", ",\n  ", "\n", ",\n  " + "\0" * 4096])
def test_text_cut_between_events_drops_nothing(tmp_path, end):
    content = HEAD + ",".join(event_text(index) for index in range(2000)) + end
    columns = read(tmp_path, content)
    assert_others_intact(columns, missing=range(2000, N_EVENTS))
    assert (columns.damage.dropped, columns.damage.truncated) == (0, True)


def test_text_cut_in_the_metadata_after_the_events_keeps_what_it_says(tmp_path):
    columns = read(tmp_path, CONTROL.rstrip().removesuffix("}").rstrip() + ', "INFO": ["cut he')
    assert_others_intact(columns)
    assert columns.damage.dropped == 0
    assert columns.meta.base_time_ns == 1711964646000000000
    assert columns.damage.notes == ("the metadata around the events is damaged and was read key by key",)


def test_text_before_the_document_is_named(tmp_path):
    columns = read(tmp_path, "hello world\n" + CONTROL)
    assert_others_intact(columns)
    (note,) = columns.damage.notes
    assert note.startswith("text that is no part of the trace stands before it and was ignored")


def test_stray_bracket_does_not_end_the_events(tmp_path):
    columns = read(tmp_path, document(events_with(event_text(MIDDLE) + "]")))
    assert_others_intact(columns)
    assert (columns.damage.repaired, columns.damage.truncated) == (1, False)


def test_second_document_is_reported_and_not_read(tmp_path):
    columns = read(tmp_path, CONTROL + CONTROL)
    assert_others_intact(columns)
    assert columns.damage.notes == ("another document follows the first; only the first was read",)
    assert columns.meta.rank == 3


def test_bare_array_has_events_and_no_metadata(tmp_path):
    columns = read(tmp_path, "[" + ",".join(events_with(event_text(MIDDLE))) + "\n]\n")
    assert_others_intact(columns)
    assert columns.damage == Damage()
    assert (columns.meta.rank, columns.meta.base_time_ns, columns.meta.devices) == (None, None, ())


def test_every_event_damaged_is_still_every_event_read(tmp_path):
    columns = read(tmp_path, document([event_text(index, extra=', "x": inf') for index in range(N_EVENTS)]))
    assert_others_intact(columns)
    assert columns.damage.repaired == N_EVENTS
    assert len(columns.damage.samples) == 5


def test_nothing_but_nulls_between_events_costs_no_event(tmp_path):
    columns = read(tmp_path, document([text for index in range(N_EVENTS) for text in ("\n  null", event_text(index))]))
    assert_others_intact(columns)
    assert columns.damage.dropped == N_EVENTS


@pytest.mark.parametrize("separators", [" ,\n", ",\t", " , ", ",\n\n\n"])
def test_every_separator_different_loses_nothing(tmp_path, separators):
    events = [event_text(index).strip() + " " * (index % 50) for index in range(N_EVENTS)]
    columns = read(tmp_path, HEAD + separators.join(events) + TAIL)
    assert_others_intact(columns)
    assert columns.damage == Damage()


def test_broken_text_of_many_brackets_is_refused_in_bounded_time(tmp_path):
    for filling in ("{}],", "},{", "{", '"', "\\", ": ", ", "):
        with pytest.raises(UnreadableInputError, match="no events"):
            read(tmp_path, '{"traceEvents": [{"ph": "X", "args": [' + filling * 20_000)


def test_separators_that_change_half_way_lose_nothing(tmp_path):
    events = events_with(event_text(MIDDLE))
    one_line = [" " + json.dumps(json.loads(event)) for event in events[MIDDLE:]]
    columns = read(tmp_path, document(events[:MIDDLE] + one_line))
    assert_others_intact(columns)
    assert columns.damage.dropped == 0


REFUSED = {
    "empty file": (b"", "empty"),
    "blank file": (b" \n", "empty"),
    "empty gzip": (gzip.compress(b""), "empty"),
    "no key": (b'{"schemaVersion": 1}', "traceEvents"),
    "other JSON": (b'{"a": 1}', "traceEvents"),
    "key is null": (b'{"traceEvents": null}', "traceEvents"),
    "no events": (b'{"traceEvents": []}', "empty"),
    "no events, key last": (b'{"schemaVersion": 1, "traceEvents": [ ] }', "empty"),
    "empty list": (b"[]", "empty"),
    "cut before the first event": (b'{"schemaVersion": 1, "traceEvents": [', "breaks off"),
    "only damaged events": (b'{"traceEvents": [{"ph": "X"}, {"ph": "X"}]}', "all of its 2 events"),
    "other list": (b'[{"a": 1}]', "all of its 1 events"),
    "numbers": (b"[1, 2]", "a JSON list, but not one of events"),
    "SQLite": (b"SQLite format 3\0rest", "SQLite"),
    "UTF-16": (b"\xff\xfe{\0", "UTF-16"),
    "UTF-16 without a mark": ('{"traceEvents": [{"ph": "X"'.encode("utf-16-le"), "UTF-16"),
    "zeros": (b"\0" * 400_000, "begins with zero bytes"),
    "damaged gzip": (gzip.compress(b"{}")[:10] + b"\xff" * 20, "the compressed data is damaged"),
    "cut gzip": (gzip.compress(b"{}")[:5], "the compressed data ends early"),
    "gzip twice": (gzip.compress(gzip.compress(b"{}")), "gzip within gzip"),
    "bzip2": (bz2.compress(b"{}"), "bzip2"),
    "xz": (lzma.compress(b"{}"), "xz"),
    "zip": (b"PK\x03\x04\x14\0\0\0", "a zip archive"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "error page": (b"<!DOCTYPE html>", "HTML"),
    "events of other things": (b'[{"ph": 7.2}, {"ph": 7.4}]', "all of its 2 events"),
    "pickle": (b"\x80\x04K\x01.", "pickle"),
}


@pytest.mark.parametrize(("content", "cause"), REFUSED.values(), ids=REFUSED)
def test_a_file_without_events_is_refused_with_the_reason(tmp_path, content, cause):
    with pytest.raises(UnreadableInputError) as caught:
        read(tmp_path, content)
    assert cause in caught.value.cause
    assert str(tmp_path) in caught.value.what
    assert caught.value.hint
