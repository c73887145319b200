import numpy as np
import pytest

from profilerkit.analysis.communication.table import _micro_batches
from profilerkit.analysis.intervals import Spans
from profilerkit.analysis.ranks.job import compare
from tests.analysis.communication.test_waiting import ranks_of
from tests.recipes import Trace, training


def group(name, description, ranks):
    return {"pg_name": name, "pg_desc": description, "pg_size": len(ranks), "ranks": list(ranks)}


def with_groups(*groups, rank=0, world_size=8, **fields):
    trace = training(6, rank=rank, world_size=world_size, **fields)
    trace.fields["distributedInfo"]["pg_config"] = list(groups)
    return trace


def found(trace):
    return [(entry.name, entry.size, entry.evidence) for entry in trace.facts().parallelism]


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("mesh_tp", "tensor"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("mesh_dp_shard", "sharded data"),
        ("mesh_dp", "data"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("mesh_pp", "pipeline"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
    ],
)
def test_the_description_of_a_group_names_the_dimension_and_its_size(description, name):
    assert found(with_groups(group("3", description, range(4)))) == [(name, 4, f"process group {description}")]


@pytest.mark.parametrize("description", ["default_pg", "undefined", "http", "apply", "step", "", "keep_alive"])
def test_other_descriptions_say_nothing(description):
    assert found(with_groups(group("0", description, range(8)))) == []


def test_a_group_of_one_divides_nothing():
    assert found(with_groups(group("3", "mesh_tp", [0]), group("4", "mesh_dp", range(2)))) == [
        ("data", 2, "process group mesh_dp")
    ]


def test_ddp_alone_divides_the_whole_job():
    trace = training(6, rank=0, world_size=8)
    trace.annotation("DistributedDataParallel.forward", 1_100, 1_200)
    assert found(trace) == [("data", 8, "DistributedDataParallel.forward")]


def test_operators_of_megatron_are_tensor_parallel_in_the_group_of_their_collectives():
    trace = training(6, rank=0, comm=100)
    trace.op(1_100, 1_200, name="_ReduceFromModelParallelRegion")
    trace.op(1_100, 1_200, name="autograd::engine::evaluate_function: _ReduceFromModelParallelRegionBackward")
    assert found(trace) == [("tensor", 2, "_ReduceFromModelParallelRegion")]


def test_sharded_and_replicated_data_are_told_together():
    trace = with_groups(group("1", "mesh_dp_shard", range(4)), group("2", "mesh_dp_replicate", (0, 4)))
    assert {(name, size) for name, size, _ in found(trace)} == {("sharded data", 4), ("data", 2)}


def test_collectives_without_groups_or_names_say_nothing():
    assert found(training(6, comm=200, rank=0, world_size=8)) == []


def pipeline(rank, *, micro=4, stages=4, named=True):
    """A stage that receives and sends once per micro-batch and direction; 40 of every 1,000 µs are exposed."""
    trace = Trace(rank=rank, world_size=stages)
    if named:
        trace.fields["distributedInfo"]["pg_config"] = [group("7", "mesh_pp", range(stages))]
    at = 1_000
    for step in range(8):
        both = 0 < rank < stages - 1
        kinds = ["recv", "send"] * (micro * (2 if both else 1))
        for index, kind in enumerate(kinds):
            start = at + 1_000 * step + 10 * index
            trace.collective(
                start,
                start + 5,
                name="ncclDevKernel_SendRecv",
                elements=8,
                **{"Collective name": kind, "Process Group Name": "7", "Group size": stages},
            )
        busy = at + 1_000 * step + 10 * len(kinds)
        trace.kernel(busy, at + 1_000 * (step + 1))
        trace.step(step, at + 1_000 * step, at + 1_000 * (step + 1))
    return trace


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_pipeline_is_told_with_its_bubble_and_what_its_schedule_leaves(rank):
    (entry,) = pipeline(rank).facts().parallelism
    assert (entry.name, entry.size, entry.micro_batches) == ("pipeline", 4, 4)
    assert entry.schedule_share == pytest.approx(3 / 7)
    assert entry.bubble_share == pytest.approx(0.08 if rank == 1 else 0.04)


def test_transfers_from_rank_to_rank_alone_are_no_pipeline():
    assert pipeline(0, named=False).facts().parallelism == ()


def test_receives_after_the_judged_steps_are_no_micro_batches():
    trace = pipeline(0)
    after = 1_000 + 8 * 1_000
    for index in range(400):
        trace.collective(after + 10 * index, after + 10 * index + 5, elements=8, **{"Collective name": "recv"})
    log, window = trace.facts().collectives, trace.facts().window
    group = trace.facts().meta.groups[0]
    assert _micro_batches(log, group.ranks, 0, Spans(window.start[-1:], window.end[-1:])) == 4


def test_waiting_between_stages_is_not_booked_on_anybody():
    job = compare(ranks_of([pipeline(rank) for rank in range(4)]), 4)
    assert (job.communication.matched, job.late) == (0, ())
    assert all(np.isclose(sum(part.share for part in rank.parts), 1.0) for rank in job.ranks)
