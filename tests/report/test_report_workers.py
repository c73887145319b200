"""The section about the loader's workers in every format."""

import pytest

from profilerkit.model.change import revise
from profilerkit.report import view
from profilerkit.report.html import render as html
from profilerkit.report.json import load
from profilerkit.report.json import render as to_json
from profilerkit.report.markdown import render as markdown
from tests.recipes import made
from tests.report import samples

TITLE = "Inside the loader's workers"


@pytest.fixture
def report():
    workers = made(
        fetch=0.5,
        core=0.1,
        collate=0.1,
        waited_ratio={"samples": 0.7, "arriving": 0.3, "collate": 0.001, "of a later version": 0.5},
        read_bytes=1 << 20,
        storage_bytes=1 << 19,
        read_bytes_per_s=1e7,
        batch_bytes=1 << 16,
        queue_p10=0.0,
        queue_p90=2.0,
        locked_ratio=0.25,
        p99_ns=10**9,
    )
    return revise(samples.input_bound(), workers=workers)


def test_a_batch_is_shown_by_part_and_by_stage(report):
    shown = view.build(report).workers
    assert [(row[0], row[2], row[3]) for row in shown.parts.rows] == [
        ("Blocked while the samples are read", "50 %", "measured"),
        ("Computing the samples", "30 %", "measured"),
        ("Waiting for a core", "10 %", "measured"),
        ("Joining the samples to a batch", "10 %", "measured"),
        ("Handing the batch over", "0 %", "measured"),
    ]
    assert shown.stages.rows[0] == ("Getting the samples", "360 ms", "120 ms", "40.0 ms", "200 ms")


def test_every_number_says_where_it_comes_from(report):
    facts = view.build(report).workers.facts
    assert all(fact.note.startswith(("measured", "estimated", "sampled")) for fact in facts)
    awaited = next(fact.value for fact in facts if fact.label.startswith("While the step waits"))
    assert awaited == "getting its samples 70 %, arriving 30 %"


def test_what_was_not_measured_is_left_out_or_said(report):
    bare = made(queued=False, busy_ratio=None, cpu_cores=None, queue_empty_ratio=None, waited_ratio={})
    shown = view.build(revise(report, workers=bare)).workers
    assert [fact.label for fact in shown.facts] == ["Work on one batch"]
    assert shown.stages.rows[0][3] == "not measured"


def test_the_section_is_in_html_and_markdown_and_json(report):
    assert TITLE.replace("'", "&#39;") in html(report) or TITLE in html(report)
    assert TITLE in markdown(report)
    assert load(to_json(report)).workers == report.workers


def test_without_workers_there_is_no_section(report):
    bare = revise(report, workers=None)
    assert view.build(bare).workers.facts == ()
    assert 'id="workers"' not in html(bare)
    assert TITLE not in markdown(bare)
