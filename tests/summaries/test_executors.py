"""Any executor makes the same summaries, and the same report."""

import json
import os
import re
import signal
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

import profilerkit
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats.jobs import Reading
from profilerkit.summaries.files import place_of
from profilerkit.summaries.mapping import Task, dask, map_all, pool
from tests.recipes import training

RANKS = 64


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    place = tmp_path_factory.mktemp("traces")
    return [training(6, kernels=4 + rank % 5, rank=rank).write(place / f"rank{rank:02}.json") for rank in range(RANKS)]


def report_of(directory):
    said = json.loads(profilerkit.reduce(directory).to_json())
    said["run"].pop("created")
    said["run"].pop("name")
    return said


@pytest.fixture(scope="module")
def expected(traces, tmp_path_factory):
    place = tmp_path_factory.mktemp("one_by_one")
    for trace in traces:
        profilerkit.summarise(trace, place)
    return report_of(place)


def mapped(traces, directory, engine, meanwhile=lambda: None):
    """The report of all traces; ``meanwhile`` is done once the first of them is."""
    found = map_all([Task(trace, place_of(trace, directory), Reading()) for trace in traces], engine, 2)
    done = [next(found)]
    meanwhile()
    done += found
    assert {entry.problem for entry in done} == {""}
    assert sorted(entry.task.trace for entry in done) == sorted(traces)
    return report_of(directory)


def test_our_pool(traces, expected, tmp_path):
    assert mapped(traces, tmp_path, pool) == expected


def test_threads_and_processes_of_the_users(traces, expected, tmp_path):
    for name, executor in (
        ("threads", ThreadPoolExecutor(2)),
        ("processes", ProcessPoolExecutor(2, mp_context=get_context("spawn"))),
    ):
        place = tmp_path / name
        place.mkdir()
        with executor:
            done = list(executor.map(profilerkit.summarise, traces, [place] * RANKS))
        assert all(path.is_file() for path in done)
        assert report_of(place) == expected


@pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning")  # by another run of these tests
def test_dask(traces, expected, tmp_path):
    pytest.importorskip("distributed")
    assert mapped(traces, tmp_path, dask(None)) == expected


def test_a_process_of_the_pool_that_is_killed_in_mid_run_changes_nothing(traces, expected, tmp_path):
    started = []

    @contextmanager
    def watched(workers):
        with pool(workers) as executor:
            started.append(executor)
            yield executor

    def kill():
        os.kill(next(iter(started[0]._processes)), signal.SIGKILL)

    assert mapped(traces, tmp_path, watched, kill) == expected
    assert len(started) > 1


def test_a_dask_worker_that_is_killed_in_mid_run_changes_nothing(traces, expected, tmp_path):
    distributed = pytest.importorskip("distributed")
    workers = []

    @contextmanager
    def watched(_count):
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            workers.extend(client.run(os.getpid).values())
            yield client.get_executor()

    assert mapped(traces, tmp_path, watched, lambda: os.kill(workers[0], signal.SIGKILL)) == expected
    assert len(workers) == 2


@pytest.fixture(scope="module")
def on_ray(traces, tmp_path_factory):
    """The executor of the README's example, once the example has run as it stands there."""
    ray = pytest.importorskip("ray")
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (code,) = [text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "class OnRay" in text]
    names = {"traces": traces[:3], "summaries": tmp_path_factory.mktemp("example")}
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        exec(code, names)
        assert len(list(names["summaries"].iterdir())) == 3
        yield names["OnRay"]
    finally:
        ray.shutdown()


def test_ray(traces, expected, tmp_path, on_ray):
    list(on_ray().map(profilerkit.summarise, traces, [tmp_path] * RANKS))
    assert report_of(tmp_path) == expected


def test_ray_goes_on_where_it_was_broken_off(traces, expected, tmp_path, on_ray):
    list(on_ray().map(profilerkit.summarise, traces[:20], [tmp_path] * 20))
    made = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(made) == 20
    list(on_ray().map(profilerkit.summarise, traces, [tmp_path] * RANKS))
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert report_of(tmp_path) == expected


def test_a_ray_worker_that_is_killed_in_mid_run_changes_nothing(traces, expected, tmp_path, on_ray):
    def own():
        return os.getpid()

    executor = on_ray()
    worker = executor.submit(own).result()
    running = [executor.submit(profilerkit.summarise, trace, tmp_path) for trace in traces]
    wait(running, return_when=FIRST_COMPLETED)
    os.kill(worker, signal.SIGKILL)
    assert all(future.result().is_file() for future in running)
    assert report_of(tmp_path) == expected


def test_dask_that_does_not_answer_is_said(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("profilerkit.summaries.mapping._ANSWER_SECONDS", 1)
    with pytest.raises(UsageError, match="no Dask scheduler answers"), dask("tcp://127.0.0.1:1")(1):
        pass


def test_a_missing_trace_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot summarise"):
        profilerkit.summarise(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(UnreadableInputError):
        profilerkit.summarise(tmp_path / "other.json")
