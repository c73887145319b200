"""The view: the same numbers everywhere, in the right order, with nothing made up."""

import re

import msgspec
import pytest

from profilerkit.model.finding import Saving, in_order
from profilerkit.model.step import StepTimes
from profilerkit.model.verdict import RuledOut
from profilerkit.report import html, markdown, terminal, view, wording
from profilerkit.report.inert import clip, inert, inert_code
from profilerkit.report.timeline import slowest_of_groups, timeline_of
from tests.report.samples import MS, SAMPLES, passing


def spaces(text):
    """On one line, and without the links of numbers."""
    return re.sub(r"\s+", " ", re.sub(r'<a class="n" href="#[\w-]+">(.*?)</a>', r"\1", text).replace("\u00a0", " "))


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
    numbers = [tile.value for tile in built.tiles] + [built.headline, *built.limits, built.consequence]
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
    assert labels["input_bound"] == ["Step time, median", "Throughput", "GPU busy", "Mean step after the fix"]
    assert labels["empty"] == ["Steady steps", "Rules that could run", "Ranks read", "Events read"]
    assert labels["lengths_only"][:2] == ["Step time, median", "Throughput"]
    assert all(len(own) == 4 for own in labels.values())


@pytest.mark.parametrize(
    ("bound", "steady", "note", "told"),
    [
        ("inconclusive", 7, "7 judged steps", False),
        ("inconclusive", 8, "8 steady steps", True),
        ("compute-bound", 7, "7 steady steps", True),
    ],
)
def test_a_few_steps_without_a_verdict_are_no_steady_throughput(bound, steady, note, told):
    base = SAMPLES["balanced"]()
    steps = msgspec.structs.replace(base.steps, steady=steady, time_ns=StepTimes(median=MS, mean=MS))
    verdict = msgspec.structs.replace(base.verdict, bound=bound)
    built = view.build(msgspec.structs.replace(base, steps=steps, verdict=verdict))
    tiles = built.tiles
    assert (tiles[0].label, tiles[0].note) == ("Step time, median", note)
    assert built.bar_caption.startswith(f"Mean of {note}")
    assert ("Throughput" in [tile.label for tile in tiles]) == told


def test_throughput_counts_all_batches_of_a_step():
    base = SAMPLES["balanced"]()
    steps = msgspec.structs.replace(base.steps, time_ns=StepTimes(median=20 * MS, mean=20 * MS))
    run = msgspec.structs.replace(base.run, batch_size=8, batches_per_step=4.02, world_size=1)
    tiles = view.build(msgspec.structs.replace(base, steps=steps, run=run)).tiles
    tile = next(tile for tile in tiles if tile.label == "Throughput")
    assert (tile.value, tile.note) == ("1,600 samples/s", "batch size 8, 4 batches per step")


def test_rules_that_did_not_fire_stand_by_code_within_how_they_ended():
    outcomes = tuple(passing(code) for code in ("ME003", "AA001", "ME001"))
    (group,) = view.build(msgspec.structs.replace(SAMPLES["balanced"](), outcomes=outcomes)).outcomes
    assert [row.rule for row in group.rows] == ["AA001", "ME001", "ME003"]


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


def test_a_compute_bound_verdict_with_a_severe_finding_is_as_severe_as_that_finding():
    report = SAMPLES["compute_bound"]()
    _, found = in_order(report.outcomes)[0]
    grave = msgspec.structs.replace(found, severity="high", bound="compute-bound")
    outcomes = (msgspec.structs.replace(report.outcomes[0], status="fired", findings=(grave,)),)
    saving = Saving(low=0.2, expected=0.44, high=0.5, method="analytic")
    verdict = msgspec.structs.replace(report.verdict, saving=saving)
    built = view.build(msgspec.structs.replace(report, verdict=verdict, outcomes=outcomes))
    assert (built.kind.shape, built.kind.tone) == ("▲", "high") == (built.cards[0].shape, built.cards[0].tone)


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


@pytest.mark.parametrize(
    ("expected", "heading"), [(0.0999, "Small changes that remain"), (0.1, "What to change"), (None, "What to change")]
)
@pytest.mark.parametrize("name", ["compute_bound", "input_bound"])
def test_changes_are_called_small_by_their_largest_saving_whatever_the_verdict(name, expected, heading):
    report = SAMPLES[name]()
    saving = None if expected is None else Saving(low=0.0, expected=expected, high=0.5, method="bound")
    outcomes = tuple(
        msgspec.structs.replace(
            outcome, findings=tuple(msgspec.structs.replace(found, saving=saving) for found in outcome.findings)
        )
        for outcome in report.outcomes
    )
    built = view.build(msgspec.structs.replace(report, outcomes=outcomes))
    assert built.changes
    assert built.change_heading.startswith(heading)


@pytest.mark.parametrize(
    ("damage", "files", "kind", "line"),
    [
        ({"truncated": True, "dropped": 1}, 1, "trace", "The file is cut off: 1,799 events were read, 1 was dropped."),
        ({"truncated": True}, 1, "run", "The trace is cut off: 1,799 events were read."),
        ({"dropped": 2}, 2, "trace", "A trace is damaged: 1,799 events were read, 2 were dropped."),
        (
            {"truncated": True, "damaged": ("rank_00001",)},
            2,
            "run",
            "The trace of rank_00001 is cut off: 1,799 events were read.",
        ),
        ({"truncated": True, "damaged": ("a.json", "b.json")}, 3, "run", "A trace is cut off: 1,799 events were read."),
        ({"repaired": 4}, 1, "trace", None),
    ],
)
def test_missing_events_are_said_right_below_the_headline(damage, files, kind, line):
    report = SAMPLES["balanced"]()
    trust = msgspec.structs.replace(report.trust, events=1799, **damage)
    run = msgspec.structs.replace(report.run, files=("a.json",) * files, kind=kind)
    report = msgspec.structs.replace(report, trust=trust, run=run)
    assert view.build(report).limits == ((line,) if line else ())
    lines = terminal.render(report).splitlines()
    assert (lines[lines.index(report.verdict.headline) + 1] == line) is bool(line)


def test_a_saving_of_which_only_the_bound_is_known_is_told_as_the_most_and_with_what_ranks_it():
    saving = Saving(low=0.0, expected=0.4, high=0.5, method="bound")
    assert wording.saving_range(saving) == "up to 50 %"
    assert wording.saving_text(saving, 46_000_000) == "up to 23.0 ms per step (50 %, 40 % expected)"
    assert wording.saving_text(saving, None) == "up to 50 %, 40 % expected of the step"


def test_a_bound_that_was_ruled_out_states_the_saving_that_its_finding_states():
    report = SAMPLES["input_bound"]()
    verdict = msgspec.structs.replace(
        report.verdict,
        contenders=(),
        ruled_out=(RuledOut(bound="comm-bound", share=0.12, saving=0.06, reason="exposed communication takes 12 %"),),
    )
    built = view.build(msgspec.structs.replace(report, verdict=verdict))
    own = next(card for card in built.cards if card.gain == "4.5–6.8 %")
    assert built.others[0].saving == own.gain


def test_rules_that_were_switched_off_are_counted_below_the_headline():
    report = SAMPLES["balanced"]()
    off = msgspec.structs.replace(report.outcomes[0], status="off", reason="not selected")
    assert view.build(msgspec.structs.replace(report, outcomes=(off, *report.outcomes[1:]))).limits == (
        "1 of 3 rules was switched off.",
    )


def test_the_largest_share_is_shown_only_where_the_verdict_is_about_it():
    def labels(bound, family, saving):
        report = SAMPLES["balanced"]()
        verdict = msgspec.structs.replace(report.verdict, bound=bound, saving=saving)
        part = msgspec.structs.replace(report.breakdown[0], family=family)
        run = msgspec.structs.replace(report, verdict=verdict, breakdown=(part, *report.breakdown[1:]))
        return {tile.label: tile.value for tile in view.build(msgspec.structs.replace(run, ranks=())).tiles}

    saving = Saving(low=0.38, expected=0.43, high=0.45, method="bound")
    assert labels("input-bound", "compute", saving)["Saving of the best fix"] == "43 %"
    assert "Largest share" not in labels("input-bound", "compute", None)
    assert labels("input-bound", "input", saving)["Largest share"] == "90 %"
    assert labels("balanced", "compute", None)["Largest share"] == "88 %"


def test_times_are_printed_only_where_a_timeline_viewer_knows_them():
    report = SAMPLES["input_bound"]()
    (row, *_), finding = view.build(report).cards[0].evidence, report.outcomes[1].findings[0]
    assert row.basis.endswith("trace time 5000000123–13448000000 ns")
    timed = msgspec.structs.replace(finding.evidence[0], origin="step timers")
    outcome = msgspec.structs.replace(
        report.outcomes[1], findings=(msgspec.structs.replace(finding, evidence=(timed,)),)
    )
    built = view.build(msgspec.structs.replace(report, outcomes=(outcome,)))
    assert built.cards[0].evidence[0].basis == "n 48 · rank 0 · steps 12–59"


def test_slow_steps_are_named_and_survive_grouping():
    report = SAMPLES["many_steps"]()
    whole = msgspec.structs.replace(report, steps=msgspec.structs.replace(report.steps, thinned=False))
    for entry, shown in ((report, " shown"), (whole, "")):  # of many steps each so many are in the report
        title = f"6 steady steps of 1,998{shown} took more than 1.3 × the median"
        assert view.build(entry).steps.title.startswith(title)
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
        "1 column higher than 50.0 ms is cut off, with a bar above."
        in view.build(SAMPLES["lengths_only"]()).steps.caption
    )


def test_columns_that_nothing_recorded_are_left_out():
    report = SAMPLES["input_bound"]()
    bare = tuple(msgspec.structs.replace(row, bytes=None, dtype=None, group_size=None) for row in report.collectives)
    table = view.build(msgspec.structs.replace(report, collectives=bare)).collectives
    assert table.columns == ("Collective", "Kind", "Calls", "Total", "Exposed")
    assert "not recorded" in view.build(report).collectives.rows[1]


def test_inert_text_is_one_bounded_line():
    assert inert("a\nb\u2028c\td") == "a b c d"
    assert inert("\x00\u200b\ufeff\udc80") == "\\x00\\u200b\\ufeff\\udc80"
    assert len(inert("x" * 10_000_000)) == 120
    assert clip("abcdef", 6) == "abcdef"
    assert len(clip("abcdefg", 6)) == 6
    assert inert_code("if a:\n\tb\x1b\n") == "if a:\n    b\\x1b"
