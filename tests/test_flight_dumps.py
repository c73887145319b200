"""Flight recorder dumps alone to a report: who is late, from real runs and from recipes, and where they do not tell."""

import os
import sys
from pathlib import Path

import pytest

from profilerkit.analysis.ranks.dumps import FOUND_BY
from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.report import terminal
from profilerkit.report.json import load
from profilerkit.report.json import render as to_json
from profilerkit.results import as_report
from tests import programs
from tests.recipes import training

sys.path.insert(0, str(Path(__file__).parent / "trace"))
from flight_recipes import MS, START_NS, as_json, as_pickle, call, dump, stepping

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
import torch._C._distributed_c10d as c10d

rank, directory, late_s = int(os.environ["RANK"]), sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
for _ in range(25):
    time.sleep(0.01 + rank * late_s)
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(10))
dist.barrier()
for name, data in (("pickle", c10d._dump_fr_trace()), ("json", c10d._dump_fr_trace_json())):
    with open(f"{directory}/{name}/dump_rank_{rank}", "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
dist.barrier()
os._exit(0)
"""


def real(tmp_path, late_s):
    """A directory of the dumps of two ranks, as pickle and as JSON."""
    pytest.importorskip("torch")
    for name in ("pickle", "json"):
        (tmp_path / name).mkdir()
    (tmp_path / "train.py").write_text(TRAINING)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}
    programs.ranks(tmp_path / "train.py", tmp_path, late_s, env=environment, check=True)
    return tmp_path


def saved(directory, *documents, names="fr_rank_{}.pickle", write=as_pickle):
    """The dumps as files, one of each rank."""
    directory.mkdir(exist_ok=True)
    paths = [directory / names.format(rank) for rank in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_bytes(write(document))
    return paths


def outcome(report, code="CO003"):
    return next(entry for entry in report.outcomes if entry.rule == code)


def notes(report):
    return "\n".join(report.trust.notes)


@pytest.mark.torch
def test_a_late_rank_of_a_real_run_is_found_in_its_dumps_alone(tmp_path):
    directory = real(tmp_path, 0.04)
    by_pickle, by_json = analyze(directory / "pickle"), analyze(directory / "json")
    for report in (by_pickle, by_json):
        assert (report.verdict.bound, report.verdict.rank) == ("inconclusive", 1)
        assert "for rank 1" in report.verdict.headline
        assert outcome(report).status == "fired"
        (late,) = report.communication.late
        assert (late.rank, late.cause, late.coverage) == (1, None, None)
        assert late.share > 0.8
        assert (report.steps.count, report.steps.found_by, report.steps.inferred) == (24, FOUND_BY, True)
        assert (report.run.kind, report.trust.mode, report.run.world_size) == ("dumps", "dumps", 2)
    assert by_pickle.communication == by_json.communication


@pytest.mark.torch
def test_of_a_real_run_in_which_nobody_is_late_nobody_is_accused(tmp_path):
    report = analyze(real(tmp_path, 0.0) / "pickle")
    assert report.communication.late == ()
    assert (report.verdict.rank, outcome(report).status) == (None, "passed")
    assert report.verdict.headline == "No rank is provably late in 51 collectives of 2 ranks"


def test_how_late_a_rank_is_comes_out_as_it_was_put_in(tmp_path):
    report = analyze(*saved(tmp_path, stepping(), stepping(20 * MS), stepping(1 * MS)))
    (late,) = report.communication.late
    assert (late.rank, late.waited_ns, report.communication.matched) == (1, 19.5 * MS, 60)
    assert report.steps.time_ns.median == 100 * MS
    assert outcome(report).findings[0].saving.expected == pytest.approx(0.19)
    assert "A wait of 19.5 ms proves a late rank only if" in notes(report)
    assert report.verdict.refuted_by.startswith("Record the late rank's steps")
    assert report.cost is None  # no part of a step is known


@pytest.mark.parametrize(("late_ms", "called"), [(4.9, False), (5.1, True)])
def test_less_than_five_percent_of_a_step_is_not_called(tmp_path, late_ms, called):
    report = analyze(*saved(tmp_path, stepping(), stepping(round(late_ms * MS))))
    assert bool(report.communication.late) is called


def test_lateness_beyond_what_clocks_can_differ_needs_no_doubt(tmp_path):
    report = analyze(*saved(tmp_path, stepping(step_ns=900 * MS), stepping(300 * MS, step_ns=900 * MS)))
    assert report.verdict.rank == 1
    assert "on one host" not in notes(report)


def test_all_but_the_late_rank_is_not_measured(tmp_path):
    report = analyze(*saved(tmp_path, stepping(), stepping(20 * MS)))
    statuses = {entry.rule: entry.status for entry in report.outcomes if entry.rule != "CO003"}
    assert set(statuses.values()) == {"missing_data"}
    assert {signal.state for signal in report.trust.signals} == {"partial", "missing"}
    assert all("logs" not in entry.hint for entry in report.outcomes if entry.hint)
    assert report.breakdown == ()
    assert report.ledger is None
    assert "not measured" in outcome(report).findings[0].why
    text = terminal.render(report)
    assert "what takes it longer explains" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "flight recorder dumps" in report.to_html()
    assert as_report(load(to_json(report))) == report


def test_dumps_that_begin_apart_are_matched_by_number(tmp_path):
    report = analyze(*saved(tmp_path, stepping(first=8), stepping(20 * MS)))
    assert report.communication.late[0].waited_ns == 20 * MS
    assert report.communication.matched == 53


def test_what_is_done_once_before_and_between_is_no_step(tmp_path):
    def job(late):
        entries = stepping(late)["entries"]
        once = [call(0, START_NS + place, elements=3 + place) for place in range(5)]
        every = [*once, *entries[:30], call(0, entries[29]["time_created_ns"] + MS, elements=77), *entries[30:]]
        return dump([{**entry, "collective_seq_id": number} for number, entry in enumerate(every, 1)])

    report = analyze(*saved(tmp_path, job(0), job(20 * MS)))
    assert report.steps.count == 29
    assert report.communication.late[0].rank == 1


def test_without_a_clear_period_nothing_is_said_of_steps_and_nobody_is_accused(tmp_path):
    def job(late):
        return dump([call(n + 1, START_NS + n * 100 * MS + late, elements=n * n + 1) for n in range(40)])

    report = analyze(*saved(tmp_path, job(0), job(20 * MS)))
    assert report.verdict.headline == "The collectives in the dumps do not repeat in a clear period"
    assert (report.steps.count, report.verdict.rank, report.communication.late) == (0, None, ())
    assert outcome(report).status == "missing_data"
    assert "no rank is judged" in notes(report)


def test_dumps_of_different_times_accuse_nobody(tmp_path):
    report = analyze(*saved(tmp_path, stepping(), stepping(3_600_000 * MS)))
    assert (report.verdict.rank, report.steps.count) == (None, 0)
    assert "The dumps do not overlap" in notes(report)


def test_a_rank_that_stopped_before_the_others_is_named(tmp_path):
    stuck = stepping()
    report = analyze(*saved(tmp_path, stepping(), dump(stuck["entries"][:-3]), stepping()))
    assert "had issued collective 60, but rank 1 at 57. If all dumps are from one moment, the others wait" in notes(
        report
    )


def test_one_dump_shows_what_it_held_and_calls_nobody(tmp_path):
    (path,) = saved(tmp_path, stepping())
    report = analyze(path)
    assert report.verdict.headline == "One rank's dump does not show who comes last"
    assert report.communication.flight.held == 60
    assert report.run.missing_ranks == 1
    assert outcome(report).status == "missing_data"


def test_a_rank_whose_dump_is_empty_may_be_who_is_waited_for(tmp_path):
    report = analyze(*saved(tmp_path, stepping(), stepping(20 * MS), dump([])))
    assert report.verdict.rank == 1
    assert "Rank 2 has no flight recording; the others may wait for it." in notes(report)
    (tmp_path / "none").mkdir()
    empty = analyze(*saved(tmp_path / "none", dump([]), dump([])))
    assert empty.verdict.headline == "The dumps hold no collective"


def nccl(late=0, **more):
    return stepping(late, name="nccl:all_reduce", **more)


def test_collectives_of_a_device_tell_only_where_they_were_timed(tmp_path):
    untimed = analyze(*saved(tmp_path / "untimed", nccl(), nccl(20 * MS)))
    assert (untimed.verdict.rank, outcome(untimed).status) == (None, "missing_data")
    assert "TORCH_NCCL_ENABLE_TIMING=1" in outcome(untimed).hint
    timed = analyze(*saved(tmp_path / "timed", nccl(duration_ms=25.0), nccl(20 * MS, duration_ms=1.0)))
    (late,) = timed.communication.late
    assert (late.rank, late.waited_ns) == (1, 24 * MS)
    assert "on one host" not in notes(timed)


def test_the_groups_that_dumps_describe_stand_side_by_side(tmp_path):
    def job(rank):
        entries = stepping(20 * MS if rank == 3 else 0)["entries"]
        # Before the first step, so that of these groups nothing is judged.
        return dump([call(1, START_NS, group=(f"{1 + rank // 2}", "mesh_tp")), *entries], ranks="[0, 1, 2, 3]")

    (groups,) = analyze(*saved(tmp_path, *map(job, range(4)))).communication.groups
    assert (groups.kind, groups.count) == ("tensor group", 2)
    late, other = groups.rows
    assert (late.members, other.members) == ((2, 3), (0, 1))
    assert late.caused_ns > other.caused_ns
    assert late.late > other.late


def test_gloo_beside_collectives_of_a_device_tells_nobody_late(tmp_path):
    def job(late):
        other = call(1, START_NS, name="nccl:all_gather", group=("1", "tensor"))
        return dump([*stepping(late)["entries"], other])

    assert analyze(*saved(tmp_path, job(0), job(20 * MS))).communication.late == ()


# Which rank a dump is of, and what lies beside it


def test_the_rank_is_told_by_the_name_of_the_file(tmp_path):
    for names in ("nccl_trace_rank_{}", "fr-rank{}.json", "Rank.{}.pkl", "dump{}.pickle", "2026_{}"):
        documents = (stepping(), stepping(20 * MS))
        paths = saved(tmp_path / names.format("x"), *documents, names=names)
        report = analyze(*reversed(paths))
        assert (report.verdict.rank, report.run.ranks) == (1, (0, 1))
        assert "were numbered in the order given" not in notes(report)


def test_names_that_tell_no_rank_leave_the_order_which_is_said(tmp_path):
    first, second = saved(tmp_path, stepping(), stepping(20 * MS))
    late, early = first.rename(tmp_path / "late"), second.rename(tmp_path / "early")
    report = analyze(early, late)
    assert report.verdict.rank == 0
    assert "numbered in the order given: early as rank 0, late as rank 1." in notes(report)


def test_several_dumps_of_one_rank_are_one_recording(tmp_path):
    whole = [stepping(), stepping(20 * MS)]
    saved(tmp_path, *(dump(one["entries"][:34]) for one in whole))
    saved(tmp_path, *(dump(one["entries"][20:]) for one in whole), names="fr_rank_{}.json", write=as_json)
    report = analyze(tmp_path)
    assert report.run.ranks == (0, 1)
    assert (report.communication.matched, report.verdict.rank) == (60, 1)


def test_a_directory_of_traces_stays_one_of_traces(tmp_path):
    saved(tmp_path, stepping(), names="fr_rank_{}.json", write=as_json)
    training(10, kernels=10, kernel=200).write(tmp_path / "trace.json")
    report = analyze(tmp_path)
    assert report.run.kind == "trace"
    assert "fr_rank_0.json is not a trace" in notes(report)


def test_dumps_beside_something_else_are_refused_with_what_to_do(tmp_path):
    paths = saved(tmp_path, stepping(), stepping())
    trace = training(10, kernels=10, kernel=200).write(tmp_path / "trace.json")
    with pytest.raises(UsageError, match="combined with other inputs") as caught:
        analyze(*paths, trace)
    assert "trace.json" in caught.value.cause
    with pytest.raises(UsageError, match="given twice"):
        analyze(paths[0], tmp_path / ".." / tmp_path.name / paths[0].name)


def test_a_damaged_dump_of_a_directory_is_left_out_and_said(tmp_path):
    first, _, third = saved(tmp_path, stepping(), stepping(20 * MS), stepping())
    third.write_bytes(third.read_bytes()[:-700])
    assert "fr_rank_2.pickle is not a dump that can be read" in notes(analyze(tmp_path))
    with pytest.raises(UnreadableInputError) as caught:
        analyze(first, third)
    assert (caught.value.cause, "_dump_fr_trace" in caught.value.hint) == ("it ends early", True)


def test_the_command_line_takes_dumps(tmp_path, capsys):
    paths = saved(tmp_path, stepping(), stepping(20 * MS))
    assert main(["analyze", *map(str, paths), "-f", "text", "-o", "-"]) == 0
    assert "The other ranks wait 20.0 ms of every step for rank 1" in capsys.readouterr().out
    assert main(["analyze", *map(str, paths), "--show", "E1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "comes from the recording in fr_rank_0.pickle and fr_rank_1.pickle." in shown
