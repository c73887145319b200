"""Rules about the loader's workers: what they advise, and what they keep the user from."""

import pytest

from profilerkit.analysis.job_facts import HostFacts
from profilerkit.analysis.whatif import HANDOVER_NS, cheaper_batch, loader_fix
from profilerkit.analysis.workers.capacity import contended, quiet
from profilerkit.analysis.workers.queue import LoadingFacts
from profilerkit.model import revise
from profilerkit.model.memory import Memory
from profilerkit.model.run import Loader, Series
from profilerkit.model.step import QUEUE
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed
from tests.recipes import INPUT, MS, STEP_NS, facts, made, replace
from tests.rules.test_rules import JUST, check, ended, finding, worked

GB = 10**9
TWO = Loader(kind="DataLoader", num_workers=2)


def series(name, mean, maximum=None):
    return Series(name=name, unit="ratio", n=9, mean=mean, p10=mean, p90=mean, maximum=maximum or mean)


def test_the_proposal_follows_from_the_measured_rates():
    found = finding("IN003", worked(0.4, made(250 * MS, count=4, fetch=0.4)))
    assert "num_workers 4 → 5" in found.fix.text  # 1.2 · 250 ms of work / 60 ms of step
    assert "4 workers, always busy: 250 ms of work per step, 60.0 ms of other time" in found.title


def test_several_batches_per_step_ask_for_as_many_times_the_workers():
    found = finding("IN003", worked(0.4, made(125 * MS, fetch=0.4, batches_per_step=2.0)))
    assert "num_workers 4 → 5" in found.fix.text


@pytest.mark.parametrize(
    ("cores", "parts", "proposed"),
    [(6.0, {"fetch": 0.4}, "4 → 6"), (2.0, {"fetch": 0.9}, "4 → 8"), (100.0, {"fetch": 0.9}, "4 → 8")],
)
def test_workers_that_compute_are_capped_by_cores_and_sleeping_ones_hardly(cores, parts, proposed):
    known = worked(0.4, made(cpu_cores=0.5, **parts), usable_cores=cores)
    assert proposed in finding("IN003", known).fix.text


def test_what_caps_the_proposal_is_said():
    text = finding("IN003", worked(0.4, made(fetch=0.4, cpu_cores=2.0), usable_cores=6.0)).fix.text
    assert "The rates ask for 8; the usable cores allow no more." in text


def test_memory_caps_the_proposal():
    workers = made(fetch=0.4, memory_bytes=4 * GB, batch_bytes=GB)
    room = {
        "samples": (series("host.memory_used", 70 * GB),),
        "memory": Memory(host_capacity_bytes=100 * GB),
        "loader": Loader(kind="DataLoader", num_workers=4, prefetch_factor=6),
    }
    text = finding("IN003", worked(0.4, workers, **room)).fix.text  # 20 GB of 90 % are free, each takes 10 GB
    assert "num_workers 4 → 6" in text
    assert "free memory allows no more" in text
    full = {**room, "samples": (series("host.memory_used", 85 * GB),)}
    assert ended("IN003", worked(0.4, workers, **full)) is Passed
    group = (series("host.cgroup_memory_limit", 50 * GB), series("host.process_memory", 10 * GB))
    unknown = {**room, "samples": (*room["samples"], *group)}  # what the workers hold of the group's memory
    assert "num_workers 4 → 8" in finding("IN003", worked(0.4, workers, **unknown)).fix.text
    limited = {**room, "samples": (*room["samples"], *group, series("host.worker_memory", 20 * GB))}
    assert "num_workers 4 → 5" in finding("IN003", worked(0.4, workers, **limited)).fix.text  # 15 GB of 90 % are free
    full = {**limited, "samples": (*limited["samples"][:-1], series("host.worker_memory", 30 * GB))}
    assert ended("IN003", worked(0.4, workers, **full)) is Passed


@pytest.mark.parametrize(
    ("workers", "cores", "samples", "why"),
    [
        (made(core=0.3), 16.0, (), "a batch computes 280 ms and waits 120 ms for a core"),
        (made(), 4.7, (), "the workers keep 4 of 4.7 usable cores busy"),
        (made(cpu_cores=1.0), 3.0, (), "4 workers compute on 3 usable cores"),
        (made(), 16.0, (series("host.cpu_throttled", 0.05),), "the CPU quota stops the processes 5.0 % of the time"),
        (made(queued=False), 16.0, (series("host.cpu_pressure", 0.2),), "processes wait for a core 20 % of the time"),
        (made(queued=False), 16.0, (series("host.cpu", 0.9),), "the host's cores are 90 % busy"),
        (made(fetch=0.6, locked_ratio=0.5), 16.0, (), "a blocked worker waited for a lock 50 % of the times"),
        (made(active=2.99), 16.0, (), "on average only 3 of 4 workers still had data"),
    ],
)
def test_no_worker_is_added_where_it_would_not_help(workers, cores, samples, why):
    known = worked(0.4, workers, usable_cores=cores, samples=samples)
    result = check("IN003", known)
    assert isinstance(result, Passed)
    assert result.reason.startswith("more workers are not what is missing: ")
    assert why in result.reason
    assert loader_fix(known) is None
    assert "num_workers 4 →" not in str(check("IN001", known))


@pytest.mark.parametrize(
    ("workers", "cores", "samples"),
    [
        (made(core=0.16), 16.0, ()),
        (made(active=3.01), 16.0, ()),
        (made(core=0.3, fetch=0.2), 16.0, ()),
        (made(), 4.8, ()),
        (made(fetch=0.4, cpu_cores=1.0), 3.0, ()),
        (made(), 16.0, (series("host.cpu_throttled", 0.05 - JUST), series("host.cpu_pressure", 0.9))),
        (made(queued=False), 16.0, (series("host.cpu_pressure", 0.2 - JUST),)),
    ],
)
def test_a_host_with_room_is_not_called_full(workers, cores, samples):
    assert ended("IN005", worked(0.4, workers, usable_cores=cores, samples=samples)) is Passed


def test_a_full_host_says_whose_load_it_is():
    own = finding("IN005", worked(0.4, made(), usable_cores=4.0))
    assert (own.detail, own.confidence) == ("prep", "high")
    assert "Halve what a batch computes" in own.fix.text
    held = finding("IN005", worked(0.4, made(core=0.5), usable_cores=16.0))
    assert (held.detail, held.confidence) == ("wait", "high")
    assert "more cores or a higher CPU quota" in held.fix.text


def test_without_run_queue_times_a_full_host_is_less_sure():
    known = worked(0.4, made(queued=False), usable_cores=8.0, samples=(series("host.cpu", 0.95),))
    assert finding("IN005", known).confidence == "medium"


@pytest.mark.parametrize(
    ("read", "stored", "confidence", "word"),
    [
        (1 << 16, 1 << 15, "high", "local copy"),
        (1 << 16, (1 << 15) - 1, "medium", "local copy"),
        (1 << 16, None, "medium", "local copy"),
        ((1 << 16) - 1, (1 << 16) - 1, "low", "shared lock"),
        (None, None, "low", "shared lock"),
    ],
)
def test_storage_is_named_only_where_bytes_come_from_it(read, stored, confidence, word):
    found = finding("IN006", worked(0.4, made(fetch=0.8, read_bytes=read, storage_bytes=stored)))
    assert found.confidence == confidence
    assert word in found.fix.text


def test_a_lock_is_named_where_workers_were_seen_at_one():
    found = finding("IN006", worked(0.4, made(fetch=0.8, locked_ratio=0.5)))
    assert "waiting for a lock" in found.title
    assert found.confidence == "high"
    assert "one file handle or connection per worker" in found.fix.text


def test_blocked_workers_that_are_idle_are_not_what_the_step_waits_for():
    assert ended("IN006", worked(0.4, made(fetch=0.8, busy_ratio=0.9))) is Fired
    idle = check("IN006", worked(0.4, made(fetch=0.8, busy_ratio=0.9 - JUST)))
    assert isinstance(idle, Passed)
    assert "the workers are busy 90 %" in idle.reason


def test_what_workers_wait_for_may_be_shared_and_is_less_sure():
    assert finding("IN003", worked(0.4, made(fetch=0.5 - JUST))).confidence == "high"
    found = finding("IN003", worked(0.4, made(fetch=0.5)))
    assert found.confidence == "medium"
    assert "such as a lock" in found.confirm


def test_the_saving_of_a_faster_batch_ends_where_the_step_itself_begins():
    # 4 workers, 400 ms of which half is read twice as fast: a batch every 75 ms instead of 100.
    assert finding("IN006", worked(0.4, made(fetch=0.5))).saving.expected == pytest.approx(0.25)
    assert finding("IN007", worked(0.1, made())).saving.expected == pytest.approx(0.1)


def test_waiting_of_threads_for_a_core_is_not_the_hand_over():
    arriving = made(waited_ratio={"arriving": 0.9})
    assert ended("IN008", worked(0.4, arriving)) is Passed
    from tests.recipes import replace

    known = worked(0.4, arriving)
    known = replace(known, input=replace(known.input, cpu_ratio=0.6))
    assert "on their way" in str(check("IN008", known))


@pytest.mark.parametrize("code", ["IN003", "IN005", "IN006", "IN007", "IN008"])
def test_a_loader_that_nobody_waits_for_is_left_alone(code):
    assert ended(code, worked(0.03 - JUST, made(core=0.3))) is Passed


def test_the_same_change_is_not_listed_twice():
    listed = [
        result.findings[0].fix
        for code in ("IN001", "IN003", "IN007")
        if isinstance(result := check(code, worked(0.4, made())), Fired)
    ]
    assert [fix.text[:11] if fix else None for fix in listed] == [None, "num_workers", "Halve the c"]


def test_idle_workers_are_not_asked_for_more():
    workers = made(busy_ratio=0.4)
    assert "idle 60 %" in check("IN003", worked(0.4, workers)).reason
    assert loader_fix(worked(0.4, workers)) is None
    slow = made(4 * 59 * MS)
    assert "takes longer" in check("IN003", worked(0.4, slow)).reason
    assert STEP_NS == 100 * MS


def test_rules_about_workers_end_as_they_should_without_any():
    assert ended("IN003", worked(0.4, None)) is MissingData
    assert ended("IN003", worked(0.4, None, loader=Loader(kind="DataLoader", num_workers=0))) is NotApplicable


def crowded(mean=2.0, core=0.4, **options):
    """Four workers on two cores whose batches take half a core, and whose processes take ``mean``."""
    sampled = {"samples": (series("host.worker_cores", mean),), "host": HostFacts(threads=1)}
    return worked(0.6, made(300 * MS, core=core, fetch=0.4, cpu_cores=0.5), usable_cores=2.0, **sampled, **options)


def beside_others(queued, own=1.0, cpu_cores=0.2, **known):
    """Two workers on two cores whose batches wait ``queued`` of their time, in a run that uses ``own`` cores."""
    cores = (series("host.process_cores", 0.8), series("host.worker_cores", own - 0.8))
    made_here = made(1000 * MS, count=2, core=queued, cpu_cores=cpu_cores)
    return worked(0.9, made_here, **{"usable_cores": 2.0, "samples": cores, "world_size": 1, "loader": TWO, **known})


def test_a_batch_that_waits_for_cores_of_other_programs_is_judged_without_that_wait():
    known = contended(replace(beside_others(0.9), mode="cpu"))
    program = quiet(known)
    assert known.share(QUEUE) == pytest.approx(known.taken)
    assert known.taken > 0.4
    assert program.workers.time_ns("core") == 0
    assert program.mean_step_ns == pytest.approx(known.mean_step_ns * (1 - known.taken), rel=1e-3)
    assert sum(part.share for part in program.parts) == pytest.approx(1.0)
    assert ended("IN005", program) is not Fired


THROTTLED = (series("host.process_cores", 0.8), series("host.worker_cores", 0.2), series("host.cpu_throttled", 0.05))


@pytest.mark.parametrize(
    "known", [{"own": 1.6}, {"world_size": 2}, {"samples": ()}, {"samples": THROTTLED}, {"cpu_cores": 1.6}]
)
def test_what_waits_for_itself_or_is_not_known_takes_no_cores_from_others(known):
    found = finding("IN005", beside_others(0.9, **known))
    assert found.title.startswith("More workers will not help, the CPU is full")
    assert "→" not in found.fix.text


def test_training_on_several_cores_leaves_the_workers_fewer():
    alone = replace(INPUT, single_process=True, cpu_ratio=1.0)
    known = {"usable_cores": 2.0, "loader": Loader(kind="DataLoader", num_workers=0), "input": alone}
    # Half of each step loads on one core. Where the rest takes both cores, 1.5 steps of a core are left for two.
    one, both = (
        facts({"input.prep": 0.5}, mode="cpu", samples=(series("host.process_cores", used),), **known)
        for used in (1.0, 1.5)
    )
    assert loader_fix(one).expected == pytest.approx(0.5 - HANDOVER_NS / STEP_NS)
    assert loader_fix(both).expected == pytest.approx(0.25)
    assert loader_fix(both).limited_by == "cores"
    # Where a device trains, threads beside the loop's are those of loading, which a worker does not have.
    assert loader_fix(replace(both, mode="gpu")).expected > 0.35
    # Loading that is blocked meets them for as little of its time as it computes: OpenMP spins through such waits.
    asleep = replace(both, input=replace(alone, cpu_ratio=0.0))
    assert loader_fix(asleep).expected == pytest.approx(0.5 - HANDOVER_NS / STEP_NS)
    # With a worker the process's cores are the training's alone.
    one_worker = Loader(kind="DataLoader", num_workers=1)
    beside = worked(0.5, made(STEP_NS, count=1), usable_cores=2.0, loader=one_worker)
    assert cheaper_batch(beside, 0.5 * STEP_NS, 0.5 * STEP_NS) == pytest.approx(0.5)
    taking = replace(beside, samples=(series("host.process_cores", 1.0),))
    assert cheaper_batch(taking, 0.5 * STEP_NS, 0.5 * STEP_NS) == pytest.approx(0.25)


def test_training_that_sleeps_or_waits_for_a_device_leaves_its_core_to_the_workers():
    # Two workers fill two cores; the training thread computes a fifth of the other half of the step.
    full = worked(0.5, made(2 * STEP_NS, count=2), usable_cores=2.0, loader=TWO)
    asleep = replace(full, samples=(series("host.process_cores", 0.1),))
    assert cheaper_batch(full, STEP_NS, STEP_NS) == pytest.approx(0.25)
    assert cheaper_batch(asleep, STEP_NS, STEP_NS) == pytest.approx(0.45)


def test_pauses_on_the_processor_are_no_threads_of_the_training():
    # 20 ms of training and 50 ms of evaluation on one core, 30 ms of waiting: no core is taken beside.
    parts = {"input.prep": 0.3, "other.eval": 0.5}
    known = {"usable_cores": 2.0, "loader": Loader(kind="DataLoader", num_workers=1)}
    workers = made(45 * MS, count=1)
    bare = facts(parts, workers=workers, **known)
    sampled = replace(bare, samples=(series("host.process_cores", 0.7),))
    assert cheaper_batch(sampled, 22 * MS, 22 * MS) == cheaper_batch(bare, 22 * MS, 22 * MS) > 0


def test_workers_that_are_idle_in_pauses_are_busy():
    def idle(ratio, pause):
        return facts(
            {"input.fetch": 0.4, "other.eval": pause, "compute.math": 0.6 - pause},
            workers=made(fetch=0.6, busy_ratio=1.0 - ratio),
            loader=Loader(kind="DataLoader", num_workers=4),
            usable_cores=16.0,
        )

    assert ended("IN003", idle(0.18, 0.16)) is Fired
    assert "idle 18 % of the time" in check("IN003", idle(0.18, 0.0)).reason
    assert ended("IN006", idle(0.18, 0.16)) is Fired
    assert ended("IN006", idle(0.18, 0.0)) is Passed


def test_a_costly_collate_is_not_told_to_send_less():
    joining = finding("IN008", worked(0.4, made(collate=0.9)))
    assert "collate_fn" in joining.fix.text
    assert "uint8" in finding("IN008", worked(0.4, made(handover=0.9))).fix.text


def test_joining_that_is_no_copying_is_nearly_all_saved():
    """Ten times what one copy of its bytes takes at 1 GB/s, and 500 ns for each sample, is the limit."""
    joining, items = made(collate=0.9), 100.0
    limit = joining.time_ns("collate") / 10.0 - 500 * items  # bytes, one for each ns
    copied, piecewise = (
        finding(
            "IN008", worked(0.8, revise(joining, batch_bytes=int(limit * ratio)), loading=LoadingFacts(items=items))
        )
        for ratio in (1.01, 0.99)
    )
    assert piecewise.saving.expected > copied.saving.expected
    assert ("np.stack" in copied.fix.text, "np.stack" in piecewise.fix.text) == (False, True)


def test_many_small_samples_that_are_stacked_are_not_joined_one_by_one():
    """512 samples of 20 tensors take default_collate 3.6 µs each, of 12 bytes."""
    stacked = revise(made(2_000_000, collate=0.9), batch_bytes=120_000)
    many, unknown = (worked(0.8, stacked, loading=LoadingFacts(items=items)) for items in (512.0, None))
    for known in (many, unknown):
        assert "np.stack" not in str(check("IN008", known))
