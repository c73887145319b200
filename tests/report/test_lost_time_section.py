"""The section about lost time, and the page of a rule beside what it found."""

import doctest

import pytest

from profilerkit.model.finding import in_order
from profilerkit.diagnosis.cost import with_cost
from profilerkit.model.change import revise
from profilerkit.model.cost import Cost, LostTime
from profilerkit.report import cost as section
from profilerkit.report import html, markdown, terminal
from profilerkit.report.cost import cost_view
from profilerkit.report.json import load
from profilerkit.report.json import render as render_json
from profilerkit.rules import RULES
from profilerkit.rules.docs import page_of
from tests.report import samples
from tests.report.test_view import spaces

# A larger page leaves out its own JSON; the figures' script is not counted.
MOST_PAGE_BYTES = 400_000


def shown(cost):
    return cost_view(revise(samples.balanced(), cost=cost))


def cost(hours=10.0, **changes):
    row = LostTime(cause="input.wait", inside=True, hours=hours / 4, share=0.25, source="derived")
    base = Cost(unit="GPU", scope="run", ranks=8, ranks_read=8, hours=hours, lost=(row,))
    return revise(base, **changes)


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({}, "Lost: 2.5 of 10 GPU-hours (25 %)"),
        ({"hours": 4_000.0}, "Lost: 1,000 of 4,000 GPU-hours (25 %)"),
        ({"hours": 1.0}, "Lost: 0.25 of 1 GPU-hours (25 %)"),
        ({"hours": 0.5}, "Lost: 7.5 of 30 GPU-minutes (25 %)"),
        ({"hours": 0.01}, "Lost: 9 of 36 GPU-seconds (25 %)"),
        ({"unit": "rank"}, "Lost: 2.5 of 10 rank-hours (25 %)"),
        ({"scope": "1000 steps"}, "Lost: 2.5 of 10 GPU-hours of 1,000 steps (25 %)"),
        ({"price": 2.0}, "Lost: 2.5 of 10 GPU-hours (25 %); cost 5.00 of 20.00"),
    ],
)
def test_the_title_says_how_much_of_what(changes, title):
    hours = changes.pop("hours", 10.0)
    assert shown(cost(hours, **changes)).title == title


def test_the_caption_says_whose_hours_these_are():
    assert shown(cost()).caption == "The whole recorded run, 8 ranks."
    trace = cost(scope="1000 steps", ranks_read=1, price=2.0)
    assert shown(trace).caption == (
        "1,000 steps like those judged: no run was recorded, 8 ranks. 1 of them was read; the others count as their "
        "mean. Priced at 2.00 per GPU-hour."
    )
    told = shown(cost(unit="rank")).caption
    assert "No GPU was seen: a rank-hour is one process for one hour, without a price." in told


def test_small_causes_are_left_to_the_json():
    small = LostTime(cause="input.ipc", inside=True, hours=0.05, share=0.005, source="derived")
    whole = cost()
    table = shown(revise(whole, lost=(*whole.lost, small))).lost
    assert [row[0] for row in table.rows] == ["Waiting for data"]
    assert table.more == "1 smaller cause in the JSON."


def test_causes_outside_of_steps_name_their_stage():
    row = LostTime(cause="warm.compile", inside=False, hours=1.0, share=0.1, source="measured")
    assert shown(cost(lost=(row,))).lost.rows[0][0] == "Warm-up: compiling"


@pytest.mark.parametrize(("price", "priced"), [(None, ""), (2.0, ", cost 8.00")])
def test_start_up_is_told_apart_from_what_training_lost(price, priced):
    """Of 10 hours 4 went before the first step, and the training lost 2.5 of them."""
    before, inside = (
        LostTime(cause=cause, inside=False, hours=hours, share=hours / 10, source="derived")
        for cause, hours in (("start.before", 3.0), ("start.inside", 1.0))
    )
    view = shown(cost(lost=(before, *cost().lost, inside), price=price))
    assert view.title.startswith("Lost: 2.5 of 10 GPU-hours (25 %)")
    assert [row[0] for row in view.lost.rows] == ["Waiting for data"]
    assert view.lost.more == ""
    told = f"Start-up, imports included, took 4 GPU-hours (40 %{priced}): paid once, it is not counted as lost."
    assert view.caption.endswith(told)


def test_a_run_that_lost_nothing_but_its_start_has_no_causes():
    row = LostTime(cause="start.before", inside=False, hours=9.0, share=0.9, source="derived")
    view = shown(cost(lost=(row,)))
    assert (view.title, view.lost) == ("Lost: 0 of 10 GPU-hours (0 %)", None)


@pytest.mark.parametrize("price", [None, 2.5])
def test_every_format_shows_lost_time(price):
    report = with_cost(samples.input_bound(), price)
    view = cost_view(report)
    for text in (
        terminal.render(report, width=120),
        markdown.render(report).replace("\\", ""),
        spaces(html.render(report, explorer=False)),
    ):
        assert view.title in text
        assert view.lost.rows[0][0] in text
        assert ("Cost" in text) == (price is not None)
    assert load(render_json(report)).cost == report.cost


def test_without_a_cost_there_is_no_section():
    report = samples.balanced()
    assert "Lost time" not in html.render(report, explorer=False)
    assert "Lost time" not in terminal.render(report)
    assert "Lost time" not in markdown.render(report)


def with_pages(report):
    """The report with the page of a built-in rule at every rule that found something."""
    pages = [page_of(rule) for rule in RULES]
    outcomes = [
        revise(outcome, page=pages[number % len(pages)]) if outcome.findings else outcome
        for number, outcome in enumerate(report.outcomes)
    ]
    return revise(report, outcomes=tuple(outcomes))


def test_a_finding_holds_the_page_of_its_rule_closed():
    report = with_pages(samples.input_bound())
    page = spaces(html.render(report, explorer=False))
    outcome, _ = in_order(report.outcomes)[0]
    assert f'<details class="page"><summary>About {outcome.rule}</summary>' in page
    assert "<details open" not in page
    for heading in outcome.page:
        assert f"<dt>{heading}</dt>" in page


def test_without_a_page_there_is_no_empty_one():
    assert "About " not in html.render(samples.input_bound(), explorer=False)


@pytest.mark.parametrize("name", ["input_bound", "multi_rank", "many_steps"])
def test_pages_and_lost_time_keep_the_file_small(name):
    report = with_cost(with_pages(getattr(samples, name)()), 2.5)
    assert len(html.render(report, explorer=False).encode()) <= MOST_PAGE_BYTES


def test_a_hostile_page_is_text():
    report = samples.input_bound()
    outcomes = [revise(o, page={samples.HOSTILE: samples.HOSTILE}) if o.findings else o for o in report.outcomes]
    page = html.render(revise(report, outcomes=tuple(outcomes)), explorer=False)
    assert "<script>alert" not in page
    assert "<img" not in page


def test_examples_in_the_docstrings_hold():
    result = doctest.testmod(section)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(("causes", "told"), [(3, False), (4, True)])
def test_a_comment_says_how_many_causes_it_leaves_out(causes, told):
    whole = cost()
    report = revise(samples.balanced(), cost=revise(whole, lost=whole.lost * causes))
    assert (f"These are the largest 3 of {causes}; all are in the JSON." in markdown.render(report)) is told
