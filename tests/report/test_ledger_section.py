"""The section about the whole run in every format."""

from html import unescape

import msgspec
import pytest

from profilerkit.model.change import revise
from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, RankWall
from profilerkit.model.run import Signal
from profilerkit.report import ledger as section
from profilerkit.report import view
from profilerkit.report.html import render as html
from profilerkit.report.json import load
from profilerkit.report.json import render as to_json
from profilerkit.report.markdown import render as markdown
from profilerkit.report.terminal import render as terminal
from tests.report import samples
from tests.report.test_view import spaces

S = 1_000_000_000
TRAINING = {
    "start.before": (4, "derived"),
    "warm.steps": (1, "derived"),
    "step.input": (20, "measured"),
    "step.forward": (30, "derived"),
    "step.backward": (40, "measured"),
    "end": (5, "derived"),
}


def ledger(times=TRAINING, *, counts=None, **changes):
    """A ledger from ``entry: (seconds, source)``."""
    wall = sum(seconds for seconds, _ in times.values())
    base = Ledger(
        rank=0,
        wall_ns=wall * S,
        from_process_start=True,
        to_last_record=False,
        loader_seen=True,
        steps=200,
        unexplained_ns=times.get("unexplained", (0, ""))[0] * S,
        entries=tuple(
            LedgerEntry(
                entry=name,
                stage=ENTRIES[name][0],
                time_ns=times[name][0] * S,
                share=times[name][0] / wall,
                source=times[name][1],
                count=(counts or {}).get(name),
            )
            for name in ENTRIES
            if name in times
        ),
    )
    return revise(base, **changes)


def with_ledger(*args, **changes):
    return revise(samples.input_bound(), ledger=ledger(*args, **changes))


def wall(*args, **changes):
    return view.build(with_ledger(*args, **changes)).wall


def test_the_stages_stand_in_the_order_of_a_run_and_fill_the_bar():
    shown = wall()
    assert [segment.label for segment in shown.bar] == [
        *("Start-up", "Warm-up", "Steps", "After the last step", "Not explained")
    ]
    assert sum(segment.ratio for segment in shown.bar) == pytest.approx(1.0)
    assert shown.title == "Steps: 90 % of the run's 100 s; after the last step 5.0 %"
    assert shown.first == ""


def test_a_stage_with_several_entries_shows_them_and_the_weakest_source():
    rows = [(row.label, row.time, row.share, row.source, row.is_stage) for row in wall().rows]
    at = rows.index(("Steps", "90.0 s", "90 %", "derived", True))
    assert rows[at + 1 : at + 4] == [
        ("Waiting for data", "20.0 s", "20 %", "measured", False),
        ("Forward, up to the backward pass", "30.0 s", "30 %", "derived", False),
        ("Backward pass", "40.0 s", "40 %", "measured", False),
    ]


def test_what_is_not_explained_is_a_number_even_where_it_is_none():
    assert wall().rows[-1].time == "0 ns"
    assert wall({**TRAINING, "unexplained": (25, "derived")}).rows[-1].time == "25.0 s"


def test_start_up_that_dominates_is_said_beside_the_verdict():
    times = {**TRAINING, "start.before": (300, "derived")}
    report = with_ledger(times)
    said = "The steps are 23 % of the run's 6.6 min, start-up 76 %."
    assert view.build(report).wall.first == said
    assert said in spaces(unescape(html(report)))
    assert "start-up 76 %" in markdown(report)
    assert "Start-up: 76 % of the run's 6.6 min; steps 23 %" in terminal(report)


@pytest.mark.parametrize("entry", ["evaluation", "checkpoint"])
def test_evaluation_and_checkpoints_above_a_tenth_are_said_beside_the_verdict(entry):
    assert wall({**TRAINING, entry: (13, "measured")}).first
    assert not wall({**TRAINING, entry: (11, "measured")}).first


def test_how_often_something_occurred_is_told():
    times = {**TRAINING, "evaluation": (20, "inferred"), "checkpoint": (1, "measured")}
    shown = wall(times, counts={"evaluation": 4, "checkpoint": 1})
    told = {row.label: (row.detail, row.source) for row in shown.rows}
    assert told["Evaluation"] == ("4 times", "inferred")
    assert told["Checkpoints"] == ("once", "measured")


def test_a_killed_run_says_where_its_wall_clock_ends():
    assert "its last record: no end was written" in wall(to_last_record=True).caption
    assert "from the recording's start" in wall(from_process_start=False).caption


def test_a_run_without_a_step_says_so():
    assert wall({"start.before": (3, "derived"), "start.inside": (1, "derived")}, steps=0).title == (
        "No step ended in the 4.00 s of this run: start-up 100 %"
    )


def test_a_wait_that_was_not_measured_is_no_number():
    times = {name: value for name, value in TRAINING.items() if name != "step.input"}
    rows = wall(times, loader_seen=False).rows
    assert [(row.time, row.share, row.source) for row in rows if row.label == "Waiting for data"] == [
        ("not measured", "", "no loader seen")
    ]


def test_several_ranks_are_compared_by_stage():
    ranks = (
        RankWall(rank=0, wall_ns=100 * S, stages={"steps": 90 * S, "start-up": 10 * S}),
        RankWall(rank=1, wall_ns=50 * S, stages={"steps": 25 * S, "evaluation": 25 * S}),
    )
    report = with_ledger(ranks=ranks)
    table = view.build(report).wall.ranks
    assert table.columns == ("Rank", "Wall clock", "Start-up", "Steps", "Evaluation")
    assert table.rows[1] == ("Rank 1", "50.0 s", "0 %", "50 %", "50 %")
    assert "Every rank" in html(report)


def test_the_section_is_in_every_format():
    report = with_ledger()
    assert 'id="whole"' in html(report)
    assert "The whole run" in markdown(report)
    assert "The whole run" in terminal(report)
    assert load(to_json(report)).ledger == report.ledger
    assert msgspec.json.decode(to_json(report))["ledger"]["unexplained_ns"] == 0


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_of_the_terminal_is_wider_than_asked(width):
    text = terminal(with_ledger({**TRAINING, "start.before": (400, "derived")}), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_the_terminal_can_do_without_unicode():
    assert terminal(with_ledger(), ascii_only=True).isascii()


def test_without_a_ledger_there_is_no_section():
    bare = samples.input_bound()
    assert view.build(bare).wall.title == ""
    assert 'id="whole"' not in html(bare)
    assert "The whole run" not in markdown(bare) + terminal(bare)


@pytest.mark.parametrize("state", ["missing", "measured"])
def test_a_wait_that_was_not_seen_is_said_under_the_parts(state):
    report = samples.input_bound()
    trust = revise(report.trust, signals=(Signal(name="input wait", state=state),))
    said = [section.NO_LOADER in " ".join(text.split()) for text in (html(revise(report, trust=trust)),)]
    assert said == [state == "missing"]
