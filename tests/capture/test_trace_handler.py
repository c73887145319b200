"""``trace_handler`` on torch's own profiler: its windows are one rank's steps, and the training never notices."""

import textwrap

import pytest

import profilerkit
from profilerkit.cli import main
from tests import programs

LOOP = textwrap.dedent("""
    import sys, time, torch, profilerkit
    from torch.profiler import ProfilerActivity, profile, schedule

    def train(handler, steps, rank=0, raises=None, **windows):
        model = torch.nn.Linear(64, 64)
        if windows.pop("ddp", False):
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        plan = schedule(wait=1, warmup=1, active=4, **windows) if windows else None
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=handler) as prof:
            for step in range(steps):
                time.sleep(0.004 * (1 + rank))
                model(torch.randn(64, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
            if raises:
                raise raises
        return prof
""")

pytestmark = pytest.mark.torch


@pytest.fixture
def run(tmp_path):
    """Run a program that begins with ``LOOP``; return the process."""
    pytest.importorskip("torch")

    def run(program, rc=0, start=programs.run):
        (tmp_path / "train.py").write_text(LOOP + textwrap.dedent(program), encoding="utf-8")
        done = start("train.py", cwd=tmp_path)
        assert {process.returncode for process in (done if isinstance(done, list) else [done])} == {rc}, done
        return done

    return run


def traces(directory):
    return sorted(path.name.partition(".")[2] for path in directory.glob("*.trace.json"))


@pytest.mark.parametrize(("repeat", "steps", "windows"), [(2, 30, 2), (0, 22, 4)])
def test_the_windows_of_a_schedule_are_the_steps_of_one_rank(run, tmp_path, repeat, steps, windows):
    """With ``repeat=0`` the loop ends within a window: stopping closes it."""
    run(f'print(train(profilerkit.trace_handler("runs/x"), {steps}, repeat={repeat}) and "trained")')
    place = tmp_path / "runs" / "x"
    assert traces(place) == [f"{number:04d}.pt.trace.json" for number in range(windows)]
    report = profilerkit.load(place / "report.json")
    assert (place / "report.html").is_file()
    assert len(report.ranks) == 1
    assert report.steps.count >= 4 * windows - 1
    again = profilerkit.analyze(place)
    assert (again.steps.count, again.verdict.bound) == (report.steps.count, report.verdict.bound)


def test_a_loop_without_a_schedule_is_one_window_and_a_second_loop_one_more_directory(run, tmp_path):
    done = run("""
        for _ in range(2):
            handler = profilerkit.trace_handler("runs/x")
            train(handler, 12)
            print(handler.directory.name, handler.report.steps.count > 0)
    """)
    assert done.stdout.splitlines() == ["x True", "x-2 True"]


def test_a_handler_that_serves_two_loops_gives_each_a_directory(run):
    done = run("""
        handler = profilerkit.trace_handler("runs/x")
        for loop in range(2):
            prof = train(handler, 8, repeat=1)
            print(handler.directory.name, handler.report is not None, "stop" in vars(prof))
            handler.report = None
    """)
    assert done.stdout.splitlines() == ["x True False", "x-2 True False"]


def test_without_the_report_traces_are_left_for_analyze(run, tmp_path, capsys):
    run('train(profilerkit.trace_handler("runs/x", analyze=False), 8, repeat=1)')
    place = tmp_path / "runs" / "x"
    assert not (place / "report.html").exists()
    assert main(["analyze", str(place)]) == 0
    assert (place / "report.html").is_file()
    assert (place / "report.json").is_file()


def test_the_ranks_of_a_job_share_a_directory_and_the_first_reports(run, tmp_path):
    run(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        handler = profilerkit.trace_handler("runs/x")
        train(handler, 14, rank, repeat=2, ddp=True)
        assert (handler.report is None) == (rank > 0)
        dist.destroy_process_group()
        """,
        start=programs.ranks,
    )
    report = profilerkit.load(tmp_path / "runs" / "x" / "report.json")
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.steps.count >= 7
    assert not (tmp_path / "runs" / "x-2").exists()


def test_the_exception_of_the_loop_goes_on_and_its_last_window_is_kept(run, tmp_path):
    done = run('train(profilerkit.trace_handler("runs/x"), 5, raises=ValueError("no more"), repeat=1)', rc=1)
    assert done.stderr.rstrip().endswith("ValueError: no more")
    assert (tmp_path / "runs" / "x" / "report.json").is_file()


def test_what_cannot_be_written_warns_once_and_the_training_goes_on(run, tmp_path):
    done = run("""
        import pathlib
        handler = profilerkit.trace_handler("runs/x")
        pathlib.Path("runs").write_text("in the way")
        train(handler, 20, repeat=0)
        print("trained", handler.report)
    """)
    assert done.stdout.splitlines() == ["trained None"]
    assert done.stderr.count("profilerkit.trace_handler switched itself off, training goes on") == 1
