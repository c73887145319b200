from random import Random

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.report.communication import waiting_lines
from profilerkit.report.sections.fixes import limits_of
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import HostSample, Sample
from tests.recipes import MS, Log, S, Trace, host_training, replace, training, write_run


def rank_of(trace, name="trace.json"):
    return rank_facts(name, trace.facts(), None)


def late_rank(ranks=4, late=2, delay=600):
    """Ranks whose steps end together in a collective; one arrives ``delay`` µs after the others, by Python."""
    return [
        training(8, rank=rank, world_size=ranks, python=delay if rank == late else 0, comm=50 + delay * (rank != late))
        for rank in range(ranks)
    ]


def test_the_rank_that_communicates_least_is_the_one_the_others_wait_for():
    facts = Facts([rank_of(trace) for trace in late_rank()])
    assert facts.waiting_share is not None
    assert (facts.judged_rank, facts.rank.rank) == (2, 2)
    assert facts.share("over.python") > 0.3
    assert facts.share("comm.") < 0.05


def test_three_steps_with_the_same_late_rank_are_enough():
    short = [training(5, rank=rank, world_size=2, python=900 * rank, comm=50 + 900 * (rank == 0)) for rank in range(2)]
    facts = Facts([rank_of(trace) for trace in short])
    (late,) = facts.communication.late
    assert (facts.rank.rank, late.rank, late.few_steps) == (1, 1, False)
    assert facts.waiting_share > 0.4
    assert facts.share("over.python") > 0.4


def test_with_the_ranks_in_another_order_the_same_one_is_told():
    ranks = [rank_of(trace) for trace in late_rank()]
    ranks.reverse()
    facts = Facts(ranks)
    assert facts.rank.rank == 2
    assert facts.share("over.python") == Facts(ranks[::-1]).share("over.python")


def spread_of(share):
    """Two ranks whose exposed communication differs by ``share`` of the step."""
    steps = 10_000  # µs
    first = training(10, kernels=10, kernel=899, comm=1_000, rank=0, world_size=2)
    second = training(
        10, kernels=10, kernel=899, comm=1_000 - round(share * steps), python=round(share * steps), rank=1
    )
    return Facts([rank_of(first), rank_of(second)])


def two_buckets(rank, late):
    """Steps of 7 ms: 4 ms of kernels, a bucket of 1 ms in their middle and one after them; 2 ms later on ``late``."""
    trace = Trace(rank=rank, world_size=4)
    for number in range(8):
        began = 1_000 + 7_000 * number
        first = began + (2_000 if rank == late else 0)
        trace.kernel(first, first + 4_000, launch=(first - 8 if rank == late else began, first - 2))
        size = {"elements": 1 << 22, "Group size": 4}
        for start, end in ((first + 2_000, began + 5_000), (max(first + 4_000, began + 5_000), began + 7_000)):
            trace.collective(start, end, launch=(first + 10, first + 16), **size)
        trace.step(number, began, began + 7_000)
    return trace


def test_transfers_that_only_the_late_rank_computes_through_are_saved_with_the_waiting():
    facts = Facts([rank_of(two_buckets(rank, late=2)) for rank in range(4)])
    assert facts.waiting_share == pytest.approx(1 / 7)
    assert facts.shown_share == pytest.approx(1 / 7)  # steps of 5 ms without the delay
    assert Facts([rank_of(trace) for trace in late_rank()]).shown_share == 0.0


def test_ranks_that_communicate_about_as_long_wait_for_nobody():
    assert spread_of(0.049).waiting_share is None
    assert spread_of(0.051).waiting_share == pytest.approx(0.051, abs=1e-3)


def test_without_waiting_the_slowest_rank_is_told():
    ranks = [rank_of(training(6, kernels=count, rank=rank)) for rank, count in enumerate((5, 9, 7))]
    facts = Facts(ranks)
    assert facts.waiting_share is None
    assert facts.rank.rank == 1


def test_a_rank_without_a_trace_does_not_pass_for_one_that_never_communicates(tmp_path):
    log = Log().steps(20, 1_450, wait=10)
    trace = training(8, comm=440)
    records = read_run(write_run(tmp_path / "run", [log, log], traces={0: trace})).ranks
    facts = Facts([rank_facts("rank_00000", trace.facts(), records[0]), rank_facts("rank_00001", None, records[1])])
    assert facts.rank.rank == 0
    assert facts.waiting_share is None


def test_of_ranks_that_only_timers_saw_the_one_that_waits_longest_for_data_is_told(tmp_path):
    # Trained together, all take equally long; the slowest of them would be anybody.
    logs = [Log().steps(20, 1_000 + 5 * (rank == 0), wait=300 if rank == 2 else 20) for rank in range(4)]
    records = read_run(write_run(tmp_path / "run", logs)).ranks
    facts = Facts([rank_facts(f"rank_{rank:05d}", None, record) for rank, record in enumerate(records)])
    assert (facts.rank.rank, facts.waiting_share) == (2, None)
    even = [Log().steps(20, 1_000 + 5 * (rank == 3), wait=20) for rank in range(4)]
    records = read_run(write_run(tmp_path / "even", even)).ranks
    facts = Facts([rank_facts(f"rank_{rank:05d}", None, record) for rank, record in enumerate(records)])
    assert facts.rank.rank == 3


def uneven_run(tmp_path, *, traces, wait=640, **options):
    """Two ranks that train together, of which rank 1 waits for its data and rank 0 for rank 1; facts and verdict."""
    logs = [Log().steps(20, 1_450, wait=10 + wait * (rank == 1)) for rank in range(2)]
    report = analyze(write_run(tmp_path / "run", logs, traces=traces, **options))
    return report.verdict, report


def test_the_timers_of_all_ranks_name_the_late_one_where_its_trace_is_missing(tmp_path):
    verdict, report = uneven_run(tmp_path, traces={0: training(8, comm=440)})
    assert (verdict.bound, verdict.rank) == ("input-bound", 1)
    assert verdict.headline == "Rank 1 waits 650 µs of every 1.45 ms step for data"
    assert verdict.confidence == "medium"
    told = "By the timers of 2 ranks rank 1 spends 640 µs more a step on waiting for data"
    assert told in verdict.consequence
    assert "whether the device worked meanwhile is not known" in verdict.consequence
    assert "Rank 1 has no trace: no trace window was opened." in report.trust.notes


@pytest.mark.parametrize(("device", "hidden"), [(None, False), ("NVIDIA H100", True)])
def test_a_device_that_no_trace_shows_may_hide_what_the_timers_measure(tmp_path, device, hidden):
    verdict, _ = uneven_run(tmp_path, traces=None, device_name=device)
    assert verdict.rank == 1
    assert ("rank 1 is late" in verdict.consequence) is not hidden
    assert ("whether the device worked meanwhile is not known" in verdict.consequence) is hidden


def test_of_a_job_bound_by_communication_verdict_and_ranks_tell_the_same_late_rank(tmp_path):
    logs = [Log().steps(60, 100_000, wait=wait) for wait in (1_000, 8_000)]
    traces = {
        rank: host_training(2, compute=50_000, comm=42_000, fetch=fetch, rank=rank, world_size=2, backend="gloo")
        for rank, fetch in enumerate((1_000, 8_000))
    }
    report = analyze(write_run(tmp_path / "run", logs, traces=traces))
    assert (report.verdict.bound, report.verdict.rank) == ("comm-bound", None)
    assert "By the timers of 2 ranks rank 1 is late" in report.verdict.consequence
    assert "only the timers point at a rank: rank 1." in next(waiting_lines(report))


def test_a_rank_whose_fetches_nobody_saw_is_not_the_one_that_waits_for_none(tmp_path):
    logs = [Log().steps(60, 100_000, wait=wait) for wait in (0, 8_000)]
    report = analyze(write_run(tmp_path / "run", logs))
    assert [rank.timed_ns for rank in report.ranks] == [None, 8 * MS]
    assert "By the timers" not in report.verdict.consequence


@pytest.mark.parametrize(("others", "late"), [(2_000, None), (0, 0)])
def test_in_a_phase_that_most_ranks_have_the_longer_one_may_be_waiting(tmp_path, others, late):
    logs = [
        Log().steps(60, 100_000, wait=1_000, phase=("evaluation", 32_000 if rank == 0 else others)) for rank in (0, 1)
    ]
    report = analyze(write_run(tmp_path / "run", logs))
    assert report.verdict.headline.endswith("evaluation stops training for 32.0 ms in every step".capitalize())
    assert report.verdict.rank == late
    assert ("is late" in report.verdict.consequence) is (late is not None)


def test_where_the_timers_see_no_difference_what_a_trace_calls_communication_may_be_waiting(tmp_path):
    verdict, _ = uneven_run(tmp_path, traces={0: training(8, comm=440)}, wait=0)
    assert (verdict.bound, verdict.rank, verdict.confidence) == ("comm-bound", None, "low")
    assert verdict.saving.method == "bound"
    assert "Waiting for another rank and transfer look the same here." in verdict.consequence


def test_waits_that_a_device_hides_on_the_rank_that_shows_one_make_no_other_rank_late(tmp_path):
    # Both wait alike; only rank 0 has a trace that tells that its device worked meanwhile.
    logs = [Log().steps(20, 1_450, wait=300) for _ in range(2)]
    report = analyze(write_run(tmp_path / "run", logs, traces={0: training(8, kernel=130, comm=100)}))
    assert [rank.timed_ns for rank in report.ranks] == [300_000, 300_000]
    assert report.verdict.rank is None


def test_ranks_whose_traces_show_no_collective_wait_for_nobody(tmp_path):
    logs = [Log().steps(20, 1_450, wait=10 + 640 * rank) for rank in range(2)]
    report = analyze(write_run(tmp_path / "run", logs, traces={0: training(8, kernel=140)}))
    assert report.verdict.rank is None
    assert "is late" not in report.verdict.consequence


def test_a_cut_trace_does_not_hide_what_the_timers_of_its_rank_say(tmp_path):
    traces = [host_training(8, compute=1_000 - 640 * rank, fetch=640 * rank, comm=450) for rank in range(2)]
    whole = traces[1].bytes()
    verdict, report = uneven_run(tmp_path, traces={0: traces[0], 1: whole[: len(whole) // 4]})
    assert (verdict.bound, verdict.rank, verdict.confidence) == ("input-bound", 1, "low")
    assert report.trust.damaged == ("rank_00001",)
    assert any(limit.startswith("The trace of rank_00001 is cut off") for limit in limits_of(report))


def test_matched_collectives_tell_more_than_timers(tmp_path):
    # Rank 0 waits for its data behind the collectives of the others: nobody waits for it.
    traces = {rank: training(8, rank=rank, world_size=2, python=900 * rank, comm=950 - 900 * rank) for rank in range(2)}
    logs = [Log().steps(20, 1_960, wait=400 * (rank == 0)) for rank in range(2)]
    report = analyze(write_run(tmp_path / "run", logs, traces=traces))
    assert report.communication.matched
    assert report.verdict.rank == 1


@pytest.mark.parametrize(("steps", "said"), [((20, 20), False), ((20, 19), False), ((20, 18), True)])
def test_ranks_with_different_numbers_of_steps_are_named(tmp_path, steps, said):
    report = analyze(write_run(tmp_path / "run", [Log().steps(count, 1_000, wait=600) for count in steps]))
    told = f"The ranks recorded different numbers of steps: {steps[1]} by rank 1 and {steps[0]} by rank 0."
    assert (told in report.trust.notes) is said


@pytest.mark.parametrize(("apart_s", "matched"), [(100, True), (150, False)])
def test_captures_that_lie_minutes_apart_are_told_and_not_matched(tmp_path, apart_s, matched):
    epoch_us = 1_700_000_000 * 1_000_000
    for rank in range(2):
        start = epoch_us + rank * apart_s * 1_000_000
        training(12, rank=rank, world_size=2, comm=400, start=start).write(tmp_path / f"rank{rank}.json")
    report = analyze(tmp_path)
    told = "The captures do not overlap: rank 0 ends 2.5 min before rank 1 begins."
    assert any(note.startswith(told) for note in report.trust.notes) is not matched
    assert bool(report.communication.matched) is matched


def test_the_steps_of_a_killed_rank_are_the_least_it_made(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(count, 1_000, wait=600) for count in (20, 15)])
    (run / "rank_00001" / "end.json").unlink()
    told = (
        "The ranks recorded different numbers of steps: at least 15 by rank 1 and 20 by rank 0; "
        "a killed rank loses its last records."
    )
    assert told in analyze(run).trust.notes


def test_a_short_capture_divides_the_waiting_by_the_steps_it_shares():
    """Rank 1 is late by 600 µs in every step; its capture ends after 12 of the 24."""
    traces = [
        host_training(24, compute=400, python=10, comm=650, rank=0, world_size=2, backend="gloo"),
        host_training(12, compute=400, python=610, comm=50, rank=1, world_size=2, backend="gloo"),
    ]
    facts = Facts([rank_of(trace, f"rank{rank}.json") for rank, trace in enumerate(traces)])
    (late,) = facts.communication.late
    assert late.rank == 1
    assert late.waited_ns == pytest.approx(600_000, rel=0.01)
    assert facts.waiting_share == pytest.approx(600 / 1_060, rel=0.01)
    assert facts.communication.steps == facts.ranks[1].matched


@pytest.mark.parametrize(("apart", "blurred"), [(0, False), (30, False), (80, True)])
def test_a_rank_is_not_late_by_what_the_load_of_its_host_does_to_the_ends(apart, blurred):
    """Rank 1 is late by 600 µs in every step; half of the ends lie more than ``apart`` µs from where they should."""
    draw = Random(1)
    traces = [
        Trace(rank=rank, world_size=2, backend="gloo", baseTimeNanoseconds=1_800_000_000 * S) for rank in range(2)
    ]
    for rank, trace in enumerate(traces):
        for number in range(24):
            start, late = 1_000 + 1_300 * number, 600 * rank
            trace.step(number, start, start + 1_300)
            trace.op(start, start + 400 + late, name="aten::mm")
            trace.gloo(start + 400 + late, start + 1_200 + round(draw.uniform(-2, 2) * apart) * rank)
    facts = Facts([rank_of(trace, f"rank{rank}.json") for rank, trace in enumerate(traces)])
    assert facts.communication.blurred is blurred
    assert [late.rank for late in facts.communication.late] == ([] if blurred else [1])
    assert (facts.waiting_share is None) is blurred
    # Late or not, the rank that causes the waiting is the one whose story is told.
    assert facts.rank.rank == 1


def test_each_rank_says_how_often_it_was_last():
    facts = Facts([rank_of(trace) for trace in late_rank()])
    found = facts.communication
    assert (found.matched, found.of, found.by, found.residual_ns) == (8, 8, "order", 0)
    assert not any("matched" in note for note in facts.trust.notes)  # told once, with the waiting
    assert [(rank.last, rank.matched, rank.clock_offset_ns) for rank in facts.ranks] == [
        (0, 6, 0), (0, 6, 0), (6, 6, 0), (0, 6, 0)
    ]  # fmt: skip


def test_one_rank_of_several_is_said_to_show_no_waiting():
    facts = Facts([rank_of(late_rank()[0])])
    notes = facts.trust.notes
    assert "Only one of 4 ranks was analyzed: waiting for another rank and transfer look the same." in notes
    assert facts.communication.matched is None


def test_missing_ranks_may_be_the_ones_that_come_last():
    facts = Facts([rank_of(trace) for trace in late_rank()[:3]])
    assert any("the last to arrive may be missing" in note for note in facts.trust.notes)
    assert facts.rank.rank == 2


def test_the_divided_parts_of_a_run_with_timers_still_sum_to_its_step(tmp_path):
    traces = late_rank(ranks=2, late=1)
    logs = [Log().steps(20, 1_660), Log().steps(20, 1_660)]
    records = read_run(write_run(tmp_path / "run", logs, traces=dict(enumerate(traces)))).ranks
    ranks = [rank_facts(f"rank_{i:05d}", trace.facts(), records[i]) for i, trace in enumerate(traces)]
    facts = Facts(ranks)
    assert facts.rank.rank == 1
    waiting = {part.part: part for part in facts.ranks[0].breakdown}
    assert waiting["comm.skew"].source == "derived"
    assert waiting["comm.skew"].share == pytest.approx(600 / 1_660, abs=0.01)
    for rank in facts.ranks:
        assert sum(part.share for part in rank.breakdown) == pytest.approx(1.0)


def test_bandwidth_is_compared_with_the_link_of_a_known_device_within_one_host():
    v100 = {"id": 0, "name": "Tesla V100-SXM2-32GB"}
    traces = [training(8, comm=400, rank=rank, world_size=2, devices=(v100,)) for rank in range(2)]
    (row,) = Facts([rank_of(trace) for trace in traces]).comm.table
    assert row.link_ratio == pytest.approx(row.bus_bytes_per_s / 150e9)
    assert row.bus_bytes_per_s == pytest.approx((1 << 22) * 4 / 400e-6)
    large = [trace.changed(in_a_group_of(16)) for trace in traces]
    assert Facts([rank_of(trace) for trace in large]).comm.table[0].link_ratio is None


def in_a_group_of(size):
    def change(event):
        if "Group size" in event["args"]:
            event["args"]["Group size"] = size
        return event

    return change


def test_missing_ranks_are_counted_against_the_size_of_the_job():
    facts = Facts([rank_of(trace) for trace in late_rank(ranks=4)[:3]])
    assert (facts.world_size, facts.missing_ranks) == (4, 1)


def test_without_a_known_size_nobody_is_missing():
    facts = Facts([rank_of(training(6))])
    assert (facts.world_size, facts.missing_ranks) == (None, None)


def test_every_rank_is_described_with_its_own_numbers():
    facts = Facts([rank_of(trace, name=f"rank{i}.json") for i, trace in enumerate(late_rank())])
    assert [rank.rank for rank in facts.ranks] == [0, 1, 2, 3]
    assert [rank.origin for rank in facts.ranks] == ["rank0.json", "rank1.json", "rank2.json", "rank3.json"]
    python = [sum(part.share for part in rank.breakdown if part.part == "over.python") for rank in facts.ranks]
    assert python.index(max(python)) == 2
    for rank in facts.ranks:
        assert sum(part.share for part in rank.breakdown) == pytest.approx(1.0)


def launching():
    trace = host_training(6)
    trace.call("cudaLaunchKernel", 1_120, 1_130)
    return trace


def running(operator):
    trace = host_training(6)
    trace.op(1_120, 1_130, name=operator)
    return trace


@pytest.mark.parametrize(
    ("trace", "missing"),
    [
        (host_training(6, rank=0, world_size=2, backend="nccl"), True),
        (launching(), True),
        (running("aten::cudnn_convolution"), True),
        (running("aten::cudnn_is_acceptable"), False),
        (host_training(6, devices=({"id": 0, "name": "Tesla V100-SXM2-32GB"},)), False),
        (host_training(6, rank=0, world_size=2, backend="gloo"), False),
        (training(6, rank=0, world_size=2, backend="nccl"), False),
    ],
    ids=["nccl", "launches", "operators of a GPU", "any build's", "a machine that has a device", "gloo", "recorded"],
)
def test_a_run_on_a_device_whose_events_are_not_there_is_told_from_one_on_the_host(trace, missing):
    facts = Facts([rank_of(trace)])
    assert facts.device_events_missing is missing
    assert ("The run used a device, but the trace holds none of its events." in facts.trust.notes) is missing


def test_ranks_are_compared_only_with_those_recorded_alike():
    ranks = late_rank(late=0)
    # Rank 2 left no device events: it shows no collective, and must not pass for the one that waits for nobody.
    ranks[2] = host_training(8, compute=5_000, rank=2, world_size=4)
    facts = Facts([rank_of(trace) for trace in ranks])
    assert (facts.mode, facts.rank.rank) == ("gpu", 0)
    hosts = [host_training(8, compute=100 * (rank + 1), rank=rank, world_size=2) for rank in range(2)]
    assert Facts([rank_of(trace) for trace in hosts]).rank.rank == 1


def doubts_of(tmp_path, log, trace=None, **run):
    record = read_run(write_run(tmp_path / "run", [log], **run)).ranks[0]
    known = Facts([rank_facts("rank_00000", trace.facts() if trace else None, record)])
    return tuple(doubt.words for doubt in known.doubts)


@pytest.mark.parametrize(
    ("step", "doubted"), [(1_010, False), (674, False), (672, True), (1_261, False), (1_264, True)]
)
def test_traced_steps_of_another_length_are_a_doubt(tmp_path, step, doubted):
    log = Log().steps(30, step)
    log.window(3 * step, 5 * step, first_step=3)
    found = doubts_of(tmp_path, log, training(8))  # 1,010 µs a step under the profiler
    assert bool(found) is doubted
    assert all(sentence.startswith("Traced steps took") for sentence in found)


def test_slow_steps_that_nothing_explains_are_a_doubt(tmp_path):
    def log(**explained):
        out = Log().steps(40, 1_000)
        out.step(20_000, **explained)
        return out.steps(20, 1_000)

    trace = host_training(8, compute=1_000)
    (sentence,) = doubts_of(tmp_path / "unnamed", log(), trace)
    assert sentence == "Slow steps raise the mean to 1.3 × the median."
    assert doubts_of(tmp_path / "named", log(phase=("checkpoint", 19_000)), trace) == ()


@pytest.mark.parametrize(("pressure", "doubted"), [(0.4, True), (0.39, False)])
def test_a_host_under_pressure_is_a_doubt(tmp_path, pressure, doubted):
    samples = [Sample(t_ns=i, host=HostSample(cpu_pressure_ratio=pressure)) for i in range(3)]
    doubts = doubts_of(tmp_path, Log().steps(20, 1_000), samples=samples)
    said = ("The host was busy: tasks waited for a core 40 % of the time (PSI).",)
    assert doubts == (said if doubted else ())


def test_a_run_that_was_timed_and_traced_alike_leaves_no_doubt(tmp_path):
    log = Log().steps(20, 1_010)
    log.window(3_100, 4_900, first_step=3)
    assert doubts_of(tmp_path, log, training(8)) == ()


def test_inferred_steps_are_said_to_be_inferred():
    trace = training(6)
    unmarked = trace.changed(lambda event: [] if event["name"].startswith("ProfilerStep") else event)
    for number in range(6):
        unmarked.optimizer(1_900 + 1_010 * number, 2_000 + 1_010 * number)
    facts = Facts([rank_of(unmarked)])
    assert facts.steps.inferred
    assert "Steps were inferred from optimizer steps." in facts.trust.notes
    whole = Facts([rank_of(trace.changed(lambda event: [] if event["name"].startswith("ProfilerStep") else event))])
    assert "Nothing marks a step: the whole recording is judged as one." in whole.trust.notes


def test_a_device_named_by_the_user_replaces_the_one_in_the_trace():
    ranks = [rank_of(training(6, devices=({"id": 0, "name": "Tesla V100-SXM2-32GB"},)))]
    assert Facts(ranks).spec.name != Facts(ranks, device_name="h100-sxm").spec.name == "h100-sxm"


def test_a_trace_says_which_signals_it_lacks():
    facts = Facts([rank_of(training(6))])
    states = {signal.name: signal.state for signal in facts.trust.signals}
    assert states["device events"] == states["operator trace"] == "measured"
    assert states["step timers, every step"] == states["input wait"] == states["memory"] == "missing"
    assert all(signal.hint for signal in facts.trust.signals if signal.state == "missing")


def test_damage_of_all_ranks_is_added_up():
    ranks = [rank_of(training(6, rank=rank)) for rank in range(2)]
    broken = []
    for rank in ranks:
        damage = replace(rank.trace.damage, dropped=3, truncated=True)
        trace = replace(rank.trace, damage=damage)
        broken.append(replace(rank, trace=trace))
    trust = Facts(broken).trust
    assert (trust.dropped, trust.truncated) == (6, True)
    assert trust.events == sum(rank.trace.n_events for rank in ranks)


def test_a_trace_without_any_step_time_has_no_step():
    trace = Trace()
    trace.op(100, 100)
    facts = Facts([rank_of(trace)])
    assert facts.steps.time_ns is None
    assert facts.step_ns is None
    assert facts.parts == ()


P2P = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def transfer(trace, start, end, what, peer):
    named = {"Collective name": what, "Process Group Name": "pp", "Group size": 4}
    side = "Dst Rank" if what == "send" else "Src Rank"
    trace.collective(start, end, name=P2P, stream=21, elements=1 << 20, **named, **{side: peer})


def two_stages(lag, steps=12):
    """Two stages of a pipeline with two ranks each, whose second one averages its gradients ``lag`` µs late."""
    traces = [Trace(rank=rank, world_size=4, baseTimeNanoseconds=1) for rank in range(4)]
    begin = 10_000
    for step in range(steps):
        for rank, trace in enumerate(traces):
            after = begin + 6_310
            if rank < 2:
                trace.op(begin, begin + 8, name="aten::linear")
                trace.kernel(begin + 10, begin + 3_010, launch=(begin + 2, begin + 8))
                transfer(trace, begin + 3_010, begin + 3_110, "send", rank + 2)
                transfer(trace, begin + 3_110, after, "recv", rank + 2)
            else:
                transfer(trace, begin + 10, begin + 3_110, "recv", rank - 2)
                trace.op(begin + 3_050, begin + 3_058, name="aten::linear")
                trace.kernel(begin + 3_110, begin + 6_210, launch=(begin + 3_052, begin + 3_058))
                transfer(trace, begin + 6_210, after, "send", rank - 2)
            ready = after + 500 + (lag if rank == 1 else 0)
            trace.op(after - 50, after - 42, name="aten::linear")
            trace.kernel(after, ready, launch=(after - 48, after - 42))
            group = {"Process Group Name": f"dp{rank // 2}", "Group size": 2}
            trace.collective(ready, after + 700 + (lag if rank < 2 else 0), elements=1 << 20, **group)
            trace.step(step, begin, begin + 7_010 + lag)
        begin += 7_010 + lag
    return traces


def test_the_bubbles_of_a_pipeline_are_not_waiting_for_a_late_rank():
    ranks = [rank_facts(f"rank{rank}.json", trace.facts(), None) for rank, trace in enumerate(two_stages(20))]
    facts = Facts(ranks)
    assert facts.share("comm.skew") > 0.4
    assert facts.communication.late == ()  # rank 1 is 20 µs late, 0.3 % of the step


def test_senders_that_leave_early_do_not_move_the_clocks():
    steps, early = 16, 280
    traces = [Trace(rank=rank, world_size=4, baseTimeNanoseconds=1_700_000_000_000_000_000) for rank in range(4)]
    begin = 10_000
    for step in range(steps):
        for batch in range(4):
            for source in range(3):
                at = begin + 700 * batch + 60 * source + (37 * step + 11 * batch) % 50
                transfer(traces[source], at, at + 20, "send", source + 1)
                transfer(traces[source + 1], at + early, at + early + 20, "recv", source)
        ready = begin + 3_800
        for trace in traces:
            trace.op(begin, begin + 2, name="aten::linear")
            trace.kernel(begin + 2, ready, launch=(begin, begin + 1))
            trace.collective(ready, ready + 1_200, elements=1 << 20, **{"Process Group Name": "w", "Group size": 4})
            trace.step(step, begin, ready + 1_200)
        begin = ready + 1_200
    facts = Facts([rank_facts(f"rank{rank}.json", trace.facts(), None) for rank, trace in enumerate(traces)])
    assert [rank.clock_offset_ns for rank in facts.ranks] == [0, 0, 0, 0]
    assert (facts.communication.late, facts.communication.residual_ns) == ((), 0)


def test_what_collectives_could_hide_behind_does_not_depend_on_how_slow_the_trace_was(tmp_path):
    expected = []
    for slower in (1.0, 2.5):
        log = Log()
        log.steps(60, 100_000)
        log.window(6_000_000, 6_000_000 + round(1_200_000 * slower) - 1, 60)
        for _ in range(12):
            log.step(round(100_000 * slower))
        log.steps(10, 100_000)
        trace = host_training(
            12, compute=round(60_000 * slower), comm=round(40_000 * slower), rank=0, world_size=2, backend="gloo"
        )
        report = analyze(write_run(tmp_path / str(slower), [log], traces={0: trace}, world_size=2))
        (found,) = (finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "CO001")
        expected.append(found.saving.expected)
    assert expected[1] == pytest.approx(expected[0])
    assert expected[0] == pytest.approx(0.2)


def hosts(rows, took, *, apart=0, steps=24):
    """Two CPU-only ranks that multiply ``rows[rank]`` rows in ``took[rank]`` µs; ends differ by up to ``apart`` µs."""
    draw = Random(3)
    clock = {"backend": "gloo", "baseTimeNanoseconds": 1_800_000_000 * S}
    traces = [Trace(rank=rank, world_size=2, **clock) for rank in range(2)]
    for rank, trace in enumerate(traces):
        for number in range(steps):
            start = 1_000 + 1_300 * number
            trace.step(number, start, start + 1_300)
            trace.op(start, start + took[rank], name="aten::mm", dims=[[rows[rank], 64], [64, 64]])
            trace.gloo(start + took[rank], start + 1_200 + round(draw.uniform(-2, 2) * apart) * rank)
    return Facts([rank_of(trace, f"rank{rank}.json") for rank, trace in enumerate(traces)])


def test_a_rank_that_takes_longer_for_the_same_work_is_slower_and_has_no_uneven_work():
    (late,) = hosts((100, 100), (400, 1_000)).communication.late
    assert (late.rank, late.cause, late.same_work) == (1, "compute.math", True)
    (late,) = hosts((100, 250), (400, 1_000)).communication.late
    assert (late.rank, late.cause, late.same_work) == (1, "compute.math", False)


def test_what_a_late_rank_waits_for_is_named_by_what_its_step_log_knows(tmp_path):
    logs = [Log().steps(60, 100_000, wait=wait, wait_cpu=0) for wait in (1_000, 50_000)]
    traces = {
        rank: host_training(
            6, compute=30_000, comm=68_000 - fetch, fetch=fetch, rank=rank, world_size=2, backend="gloo"
        )
        for rank, fetch in enumerate((1_000, 50_000))
    }
    report = analyze(write_run(tmp_path / "run", logs, traces=traces))
    (late,) = report.communication.late
    assert (late.rank, late.cause) == (1, "input.fetch")


def test_more_work_makes_a_rank_late_on_a_busy_host():
    assert hosts((100, 100), (400, 1_000), apart=80).communication.late == ()
    (late,) = hosts((100, 250), (400, 1_000), apart=80).communication.late
    assert (late.rank, late.same_work, late.few_steps) == (1, False, False)


@pytest.mark.parametrize("rows", [100, 250])
def test_in_two_steps_work_of_any_amount_makes_a_rank_likely_late(rows):
    (late,) = hosts((100, rows), (400, 1_000), steps=2).communication.late
    assert (late.rank, late.few_steps) == (1, True)
