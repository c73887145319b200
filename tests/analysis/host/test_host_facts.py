"""Collections, stretches of Python, and compilations: by timers and in constructed traces."""

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.host_facts import collection_facts, compiles_of_log
from profilerkit.analysis.job_facts import host_facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.rundir.layout import EventKind
from tests.analysis.workers.test_anatomy import rank
from tests.recipes import MS, US, Log, Trace, training

# Collections


def test_collections_of_steady_steps_are_counted():
    log = Log()
    log.step(10_000, collect=5_000)  # warm-up
    for number in range(20):
        log.step(10_000, collect=2_000 if number % 2 else 0)
    log.record(EventKind.GC, 30_000, 500, 0)
    found = collection_facts(log.data, read_log(log.data, log.names))
    assert found.per_step == pytest.approx(11 / 20)
    assert found.pause_ns == pytest.approx((10 * 2 * MS + MS // 2) / 11)
    assert (found.longest_ns, found.full) == (2 * MS, 10)


def test_no_collections_are_zero_because_they_were_watched():
    log = Log().steps(10, 1_000)
    found = collection_facts(log.data, read_log(log.data, log.names))
    assert (found.per_step, found.pause_ns, found.longest_ns, found.full) == (0.0, 0.0, 0, 0)
    assert host_facts(None, None, None).collections is None


# Python


def stretched(python, frame="train.py(7): update_metrics"):
    trace = training(6, python=python)
    at = 1_000
    for _ in range(6):
        if frame and python:
            trace.frame(frame, at, at + python - 10)
        at += python + 10 + 10 * 100
    return trace


def test_long_stretches_of_python_are_told_with_the_function_that_holds_them():
    found = stretched(3_000).facts().python
    assert found.per_step == pytest.approx(1.0)
    assert found.frames == ("train.py(7): update_metrics",)
    assert found.frames_ratio > 0.9
    assert 2_900_000 < found.longest_ns[1] - found.longest_ns[0] <= 3_010_000


def test_without_stacks_no_function_is_named():
    found = stretched(3_000, frame="").facts().python
    assert (found.frames, found.frames_ratio) == ((), None)


def test_gaps_of_a_millisecond_between_operators_are_no_stretches():
    assert stretched(900).facts().python is None


# Phases


def phased(optimizer="optimizer_step"):
    """Steps of 1,000 µs: forward waits 100 µs for its host, backward 50 and the optimizer 150."""
    trace = Trace()
    for number in range(6):
        at = 1_000 + 1_000 * number
        trace.annotation("forward", at, at + 200)
        trace.op(at, at + 98)
        trace.kernel(at + 100, at + 300, launch=(at + 97, at + 98))
        trace.annotation("loss.backward()", at + 300, at + 400)
        trace.op(at + 300, at + 348)
        trace.kernel(at + 350, at + 500, launch=(at + 347, at + 348))
        trace.annotation(optimizer, at + 500, at + 700)
        trace.op(at + 500, at + 648)
        trace.kernel(at + 650, at + 1_000, launch=(at + 647, at + 648))
        trace.step(number, at, at + 1_000)
    return trace


@pytest.mark.parametrize("name", ["optimizer_step", "opt", "Optimizer.step#SGD.step"])
def test_waiting_for_the_host_is_told_by_the_phases_that_the_program_names(name):
    found = {phase.name: phase.idle_ns for phase in phased(name).facts().phases}
    assert found == {
        "optimizer": pytest.approx(150_000),
        "backward": pytest.approx(50_000),
        "forward": pytest.approx(100_000),
    }


def test_a_phase_within_another_counts_once():
    trace = phased()
    trace.annotation("forward", 1_000, 7_000)
    found = {phase.name: phase.idle_ns for phase in trace.facts().phases}
    assert sum(found.values()) == pytest.approx(300_000)
    assert found["optimizer"] == pytest.approx(150_000)


def test_without_ranges_of_phases_none_is_told():
    assert training(6).facts().phases == ()


def test_launching_is_told_by_phase(tmp_path):
    report = analyze(phased().write(tmp_path / "trace.json"))
    found = next(finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "OV001")
    told = {entry.label: entry.value for entry in found.evidence if entry.label.startswith("Waiting for the host")}
    assert told == {
        "Waiting for the host in the optimizer step": pytest.approx(0.15),
        "Waiting for the host in the backward pass": pytest.approx(0.05),
        "Waiting for the host in the forward pass": pytest.approx(0.10),
    }


# Compilations


def compiled(log, at, length, number):
    log.record(EventKind.COMPILE, at, length, 0, name=log.name(number))


def test_compilations_in_steady_steps_are_measured():
    log = Log()
    compiled(log, 100, 800, "0/0")
    log.step(1_000)
    for number in range(20):
        long = number in (8, 14)
        if long:
            compiled(log, log.at + 100, 5_000, f"0/{1 + number // 10}")
        log.step(7_000 if long else 1_000)
    found = compiles_of_log(log.data, log.names, read_log(log.data, log.names))
    # What is compiled runs slowly at first: for 1 ms here.
    assert (found.share, found.longer) == pytest.approx((10 / 32, 12 / 32))
    assert (found.steps, found.of, found.regions, found.recompiled) == (2, 20, 1, ("0/1", "0/2"))
    assert found.source == "measured"
    facts = Facts([rank_facts("rank_00000", None, rank(log))])
    assert facts.host.compiles == found


def test_the_guard_that_fails_most_stands_first():
    log = Log()
    compiled(log, 100, 800, "0/0")
    log.step(1_000)
    for number in range(20):
        if number in (8, 12, 14):
            guard = "len(L['x']) == 3" if number == 8 else f"L['w'] == 0.{number}"
            compiled(log, log.at + 100, 5_000, f"0/{number} {guard}")
        log.step(6_000 if number in (8, 12, 14) else 1_000)
    found = compiles_of_log(log.data, log.names, read_log(log.data, log.names))
    assert found.guards == ("L['w'] == 0.12", "len(L['x']) == 3")
    assert found.recompiled == ("0/8", "0/12", "0/14")


def test_of_a_guard_of_any_length_the_beginning_is_kept():
    log = Log()
    for number in range(20):
        if number > 10:
            compiled(log, log.at + 100, 5_000, f"0/{number} {'L' * 5_000}")
        log.step(6_000 if number > 10 else 1_000)
    found = compiles_of_log(log.data, log.names, read_log(log.data, log.names))
    assert [len(guard) for guard in found.guards] == [200]


def test_the_first_compilation_is_warm_up():
    log = Log()
    compiled(log, 100, 800, "0/0")
    compiled(log, 900, 50, "1/0")
    log.steps(10, 1_000)
    found = compiles_of_log(log.data, log.names, read_log(log.data, log.names))
    assert (found.share, found.steps, found.regions, found.recompiled) == (0.0, 0, 2, ())


def test_a_run_that_compiles_nothing_says_nothing():
    log = Log().steps(10, 1_000)
    assert compiles_of_log(log.data, log.names, read_log(log.data, log.names)) is None
    assert training().facts().compiles is None


def recompiling(compiles=(), *, steps=10, regions=("0/0",)):
    """A CPU-only trace in which these steps compile for 8 ms of 9."""
    trace, at = Trace(), 0
    for number in range(steps):
        length = 9_000 if number in compiles else 1_000
        if number in compiles:
            trace.op(at, at + 8_000, name="_compile.compile_inner (dynamo_timed)")
        for region in regions:
            trace.op(at + length - 900, at + length - 100, name=f"Torch-Compiled Region: {region}")
        trace.step(number, at, at + length)
        at += length
    return trace


def test_steps_that_compile_once_the_others_have_settled_count_though_they_are_not_judged():
    facts = recompiling((4, 7), regions=("0/0", "0/2", "1/0")).facts()
    assert list(facts.steps.state).count("compile") == 2
    found = facts.compiles
    # Of eight steps from the second to the last but one, six of 1 ms and two of 9, 16 ms compile.
    assert found.share == pytest.approx(16 / 24)
    assert (found.steps, found.of, found.regions, found.recompiled) == (2, 8, 2, ("0/2",))
    assert found.source == "derived"


def test_compiling_before_the_first_steady_step_is_not_compiling_again():
    found = recompiling((0, 1)).facts().compiles
    assert (found.share, found.steps) == (0.0, 0)


def test_a_region_that_runs_is_not_compiling():
    found = recompiling().facts().compiles
    assert (found.share, found.steps, found.regions, found.recompiled) == (0.0, 0, 1, ())


# Threads


def test_threads_are_those_of_the_rank():
    log = Log().steps(10, 1_000)
    assert host_facts(rank(log, threads=12), read_log(log.data, {}), None).threads == 12
    assert host_facts(rank(log), read_log(log.data, {}), None).threads is None


def loaded(*fetches_of_a_step):
    """A trace of steps whose fetches take these times, in µs."""
    trace, at = Trace(), 1_000
    for number, fetches in enumerate(fetches_of_a_step):
        began = at
        for fetch in fetches:
            trace.loader(at, at + fetch)
            at += fetch + 100
        trace.op(at, at + 10_000, name="aten::mm")
        at += 10_000
        trace.step(number, began, at)
    return trace


@pytest.mark.parametrize(
    ("closing", "opening", "renewed", "fires"),
    [(20_000, 300_000, True, "IN011"), (50, 300_000, False, None)],
    ids=["new workers", "kept workers"],
)
def test_an_epoch_that_opens_with_new_workers_in_a_trace_is_no_case_for_more_of_them(
    tmp_path, closing, opening, renewed, fires
):
    trace = loaded(*([closing, opening + 200] if number % 8 == 0 and number else [200] for number in range(32)))
    epochs = trace.facts().epochs
    assert (epochs.count, epochs.renewed) == (3, renewed)
    assert epochs.opening_ns == pytest.approx((closing + opening) * US)
    report = analyze(trace.write(tmp_path / "trace.json"))
    loading = [entry.rule for entry in report.outcomes if entry.findings and entry.rule in ("IN001", "IN002", "IN011")]
    assert loading == ([fires] if fires else [])


@pytest.mark.parametrize(
    "steps",
    [[[30_000, 25_000]] * 16, [[30_000, 100]] * 16, [[5_000, 6_000] if n % 6 == 5 else [5_000] for n in range(32)]],
    ids=["batches accumulated", "two loaders", "dropped batches"],
)
def test_steps_that_take_two_batches_open_no_epoch(steps):
    assert loaded(*steps).facts().epochs is None
