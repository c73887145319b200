"""Who is waited for by the flight recorders of all ranks, and where they do not tell."""

import msgspec
import pytest

import profilerkit
from profilerkit.analysis.intervals import EMPTY
from profilerkit.analysis.ranks.flight import flight_log
from profilerkit.analysis.ranks.late import cause_by_parts
from profilerkit.model.communication import DistributedModel
from profilerkit.report.communication import waiting_lines
from profilerkit.report.sections.communication import model_facts
from profilerkit.rundir.documents import DdpRecord, FlightEntry
from profilerkit.rundir.files import write_document
from tests.recipes import MS, US, Log, Trace, flight, parts, rank_meta, write_run

STEPS = 30
STEP = 100_000


def times(offset, *, at=50_000, count=STEPS):
    """Where in each step a collective is issued, µs; ``offset`` may be a list, one per step."""
    offsets = offset if isinstance(offset, list) else [offset] * count
    return [number * STEP + at + each for number, each in enumerate(offsets)]


def job(tmp_path, *flights, waits=None, hosts=None, traces=None, **meta):
    """The report of ranks with equal steps and these recorders."""
    waits = waits or [0] * len(flights)
    logs = [Log().steps(STEPS, STEP, wait=wait) for wait in waits]
    run = write_run(tmp_path / "run", logs, traces=traces, **meta)
    for rank, recorded in enumerate(flights):
        if recorded is not None:
            write_document(run / f"rank_{rank:05d}" / "flight.json", recorded)
        if hosts:
            write_document(run / f"rank_{rank:05d}" / "meta.json", rank_meta(rank, host=hosts[rank], **meta))
    return profilerkit.analyze(run)


def outcome(report, code="CO003"):
    return next(one for one in report.outcomes if one.rule == code)


def test_the_rank_that_issues_last_is_waited_for(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000)), flight(times(1_000)))
    found = report.communication
    assert (found.matched, found.of, found.by, found.matched_in) == (STEPS, STEPS, "sequence", "flight recorders")
    (late,) = found.late
    assert (late.rank, late.share, late.cause, late.waited_ns) == (1, 1.0, None, round(19.5 * MS))
    assert (late.last, late.of) == (found.steps, found.steps)
    finding = outcome(report).findings[0]
    assert finding.saving.expected == pytest.approx(0.19)  # of 0.195, the jitter stays
    assert all(row.source == "derived" for row in finding.evidence)
    assert "flight recorders" in finding.evidence[0].origin
    assert [rank.waited_ns for rank in report.ranks] == [20 * MS * found.steps, 0, 19 * MS * found.steps]
    assert found.transfer_ns is None
    assert found.time_ns is None


def test_the_cause_is_what_the_timers_of_that_rank_measured_longer(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000)), waits=[1_000, 19_000])
    (late,) = report.communication.late
    assert late.cause.startswith("input.")
    assert late.cause_ns == 18 * MS
    assert late.coverage == pytest.approx(0.9)
    assert (report.verdict.bound, report.verdict.rank) == ("input-bound", 1)


def test_a_longer_timer_that_explains_little_is_no_cause(tmp_path):
    (late,) = job(tmp_path, flight(times(0)), flight(times(20_000)), waits=[0, 5_000]).communication.late
    assert (late.cause, late.cause_ns) == (None, None)
    assert late.coverage == pytest.approx(0.25)


def breakdown(**shares_us):
    """The parts of a step of 10 ms."""
    return parts({name.replace("_", "."): time_us / 10_000 for name, time_us in shares_us.items()}, step_ns=10_000 * US)


def test_what_a_late_rank_does_longer_in_its_mean_step_is_named_though_it_explains_a_part():
    late = breakdown(compute_math=4_000, compute_other=2_000, over_python=1_500, comm_other=2_500)
    other = breakdown(compute_math=3_000, compute_other=1_000, over_python=1_000, comm_other=5_000)
    found = cause_by_parts(late, [other], 4_000 * US)
    assert (found.part, found.explained_ns, found.coverage) == ("compute.math", 2_000 * US, 0.5)
    # Of much more waiting, and of several parts alike, nothing is the cause.
    assert cause_by_parts(late, [other], 9_000 * US).part is None
    even = breakdown(compute_math=4_000, over_python=2_000, over_gc=1_000, comm_other=3_000)
    none = breakdown(compute_math=3_000, over_python=1_000, comm_other=6_000)
    assert cause_by_parts(even, [none], 4_000 * US).part is None
    # Timers alone show a part of the step: what they do not show may be as long.
    assert cause_by_parts(late, [other], 4_000 * US, among=("input.", "over.gc")).part is None


def test_timers_tell_where_recorders_hold_too_few_steps(tmp_path):
    report = job(tmp_path, flight(times(0, count=2)), flight(times(8_000, count=2)), waits=[1_000, 20_000])
    found = report.communication
    assert found.steps_needed is not None
    assert found.late == ()
    assert found.late_by_timers == 1
    assert (report.verdict.bound, report.verdict.rank) == ("input-bound", 1)


def test_recorders_go_before_timers(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(0)), waits=[0, 30_000])
    assert report.communication.late == ()
    assert report.communication.late_by_timers is None
    assert report.verdict.rank is None
    assert outcome(report).status == "passed"


def test_late_by_turns_is_no_late_rank(tmp_path):
    turns = [20_000 * (number % 2) for number in range(STEPS)]
    report = job(tmp_path, flight(times(turns)), flight(times([20_000 - each for each in turns])))
    assert report.communication.late == ()
    assert report.communication.waited_ns > 0
    assert outcome(report).status == "passed"


@pytest.mark.parametrize(("late_us", "called"), [(4_900, False), (5_100, True)])
def test_waiting_below_five_percent_of_the_step_is_not_called(tmp_path, late_us, called):
    report = job(tmp_path, flight(times(0)), flight(times(late_us)))
    assert bool(report.communication.late) is called


def test_few_steps_are_said_to_be_few(tmp_path):
    short = [flight(times(late, count=4)[2:], first=3) for late in (0, 20_000)]
    report = job(tmp_path, *short)
    (late,) = report.communication.late
    assert (late.rank, late.few_steps) == (1, True)
    assert report.communication.steps_needed == 7


def test_buckets_of_one_step_count_one_lateness_once(tmp_path):
    def buckets(late):
        return flight(sorted(instant for at in (40_000, 50_000, 60_000) for instant in times(late, at=at)))

    report = job(tmp_path, buckets(0), buckets(20_000))
    assert report.communication.late[0].waited_ns == 20 * MS
    assert report.communication.flight.per_step == 3.0


def test_numbers_that_start_apart_are_matched_by_number(tmp_path):
    first, second = times(0), times(20_000)
    report = job(tmp_path, flight(first[5:], first=6), flight(second))
    assert (report.communication.matched, report.communication.of) == (STEPS - 5, STEPS)
    assert report.communication.late[0].waited_ns == 20 * MS


def test_numbers_that_stand_for_different_calls_match_nothing(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000), elements=7))
    assert report.communication.matched is None
    assert outcome(report).status == "missing_data"
    assert report.communication.flight.held == STEPS


def test_a_group_made_anew_counts_from_its_start(tmp_path):
    rest = STEPS - 10
    again = [flight(times(late)) for late in ([40_000] * 10 + [0] * rest, [0] * 10 + [20_000] * rest)]
    cut = [msgspec.structs.replace(one, entries=_restarted(one.entries, 10)) for one in again]
    report = job(tmp_path, *cut)
    assert report.communication.matched == rest
    assert report.communication.late[0].waited_ns == 20 * MS
    assert [rank.caused_ns for rank in report.ranks] == [0, rest * 20 * MS]


def _restarted(entries, at):
    def restart(entry):
        return msgspec.structs.replace(entry, sequence=entry.sequence - at)

    return (*entries[:at], *map(restart, entries[at:]))


def test_another_groups_members_alone_are_compared(tmp_path):
    flights = [flight(times(late), group=group) for late, group in ((0, "1"), (20_000, "1"), (90_000, "2"))]
    report = job(tmp_path, *flights)
    assert report.communication.matched == STEPS
    assert [late.rank for late in report.communication.late] == [1]


def test_clocks_of_several_hosts_are_not_trusted_below_their_error(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000)), hosts=["a", "b"])
    assert report.communication.late == ()
    assert "clocks" in outcome(report).reason
    assert "in turn" not in " ".join(waiting_lines(report))
    assert any("2 hosts, whose clocks may be 100 ms apart" in note for note in report.trust.notes)
    (tmp_path / "near").mkdir()
    assert job(tmp_path / "near", flight(times(0)), flight(times(20_000)), hosts=["a", "a"]).communication.late


def test_issuing_for_a_device_tells_nobody_late_unless_it_was_timed(tmp_path):
    def nccl(late, **more):
        return flight(times(late), name="nccl:all_reduce", size=2, **more)

    report = job(tmp_path, nccl(0), nccl(20_000), waits=[1_000, 20_000], device_name="NVIDIA H200")
    assert report.communication.late == ()
    assert report.communication.late_by_timers == 1
    assert "TORCH_NCCL_ENABLE_TIMING=1" in outcome(report).hint
    assert report.communication.flight.collectives[0].skew_ns is None
    (tmp_path / "timed").mkdir()
    long, short = [25_000.0] * STEPS, [1_000.0] * STEPS
    timed = job(tmp_path / "timed", nccl(0, durations=short), nccl(20_000, durations=long), device_name="NVIDIA H200")
    (late,) = timed.communication.late
    assert (late.rank, late.waited_ns) == (0, 24 * MS)


def test_gloo_beside_a_device_tells_nobody_late(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000)), device_name="NVIDIA H200")
    assert report.communication.late == ()


def test_collectives_outside_of_the_judged_steps_call_nobody(tmp_path):
    after = STEPS * STEP
    report = job(tmp_path, *(flight([after + late + number for number in range(9)]) for late in (0, 20_000)))
    assert report.communication.matched is None
    assert list(waiting_lines(report)) == [
        "None of the collectives in the flight recorders was issued in a judged step."
    ]


def test_one_recorder_shows_what_it_held_and_calls_nobody(tmp_path):
    report = job(tmp_path, flight(times(0)), None)
    assert report.communication.matched is None
    (row,) = report.communication.flight.collectives
    assert (row.name, row.kind, row.count, row.bytes) == ("gloo:all_reduce", "all_reduce", STEPS, STEPS * 4096)
    assert row.skew_ns is None


def test_a_rank_without_a_recorder_may_be_the_late_one(tmp_path):
    report = job(tmp_path, flight(times(0)), flight(times(20_000)), None)
    assert [late.rank for late in report.communication.late] == [1]
    said = "Rank 2 has no flight recording; the others may wait for it."
    assert said in report.trust.notes
    assert said in waiting_lines(report)


def test_a_run_without_recorders_is_as_before(tmp_path):
    assert job(tmp_path, None, None).communication is None


def test_a_trace_of_every_rank_goes_before(tmp_path):
    def traced(rank, wait):
        trace = Trace(rank=rank, world_size=2, backend="gloo")
        for number in range(10):
            start = 1_000 + number * 1_000
            trace.op(start, start + 500, name="aten::mm")
            trace.gloo(start + 500 + wait, start + 900)
            trace.step(number, start, start + 1_000)
        return trace

    traces = {0: traced(0, 0), 1: traced(1, 300)}
    report = job(tmp_path, flight(times(20_000)), flight(times(0)), traces=traces)
    assert report.communication.matched_in == "traces"
    assert report.communication.flight is not None
    assert report.verdict.rank in (None, 1)


# Hostile text


def test_entries_whose_numbers_cannot_be_are_left_out():
    good = flight([1.0, 2.0])
    wrong = [
        {"name": 2},
        {"group": -1},
        {"dtype": 5},
        {"created_ns": 1 << 70},
        {"sequence": -1},
        {"duration_ns": -5},
        {"sequence": 1 << 80},
    ]
    bad = tuple(msgspec.structs.replace(good.entries[0], **change) for change in wrong)
    huge = msgspec.structs.replace(good.entries[1], sequence=9, input_elements=1 << 90)
    less = msgspec.structs.replace(good.entries[1], sequence=10, input_elements=-7, output_elements=-7)
    mixed = msgspec.structs.replace(good, entries=(*bad, *good.entries, huge, less))
    log = flight_log([mixed], None, EMPTY, EMPTY.start)
    assert len(log) == 4
    assert log.bytes.tolist()[0] == 4096
    assert sorted(log.bytes.tolist())[0] == -1
    assert max(log.bytes.tolist()) == 1 << 50
    assert set(log.step.tolist()) == {-1}


def test_names_of_a_stranger_run_no_script_in_the_report(tmp_path):
    evil = "</script><script>alert(1)</script>"
    named = [
        msgspec.structs.replace(flight(times(late), name="gloo:" + evil, dtype=evil, group=evil))
        for late in (0, 20_000)
    ]
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP) for _ in named])
    for rank, one in enumerate(named):
        write_document(run / f"rank_{rank:05d}" / "flight.json", one)
        write_document(
            run / f"rank_{rank:05d}" / "ddp.json", DdpRecord(models=(DistributedModel(module=evil, hook=evil),))
        )
    html = profilerkit.analyze(run).to_html()
    assert "alert(1)" in html
    assert evil not in html


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"made": "x"}', '{"made": 1, "names": [], "groups": [], "entries": [[1]]}']
)
def test_a_damaged_document_is_a_note(tmp_path, text):
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP)])
    for name in ("flight.json", "ddp.json"):
        (run / "rank_00000" / name).write_text(text)
    report = profilerkit.analyze(run)
    assert report.communication is None
    assert sum("is damaged" in note for note in report.trust.notes) == 2


def test_what_ddp_says_is_shown_as_it_is(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP)])
    model = DistributedModel(module="Net", comm_ns=4 * MS, overlap_ns=3 * MS, forward_ns=MS, bucket_bytes=(1024, 2048))
    write_document(run / "rank_00000" / "ddp.json", DdpRecord(models=(model,)))
    report = profilerkit.analyze(run)
    (shown,) = report.communication.ddp
    assert (shown.overlap_ratio, shown.backward_ns, shown.static_graph) == (0.75, None, None)
    assert "overlapped with backward" in report.to_html()
    values = [fact.value for fact in model_facts(report)]
    assert values == ["forward 1.00 ms, communication 4.00 ms", "75 %", "2: 1.00 KiB, 2.00 KiB"]


def test_ddp_tells_that_the_work_is_divided_by_data(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP)] * 2)
    record = DdpRecord(models=(DistributedModel(world_size=2), DistributedModel(world_size=1)))
    for rank in range(2):
        write_document(run / f"rank_{rank:05d}" / "ddp.json", record)
    (dimension,) = profilerkit.analyze(run).communication.parallelism
    assert (dimension.name, dimension.size) == ("data", 2)


def test_a_rank_that_learned_its_place_late_is_one_of_several(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP)], joined=(1, 4))
    report = profilerkit.analyze(run)
    assert "3 of 4 ranks are missing." in report.verdict.consequence
    assert any(note.startswith("Rank 0: the process became rank 1 of 4 only after") for note in report.trust.notes)


def test_what_windows_held_is_read_too(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(STEPS, STEP)])
    early, last = flight(times(0)[:10]), flight(times(0)[8:], first=9)
    window = run / "rank_00000" / "windows" / "000008"
    window.mkdir(parents=True)
    write_document(window / "flight.json", early)
    write_document(run / "rank_00000" / "flight.json", last)
    assert profilerkit.analyze(run).communication.flight.held == STEPS


def test_windows_and_the_end_are_one_log():
    early, late = flight([1.0, 2.0, 3.0]), flight([2.0, 3.0, 4.0], first=2)
    log = flight_log([early, late], None, EMPTY, EMPTY.start)
    assert log.sequence.tolist() == [1, 2, 3, 4]
    assert isinstance(late.entries[0], FlightEntry)
    assert log.created.tolist() == [rank_meta().anchor_unix_ns + number * US for number in (1, 2, 3, 4)]
