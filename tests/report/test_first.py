"""The first screen: what is its headline, and the user's own line."""

import argparse
import shlex

import pytest
from msgspec.structs import replace

from profilerkit.cli import run
from profilerkit.model.finding import CodeLine, Evidence, Finding, Outcome, SettingChange
from profilerkit.model.memory import LiveBytes, OutOfMemory
from profilerkit.model.step import QUEUE
from profilerkit.model.verdict import RECORD, RECORD_MORE
from profilerkit.report import html, markdown, sections, terminal
from tests.comparisons import MS, parts_of
from tests.report import samples
from tests.report.pages import Page, spaces
from tests.report.samples import input_bound


def first(report):
    return sections.document(report).first


def with_line(report, line):
    """The report whose findings name this line."""

    def told(found):
        return replace(found, evidence=(replace(found.evidence[0], line=line), *found.evidence[1:]))

    return replace(
        report, outcomes=tuple(replace(one, findings=tuple(map(told, one.findings))) for one in report.outcomes)
    )


@pytest.mark.parametrize("output", [html.render, html.render_verdict, markdown.render, terminal.render])
def test_the_users_own_line_stands_beside_the_first_fix(output):
    text = output(with_line(input_bound(), CodeLine("net/train.py", 31, "__getitem__")))
    assert "__getitem__" in text.replace("\\_", "_")
    assert "net/train.py:31" in text


def test_at_the_top_of_a_script_only_the_place_is_named():
    assert first(with_line(input_bound(), CodeLine("train.py", 7, "<module>"))).fixes[0].where == "train.py:7"


@pytest.mark.parametrize(
    ("kind", "changes", "method", "command"),
    [
        ("run", (SettingChange("num_workers", 2, 6),), "replay", "profilerkit try"),
        ("run", (SettingChange("num_workers", 2, 6),), "trial", "profilerkit diff"),
        ("run", (), "replay", "profilerkit diff"),
        ("trace", (SettingChange("num_workers", 2, 6),), "replay", "profilerkit diff"),
    ],
)
def test_a_fix_that_is_a_setting_is_measured_before_it_is_made(kind, changes, method, command):
    """Not on a trace that somebody sent, and not twice."""
    report = input_bound()

    def told(found):
        return replace(found, fix=replace(found.fix, changes=changes), saving=replace(found.saving, method=method))

    outcomes = [
        replace(one, findings=tuple(told(f) if f.fix and f.saving else f for f in one.findings))
        for one in report.outcomes
    ]
    made = first(replace(report, run=replace(report.run, kind=kind), outcomes=tuple(outcomes)))
    assert made.measure.startswith(command)


def test_the_headline_is_not_said_again_below_the_fix():
    report = input_bound()
    made = first(report)
    own = next(found for found in report.findings if found.fix)
    assert (own.bound, own.detail) == (report.verdict.bound, report.verdict.detail)
    assert own.title not in made.because
    other = replace(report, verdict=replace(report.verdict, detail="fetch" if own.detail != "fetch" else "prep"))
    assert first(other).because.startswith(own.title)


def test_what_an_inconclusive_recording_needs_is_its_headline():
    report = samples.inconclusive()
    report = replace(
        report, verdict=replace(report.verdict, refuted_by="Record 10 steps. Then more.", command="record more")
    )
    made = first(report)
    assert (made.word, made.headline, made.because) == ("INCONCLUSIVE", "Record 10 steps", "Then more.")
    assert made.advice == f"{report.verdict.headline}."
    assert made.command == "record more"


def test_no_command_is_shown_where_none_helps():
    report = samples.inconclusive()
    report = replace(report, verdict=replace(report.verdict, refuted_by="Call prof.step().", command=""))
    assert (first(report).headline, first(report).command) == ("Call prof.step()", "")


@pytest.mark.parametrize(
    ("detail", "advice", "command"), [("likely", "Record more.", RECORD_MORE), ("prep", "No fix is proposed here.", "")]
)
def test_a_bound_without_a_fix_shows_what_would_settle_it(detail, advice, command):
    report = replace(input_bound(), outcomes=())
    verdict = replace(report.verdict, detail=detail, refuted_by="Record more. In a script, too.", command=command)
    made = first(replace(report, verdict=verdict))
    assert (made.advice, made.command) == (advice, command)


@pytest.mark.parametrize("command", [RECORD, RECORD_MORE])
def test_every_command_that_helps_is_one_that_profilerkit_takes(command):
    name, *words = shlex.split(command)
    assert (name, words[-1]) == ("profilerkit", "train.py")
    taken = argparse.ArgumentParser(exit_on_error=False)
    run.add_arguments(taken)
    assert words[0] == "run"
    taken.parse_args(words[1 : words.index("--")])


@pytest.mark.parametrize("mode", ["logs", "dumps"])
def test_logs_and_snapshots_begin_with_the_command_that_helps(mode):
    report = samples.balanced()
    report = replace(report, trust=replace(report.trust, mode=mode), outcomes=())
    report = replace(report, verdict=replace(report.verdict, bound="memory-bound", command=RECORD))
    made = first(report)
    assert made.headline.startswith("Record the steps")
    assert made.command == RECORD


@pytest.mark.parametrize("bound", ["inconclusive", "input-bound"])
def test_out_of_memory_is_the_headline_with_what_cures_it(bound):
    oom = OutOfMemory(
        device="cuda:0",
        message="CUDA out of memory",
        requested_bytes=1 << 30,
        step=12,
        live=(LiveBytes(kind="activations", bytes=6 << 30),),
        batch_size=64,
        fitting_batch_size=48,
    )
    report = replace(input_bound(), oom=oom)
    report = replace(report, verdict=replace(report.verdict, bound=bound))
    made = first(report)
    assert made.word == "FAILED"
    assert made.headline == "Out of memory on cuda:0 after 12 steps: 1.00 GiB were asked for"
    assert made.advice == "Batch size 64 → 48 or smaller (estimated)"
    assert "activations, 6.00 GiB" in made.because
    said = [line for line in made.lines if report.verdict.headline in line]
    assert bool(said) is (bound != "inconclusive")


BUSY_NS, OWN_NS = 16 * MS, 84 * MS


def beside_others():
    """The report of a step of which other programs took 16 %; the input takes 75 % of the rest."""
    parts = parts_of({"input.prep": 0.63, "compute.math": 0.21, QUEUE: 0.16}, BUSY_NS + OWN_NS)
    report = input_bound()
    times = replace(report.steps.time_ns, mean=BUSY_NS + OWN_NS)
    return replace(report, breakdown=parts, steps=replace(report.steps, time_ns=times))


def test_the_bar_shows_the_step_that_was_judged_and_beside_it_what_other_programs_took():
    *own, taken = first(beside_others()).bars[0].segments
    assert [(piece.label, round(piece.ratio, 4), piece.beside) for piece in own] == [
        ("Input", 0.75, False),
        ("Compute", 0.25, False),
    ]
    assert sum(piece.ratio for piece in own) == pytest.approx(1.0)
    assert (taken.label, taken.time.number, taken.beside) == ("Other programs", BUSY_NS, True)
    assert taken.ratio == pytest.approx(BUSY_NS / OWN_NS), "to the scale of the other pieces"


@pytest.mark.parametrize("output", [html.render, html.render_verdict, markdown.render, terminal.render])
def test_no_output_gives_the_part_of_the_step_a_second_share(output):
    text = spaces(output(beside_others()))
    assert "75 %" in text
    assert "63 %" not in text
    assert "Other programs 16.0 ms" in text
    assert "Times above exclude it" in text


@pytest.mark.parametrize("signal", ["host.thread_queue", "host.pool_queue"])
def test_what_operators_threads_waited_is_not_said_to_be_left_out(signal):
    report = beside_others()
    wait = Evidence("A wait", 0.5, "ratio", "measured", "queues", behind=(signal,))
    busy = Finding(title="A wait: 50 %", bound=None, confidence="high", why="so", evidence=(wait,))
    outcome = Outcome(rule="RU005", name="contended_host", summary="s", status="fired", findings=(busy,))
    said = spaces(terminal.render(replace(report, outcomes=(outcome,))))
    left_in = ", but for what threads of operators wait" if signal == "host.pool_queue" else ""
    assert f"times above exclude it{left_in}. A wait: 50 %." in said


def test_the_table_of_parts_has_the_shares_of_the_bar():
    steps = next(one for one in sections.document(beside_others()).sections if one.id == "steps")
    shares = {row[0]: row[3] for row in steps.blocks[0].rows}
    assert shares["Input wait: preparing samples"].number == pytest.approx(0.75)
    assert shares["Waiting for a processor"] == "left out"
    assert "other programs took" in steps.blocks[0].caption


def test_a_bar_of_pieces_beside_each_other_fills_the_width():
    lines = terminal.render(beside_others(), width=80, ascii_only=True).splitlines()
    bar = next(line for line in lines if line.startswith("#"))
    assert (len(bar), bar.count("-")) == (80, 13)


@pytest.mark.parametrize("output", [html.render, html.render_verdict, markdown.render, terminal.render])
@pytest.mark.parametrize(("detail", "kind"), [("prep", "preparing samples"), ("likely", ""), ("", "")])
def test_the_kind_stands_beside_the_verdict(output, detail, kind):
    report = input_bound()
    text = output(replace(report, verdict=replace(report.verdict, detail=detail)))
    assert ("INPUT-BOUND · preparing samples" in spaces(Page(text).text if "<div" in text else text)) is bool(kind)


@pytest.mark.parametrize(
    ("ending", "word"),
    [
        ("failed", "FAILED"),
        ("killed", "FAILED"),
        ("running", "RUNNING"),
        ("unknown", "INCONCLUSIVE"),
        (None, "INCONCLUSIVE"),
    ],
)
def test_a_run_is_called_failed_by_the_kind_of_its_end_alone(ending, word):
    report = samples.inconclusive()
    said = "What became of it, in words."
    report = replace(report, run=replace(report.run, ended="some words", ending=ending, failure=said))
    made = first(report)
    assert made.word == word
    assert (made.headline == said) is (word != "INCONCLUSIVE")
    assert (f"{report.verdict.headline}." in made.lines) is (word != "INCONCLUSIVE")
    assert (said in made.lines) is (word == "INCONCLUSIVE")
    assert ("analyze the run again" in made.advice) is (word == "RUNNING")
    assert ("what killed the run" in made.advice) is (ending == "killed")
