"""Ranks of one job, by what launched them: where each stands, whose directory it writes, who is missing."""

import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from profilerkit.capture import clocks
from profilerkit.capture.clocks import ClockWatch, take_anchor
from profilerkit.capture.distributed import place
from profilerkit.capture.patches import Patches
from profilerkit.rundir.layout import END, META
from profilerkit.rundir.process import clock_of
from profilerkit.rundir.reader import read_run

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "GROUP_", "SLURM_", "OMPI_", "PMI")


def clean(**variables):
    """The environment without what a launcher of the tests may have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def torchrun(rank, world=2, *, port=29500, run="none", restart=0, **more):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        **more,
    }


def slurm(rank, world=2, *, job=7, step=0, **more):
    """What ``srun`` sets for a task."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": str(step),
        "SLURM_NTASKS": str(world),
        "SLURM_STEP_NUM_TASKS": str(world),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "SLURM_NODEID": str(rank // 2),
        **more,
    }


# Where a process stands


def test_place_comes_from_torchrun_and_is_shared_by_its_ranks():
    places = [place(torchrun(rank, 4), 1) for rank in range(4)]
    assert [found.rank for found in places] == [0, 1, 2, 3]
    assert {(found.world_size, found.node) for found in places} == {(4, 0)}
    assert len({found.launch_id for found in places}) == 1
    assert place(torchrun(0, 4), 2).launch_id != places[0].launch_id


@pytest.mark.parametrize("other", [{"run": "b"}, {"port": 1}, {"restart": 1}, {"world": 3}, {"SLURM_JOB_ID": "9"}])
def test_jobs_of_torchrun_differ(other):
    assert place(torchrun(0, **other), 1).launch_id != place(torchrun(0), 1).launch_id


def test_what_started_the_ranks_of_one_host_tells_their_jobs_apart(monkeypatch):
    def launched(parent, **changes):
        monkeypatch.setattr(os, "getppid", lambda: parent)
        return place(torchrun(0, **changes), 1).launch_id

    assert launched(10) != launched(11)
    assert launched(10, LOCAL_WORLD_SIZE="1") == launched(11, LOCAL_WORLD_SIZE="1")
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    script = {"LOCAL_WORLD_SIZE": ""}  # ranks that a script spawned with variables of its own
    assert launched(10, **script) != launched(11, **script)
    assert launched(10, **script, MASTER_ADDR="node7") == launched(11, **script, MASTER_ADDR="node7")


def test_hosts_of_one_torchrun_may_be_several_steps_of_slurm():
    several = {"LOCAL_WORLD_SIZE": "1", "SLURM_JOB_ID": "9"}
    first = place(torchrun(0, **several, SLURM_STEP_ID="0"), 1)
    assert place(torchrun(1, **several, SLURM_STEP_ID="1"), 1).launch_id == first.launch_id


@pytest.mark.parametrize(
    "variables",
    [{}, {"RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "x"}, {"RANK": "4", "WORLD_SIZE": "2"}],
)
def test_single_process_is_rank_0_of_1(variables):
    found = place(variables, 1)
    assert (found.rank, found.local_rank, found.world_size, found.node) == (0, 0, 1, None)
    assert found.launch_id != place(variables, 1).launch_id


def test_place_comes_from_the_task_of_srun():
    places = [place(slurm(rank, 4), 1) for rank in range(4)]
    assert [(found.rank, found.local_rank, found.node) for found in places] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert {found.world_size for found in places} == {4}
    assert len({found.launch_id for found in places}) == 1
    assert place(slurm(0, 4, step=1), 1).launch_id != places[0].launch_id
    assert place(slurm(0, 4, job=8), 1).launch_id != places[0].launch_id


@pytest.mark.parametrize(
    "changed",
    [
        {"SLURM_STEP_ID": ""},  # a batch script
        {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},  # the shell of salloc
        {"SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": ""},  # a batch script that numbers itself
        {"SLURM_STEP_NUM_TASKS": "1"},  # srun -n1 inside a larger job
        {"SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "1"},
        {"SLURM_PROCID": "2"},
        {"RANK": "0", "WORLD_SIZE": "1"},  # the script knows better
    ],
)
def test_one_process_in_a_job_of_slurm_is_rank_0_of_1(changed):
    found = place({**slurm(1), **changed}, 1)
    assert (found.rank, found.world_size) == (0, 1)


def test_variables_of_the_script_go_before_those_of_slurm():
    found = place({**slurm(3, 4), **torchrun(1, 8)}, 1)
    assert (found.rank, found.world_size) == (1, 8)


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-a-1@1"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_ess_base_jobid": "77"},
        {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_PORT": "host:4711"},
    ],
)
def test_place_comes_from_mpi_where_it_names_the_job(variables):
    found = place(variables, 1)
    assert (found.rank, found.local_rank, found.world_size) == (1, 1, 4)
    unnamed = {name: value for name, value in variables.items() if name.endswith(("RANK", "SIZE"))}
    assert place(unnamed, 1).world_size == 1


# Whose directory a rank writes

LOOP = """
import sys, profilerkit
with profilerkit.profile(sys.argv[1], deep=False, nvml=False, host=False, analyze=False) as prof:
    list(prof.wrap(range(20)))
print(prof.directory)
"""


def started(path, variables, code=LOOP):
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], env=clean(**variables), stdout=subprocess.PIPE, text=True
    )


def directories(processes):
    out = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return out


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([torchrun(0, run="a"), torchrun(1, run="a")], [torchrun(0, run="b"), torchrun(1, run="b")]),
        ([slurm(0), slurm(1)], [slurm(0, step=1), slurm(1, step=1)]),
        ([slurm(0), slurm(1)], [torchrun(0), torchrun(1)]),
        ([torchrun(0), torchrun(1)], [torchrun(0, restart=1), torchrun(1, restart=1)]),
    ],
    ids=["torchrun", "slurm", "both", "elastic restart"],
)
def test_two_jobs_at_once_share_nothing_but_the_name(tmp_path, first, second):
    wanted = tmp_path / "run"
    jobs = [[started(wanted, variables) for variables in job] for job in (first, second)]
    found = [set(directories(job)) for job in jobs]
    assert all(len(job) == 1 for job in found)
    assert found[0] | found[1] == {str(wanted), str(tmp_path / "run-2")}
    for path in (wanted, tmp_path / "run-2"):
        run = read_run(path)
        assert [rank.rank for rank in run.ranks] == [0, 1]
        assert run.manifest.world_size == 2
        assert run.missing_ranks == ()


REPORTING = """
import sys, time
import profilerkit
from profilerkit.capture import handoff
handoff._RANKS_SECONDS = 1.0
with profilerkit.profile(sys.argv[1], deep=False, nvml=False, host=False) as prof:
    for _ in prof.wrap(range(20)):
        time.sleep(0.002)
assert prof.report is not None
"""
ENDLESS = REPORTING.replace("range(20)", "iter(int, 1)")


def test_a_rank_that_never_ends_and_one_that_never_started_are_named(tmp_path):
    run = tmp_path / "run"
    variables = [{**torchrun(rank, 3), "LOCAL_WORLD_SIZE": "1"} for rank in range(2)]
    endless = started(run, variables[1], ENDLESS)
    try:
        deadline = time.monotonic() + 60
        while not (run / "rank_00001" / META).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        start = time.monotonic()
        first = started(run, variables[0], REPORTING)
        assert first.communicate(timeout=120)[0] == ""
        assert first.returncode == 0
        assert time.monotonic() - start < 60
        assert not (run / "rank_00001" / END).exists()
    finally:
        endless.kill()
        endless.communicate()
    text = (run / "report.json").read_text()
    assert "Rank 2 of 3 left nothing." in text
    assert "Rank 1 still runs" in text


# Clocks


def test_anchors_are_taken_at_both_ends_and_give_the_time_of_day(light, recorded):
    before_ns = time.time_ns()
    with light() as prof:
        list(prof.wrap(range(5)))
    after_ns = time.time_ns()
    rank = recorded(prof.directory).rank
    assert len(rank.clock.perf) >= 2
    assert rank.notes == ()
    for event in recorded(prof.directory).steps:
        assert before_ns <= rank.clock.unix_ns(event.start_ns) <= after_ns
    assert rank.meta.anchor_perf_ns <= rank.clock.perf[0]


def test_an_anchor_is_taken_every_minute(monkeypatch):
    now = [1_000]
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: now[0])
    taken = []
    watch = ClockWatch(taken.append)
    watch.install(Patches())
    for _ in range(481):  # two minutes of beats
        now[0] += 250_000_000
        watch.beat()
    watch.close()
    assert len(taken) == 4


def test_the_tightest_of_a_few_tries_is_the_anchor(monkeypatch):
    clock = iter([0, 900, 1_000, 1_010, 2_000, 2_500, 3_000, 3_900, 4_000, 4_900])
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(clocks, "time_ns", lambda: 5)
    anchor = take_anchor()
    assert (anchor.perf_ns, anchor.unix_ns, anchor.width_ns) == (1_005, 5, 10)


def test_without_anchors_the_one_in_meta_serves(light, recorded):
    with light() as prof:
        list(prof.wrap(range(3)))
    meta = recorded(prof.directory).rank.meta
    assert clock_of((), meta).unix_ns(meta.anchor_perf_ns + 7) == meta.anchor_unix_ns + 7
