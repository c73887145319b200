"""The view: the same numbers everywhere, in the right order, with nothing made up."""

import re

import msgspec
import pytest

from profilerkit.report import html, markdown, terminal, view
from profilerkit.report.inert import clip, inert, inert_code
from profilerkit.report.timeline import slowest_of_groups, timeline_of
from tests.report.samples import SAMPLES


def spaces(text):
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))


def unescaped(text):
    return re.sub(r"\\([\\`*_\[\]~#$])", r"\1", text)


@pytest.mark.parametrize("name", [name for name in SAMPLES if "hostile" not in name])
def test_every_format_shows_the_same_numbers(name):
    report = SAMPLES[name]()
    built = view.build(report)
    texts = {
        "html": spaces(html.render(report, explorer=False)),
        "cell": spaces(html.render_verdict(report)),
        "markdown": spaces(unescaped(markdown.render(report))),
        "terminal": spaces(terminal.render(report, width=200)),
    }
    numbers = [tile.value for tile in built.tiles] + [built.headline, built.consequence]
    numbers += [card.saving for card in built.changes if card.saving]
    for kind, text in texts.items():
        for number in numbers:
            assert number in text, (kind, number)
    for kind in ("html", "markdown"):
        for segment in built.bar:
            assert segment.time in texts[kind]
            assert segment.share in texts[kind]


def test_findings_come_largest_expected_saving_first():
    built = view.build(SAMPLES["input_bound"]())
    assert [card.rule for card in built.cards] == ["IN001", "CM003", "CP002"]


def test_observations_are_findings_but_not_changes():
    report = SAMPLES["input_bound"]()
    outcome = report.outcomes[1]
    finding = msgspec.structs.replace(outcome.findings[0], fix=None)
    outcomes = (msgspec.structs.replace(outcome, findings=(finding,)),)
    built = view.build(msgspec.structs.replace(report, outcomes=outcomes))
    assert len(built.cards) == 1
    assert built.changes == ()
    assert built.no_change == "No rule found a change that is worth making."


def test_evidence_numbers_are_unique_and_the_runners_own_where_it_gave_them():
    built = view.build(SAMPLES["multi_rank"]())
    assert [row.id for card in built.cards for row in card.evidence] == ["E1", "E2"]
    assert [card.anchor for card in built.cards] == ["CM003-rank5", "CM003-rank5-2"]
    built = view.build(SAMPLES["input_bound"]())
    assert [row.id for card in built.cards for row in card.evidence] == ["E1", "E2", "E3", "E5", "E4"]


def test_tiles_are_four_and_unknown_ones_give_way():
    labels = {name: [tile.label for tile in view.build(build()).tiles] for name, build in SAMPLES.items()}
    assert labels["input_bound"] == ["Step time, median", "Throughput", "GPU busy", "Step time after the fix"]
    assert labels["empty"] == ["Steady steps", "Rules that could run", "Ranks read", "Events read"]
    assert labels["lengths_only"][:2] == ["Step time, median", "Throughput"]
    assert all(len(own) == 4 for own in labels.values())


def test_a_mean_far_from_the_median_is_printed():
    assert view.build(SAMPLES["lengths_only"]()).tiles[0].note.startswith("mean 35.0 ms")


def test_the_bar_sums_to_one_and_keeps_the_order_of_families():
    for build in SAMPLES.values():
        bar = view.build(build()).bar
        assert not bar or sum(segment.ratio for segment in bar) == pytest.approx(1.0)
    families = [segment.family for segment in view.build(SAMPLES["input_bound"]()).bar]
    assert families == ["input", "memory", "communication", "compute", "overhead", "other"]


def test_a_sum_claims_only_what_its_weakest_part_claims():
    bar = {segment.family: segment for segment in view.build(SAMPLES["input_bound"]()).bar}
    assert bar["input"].source == "derived"
    assert bar["communication"].source == "measured"
    assert bar["overhead"].source == "estimated"


@pytest.mark.parametrize(
    ("name", "shape", "tone"),
    [
        ("input_bound", "▲", "high"),
        ("multi_rank", "■", "medium"),
        ("balanced", "●", "good"),
        ("compute_bound", "●", "good"),
        ("inconclusive", "◇", "info"),
    ],
)
def test_shape_and_tone_follow_the_verdict(name, shape, tone):
    kind = view.build(SAMPLES[name]()).kind
    assert (kind.shape, kind.tone) == (shape, tone)


def test_contenders_come_before_what_is_ruled_out():
    others = view.build(SAMPLES["input_bound"]()).others
    assert [row.bound for row in others] == ["comm-bound", "memory-bound", "overhead-bound", "compute-bound"]
    assert others[0].saving == "4.5–6.8 %"
    assert others[0].share == "12 %"


def test_a_bound_that_was_not_measured_has_no_share():
    report = SAMPLES["balanced"]()
    row = view.build(report).others[1]
    assert (row.bound, row.state) == ("comm-bound", "not measured")
    assert (row.share, row.saving) == ("not measured", "none stated")
    for text in (terminal.render(report), markdown.render(report)):
        line = next(line for line in text.splitlines() if "comm-bound" in line)
        assert "not measured" in line
        assert "%" not in line


def test_small_changes_of_a_healthy_run_are_called_small():
    assert view.build(SAMPLES["compute_bound"]()).change_heading.startswith("Small changes")


def test_slow_steps_are_named_and_survive_grouping():
    report = SAMPLES["many_steps"]()
    assert view.build(report).steps.title.startswith("6 steady steps of 1,998 took more than 1.3 × the median")
    columns, group = slowest_of_groups(timeline_of(report).columns, 200)
    assert group == 10
    assert len(columns) == 200
    assert sum(column.slow for column in columns) == 6


def test_the_table_of_many_steps_has_the_slowest_and_a_sample():
    table = view.build(SAMPLES["many_steps"]()).steps.table
    assert len(table.rows) <= 40
    assert sum("slow" in row[1] for row in table.rows) == 6


def test_a_single_steady_step_is_not_called_even():
    report = SAMPLES["balanced"]()
    steps = msgspec.structs.replace(report.steps, rows=report.steps.rows[-1:])
    assert view.build(msgspec.structs.replace(report, steps=steps)).steps.title.startswith(
        "One steady step was recorded"
    )


def test_a_share_that_rounds_to_nothing_is_not_printed_as_zero():
    report = SAMPLES["balanced"]()
    tiny = msgspec.structs.replace(report.breakdown[-1], share=0.0001, time_ns=9_000)
    built = view.build(msgspec.structs.replace(report, breakdown=(*report.breakdown[:-1], tiny)))
    assert "< 0.1 %" in [part.share for part in built.parts]


def test_a_column_higher_than_the_scale_is_said_to_be_cut():
    assert (
        "1 column higher than 50.0 ms is cut off and marked ▲." in view.build(SAMPLES["lengths_only"]()).steps.caption
    )


def test_columns_that_nothing_recorded_are_left_out():
    report = SAMPLES["input_bound"]()
    bare = tuple(msgspec.structs.replace(row, bytes=None, dtype=None, group_size=None) for row in report.collectives)
    table = view.build(msgspec.structs.replace(report, collectives=bare)).collectives
    assert table.columns == ("Collective", "Calls", "Total", "Exposed")
    assert "not recorded" in view.build(report).collectives.rows[1]


def test_inert_text_is_one_bounded_line():
    assert inert("a\nb\u2028c\td") == "a b c d"
    assert inert("\x00\u200b\ufeff\udc80") == "\\x00\\u200b\\ufeff\\udc80"
    assert len(inert("x" * 10_000_000)) == 120
    assert clip("abcdef", 6) == "abcdef"
    assert len(clip("abcdefg", 6)) == 6
    assert inert_code("if a:\n\tb\x1b\n") == "if a:\n    b\\x1b"
