"""What the collectives of a trace are made of: traffic, passes, the reducer's own work, engines, details."""

import doctest

import pytest

from profilerkit.analysis.communication import details, registry
from profilerkit.analysis.communication.details import passes_of
from profilerkit.analysis.communication.table import Accumulation
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.ranks.job import compare
from tests.analysis.communication.jobs import job, late
from tests.recipes import AUTOGRAD, GEMM, LOADER_THREAD, SINGLE, US, Trace, replace

NODE = "autograd::engine::evaluate_function: MmBackward0"
LEAF = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
STEPS, STEP = 6, 1_000
#: Steps that are judged: the first one is warm-up, the last one may be cut.
START = 1_000


def steps(fill, *, count=STEPS, **fields):
    """A trace of equal steps of 1,000 µs; ``fill(trace, start of the step, its number)``."""
    trace = Trace(**{"rank": 0, "world_size": 2, **fields})
    for number in range(count):
        fill(trace, START + number * STEP, number)
        trace.step(number, START + number * STEP, START + (number + 1) * STEP)
    return trace


def collective_work(fill, **fields):
    return steps(fill, **fields).facts().collective_work


def passing(trace, at, *, forward=100, backward=200, reduce=0, elements=1 << 20, tid=AUTOGRAD):
    """One pass on a device: forward and backward kernels of their lengths, and a reduction right after them."""
    for offset in (0, 10):
        trace.op(at + offset, at + offset + 8, name="aten::linear")
    trace.kernel(at + 10, at + forward, launch=(at + 2, at + 6))
    node = at + 30
    trace.op(node, node + 20, name=NODE, tid=tid)
    trace.kernel(at + forward, at + forward + backward, launch=(node + 2, node + 6), tid=tid)
    if reduce:
        trace.op(node + 20, node + 40, name=LEAF, tid=tid)
        trace.op(node + 22, node + 38, name="c10d::allreduce_", tid=tid)
        start = at + forward + backward
        trace.collective(start, start + reduce, launch=(node + 24, node + 28), tid=tid, elements=elements)
    return at + forward + backward + reduce


def test_traffic_is_told_by_kind_type_and_size():
    def fill(trace, at, _):
        trace.kernel(at, at + 400, launch=(at, at + 4))
        trace.collective(at + 300, at + 500, elements=20_000_000)  # 80 MB
        trace.collective(at + 500, at + 510, elements=1_000)
        trace.collective(at + 510, at + 530, elements=1_000)
        trace.collective(at + 530, at + 600)

    large, unknown, small = sorted(collective_work(fill).traffic, key=lambda row: -row.transfer_ns)
    assert (large.kind, large.size, large.dtype, large.group_size) == ("all_reduce", "large", "Float", 2)
    assert (large.per_step, large.bytes_per_step) == (1.0, 80_000_000.0)
    assert (large.transfer_ns, large.exposed_ns) == (200 * US, 100 * US)
    assert (small.size, small.per_step, small.bytes_per_step) == ("small", 2.0, 8_000.0)
    assert (small.transfer_ns, small.median_ns) == (30 * US, 15 * US)
    assert (unknown.size, unknown.dtype, unknown.bytes_per_step) == (None, None, None)


@pytest.mark.parametrize(
    ("elements", "size"),
    [(249_999, "small"), (250_000, "middle"), (15_999_999, "middle"), (16_000_000, "large")],
)
def test_sizes_turn_at_one_and_at_sixty_four_megabytes(elements, size):
    (only,) = collective_work(lambda trace, at, _: trace.collective(at, at + 50, elements=elements)).traffic
    assert only.size == size


def test_a_groups_description_says_what_it_divides():
    def fill(trace, at, _):
        trace.collective(at, at + 50, elements=1 << 20, **{"Process Group Name": "1"})
        trace.collective(at + 50, at + 90, elements=1 << 20, **{"Process Group Name": "0"})

    trace = steps(fill)
    trace.fields["distributedInfo"]["pg_config"] = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    ]
    assert [row.dimension for row in trace.facts().collective_work.traffic] == ["tensor", None]


def test_a_trace_without_collectives_has_no_traffic():
    found = collective_work(lambda trace, at, _: trace.kernel(at, at + 100, launch=(at, at + 4)))
    assert (found.traffic, found.exposed_ns, found.floor_ns) == ((), 0.0, None)
    assert found.step_ns == STEP * US


def compared(traces):
    ranks = [rank_facts(f"rank{n}", trace.facts(), None) for n, trace in enumerate(traces)]
    return compare(ranks, len(traces)).ranks


def test_once_ranks_are_matched_waiting_is_no_transfer():
    traces = job(2, 10, python=late(1, 500), transfer=200, group=lambda _: "0", numbered=True)
    alone = rank_facts("rank0", traces[0].facts(), None).trace.collective_work
    first, last = (rank.trace.collective_work for rank in compared(traces))
    assert alone.traffic[0].transfer_ns == pytest.approx(700 * US)
    assert (alone.traffic[0].bus_bytes_per_s, alone.floor_ns) == (None, None)
    assert first.traffic[0].transfer_ns == first.transfer_ns == pytest.approx(200 * US)
    assert first.traffic[0].exposed_ns == first.exposed_ns == pytest.approx(200 * US)
    assert last.traffic[0].transfer_ns == pytest.approx(200 * US)
    # 4 MiB all-reduced by two ranks: the bus carries as much.
    assert first.traffic[0].bus_bytes_per_s == pytest.approx((1 << 22) / 200e-6)


def test_the_latency_floor_is_that_of_tiny_transfers():
    traces = job(2, 10, transfer=30, group=lambda _: "0", numbered=True, elements=100)
    assert compared(traces)[0].trace.collective_work.floor_ns == 30 * US


def test_what_rules_read_is_the_judged_ranks():
    traces = job(2, 10, transfer=200, group=lambda _: "0", numbered=True)
    found = Facts([rank_facts(f"rank{n}", trace.facts(), None) for n, trace in enumerate(traces)])
    assert found.collective_work.traffic[0].transfer_ns == pytest.approx(200 * US)


# the backward pass


def test_kernels_launched_inside_autograd_nodes_are_the_backward_pass():
    def fill(trace, at, _):
        passing(trace, at, forward=100, backward=200, reduce=150)
        trace.op(at + 500, at + 510)
        trace.kernel(at + 500, at + 600, launch=(at + 501, at + 504))  # the optimizer

    assert collective_work(fill).backward_alone_ns == 200 * US


def test_what_runs_beside_a_collective_is_not_left_to_hide_behind():
    def fill(trace, at, _):
        passing(trace, at, forward=100, backward=200)
        trace.collective(at + 250, at + 400, elements=1 << 20)

    assert collective_work(fill).backward_alone_ns == 150 * US


def test_on_a_host_operators_inside_autograd_nodes_are_the_backward_pass():
    def fill(trace, at, _):
        trace.op(at, at + 100, name="aten::mm")
        trace.op(at + 100, at + 300, name=NODE)
        trace.op(at + 110, at + 290, name="aten::mm")
        trace.gloo(at + 250, at + 500)

    assert collective_work(fill, backend="gloo").backward_alone_ns == 140 * US


@pytest.mark.parametrize(("ends", "hidden_us"), [(500, 200), (480, 0)])
def test_on_a_host_a_collective_that_is_waited_for_hides_behind_the_wait_for_data(ends, hidden_us):
    """One that ends while something is computed has time to spare: a shorter wait for data makes nobody wait for it."""

    def fill(trace, at, _):
        trace.event(SINGLE, "user_annotation", at, at + 300)
        trace.op(at + 300, at + 490, name="aten::mm")
        trace.gloo(at + 100, at + ends)

    assert collective_work(fill, backend="gloo").under_input_ns == hidden_us * US


def test_a_trace_without_autograd_shows_no_backward_pass():
    found = collective_work(lambda trace, at, _: trace.collective(at, at + 50, elements=1 << 20))
    assert (found.backward_alone_ns, found.passes, found.accumulation) == (None, None, None)


def accumulating(passes, *, sizes=None, between=None):
    """Steps of several passes, each with one reduction; ``between(trace, at)`` is called after each but the last."""

    def fill(trace, at, _):
        for number in range(passes):
            at = passing(trace, at, forward=50, backward=60, reduce=40, elements=(sizes or [1 << 20] * passes)[number])
            if between is not None and number < passes - 1:
                between(trace, at)

    return fill


@pytest.mark.parametrize("passes", [2, 4])
def test_each_of_several_passes_that_reduces_the_same_repeats_it(passes):
    found = collective_work(accumulating(passes))
    assert found.passes == passes
    assert found.accumulation == Accumulation(
        passes=passes,
        reductions=1,
        early_ns=(passes - 1) * 40 * US,
        early_exposed_ns=(passes - 1) * 40 * US,
        transfer_ns=passes * 40 * US,
    )


def test_a_single_pass_repeats_nothing():
    found = collective_work(accumulating(1))
    assert (found.passes, found.accumulation) == (1, None)


def test_passes_that_reduce_different_sizes_are_of_different_models():
    found = collective_work(accumulating(2, sizes=[1 << 20, 1 << 19]))
    assert (found.passes, found.accumulation) == (2, None)


def test_passes_between_which_an_optimizer_steps_are_training_of_their_own():
    found = collective_work(accumulating(2, between=lambda trace, at: trace.optimizer(at - 30, at - 20)))
    assert (found.passes, found.accumulation) == (2, None)


def test_an_optimizer_after_the_last_pass_changes_nothing():
    def fill(trace, at, number):
        accumulating(2)(trace, at, number)
        trace.optimizer(at + 400, at + 450)

    assert collective_work(fill).accumulation is not None


def test_a_pass_that_reduces_nothing_makes_the_other_no_repetition():
    def fill(trace, at, _):
        at = passing(trace, at, forward=50, backward=60)
        passing(trace, at, forward=50, backward=60, reduce=40)

    found = collective_work(fill)
    assert (found.passes, found.accumulation) == (2, None)


def test_the_threads_of_a_loader_end_no_pass():
    def fill(trace, at, _):
        passing(trace, at, forward=50, backward=60, reduce=40)
        trace.op(at + 70, at + 90, name=LEAF, tid=AUTOGRAD)
        for offset in range(50, 70, 2):
            trace.op(at + offset, at + offset + 1, name="aten::copy_", tid=LOADER_THREAD)

    assert collective_work(fill).passes == 1


def test_reductions_before_the_backward_pass_hold_activations():
    def fill(trace, at, _):
        trace.op(at, at + 4, name="c10d::allreduce_")
        trace.collective(at + 5, at + 9, launch=(at + 1, at + 2), elements=1 << 20)
        passing(trace, at + 10, reduce=40)

    assert collective_work(fill).before_backward_ratio == pytest.approx(0.5)
    assert collective_work(accumulating(2)).before_backward_ratio == 0.0


def micro_steps(*, last_alone=False):
    """Steps of one micro-batch each on a host, of which every third steps the optimizer."""

    def fill(trace, start, number):
        trace.op(start, start + 10, name="aten::linear")
        trace.op(start + 10, start + 20, name="aten::linear")
        trace.op(start + 30, start + 130, name=NODE)
        if number % 3 == 2 or not last_alone:
            trace.op(start + 131, start + 139, name="c10d::allreduce_")
            trace.gloo(start + 100, start + 160)
        if number % 3 == 2:
            trace.optimizer(start + 200, start + 300)

    return collective_work(fill, count=11)


def test_micro_batches_that_are_steps_are_counted_per_optimizer_step():
    found = micro_steps()
    assert (found.passes, found.accumulation.passes, found.accumulation.reductions) == (3, 3, 1)
    # Two of three passes reduce for nothing, and each step is a third of an optimizer step.
    assert found.accumulation.early_ns == pytest.approx(40 * US)


def test_micro_batches_that_do_not_reduce_repeat_nothing():
    found = micro_steps(last_alone=True)
    assert (found.passes, found.accumulation) == (3, None)


def test_accumulation_on_a_host_is_seen_as_well():
    def fill(trace, at, _):
        for number in range(2):
            start = at + 400 * number
            for offset in (0, 10, 20):
                trace.op(start + offset, start + offset + 9, name="aten::mm")
            trace.op(start + 30, start + 130, name=NODE)
            trace.op(start + 40, start + 60, name="c10d::allreduce_")
            trace.gloo(start + 60, start + 160)

    found = collective_work(fill, backend="gloo")
    assert found.passes == 2
    # 70 of the 100 µs run beside the autograd node.
    assert (found.accumulation.early_ns, found.accumulation.early_exposed_ns) == (100 * US, 30 * US)


def test_without_judged_steps_no_pass_is_counted():
    columns = steps(accumulating(2)).read()
    facts = steps(accumulating(2)).facts()
    empty = replace(facts.window, start=facts.window.start[:0], end=facts.window.end[:0])
    assert passes_of(columns, empty).count is None


# gathers


def test_the_later_half_of_the_gathers_is_the_second_time():
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

    def fill(trace, at, _):
        trace.kernel(at + 100, at + 300, launch=(at, at + 4))
        for start, end in ((0, 50), (50, 120), (250, 320), (320, 400)):
            trace.collective(
                at + start, at + end, name=gather, elements=1 << 20, **{"Collective name": "_allgather_base"}
            )

    found = collective_work(fill)
    assert found.second_gathers_exposed_ns == 100 * US


# the reducer


def test_the_reducers_searches_count_while_the_device_idles_and_its_copies_by_their_kernels():
    def fill(trace, at, _):
        trace.op(at, at + 60, name=SEARCH)
        trace.kernel(at + 40, at + 200, launch=(at + 30, at + 34))
        trace.op(at + 200, at + 220, name=COPY_BACK)
        trace.kernel(at + 230, at + 260, launch=(at + 205, at + 210))
        trace.kernel(at + 260, at + 300, launch=(at + 225, at + 228))

    found = collective_work(fill).reducer
    assert (found.searches, found.search_ns) == (1.0, 40 * US)
    assert (found.copies, found.copy_ns) == (1.0, 30 * US)


def test_on_a_host_the_reducers_events_count_whole():
    def fill(trace, at, _):
        trace.op(at, at + 60, name=SEARCH)
        trace.op(at + 100, at + 130, name=COPY_BACK)
        trace.op(at + 130, at + 160, name=COPY_BACK)

    found = collective_work(fill).reducer
    assert (found.search_ns, found.copies, found.copy_ns) == (60 * US, 2.0, 60 * US)


def test_without_its_events_nothing_is_said_of_the_reducer():
    assert collective_work(accumulating(1)).reducer is None


# engines


def test_data_parallel_is_told_by_its_forward_pass_and_costs_what_its_moves_expose():
    def fill(trace, at, _):
        trace.annotation("DataParallel.forward", at, at + 300)
        trace.op(at, at + 100, name="Broadcast")
        trace.kernel(at + 100, at + 250, launch=(at + 50, at + 60))
        trace.op(at + 200, at + 300, name="Gather")

    found = collective_work(fill).engine
    assert (found.name, found.exposed_ns) == ("DataParallel", 150 * US)


def test_gloo_that_reduces_for_a_device_costs_what_it_exposes():
    def fill(trace, at, _):
        trace.kernel(at, at + 200, launch=(at, at + 4))
        trace.gloo(at + 100, at + 500)

    found = collective_work(fill, backend="gloo").engine
    assert (found.name, found.exposed_ns) == ("gloo", 300 * US)
    assert collective_work(fill, backend="nccl").engine is None


def test_gloo_beside_collectives_of_the_device_and_ddp_are_no_wrong_engine():
    def fill(trace, at, _):
        trace.annotation("DistributedDataParallel.forward", at, at + 300)
        trace.collective(at, at + 100, elements=1 << 20)
        trace.gloo(at + 100, at + 200)

    assert collective_work(fill).engine is None


def test_gloo_on_a_host_is_the_right_engine():
    assert collective_work(lambda trace, at, _: trace.gloo(at, at + 100), backend="gloo").engine is None


# contention


def multiplied(trace, at, start, end, *, dims=((512, 512), (512, 512)), name=GEMM):
    """A kernel launched by an operator of this shape."""
    launch = at + start // 10
    trace.op(launch, launch + 8, name="aten::mm", dims=[list(shape) for shape in dims])
    trace.kernel(at + start, at + end, launch=(launch + 2, launch + 6), name=name)


def test_kernels_beside_a_collective_are_compared_with_the_same_ones_alone():
    def fill(trace, at, _):
        multiplied(trace, at, 100, 200)
        multiplied(trace, at, 200, 300)
        multiplied(trace, at, 300, 430)
        trace.collective(at + 300, at + 450, elements=1 << 20)

    found = collective_work(fill).contention
    assert found.groups == 1
    assert (found.usual_ns, found.excess_ns, found.beside_ns) == (100 * US, 30 * US, 130 * US)
    judged = found.kernels
    assert judged == steps(fill).facts().n_steady


@pytest.mark.parametrize(
    "fill",
    [
        # nothing of the same shape alone
        lambda trace, at, _: multiplied(trace, at, 300, 430),
        # another shape alone
        lambda trace, at, _: (multiplied(trace, at, 100, 200, dims=((8, 8), (8, 8))), multiplied(trace, at, 300, 430)),
        # too short to share anything but latency
        lambda trace, at, _: (multiplied(trace, at, 100, 105), multiplied(trace, at, 300, 309)),
        # less than half beside it
        lambda trace, at, _: (multiplied(trace, at, 100, 200), multiplied(trace, at, 200, 390)),
    ],
)
def test_what_cannot_be_compared_is_not(fill):
    def both(trace, at, number):
        fill(trace, at, number)
        trace.collective(at + 300, at + 450, elements=1 << 20)

    assert collective_work(both).contention is None


def test_without_shapes_one_name_is_not_compared_with_itself():
    def fill(trace, at, _):
        trace.kernel(at + 100, at + 200, launch=(at + 10, at + 14))
        trace.kernel(at + 300, at + 430, launch=(at + 20, at + 24))
        trace.collective(at + 300, at + 450, elements=1 << 20)

    assert collective_work(fill).contention is None


def test_a_collective_that_slows_nothing_has_no_excess():
    def fill(trace, at, _):
        multiplied(trace, at, 100, 200)
        multiplied(trace, at, 300, 390)
        trace.collective(at + 300, at + 450, elements=1 << 20)

    assert collective_work(fill).contention.excess_ns == 0.0


def test_each_shape_is_compared_with_itself():
    def fill(trace, at, _):
        for number, took in enumerate((40, 80, 120)):
            shape = ((took, took), (took, took))
            multiplied(trace, at, 10 + 150 * number, 10 + 150 * number + took, dims=shape)
            # A tenth more beside the collective.
            multiplied(trace, at, 500 + 150 * number, 500 + 150 * number + took + took // 10, dims=shape)
        trace.collective(at + 495, at + 945, elements=1 << 20)

    found = collective_work(fill).contention
    assert (found.groups, found.usual_ns, found.excess_ns) == (3, 240 * US, 24 * US)


def test_examples_of_the_docstrings_hold():
    for module in (details, registry):
        assert doctest.testmod(module).failed == 0
