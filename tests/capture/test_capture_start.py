# ruff: noqa: PT031  a block under test is a with statement with a loop in it
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading

import pytest

import profilerkit
from profilerkit.capture import session
from profilerkit.errors import UsageError
from profilerkit.rundir.layout import NAMES, EventKind


def test_importing_capture_loads_no_heavy_library():
    code = (
        "import sys, profilerkit.capture;"
        "bad = {'torch', 'numpy', 'psutil', 'pynvml', 'msgspec'} & set(sys.modules);"
        "sys.exit(' '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_recording_never_imports_torch_by_itself(tmp_path):
    code = (
        "import sys, time, profilerkit\n"
        f"with profilerkit.profile({str(tmp_path / 'run')!r}, analyze=False) as prof:\n"
        "    for _ in prof.wrap(range(20)):\n"
        "        pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_unwritable_target_falls_back_to_tmpdir_with_one_warning(tmp_path, monkeypatch, recorded):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="cannot be written") as warned:
        block = profilerkit.profile(tmp_path / "file" / "run", nvml=False, host=False, analyze=False)
        with block as prof:
            list(prof.wrap([1, 2, 3]))
    assert len(warned) == 1
    assert tmp_path in prof.directory.parents
    assert len(recorded(prof.directory).steps) == 3


def test_where_no_place_can_be_written_the_block_runs_unrecorded(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    block = profilerkit.profile(tmp_path / "file" / "run")
    with pytest.warns(RuntimeWarning, match="records nothing, training goes on: cannot write") as warned, block as prof:
        assert list(prof.wrap([1, 2])) == [1, 2]
    assert (len(warned), prof.directory, prof.report) == (1, None, None)


def test_default_directory_is_named_after_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["some/where/train_resnet.py", "--lr", "1"])
    names = []
    for _ in range(2):
        with profilerkit.profile(deep=False, nvml=False, host=False, analyze=False) as prof:
            pass
        names.append(prof.directory)
    assert names == [tmp_path / "runs" / "train_resnet", tmp_path / "runs" / "train_resnet-2"]


def test_disabled_block_does_nothing(tmp_path):
    loader = [1, 2]
    with profilerkit.profile(tmp_path / "run", enabled=False) as prof:
        assert prof.wrap(loader) is loader
        prof.step()
        with prof.phase("evaluation"):
            pass
    assert prof.report is None
    assert prof.directory is None
    assert not (tmp_path / "run").exists()


def test_decorator_records_every_call_in_its_own_directory(tmp_path, light):
    calls = []

    @light()
    def train(value, *, scale=1):
        """Doc."""
        calls.append(value * scale)
        return value

    assert train(1) == 1
    assert train(2, scale=10) == 2
    assert calls == [1, 20]
    assert train.__doc__ == "Doc."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


def test_decorator_refuses_functions_that_run_after_the_call(light):
    async def coroutine():
        pass

    def generator():
        yield

    async def asynchronous_generator():
        yield

    for function in (coroutine, generator, asynchronous_generator):
        with pytest.raises(UsageError, match="cannot decorate"):
            light()(function)


def test_block_inside_a_block_records_nothing_and_says_so(light, recorded):
    with light() as outer:
        with pytest.warns(RuntimeWarning, match="records nothing"):
            inner = light()
            inner.__enter__()
        assert inner.wrap([1]) == [1]
        inner.step()
        inner.__exit__(None, None, None)
        list(outer.wrap([1, 2]))
    assert inner.directory is None
    assert len(recorded(outer.directory).steps) == 2


def test_block_cannot_be_opened_twice_at_once(light):
    with light() as prof, pytest.raises(UsageError, match="open already"):
        prof.__enter__()


class Holder:
    """What keeps the recording to name its phases, as a model or a dataset may."""

    def __init__(self, prof):
        self.prof = prof


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_what_holds_a_recording_is_copied_with_the_same_one(light, recorded, copied):
    with light() as prof:
        with copied(Holder(prof)).prof.phase("checkpoint"):
            pass
        assert copied(prof) is prof
    assert len(recorded(prof.directory).of(EventKind.PHASE)) == 1


def test_what_holds_a_recording_is_pickled_with_one_that_records_nothing(light, recorded):
    with light() as prof:
        arrived = pickle.loads(pickle.dumps(Holder(prof))).prof
        with arrived, arrived.phase("checkpoint"):
            arrived.step()
        assert list(arrived.wrap([1])) == [1]
    assert (arrived.directory, arrived.report) == (None, None)
    assert recorded(prof.directory).of(EventKind.PHASE) == []


def test_what_holds_a_phase_is_copied_with_it_and_pickled_with_one_that_records_nothing(light, recorded):
    with light() as prof:
        phase = prof.phase("checkpoint")
        for copied in (copy.copy(phase), copy.deepcopy(phase), pickle.loads(pickle.dumps(phase))):
            with copied:
                pass
    assert len(recorded(prof.directory).of(EventKind.PHASE)) == 2


def test_a_profile_that_is_not_open_records_where_it_is_unpickled(light, recorded):
    with pickle.loads(pickle.dumps(light())) as prof:
        prof.step()
    assert recorded(prof.directory).rank.end.steps == 1


def test_phase_is_recorded_with_its_name(light, recorded):
    with light() as prof:
        for name in ("checkpoint", "evaluation", "checkpoint"):
            with prof.phase(name):
                pass
    run = recorded(prof.directory)
    names = [run.rank.names[event.name] for event in run.of(EventKind.PHASE)]
    assert names == ["checkpoint", "evaluation", "checkpoint"]


def on_another_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_one_phase_may_be_entered_while_it_is_open(light, recorded):
    with light() as prof:
        doing = prof._session._timer.here.doing
        phase = prof.phase("evaluation")
        with phase:
            with phase:
                assert (doing.phases, doing.evaluations) == (2, 2)
            assert (doing.phases, doing.evaluations) == (1, 1)
        assert (doing.phases, doing.evaluations) == (0, 0)
    inner, outer = recorded(prof.directory).of(EventKind.PHASE)
    assert outer.start_ns <= inner.start_ns
    assert outer.dur_ns >= inner.dur_ns


def test_a_phase_that_another_thread_ends_is_over(light, recorded):
    with light() as prof:
        phase = prof.phase("evaluation")
        phase.__enter__()
        on_another_thread(lambda: phase.__exit__(None, None, None))
        doing = prof._session._timer.here.doing
        assert (doing.phases, doing.evaluations) == (0, 0)
    assert len(recorded(prof.directory).of(EventKind.PHASE)) == 1


def test_a_thread_ends_its_own_block_of_a_phase_before_that_of_another(light, recorded):
    with light() as prof:
        phase = prof.phase("checkpoint")
        with phase:
            on_another_thread(phase.__enter__)
        assert prof._session._timer.here.doing.phases == 0
        phase.__exit__(None, None, None)
        phase.__exit__(None, None, None)
    first, second = recorded(prof.directory).of(EventKind.PHASE)
    assert first.start_ns < second.start_ns


def test_endless_phase_names_share_one_id(light, recorded):
    with light() as prof:
        for number in range(1100):
            with prof.phase(f"step {number}"):
                pass
    run = recorded(prof.directory)
    assert len(run.of(EventKind.PHASE)) == 1100
    assert len((prof.directory / "rank_00000" / NAMES).read_text().splitlines()) == 1001
    assert len(run.rank.names) == 1001
    assert run.rank.names[1001] == "(more names)"


@pytest.mark.parametrize(("world", "later"), [(1, 1.0), (2, 0.5)])
def test_the_writer_beats_twice_per_second_at_first_and_where_ranks_ask_each_other(
    toy, light, monkeypatch, world, later
):
    """Half a second is what a request for a window counts with; a beat alone costs a fifth of a millisecond."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world))
    with light():
        running = session._State.active
        periods = []
        for _ in range(21):
            periods.append(running._recorder.period_seconds)
            running._beat()
    assert toy.torch is not None
    assert (periods[0], periods[-1]) == (0.5, later)


def test_a_thread_that_the_system_refuses_ends_the_recording_alone_and_leaves_nothing(light, monkeypatch):
    start, before = threading.Thread.start, (sys.exit, os._exit, list(gc.callbacks))

    def refuse(self):
        if self.name == "profilerkit-host":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.warns(RuntimeWarning, match="can't start new thread"), light(host=True) as prof:
        pass
    assert prof.directory is None
    assert (sys.exit, os._exit, list(gc.callbacks)) == before
    assert session.active() is None
