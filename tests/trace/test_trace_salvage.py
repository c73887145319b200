"""Damage between events and at the ends of the text: what is whole is kept, and every repair and loss is counted."""

import pytest
from trace_recipes import FIRST_US, HEAD, MIDDLE, N_EVENTS, TAIL, document, event_text, events_with, plain, span, write

from profilerkit.errors import UnreadableInputError
from profilerkit.trace import blocks, limits
from profilerkit.trace.readers import read_trace

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


@pytest.mark.parametrize("junk", ["null", "5", '"text"', "[]", "{}"])
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
        assert sample.startswith(f"event {index} at byte {offset}, dropped: {{\\n    ")
        assert sample.isprintable()
        assert len(sample) < 300


def test_repairs_are_given_up_when_they_never_succeed(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.trace.kineto.ledger.FAILED_REPAIRS", 20)
    hopeless, mendable = EVENTS[0].replace('"ts"', '"ts'), event_text(5, extra=', "x": inf')
    columns = read(tmp_path, document([EVENTS[0], *[hopeless] * 40, mendable, EVENTS[7]]))
    assert columns.ts_ns.tolist() == [STAMPS[0], STAMPS[7]]
    assert counts(columns) == (0, 41, False)


def test_reading_stops_where_almost_everything_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.trace.kineto.ledger.DROPPED_PIECES", 1000)
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
