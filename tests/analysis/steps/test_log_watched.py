"""Saves and compilations that the light tier watched, as the analysis of the steps sees them."""

import numpy as np

from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.steps.table import log_series, log_steps
from profilerkit.rundir.layout import EVENT, EventFlag, EventKind
from tests.recipes import Log


def logged(log):
    return read_log(b"".join(EVENT.pack(*record) for record in log.records), log.names)


def saving(*, flags=0, phase=None):
    """40 steps of 1 ms, each tenth one 0.5 ms longer for a save, perhaps inside a phase."""
    log = Log()
    for number in range(40):
        saves = number % 10 == 9
        start = log.step(1500 if saves else 1000, phase=(phase, 600) if phase and saves else None)
        if saves:
            log.record(EventKind.SAVE, start, 500, flags=flags, name=log.name("torch.save"))
    return logged(log)


def test_a_save_that_no_phase_names_is_a_checkpoint():
    found = saving()
    assert found.phases["other.ckpt"].sum() == 4 * 500_000
    (stall,) = found.stalls
    assert (stall.kind, stall.part, stall.count, stall.period) == ("checkpoint", "other.ckpt", 4, 10)
    assert stall.excess_ns == 500_000


def test_a_save_inside_a_phase_is_the_phases_time():
    found = saving(phase="evaluation")
    assert "other.ckpt" not in found.phases
    assert [stall.kind for stall in found.stalls] == ["evaluation"]


def test_a_save_in_the_background_is_no_time_of_the_step():
    assert "other.ckpt" not in saving(flags=EventFlag.OTHER_THREAD).phases


def test_a_compilation_again_and_again_is_a_stall_with_its_name():
    log = Log()
    for number in range(40):
        compiles = number in (12, 17, 31)
        start = log.step(9000 if compiles else 1000)
        if compiles:
            log.record(EventKind.COMPILE, start, 8000, name=log.name(f"0/{number}"))
    found = logged(log)
    (stall,) = found.stalls
    assert (stall.kind, stall.count, stall.period, stall.source) == ("compile", 3, None, "measured")
    assert stall.excess_ns == 8_000_000


def test_the_first_steps_are_long_because_of_the_compilation():
    log = Log()
    start = log.step(50_000)
    log.record(EventKind.COMPILE, start, 45_000, name=log.name("0/0"))
    log.steps(40, 1000)
    found = logged(log)
    steps = log_steps(found, log_series(found, "input.wait", ()), "the training loop")
    assert np.flatnonzero(found.compiling).tolist() == [0]
    assert steps.warmup.cause == "compilation"
