"""Damage between events and at the ends of the text: what is whole is kept, and every repair and loss is counted."""

import json
import re

import pytest
from trace_mutations import gpu_events, native
from trace_recipes import FIRST_US, HEAD, MIDDLE, N_EVENTS, TAIL, document, event_text, events_with, plain, span, write

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import blocks, limits
from profilerkit.formats.registry import read_trace

EVENTS = [event_text(index) for index in range(N_EVENTS)]
STAMPS = [FIRST_US * 1000 + 1 + index * 1000 for index in range(N_EVENTS)]


@pytest.fixture(params=[4 * 1024, 256 * 1024], ids=["4KiB", "256KiB"], autouse=True)
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


def read(tmp_path, content, **options):
    return read_trace(write(tmp_path, content), **options)


def counts(columns):
    return columns.damage.repaired, columns.damage.dropped, columns.damage.truncated


WHOLE_AFTER_ALL = {
    "a bracket after every event": (HEAD + "],".join(EVENTS) + TAIL, N_EVENTS - 1),
    "a bracket before the first event": (HEAD + "]," + ",".join(EVENTS) + TAIL, 1),
    "no comma between any events": (HEAD + "".join(EVENTS) + TAIL, N_EVENTS - 1),
    "two commas between events": (HEAD + ",,".join(EVENTS) + TAIL, 0),
    "no comma between two events": (HEAD + ",".join(EVENTS[:9]) + EVENTS[9] + "," + ",".join(EVENTS[10:]) + TAIL, 1),
    "an event without its first brace": (document(events_with(event_text(MIDDLE).replace("{", "", 1))), 1),
    "an event without its last brace": (document(events_with(event_text(MIDDLE).rstrip()[:-1])), 1),
    "a name without its first quote": (document(events_with(event_text(MIDDLE).replace('"kernel_2"', 'kernel_2"'))), 1),
    "a name without its last quote": (document(events_with(event_text(MIDDLE).replace('"kernel_2"', '"kernel_2'))), 1),
}


@pytest.mark.parametrize("what", WHOLE_AFTER_ALL)
def test_damage_that_can_be_mended_costs_no_event(tmp_path, what):
    content, repaired = WHOLE_AFTER_ALL[what]
    columns = read(tmp_path, content)
    assert columns.ts_ns.tolist() == STAMPS
    assert [columns.strings[i] for i in columns.name[MIDDLE : MIDDLE + 2]] == ["kernel_2", "kernel_3"]
    assert counts(columns)[1:] == (0, False)
    assert abs(columns.damage.repaired - repaired) <= 0.01 * repaired
    assert columns.meta.base_time_ns == 1711964646000000000


@pytest.mark.parametrize("junk", ["null", "5", '"text"', "[]"])
def test_what_is_no_event_before_the_end_costs_itself_alone(tmp_path, junk):
    columns = read(tmp_path, document([*EVENTS, f"\n  {junk}"]))
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (0, 1, False)
    assert columns.meta.base_time_ns == 1711964646000000000


def test_damaged_last_event_costs_itself_alone(tmp_path):
    columns = read(tmp_path, document([*EVENTS[:-1], EVENTS[-1].replace('"ts"', '"ts')]))
    assert columns.ts_ns.tolist() == STAMPS[:-1]
    assert counts(columns) == (0, 1, False)
    assert columns.meta.rank == 3


def test_zeros_after_the_end_are_told(tmp_path):
    columns = read(tmp_path, document(EVENTS) + "\0" * 300_000)
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (0, 0, False)
    assert columns.damage.notes == ("zero bytes follow the text and were ignored",)


def test_second_list_of_events_is_read_too_and_what_is_between_them_is_counted(tmp_path):
    first, second = EVENTS[:1000], EVENTS[1000:]
    columns = read(tmp_path, document(first, tail='], "traceEvents": [') + ",".join(second) + TAIL)
    assert columns.ts_ns.tolist() == STAMPS
    assert (columns.damage.dropped, columns.damage.truncated) == (1, False)
    assert columns.meta.base_time_ns == 1711964646000000000


def test_a_list_that_only_names_processes_does_not_hide_the_one_that_follows(tmp_path):
    names = b'{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}'
    events = b", ".join(
        b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": %d, "dur": 5}' % (10 * n)
        for n in range(300)
    )
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [%b], "schemaVersion": 1, "traceEvents": [%b]}' % (names, events))
    columns = read_trace(path)
    assert len(columns) == 300
    assert columns.damage.dropped == 1


def test_second_list_without_events_is_no_damage(tmp_path):
    columns = read(tmp_path, document(EVENTS).rstrip().removesuffix("}") + ', "traceEvents": []}', strict=True)
    assert columns.ts_ns.tolist() == STAMPS


def test_list_of_events_after_an_empty_one_is_read(tmp_path):
    columns = read(tmp_path, '{"traceEvents": [], "x": 1, "traceEvents": [' + ",".join(EVENTS) + TAIL)
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (1, 1, False)


def test_zeros_after_a_cut_are_told(tmp_path):
    columns = read(tmp_path, HEAD + ",".join(EVENTS) + ",\n" + "\0" * 300_000)
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (0, 0, True)
    assert columns.damage.notes == ("the text ends in zero bytes",)


def test_text_after_the_end_is_told(tmp_path):
    columns = read(tmp_path, document(EVENTS) + "Killed\n")
    assert columns.ts_ns.tolist() == STAMPS
    assert columns.damage.notes == ("text that is no part of the trace follows it and was ignored",)


def test_samples_name_the_first_five_places(tmp_path):
    bad = {index: event_text(index).replace('"ts"', '"t\x07s') for index in range(10, 80, 10)}
    text = document([bad.get(index, EVENTS[index]) for index in range(100)])
    columns = read(tmp_path, text)
    assert columns.damage.dropped == 7
    assert len(columns.damage.samples) == 5
    for index, sample in zip(bad, columns.damage.samples, strict=False):
        offset = text.index(bad[index].lstrip())
        assert sample.startswith(f"event {index} at byte {offset}, dropped: {{ ")
        assert sample.isprintable()
        assert len(sample) < 300


def test_repairs_are_given_up_when_they_never_succeed(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.formats.kineto.repair.FAILED_REPAIRS", 20)
    hopeless, mendable = EVENTS[0].replace('"ts"', '"ts'), event_text(5, extra=', "x": inf')
    columns = read(tmp_path, document([EVENTS[0], *[hopeless] * 40, mendable, EVENTS[7]]))
    assert columns.ts_ns.tolist() == [STAMPS[0], STAMPS[7]]
    assert counts(columns) == (0, 41, False)


def test_what_is_given_up_untried_is_counted_by_event(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.formats.kineto.repair.SEARCHED_BYTES", 2000)
    bad = EVENTS[0].replace('"ts"', '"ts')
    several = " ".join([bad] * 7)
    columns = read(tmp_path, document([*EVENTS[:3], *[bad] * 20, several, EVENTS[3]]))
    assert columns.ts_ns.tolist() == STAMPS[:4]
    assert counts(columns) == (0, 27, False)
    untried = int(columns.damage.notes[0].split()[-6])
    assert columns.damage.notes == (f"repairs failed too often, so {untried} damaged events were dropped untried",)
    assert 10 < untried < 27


def test_reading_stops_where_almost_everything_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.formats.kineto.repair.DROPPED_PIECES", 1000)
    hopeless = EVENTS[0].replace('"ts"', '"ts')
    columns = read(tmp_path, document([EVENTS[0], *[hopeless] * 5000, EVENTS[7]]))
    assert columns.ts_ns.tolist() == [STAMPS[0]]
    assert columns.damage.truncated
    assert columns.damage.dropped < 3000
    assert columns.damage.notes == ("most of the file is damaged, so it was read no further",)


def test_strict_reading_names_the_place_of_an_impossible_event(tmp_path):
    with pytest.raises(UnreadableInputError, match="is damaged") as caught:
        read(tmp_path, document(events_with(event_text(MIDDLE, dur="-5"))), strict=True)
    text = document(events_with(event_text(MIDDLE, dur="-5")))
    assert f"event {MIDDLE} at byte {text.index(event_text(MIDDLE, dur='-5').lstrip())}: " in caught.value.cause
    assert caught.value.hint


@pytest.mark.parametrize("place", ["head", "tail"])
def test_key_of_the_events_inside_other_texts_is_not_taken_for_it(tmp_path, place):
    fields = {"INFO": ['"traceEvents": [', "traceEvents"]}
    text = plain([span()], **fields)
    if place == "tail":
        text = '{"traceEvents": [' + text.partition('"traceEvents": [')[2][:-1] + ', "INFO": "\\"traceEvents\\": ["}'
    columns = read(tmp_path, text)
    assert len(columns) == 1
    assert columns.damage.notes == ()


def test_head_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "HEAD_BYTES", 1024 * 1024)
    with pytest.raises(UnreadableInputError, match="no trace events") as caught:
        read(tmp_path, '{"schemaVersion": 1, "x": "' + "a" * 2 * 1024 * 1024 + '", "traceEvents": [' + EVENTS[0] + "]}")
    assert "in its first 1 MiB" in caught.value.cause


def without_beginning(text):
    return text[text.index('"ts"', text.index(EVENTS[20])) :]


LOST_BEGINNINGS = {
    "first byte": (lambda text: "x" + text[1:], 0, "the metadata around the events is damaged"),
    "first bytes zero": (lambda text: "\0" * 99 + text[99:], 0, "the metadata around the events is damaged"),
    "first block zero": (lambda text: "\0" * 4096 + text[4096:], None, "at byte "),
    "beginning missing": (without_beginning, 21, "the beginning is damaged: reading began with the first whole event"),
    "key": (lambda text: text.replace("traceEvents", "traceEvemts"), 0, "the beginning is damaged"),
    "colon": (lambda text: text.replace('"traceEvents":', '"traceEvents";'), 0, "the beginning is damaged"),
    "bracket": (lambda text: text.replace('"traceEvents": [', '"traceEvents": {'), 0, "the beginning is damaged"),
    "no bracket": (lambda text: text.replace('"traceEvents": [', '"traceEvents": '), 0, "the beginning is damaged"),
    "escape": (lambda text: text.replace("traceEvents", "trace\\u0045vents"), 0, "the beginning is damaged"),
}


@pytest.mark.parametrize("what", LOST_BEGINNINGS)
def test_damaged_beginning_costs_what_is_damaged(tmp_path, what):
    damage, lost, note = LOST_BEGINNINGS[what]
    text = damage(document(EVENTS))
    columns = read(tmp_path, text)
    if lost is None:
        first = text.index("{", text.index('"ph"', 4096) - 20)
        lost = next(index for index, event in enumerate(EVENTS) if event in text)
        assert f"at byte {first}" in columns.damage.notes[0]
    assert columns.ts_ns.tolist() == STAMPS[lost:]
    assert counts(columns) == (0, 0, False)
    assert [note in found for found in columns.damage.notes] == [True]
    assert columns.meta.base_time_ns == 1711964646000000000
    with pytest.raises(UnreadableInputError, match="is damaged"):
        read(tmp_path, text, strict=True)


def test_events_that_are_only_lines_are_read(tmp_path):
    columns = read(tmp_path, "\n".join(" ".join(event.split()) for event in EVENTS))
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (N_EVENTS - 1, 0, True)


LAYOUTS = {
    "native": lambda events: native(events, HEAD, TAIL),
    "indented": lambda events: json.dumps({"traceEvents": events, "schemaVersion": 1}, indent=2),
    "compact": lambda events: json.dumps({"traceEvents": events, "schemaVersion": 1}, separators=(",", ":")),
    "list": json.dumps,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wherever_a_file_breaks_off_that_is_told_and_the_events_before_are_kept(tmp_path, layout):
    events = gpu_events(2)
    text = LAYOUTS[layout](events)
    ends = [index for event in events if event["ph"] == "X" for index in [end_of(event, text)]]
    for cut in range(text.index(f"{events[5]['ts']}"), text.index(f"{events[9]['ts']}")):
        columns = read(tmp_path, text[:cut])
        whole = sum(end <= cut for end in ends)
        assert columns.damage.truncated, text[cut - 40 : cut]
        assert whole <= len(columns) <= whole + 1, text[cut - 40 : cut]
        assert len(columns) - whole <= columns.damage.repaired <= 1
        assert columns.damage.dropped <= 1


def end_of(event, text):
    """Where an event of ``gpu_events`` ends in a text: at the last brace before the next one's first key."""
    start = text.index(f'"{event["name"]}"') if event["name"].startswith("Profiler") else text.index(str(event["ts"]))
    following = re.compile(r'\}\s*,\s*\{\s*"(?:ph|name)"|\}\s*\]\s*(?:,\s*"|\}|\Z)').search(text, start)
    return following.start() + 1


ODD_BUT_WHOLE = {
    "devices none": ({"deviceProperties": []}, {}),
    "devices without names": ({"deviceProperties": [{"id": 0, "name": ""}]}, {}),
    "world of one": ({"distributedInfo": {"rank": 0, "world_size": 1}}, {}),
    "span of zeros": ({}, {"ts": 0, "dur": 0}),
    "runtime call named INVALID": ({}, {"name": "INVALID", "cat": "cuda_runtime"}),
    "stream of an unsigned -1": ({}, {"stream": 2**32 - 1}),
    "no parent": ({}, {"Python parent id": None}),
    "group beyond int64": ({}, {"Comms Id": 2**80}),
    "spans pid": ({}, {"pid": "Spans", "tid": "PyTorch Profiler"}),
    "empty pid": ({}, {"pid": "", "tid": ""}),
}


@pytest.mark.parametrize("what", ODD_BUT_WHOLE)
def test_dialects_seen_in_the_field_are_no_damage(tmp_path, what):
    fields, changes = ODD_BUT_WHOLE[what]
    columns = read(tmp_path, plain([span(), span(**changes), span()], **fields), strict=True)
    assert len(columns) == 3
    assert columns.damage.notes == ()


@pytest.mark.parametrize("last", ["\n  {}", "\n  {} \n"])
def test_the_empty_object_that_ends_lists_of_jax_is_no_loss(tmp_path, last):
    columns = read(tmp_path, document([*EVENTS, last]))
    assert columns.ts_ns.tolist() == STAMPS
    assert counts(columns) == (0, 0, False)
