"""The waterfall in every report: bars and table, the words about the replay, hostile titles."""

import pytest

from profilerkit.model.change import revise
from profilerkit.model.waterfall import AfterFix, Replay, Waterfall
from profilerkit.report import html, markdown, terminal
from profilerkit.report.figures import waterfall_paths
from profilerkit.report.view import build
from tests.report.samples import input_bound

CHECK = Replay(steps=8, of=10, error_ratio=0.001, worst_step_ratio=0.004)


def with_waterfall(**changes):
    fixes = (
        AfterFix(rule="IN003", title="Two workers do not keep up", step_ns=80e6, saving=0.2, alone=0.2, fair=0.18),
        AfterFix(rule="OV002", title="Syncs <script>drain</script>", step_ns=70e6, saving=0.3, alone=0.05, fair=0.12),
    )
    known = Waterfall(now_ns=100e6, fixes=fixes, floor_ns=50e6, replay=CHECK)
    return revise(input_bound(), waterfall=revise(known, **changes))


def test_rows_go_from_now_over_each_fix_to_the_floor():
    view = build(with_waterfall()).waterfall
    assert view.title == "With these 2 fixes the step takes 70.0 ms instead of 100 ms"
    assert [row[0] for row in view.table.rows] == ["Now", "After IN003", "and OV002", "Floor"]
    assert [row[2:] for row in view.table.rows[1:3]] == [("80.0 ms", "20 %", "20 %"), ("70.0 ms", "30 %", "5.0 %")]
    assert [bar.ratio for bar in view.bars] == pytest.approx([1.0, 0.8, 0.7, 0.5])
    assert "8 of 10 steps" in view.caption
    assert "never added" in view.caption


def test_a_single_fix_is_named_for_the_largest_finding_may_be_another():
    view = build(with_waterfall(fixes=with_waterfall().waterfall.fixes[:1])).waterfall
    assert view.title == "With the fix of IN003 the step takes 80.0 ms instead of 100 ms"


def test_bars_are_as_long_as_the_step_and_pale_where_it_is_saved():
    paths, height = waterfall_paths(build(with_waterfall()).waterfall.bars)
    assert height == 4 * 26
    assert "M0 26h80v20H0z" in paths["compute"]
    assert "M80 26H100v20H80z" in paths["compute pale"]


def test_the_page_has_the_figure_and_its_table_and_no_script_from_a_title():
    page = html.render(with_waterfall(), explorer=False)
    assert 'id="waterfall"' in page
    assert "After IN003" in page
    assert "<script>drain" not in page


def test_text_reports_have_it_as_lines():
    text = terminal.render(with_waterfall())
    assert "With these 2 fixes the step takes 70.0 ms instead of 100 ms" in text
    assert "After IN003: 80.0 ms, 20 % saved" in text
    assert "70.0 ms instead of 100 ms" in markdown.render(with_waterfall())


def test_a_closed_gate_is_told_under_trust_and_nowhere_else():
    closed = with_waterfall(fixes=(), floor_ns=None, replay=revise(CHECK, failing=(7,), refused="steps 7 are 30 % off"))
    view = build(closed)
    assert view.waterfall.table is None
    (fact,) = [fact for fact in view.trust if fact.label == "Replay"]
    assert fact.value == "not used"
    assert "steps 7 are 30 % off" in fact.note
    assert 'id="waterfall"' not in html.render(closed, explorer=False)


def test_without_a_replay_nothing_is_said():
    view = build(revise(input_bound(), waterfall=None))
    assert view.waterfall.title == ""
    assert not [fact for fact in view.trust if fact.label == "Replay"]
