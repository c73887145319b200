"""The lines that sampled stacks find: which rules name them, and how."""

import pytest

from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.steps.wall_clock import Pause
from profilerkit.model.finding import CodeLine
from tests.recipes import S, facts, made, replace
from tests.rules.test_overhead_rules import python
from tests.rules.test_rules import alone, finding, stalling, worked

GET = "data.py(31): __getitem__"


def hot(*frames, share=0.83):
    return HotLine(frames=frames or (GET,), share=share, low=share - 0.1, high=share + 0.1, looks=60)


def with_lines(known, **lines):
    return replace(known, lines=lines)


@pytest.mark.parametrize(
    ("rule", "parts", "place"),
    [("IN006", {"fetch": 0.8}, "fetch"), ("IN007", {"prep": 0.9}, "fetch"), ("IN008", {"collate": 0.6}, "collate")],
)
def test_what_workers_do_is_told_by_its_line(rule, parts, place):
    found = finding(rule, with_lines(worked(0.4, made(**parts)), **{place: hot()}))
    assert "__getitem__ (data.py:31)" in found.fix.text
    assert "83 % of" in found.why
    (told,) = [entry for entry in found.evidence if "__getitem__ (data.py:31)" in entry.label]
    assert (told.value, told.n, told.low, told.high) == (0.83, 60, pytest.approx(0.73), pytest.approx(0.93))
    assert "data.py" not in finding(rule, worked(0.4, made(**parts))).fix.text


@pytest.mark.parametrize("rule", ["IN001", "IN003"])
def test_a_wait_for_workers_is_told_by_the_line_of_all_their_time(rule):
    found = finding(rule, with_lines(worked(0.4, made(prep=0.6, fetch=0.4)), workers=hot()))
    assert "83 % of the time of workers is spent in __getitem__ (data.py:31)." in found.why
    assert any(entry.label == "Workers' time in __getitem__ (data.py:31)" for entry in found.evidence)


def test_a_wait_on_the_training_thread_is_told_by_its_line_with_its_interval():
    known = alone(0.4)
    waits = replace(known.input, frames=(GET,), frames_ratio=0.83)
    found = finding("IN002", with_lines(replace(known, input=waits), input=hot()))
    assert found.title.endswith("most of it in __getitem__ (data.py:31)")
    (told,) = [entry for entry in found.evidence if entry.label == "Input wait in __getitem__ (data.py:31)"]
    assert (told.n, told.low) == (60, pytest.approx(0.73))
    assert told.origin == "sampled stacks: __getitem__ (data.py:31)"
    assert found.line == CodeLine("data.py", 31, "__getitem__")


def test_a_hook_that_holds_much_of_the_step_is_called_less_often():
    hook = hot("track.py(12): histogram", share=0.5)
    found = finding("OV005", with_lines(python(), hook=hook))
    assert found.fix.text.startswith("Call histogram (track.py:12) less often")
    assert "as a hook" in found.why
    small = finding("OV005", with_lines(python(), hook=hot("track.py(12): histogram", share=0.02)))
    assert "histogram" not in small.fix.text


def test_an_evaluation_is_told_by_its_line():
    pause = Pause(
        kind="evaluation", count=4, run_count=4, time_ns=S // 2, share=0.5, steps=40, steps_apart=10.0, line=hot()
    )
    found = finding("RU002", facts(pauses=(pause,)))
    assert "Or make it cheaper in __getitem__ (data.py:31)." in found.fix.text
    assert "83 % of one is spent in __getitem__ (data.py:31)." in found.why


def test_a_stop_without_a_name_is_told_by_its_line():
    unnamed = stalling(0.1, kind="unnamed", part=None, source="derived")
    found = finding("RU002", with_lines(unnamed, unnamed=hot("train.py(40): sweep")))
    assert found.fix.text == "Move sweep (train.py:40) off the loop, or make it rarer."
    assert finding("RU002", unnamed).fix.text.startswith("Name what runs there")


def test_a_stop_with_a_line_may_be_the_rollout_of_a_loop_without_a_loader():
    unnamed = replace(stalling(0.1, kind="unnamed", part=None, source="derived"), input=None)
    lines = {"unnamed": hot("ppo.py(123): act"), "model": hot("ppo.py(123): act")}
    text = finding("RU002", with_lines(unnamed, **lines)).fix.text
    assert text.startswith("Move act (ppo.py:123) off the loop")
    assert text.endswith("A rollout is training: make it faster instead.")


def test_a_stop_that_runs_no_model_is_told_by_its_line_and_as_no_rollout():
    unnamed = replace(stalling(0.5, kind="unnamed", part=None, source="derived"), input=None)
    found = finding("RU002", with_lines(unnamed, unnamed=hot("train.py(6): save_all")))
    assert found.title == "save_all (train.py:6) stops training for 300 ms every 10 steps"
    assert found.fix.text == "Move save_all (train.py:6) off the loop, or make it rarer."


def test_a_phase_that_the_program_names_is_told_by_that_name_and_its_line():
    known = stalling(0.2, kind="upload artifacts", part="other.phase")
    plain = finding("RU002", known).fix
    assert (plain.text, plain.code) == ('Run "upload artifacts" every 10 → 20 steps, or move it off the loop.', "")
    found = finding("RU002", replace(known, lines={"phase: upload artifacts": hot("up.py(4): upload")}))
    assert found.fix.text.endswith("or move upload (up.py:4) off the loop.")
    assert found.line == CodeLine("up.py", 4, "upload")
    assert found.title.startswith("Upload artifacts stops training")
