import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis import whatif
from profilerkit.analysis.whatif import (
    CROWDED_RATIO,
    HANDOVER_NS,
    at_most,
    consumer_ns,
    fused_chain,
    loader_fix,
    saving,
    slowed,
    waited_share,
    workers_busy,
)
from profilerkit.model import revise
from profilerkit.model.run import Loader, Series
from profilerkit.model.step import SlowSteps
from profilerkit.rules.input.loader import cheaper_input
from tests.recipes import INPUT, STEP_NS, facts, made, replace, steps

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
@given(st.floats(-1, 2), st.floats(-1, 2))
def test_a_saving_is_ordered_and_never_above_its_bound_or_the_step(expected, bound):
    for value in (saving(expected, bound), at_most(bound, expected)):
        assert 0.0 <= value.low <= value.expected <= value.high <= 1.0
        assert value.expected <= max(bound, 0.0)


@quick
@given(st.floats(0, 1), st.floats(0, 1))
def test_what_is_known_only_to_be_at_most_so_much_is_not_expected_to_be_all_of_it(expected, bound):
    value = at_most(bound, expected)
    assert value.expected == min(expected, bound / 2)
    assert (value.low, value.high, value.method) == (0.0, bound, "bound")


@quick
@given(st.floats(0, 1), st.floats(0.1, 1))
def test_a_host_that_the_profiler_slows_saves_less_and_never_less_than_its_part_of_the_time(share, ratio):
    low = slowed(saving(share, share), ratio).low
    assert ratio * share - 1e-9 <= low <= share + 1e-9


def test_a_main_process_that_loads_half_of_the_step_is_replaced_by_workers():
    fix = loader_fix(loading(0.5, workers=0))
    # Producing takes as long as computing: one worker would just keep up, 1.2 of them do so with a margin.
    assert (fix.current, fix.workers, fix.limited_by) == (0, 2, "compute")
    assert fix.expected == pytest.approx(0.5 - HANDOVER_NS / STEP_NS)


def test_each_batch_of_a_step_is_handed_over_by_itself():
    """Four micro-batches of 1.6 ms each, in a process beside the loop, were 9 and 43 % slower on two cores."""
    known = loading(0.5, workers=0)
    four = replace(known, input=replace(known.input, fetches=4 * known.steps.steady, source="measured"))
    assert loader_fix(four).expected == pytest.approx(max(0.5 - 4 * HANDOVER_NS / STEP_NS, 0.0))


@pytest.mark.parametrize(("count", "workers"), [(5, 5), (6, 1)])
def test_workers_are_sized_on_the_usual_step_and_not_on_pauses_that_nothing_names(count, workers):
    # Of a mean of 100 ms the step takes 10 and the batch 40; a few steps take the rest.
    known = facts({"input.wait": 0.4, "idle.unknown": 0.5}, input=replace(INPUT, cpu_ratio=0.1), usable_cores=8.0)
    slow = SlowSteps(count=count, excess_ns=10 * STEP_NS, share=0.5, first=9, last=90)
    known = replace(known, loader=Loader(kind="DataLoader", num_workers=0))
    fix = loader_fix(replace(known, steps=revise(steps(100), slow=slow)))
    assert fix.workers == workers
    assert fix.expected == pytest.approx(0.4 - HANDOVER_NS / STEP_NS)


def test_no_more_of_the_time_of_slow_steps_is_a_pause_than_nothing_names():
    # Of a mean of 100 ms slow steps hold 50, of which 20 are idle for what nothing names: the usual step takes 40.
    shares = {"input.wait": 0.4, "idle.unknown": 0.2, "compute.math": 0.4}
    known = facts(shares, input=replace(INPUT, cpu_ratio=0.1), usable_cores=8.0)
    slow = SlowSteps(count=5, excess_ns=10 * STEP_NS, share=0.5, first=9, last=90)
    known = replace(known, loader=Loader(kind="DataLoader", num_workers=0), steps=revise(steps(100), slow=slow))
    assert consumer_ns(known, STEP_NS) == pytest.approx(0.4 * STEP_NS)
    assert loader_fix(known).workers == 2


@pytest.mark.parametrize(("count", "busy"), [(5, 0.9), (6, 0.45)])
def test_workers_are_as_busy_as_beside_pauses_that_nothing_names(count, busy):
    # In half of the time the training stands still, and they with it as soon as they are far enough ahead.
    slow = SlowSteps(count=count, excess_ns=10 * STEP_NS, share=0.5, first=9, last=90)
    known = facts({"input.wait": 0.4, "idle.unknown": 0.5}, workers=made(busy_ratio=0.45), usable_cores=16.0)
    known = replace(known, loader=Loader(kind="DataLoader", num_workers=4), steps=revise(steps(100), slow=slow))
    assert workers_busy(known) == pytest.approx(busy)
    assert (loader_fix(known) is not None) is (busy == 0.9)


@pytest.mark.parametrize(
    ("part", "cores", "single", "saved"),
    [
        ("input.prep", 4.0, None, 0.484),  # it takes 1.6 ms of 100 to hand it over
        # It computes: on a single core it would only move.
        ("input.prep", 1.0, None, 0.0),
        # What is blocked may take batches that another thread makes, and batches of a loader have its workers.
        ("input.fetch", 4.0, None, None),
        ("input.wait", 4.0, None, None),
        ("input.prep", 4.0, False, None),
    ],
)
def test_batches_that_the_training_thread_computes_may_be_made_in_workers(part, cores, single, saved):
    known = facts({part: 0.5}, input=replace(INPUT, cpu_ratio=None, single_process=single), usable_cores=cores)
    fix = loader_fix(replace(known, loader=None))
    assert (fix and pytest.approx(fix.expected)) == saved
    assert fix is None or fix.current == 0


def test_a_batch_that_takes_no_longer_than_its_hand_over_stays_where_it_is():
    def saved(made_ns):
        known = facts(
            {"input.prep": made_ns / STEP_NS},
            input=replace(INPUT, cpu_ratio=None, single_process=None),
            usable_cores=4.0,
        )
        return loader_fix(replace(known, loader=None)).expected

    assert saved(HANDOVER_NS) == 0.0
    assert saved(2 * HANDOVER_NS) == pytest.approx(HANDOVER_NS / STEP_NS)


@pytest.mark.parametrize(("prepared", "is_priced"), [(0.251, True), (0.249, False)])
def test_most_of_the_wait_has_to_be_computed_to_be_made_in_workers(prepared, is_priced):
    shares = {"input.prep": prepared, "input.fetch": 0.5 - prepared}
    known = facts(shares, input=replace(INPUT, cpu_ratio=None, single_process=None), usable_cores=4.0)
    assert (loader_fix(replace(known, loader=None)) is not None) is is_priced


@pytest.mark.parametrize("cores", [1.5, 4.0])
def test_a_batch_computed_in_line_that_was_not_timed_keeps_a_core_busy(cores):
    known = facts({"input.prep": 0.5}, input=replace(INPUT, cpu_ratio=None, single_process=None), usable_cores=cores)
    known = replace(known, loader=None)
    timed = replace(known, input=replace(known.input, cpu_ratio=1.0))
    half = replace(known, input=replace(known.input, cpu_ratio=0.5))
    assert loader_fix(known) == loader_fix(timed)
    assert loader_fix(half).expected >= loader_fix(known).expected


@pytest.mark.parametrize(("queued", "helps"), [(CROWDED_RATIO - 0.001, True), (CROWDED_RATIO, False)])
def test_batches_are_not_moved_off_a_thread_that_queues_for_a_core(queued, helps):
    known = facts({"input.prep": 0.5}, input=replace(INPUT, cpu_ratio=None, single_process=None), usable_cores=4.0)
    known = replace(known, loader=None, steps=revise(known.steps, queued_ratio=queued))
    assert (loader_fix(known) is not None) is helps
    full = Series(name="host.cpu", unit="ratio", n=9, mean=0.95, p10=0.9, p90=1.0, maximum=1.0)
    assert loader_fix(replace(known, samples=(full,))) is None


def test_busy_workers_deliver_one_batch_per_step_however_many_they_are():
    fix = loader_fix(loading(0.5, workers=4))
    # P = 4 steps per batch and worker; to deliver one per half a step takes 8, with the margin 9.6.
    assert (fix.current, fix.workers, fix.limited_by) == (4, 10, "compute")
    assert fix.expected == pytest.approx(0.5)


def test_workers_are_not_asked_for_beyond_the_cores():
    # 80 ms of computing for 20 of the step need 4.8 workers: three cores are enough for three of them.
    fix = loader_fix(loading(0.8, workers=0, cores=3.0, cpu=1.0))
    assert (fix.workers, fix.limited_by) == (3, "cores")


@pytest.mark.parametrize(("cpu", "workers"), [(1.0, 2), (0.51, 2), (0.5, 8), (0.0, 8), (None, 8)])
def test_a_core_carries_four_workers_that_are_blocked_and_one_that_computes(cpu, workers):
    # 90 ms of loading for 10 of the step ask for 10.8 workers.
    assert loader_fix(loading(0.9, workers=0, cores=2.0, cpu=cpu)).workers == workers


def test_more_workers_than_cores_help_a_loader_that_waits():
    fix = loader_fix(loading(0.5, workers=4, cores=4.0))
    assert (fix.workers, fix.expected) == (10, pytest.approx(0.5))


@pytest.mark.parametrize(("workers", "cores"), [(16, None), (4, 1.0), (20, 64.0)])
def test_where_no_more_workers_can_be_asked_for_there_is_no_fix(workers, cores):
    assert loader_fix(loading(0.5, workers=workers, cores=cores)) is None


def test_where_the_number_of_workers_is_not_known_there_is_no_fix():
    assert loader_fix(loading(0.5, workers=None)) is None
    assert loader_fix(replace(loading(0.5), loader=Loader(kind="MosaicLoader", num_workers=None))) is None


@pytest.mark.parametrize(
    ("signal", "mean", "full"),
    [
        ("host.cpu", 0.9, True),
        ("host.cpu", 0.899, False),
        ("host.cpu_pressure", 0.4, True),
        ("host.cpu_pressure", 0.399, False),
    ],
)
def test_a_full_host_has_no_core_for_more_workers(signal, mean, full):
    series = Series(name=signal, unit="ratio", n=9, mean=mean, p10=mean, p90=mean, maximum=mean)
    known = replace(loading(0.5, workers=4, cores=8.0), samples=(series,))
    assert (loader_fix(known) is None) is full
    # Without workers the main process is what fills the host: the work only moves.
    assert loader_fix(replace(known, loader=Loader(kind="DataLoader", num_workers=0))) is not None


def test_without_a_known_core_count_at_most_sixteen_workers_are_proposed():
    fix = loader_fix(loading(0.9, workers=8))
    assert fix.workers == 16
    assert fix.expected == pytest.approx(0.5)


def test_cpu_work_does_not_shrink_when_it_moves_to_other_processes():
    # 70 of 100 ms of pure CPU work and 30 of computing on two cores: (70 + 30) / 2 = 50 ms, and half a hand-over.
    fix = loader_fix(loading(0.7, workers=0, cores=2.0, cpu=1.0))
    assert fix.limited_by == "cores"
    assert fix.expected == pytest.approx(0.5 - HANDOVER_NS / STEP_NS / 2)


def test_on_a_single_core_workers_that_compute_save_nothing():
    assert loader_fix(loading(0.5, workers=0, cores=1.0, cpu=1.0)).expected == 0.0


def test_on_a_single_core_workers_that_only_wait_save_the_wait():
    assert loader_fix(loading(0.5, workers=0, cores=1.0, cpu=0.0)).expected == pytest.approx(
        0.5 - HANDOVER_NS / STEP_NS
    )


def test_a_single_process_iterator_has_no_workers():
    assert loader_fix(loading(0.5, single=True)).current == 0


def test_without_a_measured_wait_there_is_no_loader_to_fix():
    assert loader_fix(replace(loading(0.5), input=None)) is None


@quick
@given(st.floats(0.0, 0.99), st.integers(0, 32) | st.none(), st.floats(0.5, 128) | st.none(), st.none() | ratios)
def test_no_loader_fix_saves_more_than_the_wait_or_takes_workers_away(share, workers, cores, cpu):
    fix = loader_fix(loading(share, workers=workers, cores=cores, cpu=cpu))
    if fix is None:
        return
    assert 0.0 <= fix.expected <= share + 1e-9
    assert workers is not None
    assert fix.workers > workers == fix.current


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
@given(ratios, st.floats(0, 100))
def test_fusing_saves_less_than_the_chain_and_never_costs(share, length):
    assert 0.0 <= fused_chain(share, length) <= share


def test_time_in_the_queue_for_a_processor_is_not_a_wait_for_data():
    known = loading(0.5, workers=0, cores=8.0)
    assert waited_share(known) == pytest.approx(0.5)
    queued = replace(known, input=replace(known.input, queue_ratio=0.19))
    assert waited_share(queued) == pytest.approx(0.5 * 0.81)
    assert loader_fix(queued).expected < loader_fix(known).expected
    assert cheaper_input(queued) == pytest.approx(0.81 * cheaper_input(known))


def test_a_loading_thread_that_queues_for_a_core_gets_no_worker_proposed():
    known = loading(0.5, workers=0, cores=8.0)
    assert loader_fix(replace(known, input=replace(known.input, queue_ratio=0.199))) is not None
    assert loader_fix(replace(known, input=replace(known.input, queue_ratio=0.2))) is None
