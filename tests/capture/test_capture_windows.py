"""Several deep windows in one run, on real torch."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from profilerkit.capture.deep import TraceMemory
from profilerkit.capture.distributed import Place
from profilerkit.capture.settings import Settings
from profilerkit.capture.windows import DeepWindows, ask
from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import WindowRequest, WindowStatus, request_file
from profilerkit.rundir.writer import RankWriter
from profilerkit.units import format_bytes
from tests import programs

pytestmark = pytest.mark.torch
MS = 1_000_000


class Loop:
    """Drives the windows of one rank with real operators and the step times it is told."""

    def __init__(self, torch, run, *, rank=0, world_size=1, **changes):
        defaults = {"path": None, "trace_steps": 3, "warmup_steps": 1, "enabled": True}
        flags = dict.fromkeys(("light", "deep", "nvml", "host", "analyze"), True)
        self.torch, self.run = torch, run
        self.writer = RankWriter(run, rank)
        self.records = []
        settings = Settings(**{**defaults, **flags, **changes})
        self.windows = DeepWindows(self.writer, self.records.append, settings, Place(rank, rank, world_size, "x"))
        self.number = 0

    def steps(self, count, slow=(), beat=False, usual_ms=10):
        for _ in range(count):
            self.windows.step_started(self.number)
            self.torch.ones(3) + 1
            dur_ms = 10 * usual_ms if self.number in slow else usual_ms
            self.windows.step_ended(self.number, dur_ms * MS)
            if beat:
                self.windows.beat()
            self.number += 1
        return self

    @property
    def statuses(self):
        paths = sorted((self.writer.path / "windows").glob("*/status.json"))
        return [read_document(path, WindowStatus) for path in paths]


@pytest.fixture
def loop(toy, tmp_path):
    """Makes loops in one run directory; what they leave open is closed."""
    made = []

    def make(**settings):
        made.append(Loop(toy.torch, tmp_path / "run", **settings))
        return made[-1]

    yield make
    for entry in made:
        entry.windows.close(entry.number)
        entry.windows._packer.finish(30)
    assert not toy.torch.autograd._profiler_enabled()


def test_windows_open_every_so_many_steps(toy, deep, recorded):
    with deep(trace_every=8) as prof:
        for batch in prof.wrap(toy.loader(batches=32)):
            toy.train(batch)
    run = recorded(prof.directory)
    statuses = [status for status, _ in run.rank.windows]
    assert [(status.first_step, status.last_step) for status in statuses] == [(2, 4), (10, 12), (18, 20), (26, 28)]
    assert all(status.ok and status.kind == "scheduled" and status.trace == "trace.json.gz" for status in statuses)
    assert [status.trigger for status in statuses] == ["after the warm-up", *["every 8 steps"] * 3]
    assert all(path.is_file() for _, path in run.rank.windows)


def test_every_window_has_a_step_that_only_warms_the_profiler_up(loop, monkeypatch):
    """A later session's first kernels may be lost (pytorch#192021): they are of a step that is not traced."""
    found, at = loop(trace_every=20), []
    kind = found.torch.profiler.profile
    for name in ("prepare_trace", "start_trace"):
        original = vars(kind.__mro__[1])[name]

        def noted(self, name=name, original=original):
            at.append((name, found.number))
            return original(self)

        monkeypatch.setattr(kind.__mro__[1], name, noted)
    found.steps(70, slow=(25, 35, 45, 55, 65))
    assert len(found.statuses) >= 4
    prepared, started = (
        [number for name, number in at if name == wanted] for wanted in ("prepare_trace", "start_trace")
    )
    assert [number + 1 for number in prepared] == started == [status.first_step for status in found.statuses]


def test_a_slow_step_that_recurs_is_caught_by_one_window(loop):
    found = loop()
    found.steps(400, slow=range(50, 400, 50))
    typical, anomaly = found.statuses
    assert (typical.kind, typical.slow_step) == ("scheduled", None)
    assert (anomaly.kind, anomaly.first_step, anomaly.last_step, anomaly.slow_step) == ("anomaly", 198, 201, 200)
    assert anomaly.ok
    assert anomaly.reason == ""
    assert anomaly.trigger == "every 50 steps a step takes more than 3 times the median of 10.0 ms"


def ahead(found, count, *, device_ms, drains=0, lag=8):
    """Steps of a host that is ``lag`` steps ahead of its device and waits for it at every so manieth one."""
    for _ in range(count):
        number = found.number
        if number >= lag:
            found.windows.device_took(number - lag, 1, device_ms(number - lag) * MS, number - 1)
        found.steps(1, slow=(number,) if drains and number % drains == drains - 1 else (), usual_ms=2)


def test_a_host_that_waits_for_its_device_now_and_then_opens_no_window_for_slow_steps(loop):
    found = loop(warmup_steps=1000)
    ahead(found, 200, device_ms=lambda _number: 20, drains=10)
    assert found.statuses == []
    assert found.windows.quiet().longest_ns > 1e15  # nobody has to know of a step that took long on the host alone
    found = loop(warmup_steps=1000)
    found.steps(200, slow=range(9, 200, 40))
    assert [status.kind for status in found.statuses] == ["anomaly"]  # as without a device


def test_slow_steps_are_seen_on_the_host_again_once_the_devices_clock_has_failed(loop):
    found = loop(warmup_steps=1000)
    ahead(found, 100, device_ms=lambda _number: 20)
    woken = []
    found.windows.wake = lambda: woken.append(found.number)
    found.windows.device_is_lost()
    assert woken
    found.steps(300, slow=range(109, 400, 50), usual_ms=2)
    assert [status.kind for status in found.statuses] == ["anomaly"]


def test_a_step_that_is_slow_on_the_device_opens_a_window_ahead_of_the_host(loop):
    found = loop(warmup_steps=1000)
    woken = []
    found.windows.wake = lambda: woken.append(found.number)

    def device_ms(number):
        return 200 if number % 50 == 49 else 20

    def read_device():
        for number in range(found.number - 8, found.number + 1):
            found.windows.device_took(number, 1, device_ms(number) * MS, found.number)

    found.windows.read_device = read_device
    ahead(found, 400, device_ms=device_ms, drains=10)
    (status,) = found.statuses
    assert (status.kind, status.first_step, status.last_step) == ("anomaly", 197, 201)
    assert (status.slow_step, status.reason) == (199, "")  # which the host left behind before the device came to it
    assert "median of 20.0 ms" in status.trigger
    assert woken


def test_a_slow_step_that_does_not_come_again_is_told(loop):
    found = loop()
    found.steps(300, slow=(50, 100, 150))
    anomaly = found.statuses[1]
    assert (anomaly.ok, anomaly.last_step - anomaly.first_step + 1, anomaly.slow_step) == (True, 5, None)
    assert anomaly.reason == "no slow step came while the window was open"


def test_no_window_opens_once_the_budget_is_used_up(loop):
    found = loop(trace_every=10, max_trace_bytes=1)
    found.steps(60)
    first, second = found.statuses
    assert first.ok
    assert not second.ok
    assert second.reason.startswith("it was not opened: earlier traces took")
    assert second.reason.endswith("max_trace_bytes=1 B")
    assert found.windows.reason == ""  # there is a usable trace


def test_a_trace_that_might_fill_the_disk_is_not_made(loop, monkeypatch):
    disk = SimpleNamespace(total=1 << 40, free=256 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: disk)
    found = loop(trace_every=10)
    found.steps(5)
    disk.free = (256 << 20) - 1
    found.steps(15)
    first, second = found.statuses
    assert (first.ok, second.ok) == (True, False)
    assert second.reason == "it was not opened: the disk has 256 MiB free, and a trace needs 256 MiB"


def test_a_window_ends_before_its_trace_takes_the_memory_that_is_left(loop, tmp_path, monkeypatch):
    page = os.sysconf("SC_PAGE_SIZE")
    root = tmp_path / "root"
    (root / "proc" / "self").mkdir(parents=True)
    statm = root / "proc" / "self" / "statm"

    def resident(mib):
        statm.write_text(f"0 {(mib << 20) // page} 0")

    resident(100)
    (root / "proc" / "meminfo").write_text(f"MemAvailable: {400 << 10} kB\n")
    monkeypatch.setattr("profilerkit.capture.deep.TraceMemory", lambda: TraceMemory(root))
    found = loop(trace_steps=5)
    found.steps(2)
    for mib in (150, 155, 160):  # a longer batch is the program's; 5 MiB in every step are the trace's
        assert found.statuses == []
        found.steps(1)
        resident(mib)
    (status,) = found.statuses
    assert (status.ok, status.last_step - status.first_step + 1) == (True, 3)
    assert status.reason == ("closed after 3 of 5 steps: its trace needs up to 150 MiB of memory, and 400 MiB are free")


def test_a_trace_that_grows_in_every_third_step_is_no_smaller(tmp_path):
    root, page = tmp_path / "root", os.sysconf("SC_PAGE_SIZE")
    (root / "proc" / "self").mkdir(parents=True)
    statm = root / "proc" / "self" / "statm"
    statm.write_text("0 100 0")
    (root / "proc" / "meminfo").write_text(f"MemAvailable: {1000 * page // 1024} kB\n")
    room = TraceMemory(root)
    said = []
    for pages in (100, 100, 130, 130, 130, 160, 160, 160, 190):
        statm.write_text(f"0 {pages} 0")
        said.append(room.lacks())
    assert said[-1].startswith(f"its trace needs up to {format_bytes(900 * page)}")
    room.close()


def test_what_is_free_is_what_the_process_does_not_use(tmp_path):
    root, page = tmp_path / "root", os.sysconf("SC_PAGE_SIZE")
    (root / "proc" / "self").mkdir(parents=True)
    statm = root / "proc" / "self" / "statm"
    statm.write_text("0 100 0")
    (root / "proc" / "meminfo").write_text(f"MemAvailable: {1000 * page // 1024} kB\n")
    room = TraceMemory(root)
    statm.write_text("0 150 0")  # ten times as much again is a half, and one step may be the program's
    assert room.lacks() == ""
    statm.write_text("0 162 0")
    assert room.lacks() == ""
    statm.write_text("0 175 0")
    assert room.lacks().endswith(f"and {format_bytes(1000 * page)} are free")
    room.close()
    assert room.lacks() == ""


def test_a_file_system_that_does_not_tell_its_room_is_traced_to(loop, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(total=0, free=0))
    found = loop()
    found.steps(5)
    assert [status.ok for status in found.statuses] == [True]


def test_a_window_of_very_long_steps_is_closed_early_and_says_so(loop, monkeypatch):
    monkeypatch.setattr("profilerkit.capture.deep._LONGEST_NS", 0)
    found = loop(trace_steps=5)
    found.steps(10)
    (status,) = found.statuses
    assert (status.ok, status.first_step, status.last_step) == (True, 2, 2)
    assert status.reason == "closed after 1 of 5 steps, which took longer than a minute"


def test_a_device_that_left_no_kernel_is_said_loudly_and_the_trace_kept(loop):
    found = loop()
    found.steps(2)
    found.windows.window._asks_device = True  # as with a device that is in use
    found.steps(6)
    (status,) = found.statuses
    assert (status.ok, status.kernels) == (True, 0)
    assert status.reason == "the device was to be traced, but the trace has no kernel"
    assert status.no_kernels == "not_built"
    assert (found.writer.path / "windows" / "000002" / "trace.json").is_file()


def test_a_window_that_lost_its_kernels_for_no_known_reason_is_tried_once_more(loop, monkeypatch):
    monkeypatch.setattr("profilerkit.capture.deep.why_no_kernels", lambda: "unknown")
    with_device = type("Activities", (list,), {"__len__": lambda _: 2})  # this torch has none for a device
    monkeypatch.setattr(
        "profilerkit.capture.deep.activities_in_use", lambda torch: with_device([torch.profiler.ProfilerActivity.CPU])
    )
    found = loop()
    found.steps(60)
    assert [status.no_kernels for status in found.statuses] == ["unknown"] * 2


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_no_profiler_starts_or_stops_while_a_graph_is_captured(loop, monkeypatch, steps):
    """At the step that opens, the first traced, one between, and the one that closes."""
    found, captures, profiling = loop(), [False], loop
    profiling = found.torch.autograd._profiler_enabled
    for module in ("deep", "windows"):
        monkeypatch.setattr(f"profilerkit.capture.{module}.captures_graph", lambda: captures[0])
    found.steps(steps)
    traced = profiling()
    captures[0] = True
    found.steps(3)
    assert profiling() == traced
    captures[0] = False
    found.steps(8)
    (status,) = found.statuses
    assert status.ok
    assert status.last_step - status.first_step + 1 >= 3
    assert not profiling()


@pytest.fixture
def captures(monkeypatch):
    """A list whose only entry says whether a graph is being captured."""
    found = [False]
    for module in ("deep", "windows"):
        monkeypatch.setattr(f"profilerkit.capture.{module}.captures_graph", lambda: found[0])
    return found


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("fails", [True, False])
def test_a_window_that_is_given_up_amid_a_capture_stops_once_that_is_over(loop, captures, steps, fails):
    """The window still warms up, or records."""
    found = loop(warmup_steps=2, trace_steps=5)
    enabled = found.torch.autograd._profiler_enabled
    found.steps(steps)
    captures[0] = True
    if fails:
        with pytest.warns(RuntimeWarning, match="switched itself off"):
            found.windows._guard.call(lambda: 1 / 0)
    else:
        found.windows.abort()
    found.steps(3)
    assert enabled() == (steps == 4)
    captures[0] = False
    found.steps(2)
    assert not enabled()
    assert (found.windows.window, found.statuses) == (None, [])
    assert len(found.records) == 1  # the steps were disturbed all the same
    assert ("ZeroDivisionError" in found.windows.reason) == fails
    with found.torch.profiler.profile() as own:
        found.torch.zeros(3).add(1)
    assert own.key_averages()


def test_a_block_that_ends_amid_a_capture_leaves_the_graph_whole_and_gives_way_to_the_next_profiler(loop, captures):
    found = loop()
    found.steps(4)
    captures[0] = True
    found.windows.close(4)
    assert found.torch.autograd._profiler_enabled()
    assert found.windows.reason == "a CUDA graph was being captured when the window had to end"
    captures[0] = False
    with found.torch.profiler.profile() as own:
        found.torch.zeros(3).add(1)
    assert {"aten::add"} <= {event.key for event in own.key_averages()}
    assert not found.torch.autograd._profiler_enabled()


def test_a_trace_is_exported_before_the_device_is_read(loop):
    found, there = loop(), []

    def read_device():
        there.append([path.stat().st_size for path in found.writer.path.glob("windows/*/*")])

    found.windows.read_device = read_device
    found.steps(8)
    ((size_bytes,),) = there
    assert size_bytes > 0


@pytest.mark.parametrize("kind", ["missing", "full"])
def test_a_disk_that_takes_no_trace_costs_the_window_and_not_the_steps(loop, monkeypatch, kind):
    found = loop()
    original = found.torch.profiler.profile.export_chrome_trace
    target = "/dev/full" if kind == "full" else "/nonexistent/trace.json"
    if kind == "full" and not Path(target).exists():
        pytest.skip("no /dev/full")
    monkeypatch.setattr(
        found.torch.profiler.profile, "export_chrome_trace", lambda profiler, _path: original(profiler, target)
    )
    found.steps(8)
    (status,) = found.statuses
    assert (status.ok, status.trace) == (False, None)
    assert status.reason == "torch wrote no trace file; the disk may be full"
    assert len(found.records) == 1  # the steps were disturbed all the same


def test_a_request_opens_the_window_of_all_ranks_at_the_same_step(loop):
    # One after the other: a process has one profiler. The second rank finds the request before its step.
    loops = [loop(rank=rank, world_size=2) for rank in range(2)]
    for entry in loops:
        entry.steps(300, range(50, 500, 50), beat=True, usual_ms=100)
    anomalies = [entry.statuses[-1] for entry in loops]
    assert [entry.kind for entry in anomalies] == ["anomaly"] * 2
    assert [(entry.first_step, entry.slow_step) for entry in anomalies] == [(198, 200)] * 2
    assert all("(asked for by rank" in entry.trigger for entry in anomalies)
    asked = read_document(request_file(loops[0].run, "anomaly"), WindowRequest)
    assert (asked.first_step, asked.kind) == (198, "anomaly")


def test_a_rank_that_hears_of_a_window_too_late_does_not_open_it_and_says_so(loop):
    first, late = (loop(rank=rank, world_size=2) for rank in range(2))
    first.steps(300, range(50, 500, 50), beat=True, usual_ms=100)
    late.steps(300, usual_ms=100)
    late.windows.beat()
    late.steps(2)
    assert [(status.kind, status.ok) for status in first.statuses] == [("scheduled", True), ("anomaly", True)]
    status = late.statuses[-1]
    assert (status.kind, status.ok, status.first_step) == ("anomaly", False, 198)
    assert status.reason == "it was not opened: this rank was already at step 300 when the request arrived"


def test_a_first_window_that_gave_way_is_asked_for_again_by_the_first_rank(loop):
    loops = [loop(rank=rank, world_size=2) for rank in range(2)]
    theirs = loops[0].torch.profiler.profile()
    theirs.start()
    loops[0].steps(3, usual_ms=100)
    theirs.stop()
    for entry in loops:
        entry.steps(80, beat=True, usual_ms=100)
    first, second = ([status.first_step for status in entry.statuses if status.ok] for entry in loops)
    assert loops[0].statuses[0].reason == "it was not opened: another profiler was active"
    assert len(first) == 1
    assert second[-1] == first[0]


def test_ranks_beyond_the_eighth_say_why_they_have_no_trace(loop):
    assert not loop(rank=5, world_size=64).windows.traces
    assert loop(rank=4, world_size=64).windows.reason == "8 of 64 ranks are traced, and not this one"
    assert loop(rank=63, world_size=64).windows.traces


def test_what_fails_on_the_writer_thread_costs_neither_the_window_nor_the_training(loop, monkeypatch):
    found = loop()
    monkeypatch.setattr("profilerkit.capture.handoff.compression", lambda *_, **__: ["/nonexistent/python"])
    found.steps(8)
    with pytest.warns(RuntimeWarning, match="switched itself off"):
        found.windows.beat()
    found.windows.beat()
    assert found.statuses[0].ok


def test_a_worker_forked_inside_the_window_records_nothing_and_the_window_goes_on(toy, deep, recorded):
    torch = toy.torch

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            one = torch.ones(4)
            for _ in range(2):  # the first time takes what the child had shared with its parent
                before = resident_bytes()
                for _ in range(5_000):
                    one = one + 0
            return torch.tensor(resident_bytes() - before)

    grown = []
    with deep(warmup_steps=0, trace_steps=6) as prof:
        list(torch.utils.data.DataLoader(range(2)))  # a loader is seen: without one a slowed step ends the window
        for _ in range(6):
            toy.train(toy.batch())
            prof.step()
            if len(grown) < 3:
                grown.append(
                    max(torch.cat(list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=2))).tolist())
                )
    ((status, _),) = recorded(prof.directory).rank.windows
    assert status.ok
    assert status.last_step - status.first_step >= 3
    assert max(grown[1:]) < 5_000_000  # recording 5,000 operators would take 14 MB


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


TWO_RANKS = """
import os, sys, time, torch, torch.distributed as dist, profilerkit
dist.init_process_group("gloo")
rank = dist.get_rank()
with profilerkit.profile(sys.argv[1], warmup_steps=5, trace_steps=3, nvml=False, host=False, analyze=False) as prof:
    theirs = torch.profiler.profile() if rank == 0 else None
    for number in range(200):
        if theirs and number == 4:
            theirs.start()
        if theirs and number == 8:
            theirs.stop()
        time.sleep(0.02)
        data = torch.ones(100)
        dist.all_reduce(data)
        prof.step()
os._exit(0)  # gloo may abort when the other rank is gone first
"""


def test_two_real_ranks_trace_the_same_steps_after_a_request(tmp_path, toy, recorded):
    script = tmp_path / "train.py"
    script.write_text(TWO_RANKS)
    programs.ranks(script, tmp_path / "run", check=True)
    first, second = recorded(tmp_path / "run").run.ranks
    of_first = [(status.first_step, status.last_step) for status, _ in first.windows if status.ok]
    of_second = [(status.first_step, status.last_step) for status, _ in second.windows if status.ok]
    assert of_second[0][0] == 6  # by schedule; the other rank's own profiler ran then
    assert len(of_first) == 1
    assert of_first[0] == of_second[1]
    request = json.loads((tmp_path / "run" / "windows" / "scheduled.request").read_text())
    assert request["first_step"] == of_first[0][0]


OWN_PROFILER = """
import sys, torch, profilerkit
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

def batches():
    for number in range(30):
        if number == 8:
            own = torch.profiler.profile()
            own.start()
        if number == 20:
            own.stop()
            assert len(own.events()) > 10
        yield torch.ones(8, 64)

settings = {"nvml": False, "host": False, "analyze": False, "warmup_steps": 2, "trace_steps": 20}
for run in sys.argv[1:]:
    with profilerkit.profile(run, **settings) as prof:
        for batch in prof.wrap(batches()):
            with prof.phase("work"):
                layer(batch).sum().backward()
                optimizer.step()
"""


def test_a_profiler_that_starts_while_a_batch_is_fetched_crashes_nothing(tmp_path, recorded):
    """Our span around the fetch began in our session, and must end in it: torch ends the process otherwise."""
    runs = [str(tmp_path / name) for name in "abc"]
    programs.run("-c", OWN_PROFILER, *runs, check=True)
    for run in runs:
        ((status, _), *_) = recorded(run).rank.windows
        assert status.ok
        assert status.last_step < 8


def test_no_window_opens_for_another_rank_after_a_failure(loop):
    rank = loop(rank=1, world_size=2, warmup_steps=100)
    with pytest.warns(RuntimeWarning, match="trace window switched itself off"):
        rank.windows._guard.call(lambda: 1 / 0)
    ask(rank.run, WindowRequest(first_step=5, steps=3, kind="anomaly", trigger="slow", rank=0))
    rank.steps(10, beat=True)
    assert rank.statuses == []


def test_a_step_that_other_ranks_ask_for_wakes_the_steps(loop):
    """They tell of their starts again, which a window that rests did not want to know of."""
    rank, woken = loop(rank=1, world_size=2, warmup_steps=100), []
    rank.windows.wake = lambda: woken.append(rank.windows.quiet())
    rank.steps(3, beat=True)
    assert (woken, rank.windows.quiet().until) == ([], 98)
    ask(rank.run, WindowRequest(first_step=5, steps=3, kind="anomaly", trigger="slow", rank=0))
    rank.windows.beat()
    assert [rest.until for rest in woken] == [0]


def test_a_recording_has_its_window_wake_its_steps(light):
    with light(deep=True) as prof:
        tracker, window = prof._session._tracker, prof._session._window
        tracker.fast = tracker.measured = 7
        window.wake()
        assert (tracker.fast, tracker.measured) == (0, 0)
