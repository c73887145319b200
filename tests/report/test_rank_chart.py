"""The heat map of ranks and steps: whom the others wait for, in words, in shades and as a table."""

import re

import pytest

from profilerkit.model import revise as changed
from profilerkit.model.step import RankSteps
from profilerkit.report import html
from profilerkit.report.sections.ranks import rank_chart
from tests.report.samples import HOSTILE, MS, SAMPLES


@pytest.fixture
def several():
    return SAMPLES["multi_rank"]()


def of_steps(report, of="caused", *, group=1, count=None, times):
    index = tuple(range(3, 3 + len(times[0])))
    ranks = tuple(changed(report.ranks[number], rank=number) for number in range(len(times) * group))
    steps = RankSteps(of=of, group=group, count=count or len(index), index=index, time_ns=tuple(times))
    return changed(report, ranks=ranks, rank_steps=steps)


def rectangles(chart):
    """Shade to the rows and columns of its rectangles, in percent."""
    return {
        shape.colour: [tuple(map(float, cell)) for cell in re.findall(r"M(\S+) (\S+)H(\S+)V(\S+)H\S+?z", shape.path)]
        for shape in chart.shapes
    }


def test_the_late_rank_is_named_with_its_steps_and_what_the_others_wait(several):
    chart = rank_chart(several)
    # 90 of 100 steps, 58 ms in each of these.
    assert chart.title.startswith("Rank 5 is late in 90 of 100 steps: the others wait 52.")
    assert chart.title.endswith(" ms of every step for it")
    assert "100 judged steps of 64 ranks, evenly thinned from 118." in chart.caption
    assert [tick.label for tick in chart.y.ticks if "late" in tick.label] == ["late ▸ 5"]
    assert chart.table.rows[0][:2] == ("Rank 5", "90 of 100")
    assert (chart.table.rows[0][3], chart.table.rows[0][4]) == ("58.0 ms", "13")


def test_only_the_cells_of_the_late_rank_are_dark_and_neighbours_are_one_rectangle(several):
    cells = rectangles(rank_chart(several))
    assert set(cells) == {"communication"}
    high = 100 / 64
    assert len(cells["communication"]) == 10
    for left, top, right, bottom in cells["communication"]:
        assert right - left == pytest.approx(9.0)
        assert 5 * high <= top < bottom <= 6 * high + 0.01


def test_shades_are_shares_of_the_median_step_and_what_is_not_known_is_no_shade(several):
    step = 100 * MS
    row = tuple(round(share * step) for share in (0.0099, 0.01, 0.0499, 0.05, 0.2499, 0.25))
    report = of_steps(several, times=[(None,) * 6, row])
    report = changed(report, ranks=tuple(changed(rank, step_ns=step) for rank in report.ranks))
    chart = rank_chart(report)
    widths = {colour: sum(right - left for left, _, right, _ in own) for colour, own in rectangles(chart).items()}
    part = pytest.approx(100 / 3, abs=0.02)
    assert widths == {
        "unknown": pytest.approx(100.0),
        "communication faint": part,
        "communication pale": part,
        "communication": pytest.approx(100 / 6, abs=0.02),
    }
    assert [name for _, name in chart.legend] == [
        "Less than 1 % of the step",
        "1 % to 5 %",
        "5 % to 25 %",
        "25 % and more",
        "Not known",
    ]
    assert {colour for colour, _ in chart.legend} == {"blank", *widths}
    assert chart.table.rows[-1] == ("Rank 0", *["not known"] * 4)


def test_where_nobody_is_late_nobody_is_called_late(several):
    found = changed(several.communication, late=())
    report = changed(of_steps(several, times=[(0, MS), (3 * MS, 2 * MS)]), communication=found)
    chart = rank_chart(report)
    assert chart.title == "No rank is called late: the other waits longest for rank 1, 2.50 ms of every step"
    assert not any("late" in tick.label for tick in chart.y.ticks)
    nothing = changed(of_steps(several, times=[(0, 0), (0, 0)]), communication=found)
    assert rank_chart(nothing).title == "No rank makes the others wait"


def test_a_figure_without_a_late_rank_calls_no_step_late(several):
    """A cell of 5 % does not make a rank late: that takes the ledger's test."""
    assert "Late in a step: 5 % and more. A rank is late if" in rank_chart(several).caption
    report = of_steps(several, times=[(0, 50 * MS), (0, 0)])
    chart = rank_chart(changed(report, communication=changed(several.communication, late=())))
    assert chart.title.startswith("No rank is called late")
    assert "Late in a step" not in chart.caption
    assert "A rank is late if it causes most of the waiting in most steps, beyond chance." in chart.caption
    assert chart.table.columns[1] == "At least 5 % in"
    assert chart.table.rows[0][:2] == ("Rank 0", "1 of 2")


def test_ranks_are_even_only_where_none_is_far_above_in_any_step(several):
    spikes = [(100 * MS,) * 10, (100 * MS,) * 10, (1_100 * MS,) * 4 + (100 * MS,) * 6]
    assert rank_chart(of_steps(several, "own", times=spikes)).title == (
        "Rank 2 exceeds the median rank by at least 5 % of the step in 4 of 10 steps: its own time is 400 ms above the "
        "median rank's"
    )
    once = [(100 * MS,) * 4, (100 * MS,) * 4, (150 * MS, *(10 * MS,) * 3)]
    assert rank_chart(of_steps(several, "own", times=once)).title.endswith(
        "in 1 of 4 steps: its own time is up to 50.0 ms above"
    )


def test_no_rank_is_below_the_median_rank_by_being_above_it(several):
    step = several.ranks[0].step_ns
    skewed = [(step // 2, step, step), (step, step // 2, step), (step, step, step // 2)]
    title = rank_chart(of_steps(several, "own", times=skewed)).title
    assert title == "The ranks are even: no own time is 5 % of the step above the median rank's"


def test_a_rank_of_which_nothing_is_known_is_not_the_longest(several):
    step = several.ranks[0].step_ns
    rows = [(None,) * 3, (step // 2, step, step), (step, step // 2, step), (step, step, step // 2)]
    assert "rank 0" not in rank_chart(of_steps(several, "own", times=rows)).title
    assert rank_chart(of_steps(several, "own", times=[(None,), (None,)])) is None


@pytest.mark.parametrize(("of", "words"), [("own", "own time"), ("step", "step")])
def test_without_a_ledger_times_stand_against_the_median_rank_and_that_is_said(several, of, words):
    times = [(100 * MS,) * 4, (100 * MS,) * 4, (130 * MS, 130 * MS, 130 * MS, 90 * MS)]
    chart = rank_chart(of_steps(several, of, times=times))
    assert chart.title == (
        f"Rank 2 exceeds the median rank by at least 5 % of the step in 3 of 4 steps: its {words} is 20.0 ms above the "
        "median rank's"
    )
    assert chart.table.columns[1] == "At least 5 % above in"
    assert "(derived)" in chart.caption
    assert set(rectangles(chart)) == {"mark pale"}
    assert "median rank" in chart.caption
    assert "late" not in " ".join(tick.label for tick in chart.y.ticks)
    even = rank_chart(of_steps(several, of, times=[(100 * MS,) * 4, (101 * MS,) * 4]))
    assert even.title == f"The ranks are even: the longest {words}, that of rank 1, is 1.00 ms above the median rank's"


def test_of_neighbouring_ranks_the_late_one_is_named(several):
    late = changed(several.communication.late[0], rank=9, origin="rank_00009")
    report = of_steps(several, group=4, times=[(0,), (MS,), (60 * MS,)])
    chart = rank_chart(changed(report, communication=changed(report.communication, late=(late,))))
    assert [tick.label for tick in chart.y.ticks] == ["0–3", "4–7", "late ▸ 9"]
    assert chart.title.startswith("Rank 9 is late in the one step: the others wait 60.0 ms for it")
    assert "Each row is the largest of 4 neighbouring ranks." in chart.caption


def test_of_many_rows_so_many_have_a_name_as_there_is_room_for(several):
    labels = [tick.label for tick in rank_chart(several).y.ticks]
    assert len(labels) <= 17
    assert labels[0] == "0"


def test_two_late_ranks_are_told_together(several):
    both = tuple(changed(several.communication.late[0], rank=n, origin=f"rank_{n:05d}") for n in (0, 2))
    report = of_steps(several, times=[(60 * MS, 0), (0, 0), (0, 60 * MS)])
    chart = rank_chart(changed(report, communication=changed(report.communication, late=both)))
    assert chart.title == "Rank 0 and rank 2 are late in 2 of 2 steps: the others wait 60.0 ms of every step for them"


def test_without_times_of_several_ranks_there_is_no_figure(several):
    assert rank_chart(SAMPLES["input_bound"]()) is None
    assert rank_chart(changed(several, rank_steps=None)) is None
    assert 'id="rank-steps"' not in html.render(changed(several, rank_steps=None))


def test_the_page_holds_the_figure_its_table_and_no_markup_from_names(several):
    page = html.render(several)
    assert 'id="rank-steps"' in page
    assert "late ▸ 5" in page
    hostile = html.render(SAMPLES["hostile"]())
    assert 'id="rank-steps"' in hostile
    assert HOSTILE not in hostile
