"""What other programs take of the processors is the machine's, and changes nothing of what is said of the program."""

import pytest

from profilerkit.analysis.rank_facts import ready_ratio
from profilerkit.analysis.workers.capacity import contended, quiet
from profilerkit.analysis.workers.queue import LoadingFacts, QueueFacts
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model import revise
from profilerkit.model.run import Loader, Series
from profilerkit.model.step import QUEUE
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from tests.recipes import INPUT, STEP_NS, facts, made, replace, steps
from tests.rules.test_rules import on_host
from tests.test_diagnosis import outcome

#: A replay of the queue, whatever is in it.
LOADING = LoadingFacts(queue=QueueFacts(20, 0.0, {}, {}, 0.0, 0.0))
FED_IN_LINE = Loader(kind="DataLoader", num_workers=0)


def cores(own, name="host.process_cores"):
    return (Series(name=name, unit="count", n=9, mean=own, p10=own, p90=own, maximum=own),)


def beside_others(queued, *, own=0.4, **known):
    """A loop that loads in line for 60 % of its step, ``queued`` of which it waits for a processor."""
    seen = replace(INPUT, single_process=True, cpu_ratio=0.9 * (1 - queued), queue_ratio=queued)
    parts = {"input.prep": 0.6, "compute.other": 0.4}
    usual = {"input": seen, "loader": FED_IN_LINE, "usable_cores": 4.0, "world_size": 1, "samples": cores(own)}
    return on_host(parts, steps=steps(queued_ratio=queued), **{**usual, **known})


def judged(known):
    program = quiet(contended(known))
    return diagnose(program, run_rules(program, RULES))


@pytest.mark.parametrize("queued", [0.0, 0.2, 0.45, 0.7])
def test_the_verdict_on_the_program_is_the_same_however_busy_the_machine_is(queued):
    found, alone = judged(beside_others(queued)), judged(beside_others(0.0))
    assert (found.bound, found.detail) == (alone.bound, alone.detail) == ("input-bound", "prep")
    assert found.saving.expected == pytest.approx(alone.saving.expected, abs=0.05)
    assert ("This machine is busy" in found.consequence) is (queued > 0)


def test_the_queue_is_a_part_of_the_recorded_step_and_no_part_of_the_programs():
    known = contended(beside_others(0.45))
    assert known.share(QUEUE) == pytest.approx(0.45)
    assert sum(part.share for part in known.parts) == pytest.approx(1.0)
    assert sum(part.time_ns for part in known.parts) == pytest.approx(known.mean_step_ns, rel=1e-6)
    assert known.ranks[known.judged_rank].breakdown == known.parts
    program = quiet(known)
    assert program.share(QUEUE) == 0.0
    assert program.share("input.prep") == pytest.approx(0.6)
    assert program.mean_step_ns == pytest.approx(0.55 * known.mean_step_ns)


@pytest.mark.parametrize(
    "known",
    [
        beside_others(0.01),
        beside_others(0.45, own=3.9),
        beside_others(0.45, samples=()),
        beside_others(0.45, usable_cores=None),
        beside_others(0.45, world_size=2, host_ranks=2),
        beside_others(0.45, world_size=2, host_ranks=2, samples=(*cores(3.0), *cores(3.9, "host.sibling_cores"))),
        replace(beside_others(0.45), mode="gpu"),
        facts({"input.wait": 0.3}),
    ],
    ids=[
        "hardly",
        "its own load",
        "not sampled",
        "cores unknown",
        "ranks of one host that are not sampled",
        "their own load",
        "a device works on",
        "no timers",
    ],
)
def test_where_others_are_not_known_to_hold_the_processors_nothing_changes(known):
    assert contended(known) is known
    assert quiet(known) is known


def test_the_queue_of_one_of_several_ranks_is_taken_off_what_it_does_itself():
    """The ranks use 0.8 of their host's 8 cores; what this one waits for the other in collectives stays."""
    sampled = (*cores(0.4), *cores(0.4, "host.sibling_cores"))
    parts = {"over.python": 0.4, "compute.other": 0.2, "comm.skew": 0.4}
    usual = {"usable_cores": 4.0, "world_size": 2, "host_ranks": 2, "samples": sampled}
    known = contended(on_host(parts, steps=steps(queued_ratio=0.3), **usual))
    assert known.share(QUEUE) == pytest.approx(0.3)
    assert known.share("over.python") == pytest.approx(0.2)
    assert known.share("comm.skew") == pytest.approx(0.4)
    assert known.ranks[known.judged_rank].breakdown == known.parts


def test_steps_slow_beside_others_are_not_told_as_the_programs():
    known = contended(beside_others(0.45))
    slow = revise(known.steps, slow=None)
    assert quiet(known).steps.slow == slow.slow


def test_a_thread_that_waits_for_a_processor_is_not_blocked_on_reading():
    assert ready_ratio(0.2, 0.6) == pytest.approx(0.8)
    assert ready_ratio(0.9, 0.6) == 1.0


@pytest.mark.parametrize(("pool", "left"), [(None, 0.4), (0.2, 0.22), (0.9, 0.025)])
def test_unexplained_time_in_which_the_pool_queues_is_the_machines(pool, left):
    """The calm traced steps explain the rest: what queues makes other steps longer.

    The training thread spins until a thread of the pool is on a core.
    """
    queue = (
        ()
        if pool is None
        else (Series(name="host.pool_queue", unit="ratio", n=9, mean=pool, p10=0.0, p90=1.0, maximum=1.0),)
    )
    parts = {"compute.math": 0.5, "idle.unknown": 0.5}
    known = on_host(parts, steps=steps(queued_ratio=0.1), usable_cores=4.0, world_size=1, samples=(*cores(0.4), *queue))
    assert contended(known).share("idle.unknown") == pytest.approx(left)
    assert contended(known).share("compute.math") == pytest.approx(0.5)
    bound = judged(known).bound
    assert bound == ("inconclusive" if pool is None else bound)
    assert bound == ("compute-bound" if pool == 0.9 else bound)


def test_a_queue_beyond_what_is_unexplained_is_in_all_else_alike():
    parts = {"compute.math": 0.6, "over.python": 0.3, "idle.unknown": 0.1}
    known = contended(on_host(parts, steps=steps(queued_ratio=0.32), usable_cores=4.0, samples=cores(0.4)))
    assert known.share("idle.unknown") == pytest.approx(0.005)
    assert known.share("compute.math") / known.share("over.python") == pytest.approx(2.0)
    assert known.share(QUEUE) == pytest.approx(0.32)


@pytest.mark.parametrize(("taken", "bound"), [(0.0, "balanced"), (0.099, "balanced"), (0.1, "compute-bound")])
def test_on_a_busy_machine_a_small_saving_does_not_decide_whether_kernels_own_the_step(taken, bound):
    known = on_host({"compute.math": 0.8, "over.python": 0.2}, taken=taken)
    found = diagnose(known, [outcome("overhead-bound", 0.07)])
    assert (found.bound, found.contenders) == (bound, ("overhead-bound",))


@pytest.mark.parametrize("seen", [None, 0.1])
def test_a_queue_that_the_waits_do_not_tell_is_borne_by_all_parts_alike(seen):
    known = beside_others(0.6, input=replace(INPUT, single_process=True, queue_ratio=seen))
    assert quiet(contended(known)).share("input.prep") == pytest.approx(0.6)


def test_some_of_a_step_is_the_programs_however_long_it_queues():
    parts = [revise(part, share=1.0) for part in beside_others(1.0).parts if part.part == "input.prep"]
    program = quiet(contended(replace(beside_others(1.0), parts=tuple(parts))))
    assert program.mean_step_ns
    assert not [outcome for outcome in run_rules(program, RULES) if outcome.status == "error"]


@pytest.mark.parametrize(("core", "left"), [(0.08, 0.56), (0.9, 0.15)])
def test_a_wait_that_the_queue_of_the_workers_does_not_explain_stays(core, left):
    """One worker makes a batch in half of a step, slow ones make the loop wait: its queue bears its own part."""
    one = made(STEP_NS // 2, count=1, core=core, fetch=1.0 - core)
    known = beside_others(0.0, workers=one, loader=Loader(kind="DataLoader", num_workers=1))
    known = replace(known, steps=steps(queued_ratio=0.0), input=replace(known.input, cpu_ratio=0.1, queue_ratio=0.5))
    assert contended(known).share("input.prep") == pytest.approx(left)
    assert (quiet(replace(contended(known), loading=LOADING)).loading.queue is None) is (core > 0.1)


@pytest.mark.parametrize(("queued", "is_kept"), [(0.0, True), (0.05, True), (0.2, False)])
def test_a_replay_of_traced_steps_that_queued_tells_nothing_of_the_program(queued, is_kept):
    known = replace(beside_others(queued), replay=object())
    assert (quiet(contended(known)).replay is not None) is is_kept
