import doctest
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis import whatif
from profilerkit.analysis.whatif import cheaper_input, faster_kernels, fused_chain, loader_fix, saving
from profilerkit.model.run import Loader
from tests.recipes import INPUT, STEP_NS, facts

quick = settings(max_examples=60, deadline=None, derandomize=True)
ratios = st.floats(0, 1)


def loading(share, *, workers=None, cores=None, cpu=None, single=None):
    """A step that waits ``share`` of its time for a loader with ``workers`` processes."""
    return facts(
        {"input.wait": share},
        input=replace(INPUT, cpu_ratio=cpu, single_process=single),
        loader=None if workers is None else Loader(kind="DataLoader", num_workers=workers),
        usable_cores=cores,
    )


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(whatif).failed == 0


@quick
@given(st.floats(-1, 2), st.floats(-1, 2), st.floats(0, 0.2))
def test_a_saving_is_ordered_and_never_above_its_bound_or_the_step(expected, bound, noise):
    value = saving(facts(step_error_ns=noise * STEP_NS), expected, bound)
    assert 0.0 <= value.low <= value.expected <= value.high <= 1.0
    assert value.high <= max(bound, 0.0)


def test_the_low_end_allows_for_model_error_and_step_noise():
    quiet = saving(facts(), 0.2, 0.5)
    assert quiet.low == pytest.approx(0.2 - 1.64 * 0.25 * 0.2)
    noisy = saving(facts(step_error_ns=0.03 * STEP_NS), 0.2, 0.5)
    assert noisy.low == pytest.approx(0.2 - 1.64 * (0.03**2 + 0.05**2) ** 0.5)


def test_a_main_process_that_loads_half_of_the_step_is_replaced_by_workers():
    fix = loader_fix(loading(0.5, workers=0))
    # Producing takes as long as computing: one worker would just keep up, 1.2 of them do so with a margin.
    assert (fix.current, fix.workers, fix.limited_by) == (0, 2, "compute")
    assert fix.expected == pytest.approx(0.5)


def test_busy_workers_deliver_one_batch_per_step_however_many_they_are():
    fix = loader_fix(loading(0.5, workers=4))
    # P = 4 steps per batch and worker; to deliver one per half a step takes 8, with the margin 9.6.
    assert (fix.current, fix.workers, fix.limited_by) == (4, 10, "compute")
    assert fix.expected == pytest.approx(0.5)


def test_workers_are_not_asked_for_beyond_the_cores():
    fix = loader_fix(loading(0.5, workers=4, cores=6.0))
    assert (fix.workers, fix.limited_by) == (6, "workers")
    assert fix.expected == pytest.approx(1 - 4 / 6)


def test_with_all_cores_in_use_more_workers_save_nothing():
    fix = loader_fix(loading(0.5, workers=4, cores=4.0))
    assert (fix.workers, fix.expected) == (4, 0.0)


def test_without_a_known_core_count_at_most_sixteen_workers_are_proposed():
    fix = loader_fix(loading(0.9, workers=8))
    assert fix.workers == 16
    assert fix.expected == pytest.approx(0.5)


def test_cpu_work_does_not_shrink_when_it_moves_to_other_processes():
    # 70 of 100 ms of pure CPU work and 30 of computing on two cores: (70 + 30) / 2 = 50 ms.
    fix = loader_fix(loading(0.7, workers=0, cores=2.0, cpu=1.0))
    assert fix.limited_by == "cores"
    assert fix.expected == pytest.approx(0.5)


def test_on_a_single_core_workers_that_compute_save_nothing():
    assert loader_fix(loading(0.5, workers=0, cores=1.0, cpu=1.0)).expected == 0.0


def test_on_a_single_core_workers_that_only_wait_save_the_wait():
    assert loader_fix(loading(0.5, workers=0, cores=1.0, cpu=0.0)).expected == pytest.approx(0.5)


def test_a_single_process_iterator_has_no_workers():
    assert loader_fix(loading(0.5, single=True)).current == 0


def test_without_a_measured_wait_there_is_no_loader_to_fix():
    assert loader_fix(replace(loading(0.5), input=None)) is None


@quick
@given(st.floats(0.0, 0.99), st.integers(0, 32) | st.none(), st.floats(0.5, 128) | st.none(), st.none() | ratios)
def test_no_loader_fix_saves_more_than_the_wait_or_takes_workers_away(share, workers, cores, cpu):
    fix = loader_fix(loading(share, workers=workers, cores=cores, cpu=cpu))
    assert 0.0 <= fix.expected <= share + 1e-9
    assert fix.workers >= max(1, workers or 0)


@quick
@given(st.floats(0.05, 0.6), st.floats(0.0, 0.3))
def test_the_saving_of_workers_does_not_grow_with_another_cause(share, other):
    alone = facts({"input.wait": share}, loader=Loader(kind="DataLoader", num_workers=0))
    # The same wait in ns, in a step that is longer by another serial cause.
    longer = 1.0 + other
    shares = {"input.wait": share / longer, "over.python": other / longer}
    beside = facts(shares, loader=Loader(kind="DataLoader", num_workers=0))
    assert loader_fix(beside).expected <= loader_fix(alone).expected + 1e-9


def test_halving_the_cost_of_a_batch_saves_half_the_wait():
    assert cheaper_input(facts({"input.prep": 0.3, "input.fetch": 0.1, "input.h2d": 0.2})) == pytest.approx(0.2)


@quick
@given(ratios, st.floats(0.1, 100))
def test_faster_kernels_save_less_than_their_share_and_never_cost(share, speed_up):
    assert 0.0 <= faster_kernels(share, speed_up) <= share


@quick
@given(ratios, st.floats(0, 100))
def test_fusing_saves_less_than_the_chain_and_never_costs(share, length):
    assert 0.0 <= fused_chain(share, length) <= share
