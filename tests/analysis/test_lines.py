"""From sampled stacks to the line that is named."""

import numpy as np
import pytest

from profilerkit.analysis.host.lines import hot_line, line_within, lines_of
from profilerkit.analysis.intervals import Spans
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.rundir.reader import WorkerRecord
from profilerkit.rundir.sampled import StackSample
from tests.recipes import MS, Log, rank_record

GET, DECODE, JOIN = "data.py(12): __getitem__", "data.py(30): decode", "data.py(44): collate"
LOOP = "train.py(9): main"


def at(*lines, count=1, start=0, apart=MS, **fields):
    return [StackSample(t_ns=start + n * apart, lines=lines, **fields) for n in range(count)]


def test_the_innermost_function_that_holds_enough_is_named_with_its_callers():
    line = hot_line([*at(GET, DECODE, count=15), *at(GET, count=5)])
    assert line.frames == (GET, DECODE)
    assert (line.share, line.looks) == (0.75, 20)
    assert line.low < 0.75 < line.high


def test_a_function_called_from_many_lines_is_one_and_its_heaviest_line_is_shown():
    spread = [sample for n in range(20) for sample in at(f"data.py({n // 3}): augment")]
    line = hot_line([*spread, *at(GET, count=10)])
    assert line.frames == ("data.py(0): augment",)
    assert line.share == pytest.approx(20 / 30)


@pytest.mark.parametrize(("there", "elsewhere", "named"), [(4, 0, False), (5, 0, True), (9, 11, False), (11, 9, True)])
def test_a_line_is_named_once_chance_leaves_it_above_a_third(there, elsewhere, named):
    others = [sample for n in range(elsewhere) for sample in at(f"data.py({n}): f{n}")]
    assert (hot_line([*at(GET, count=there), *others]) is not None) is named


def test_the_loop_itself_is_named_for_a_line_of_it_only():
    def loop(line, **fields):
        return at(f"train.py({line}): main", **fields)

    spread = [sample for line in range(20) for sample in loop(line)]
    assert hot_line(spread).share == 1.0
    assert hot_line(spread, of_loop=True) is None
    assert hot_line([*spread, *loop(50, count=30)], of_loop=True).frames == ("train.py(50): main",)


def test_torchs_lines_that_a_late_look_found_are_left_out():
    late = at("autograd/profiler.py(9): __exit__", count=30, place="input", in_torch=True, queued_ns=20 * MS)
    assert hot_line(late) is None
    assert hot_line([*late, *at(GET, count=8, place="input")]).share == 1.0


def test_nothing_is_said_of_looks_without_lines():
    assert hot_line(at(count=50)) is None
    assert hot_line([]) is None


def recorded(stacks, *, log=None, workers=()):
    log = log or Log().steps(100, 10_000, wait=5_000)
    rank = rank_facts("run", None, rank_record(log, stacks=tuple(stacks), workers=workers))
    return rank.record, rank.log


def test_places_are_told_apart():
    stacks = [
        *at(GET, count=30, start=100 * MS, place="input"),
        *at(LOOP, "log.py(3): confusion", count=20, start=200 * MS, held_ns=MS),
        *at("hooks.py(7): histogram", count=10, start=300 * MS, place="hook"),
        *at(LOOP, count=40, start=400 * MS, in_torch=True, held_ns=MS),
    ]
    worker = WorkerRecord(
        pid=7,
        number=0,
        batches=b"",
        stacks=(
            *at(GET, count=10, start=500 * MS, place="input"),
            *at(JOIN, count=30, start=500 * MS, place="collate"),
        ),
    )
    lines = lines_of(*recorded(stacks, workers=(worker,)))
    assert {place: line.frames[-1] for place, line in lines.items()} == {
        "input": GET,
        "workers": JOIN,
        "fetch": GET,
        "collate": JOIN,
        "python": "log.py(3): confusion",
        "calls": LOOP,
        "hook": "hooks.py(7): histogram",
    }
    # What a line calls is its own.
    assert (lines["hook"].share, lines["calls"].share, lines["workers"].share) == (0.1, 0.6, 0.75)


def test_a_wait_in_the_users_line_counts_as_python_and_an_operator_does_not():
    waits = at(LOOP, "client.py(7): get", count=20, start=200 * MS, waits=True)
    computes = at(LOOP, "model.py(3): forward", count=60, start=400 * MS)
    assert lines_of(*recorded([*waits, *computes]))["python"].frames[-1] == "client.py(7): get"
    assert "python" not in lines_of(*recorded(computes))


def test_what_lies_outside_of_the_judged_steps_is_not_looked_at():
    assert lines_of(*recorded(at(GET, count=30, start=5_000 * MS, place="input"))) == {}


def test_few_looks_in_the_judged_steps_leave_those_of_the_warm_up_in():
    log = Log().steps(100, 10_000, wait=5_000)
    early = at(GET, count=20, start=10 * MS, apart=MS // 2, place="input")
    assert lines_of(*recorded(early, log=log))["input"].looks == 20
    many = at(JOIN, count=200, start=300 * MS, apart=MS // 2, place="input")
    assert lines_of(*recorded([*early, *many], log=log))["input"].frames == (JOIN,)


@pytest.mark.parametrize("steps", [1, 2])
def test_hardly_any_steps_are_no_failure(steps):
    lines_of(*recorded(at(GET, count=30, place="input"), log=Log().steps(steps, 10_000, wait=5_000)))


def test_an_unnamed_stop_is_the_line_that_other_steps_do_not_have():
    log = Log()
    for number in range(200):
        log.step(200_000 if number % 10 == 9 else 10_000)
    step = 90 + 200
    stop = [
        sample for n in range(2, 18) for sample in at(LOOP, "train.py(40): sweep", count=3, start=(n * step + 120) * MS)
    ]
    usual = [sample for n in range(2, 18) for sample in at(LOOP, count=4, start=n * step * MS, apart=20 * MS)]
    lines = lines_of(*recorded([*stop, *usual], log=log))
    assert lines["unnamed"].frames[-1] == "train.py(40): sweep"
    everywhere = [sample for n in range(2, 18) for sample in at(LOOP, count=14, start=n * step * MS, apart=20 * MS)]
    assert "unnamed" not in lines_of(*recorded(everywhere, log=log))


def stopping(*lines, **fields):
    """Every tenth of 200 steps is longer by 190 ms, in which 9 looks find ``lines``; all steps run a model."""
    log = Log()
    for number in range(200):
        log.step(200_000 if number % 10 == 9 else 10_000)
    trains = {"count": 1, "in_torch": True}
    stacks = [
        sample
        for n in range(2, 18)
        for start in (n * 290 + 20, n * 290 + 50, n * 290 + 92)
        for sample in at(LOOP, start=start * MS, **trains)
    ]
    stacks += [
        sample
        for n in range(2, 18)
        for sample in at(LOOP, *lines, count=9, start=(n * 290 + 105) * MS, apart=20 * MS, **fields)
    ]
    return lines_of(*recorded(stacks, log=log))


def test_a_stop_that_asks_a_model_is_told_from_one_that_does_not():
    assert stopping("train.py(40): save_all")["unnamed"].frames[-1] == "train.py(40): save_all"
    assert stopping("train.py(40): save_all")["model"].share < 0.1
    assert stopping("ppo.py(40): collect", in_torch=True)["model"].share > 0.9
    assert stopping("ppo.py(40): collect", "ppo.py(7): forward")["model"].share > 0.9


def test_a_phase_that_the_program_names_has_the_line_of_its_own_time():
    log, stacks = Log(), []
    for number in range(100):
        upload = number % 5 == 4
        start = log.step(20_000 if upload else 10_000, phase=("upload artifacts", 10_000) if upload else None)
        stacks += at(LOOP, "up.py(4): upload", start=start * 1_000 + MS) if upload else at(LOOP, start=start * 1_000)
    lines = lines_of(*recorded(stacks, log=log))
    assert lines["phase: upload artifacts"].frames[-1] == "up.py(4): upload"


def test_a_stop_has_the_line_of_its_own_time():
    stacks = [*at(GET, count=10), *at(JOIN, count=10, start=100 * MS)]
    span = Spans(*(np.array([edge * MS]) for edge in (100, 200)))
    assert line_within(stacks, span).frames == (JOIN,)


def test_functions_that_call_each_other_are_named_all_the_same():
    visit, each = "tree.py(3): visit", "tree.py(9): visit_list"
    assert hot_line([*at(visit, each, visit, count=10), *at(each, visit, each, count=10)]) is not None
