"""Evidence: numbers and links that hold in every format, and the raw events as text."""

import re

import msgspec
import pytest

from profilerkit.errors import UsageError
from profilerkit.model.events import RawEvent, RawEvents
from profilerkit.model.finding import Evidence
from profilerkit.report import findings, markdown, terminal
from profilerkit.report.findings import findings_of
from tests.report import samples
from tests.report.samples import HOSTILE, SAMPLES

MANY = RawEvents(
    what="Intervals of the judged steps (Waiting for data)",
    origin="trace.json",
    clock="trace",
    unit="ns",
    order="longest",
    count=48,
    rows=tuple(
        RawEvent(start_ns=10**18 + n, value=3e6 - n, step=12 + n, where="thread 4711", name="enumerate(DataLoader)")
        for n in range(20)
    ),
)


def test_numbers_are_the_same_in_every_format():
    report = SAMPLES["input_bound"]()
    for text in (markdown.render(report), terminal.render(report, width=200, verbose=True)):
        assert "E1 GPU idle while the loop waits for a batch: 38.1 ms" in text
    known = findings.numbered(report)
    rows = [row for found in findings_of(report).all for row in found.evidence]
    assert [row.id for row in rows] == list(known)
    assert [row.label for row in rows] == [found.evidence.label for found in known.values()]


def with_findings(report, *found):
    outcome = msgspec.structs.replace(report.outcomes[0], rule="IN001", findings=found)
    return msgspec.structs.replace(report, outcomes=(outcome,))


def test_anchors_tell_the_meaning_of_a_finding_and_not_its_position():
    report = samples.input_bound()
    base = samples.late_rank(saving=False)
    found = [msgspec.structs.replace(base, detail=detail) for detail in ("slower", "imbalance")]
    other = msgspec.structs.replace(base, rank=3)
    for order in (found, found[::-1]):
        cards = findings_of(with_findings(report, *order, other)).all
        by_detail = {finding.detail: card.anchor for finding, card in zip((*order, other), cards, strict=True)}
        assert by_detail == {"slower": "IN001-rank5-slower", "imbalance": "IN001-rank5-imbalance", "": "IN001-rank3"}


def test_a_rule_named_like_evidence_does_not_take_its_anchor():
    report = samples.input_bound()
    outcome = msgspec.structs.replace(report.outcomes[0], rule="E4")
    report = msgspec.structs.replace(report, outcomes=(outcome,))
    (card,) = findings_of(report).all
    assert card.anchor == "finding-E4"
    assert card.evidence[0].id == "E4"
    assert next(iter(findings.numbered(report))) == "E4"


def test_what_is_not_known_of_a_number_is_left_out_of_its_row():
    bare = Evidence(label="Lost", value=None, unit="ns", source="estimated", origin="a guess")
    row = findings.evidence_row(bare, findings.Anchors())
    assert (row.value, row.interval, row.basis, row.source) == ("not measured", "", "", "estimated")
    whole = msgspec.structs.replace(bare, value=2e6, low=1e6, high=3e6, n=48, rank=5, steps=(12, 59))
    row = findings.evidence_row(whole, findings.Anchors())
    assert (row.value, row.interval) == ("2.00 ms", "1.00 ms to 3.00 ms")
    assert row.basis == "n 48 · rank 5 · steps 12–59"


def test_shown_evidence_has_its_row_and_the_events_in_80_columns():
    text = terminal.render_evidence(SAMPLES["input_bound"](), "e1", (MANY,))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "E1  GPU idle while the loop waits for a batch: 38.1 ms (36.2 ms to 39.9 ms)"
    assert "backs IN001: The DataLoader cannot feed the GPU" in text
    said = " ".join(text.split())
    assert "n 48 · rank 0 · steps 12–59" in said
    assert "from trace.json: the 20 longest of 48" in said
    assert f"{10**18 + 19}" in text
    assert lines[-1] == "28 more are not shown."
    ascii_text = terminal.render_evidence(SAMPLES["input_bound"](), "E1", (MANY,), ascii_only=True)
    assert ascii_text.isascii()


def test_columns_that_nothing_fills_are_left_out():
    rows = (RawEvent(start_ns=0, value=0.25), RawEvent(start_ns=10**9, value=0.5))
    table = RawEvents(
        what="Samples of host.cpu", origin="rank_00000/samples.jsonl", clock="run", unit="ratio", order="even", count=2,
        rows=rows,
    )  # fmt: skip
    text = terminal.render_evidence(SAMPLES["input_bound"](), "E1", (table,))
    assert "all 2" in text
    assert re.search(r"^After the first +Value$", text, re.MULTILINE)
    assert re.search(r"^ +1.00 s +50 %$", text, re.MULTILINE)


def test_without_events_the_reason_is_told():
    text = terminal.render_evidence(SAMPLES["input_bound"](), "E1", (), unknown="The file is gone.")
    assert text.endswith("\n\nThe file is gone.\n")


def test_hostile_names_are_inert_in_the_terminal():
    row = RawEvent(start_ns=1, value=1.0, step=1, where=HOSTILE, name=HOSTILE)
    table = msgspec.structs.replace(MANY, what=HOSTILE, origin=HOSTILE, rows=(row,) * 2)
    text = terminal.render_evidence(SAMPLES["hostile"](), "E1", (table,), unknown=HOSTILE)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert "\\x1b" in text


@pytest.mark.parametrize("wanted", ["E99", "", HOSTILE])
def test_an_unknown_number_is_refused_with_those_there_are(wanted):
    with pytest.raises(UsageError) as caught:
        findings.require_evidence(SAMPLES["input_bound"](), wanted)
    last = len(findings.numbered(SAMPLES["input_bound"]()))
    assert caught.value.cause == f"the report has E1 to E{last}"
    assert "\x1b" not in str(caught.value)
