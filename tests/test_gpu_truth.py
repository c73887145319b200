"""``scripts/gpu_truth``: its parts on a CPU and on the virtual device, its files, and its page."""

import gzip
import json
import re
import tarfile
import time
import types
from itertools import count
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import virtual_device  # noqa: E402 - the programme imports torch
from gpu_truth_parts import clock, device, fixtures, nvml, peaks, runner  # noqa: E402
from gpu_truth_parts.checks import Check  # noqa: E402
from gpu_truth_parts.device import Device  # noqa: E402
from gpu_truth_parts.loop import Loop  # noqa: E402
from gpu_truth_parts.page import NOT_YET, render  # noqa: E402
from gpu_truth_parts.scenarios import HEALTHY, SCENARIOS  # noqa: E402

from profilerkit.rules import RULES  # noqa: E402
from tests import programs  # noqa: E402
from tests.once import made_once  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "gpu_truth"
REPORT = ROOT / "reports" / "gpu_truth.json"


class OnVirtual(Device):
    """The device under test is the virtual one, whose kernels are lengths of time of 1 ms each."""

    def __init__(self, device):
        self._virtual = device
        super().__init__("cuda", quick=True)

    def burn(self, seconds):
        kernels = max(1, round(seconds / 1e-3))
        for _ in range(kernels):
            self._virtual.launch(seconds / kernels)
        return kernels

    def tiny(self, count):
        for _ in range(count):
            self._virtual.launch(2e-6)

    def read(self):
        self._virtual.drain()


class TensorsOnTheHost(torch.overrides.TorchFunctionMode):
    """A virtual device holds no tensors."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):
        named = dict(kwargs or {})
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return function(*args, **named)


@pytest.fixture
def on_virtual(monkeypatch):
    """The virtual device, and small matrices where the programme measures rates."""
    monkeypatch.setitem(device._SIDES, "cuda", (64,))
    monkeypatch.setattr(peaks, "_SIDE", 64)
    monkeypatch.setattr(peaks, "_COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(nvml, "_LAUNCHES_S", 0.2)
    monkeypatch.setattr(nvml, "_QUICK_LOAD_S", 0.1)
    monkeypatch.setattr(nvml, "queried", lambda fields: dict.fromkeys(fields.split(","), "1980"))
    placed = virtual_device.install()
    try:
        with TensorsOnTheHost():
            yield OnVirtual(placed.device)
    finally:
        placed.remove()


@pytest.fixture(scope="module")
def on_a_cpu(tmp_path_factory):
    """Three parts run by the script as it stands."""

    def make(place):
        command = [SCRIPT, "--device", "cpu", "--quick", "--part", "preflight,clock,window"]
        done = programs.run(*command, "--place", place / "parts", "--out", place, cwd=ROOT, timeout=300, warm=True)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in {0, 1}

    return made_once(tmp_path_factory, "gpu_truth", make)


def checks_of(place, part):
    return {
        check["name"]: check for check in json.loads((place / "parts" / f"{part}.json").read_text("utf-8"))["checks"]
    }


def test_the_parts_run_to_their_ends_on_a_cpu(on_a_cpu):
    assert checks_of(on_a_cpu, "preflight")["doctor"]["pass"] is True
    for loop in ("device_bound", "host_bound", "short"):
        clocked = checks_of(on_a_cpu, "clock")
        assert clocked[f"{loop}: device record, ms"]["value"] is None
        assert clocked[f"{loop}: step of the report, ms"]["value"] > 0
    windows = checks_of(on_a_cpu, "window")
    assert windows["host runs ahead: kernels, steps and reason of each window"]["value"] == [[None, 10, ""]]
    for part in ("preflight", "clock", "window"):
        assert part not in checks_of(on_a_cpu, part), "the part failed"


def test_what_did_not_run_is_on_the_page_as_not_measured(on_a_cpu):
    page = (on_a_cpu / "gpu_truth.html").read_text("utf-8")
    assert page.index(NOT_YET) < page.index("<h1")
    for part in runner.PARTS:
        section = page.partition(f'id="part-{part}"')[2].partition("</section>")[0]
        assert ("Python 3" in section) == (part in {"preflight", "clock", "window"})
        assert ("not measured" in section) == (part != "preflight")
    assert not re.search(r"""src=|@import|url\(|https?://|<script""", page)


def test_the_recordings_become_small_archives_without_names(on_a_cpu):
    with tarfile.open(on_a_cpu / "parts" / "fixtures" / "light.tar.gz") as archive:
        names = archive.getnames()
        texts = [archive.extractfile(name).read().decode() for name in names if ".json" in name]
    assert "clock_device_bound/rank_00000/events.bin" in names
    assert not [name for name in names if "trace.json" in name]
    assert json.loads(next(text for text in texts if '"boot_id"' in text))["host"] == "host"
    assert not [text for text in texts if str(ROOT) in text]
    with tarfile.open(on_a_cpu / "parts" / "fixtures" / "traced.tar.gz") as archive:
        (name, _) = [name for name in archive.getnames() if "trace.json" in name]
        assert json.loads(gzip.decompress(archive.extractfile(name).read()))["traceEvents"]
    sizes = [path.stat().st_size for path in (on_a_cpu / "parts" / "fixtures").iterdir()]
    assert sum(sizes) < 4_000_000


def test_a_device_that_lags_is_timed_by_its_own_clock(tmp_path, on_virtual, monkeypatch):
    # Thirty times as long as the host's work: on a busy machine the host takes several times as long, and is late now
    # and then (26 of 29 steps were ahead). A clock that follows the host is ahead in none.
    lags = Loop(0.060, 0.002, item_every=0), (0.7, 1.0)
    monkeypatch.setitem(clock._LOOPS, "device_bound", lags)
    found = {check.name: check for check in clock.checks(on_virtual, tmp_path)}
    assert found["device_bound: device record, ms"].value == pytest.approx(60, rel=0.02)
    assert found["device_bound: host ahead"].passed
    assert found["device_bound: step of the report, ms"].passed
    assert found["host_bound: host ahead"].passed
    assert found["host_bound: device record, ms"].value >= 20
    assert found["short: host ahead"].passed is None


@pytest.mark.parametrize(
    ("part", "passing"),
    [
        ("micro", "the clock, µs per step"),
        ("peaks", "row of the table"),
        ("nvml", "clock beside nvidia-smi, MHz"),
    ],
)
def test_what_needs_a_gpu_runs_to_its_end_on_the_virtual_device(tmp_path, on_virtual, part, passing):
    result = runner.measure(part, on_virtual, tmp_path, time.monotonic() + 60)
    found = {check.name: check for check in result.checks}
    assert part not in found, found[part].why
    assert found[passing].passed
    if part == "nvml":
        assert found["load half: sm_active_ratio"].passed is False, "the virtual device has no GPM"


def test_a_uuid_stays_one_and_the_same_and_hosts_and_places_go(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node17.cluster.example")
    clean = fixtures.Cleaner()
    first, second = "6a1b2c3d-0000-4000-8000-0123456789ab", "6A1B2C3D-0000-4000-8000-0123456789AC"
    found = clean(
        {"uuid": f"GPU-{first}", "at": ["node17:29500", f"{second} {first}"], "n": 1.5, "path": "/a/b/c/d.py"}
    )
    zeros = "00000000-0000-0000-0000-00000000000"
    assert found == {"uuid": f"GPU-{zeros}1", "at": ["host:29500", f"{zeros}2 {zeros}1"], "n": 1.5, "path": "…/c/d.py"}


def part_of(monkeypatch, checks):
    monkeypatch.setitem(runner.PARTS, "made", types.SimpleNamespace(checks=checks, __doc__="Made."))


def test_a_part_that_fails_keeps_what_it_measured(tmp_path, monkeypatch):
    def checks(_device, place):
        yield Check(name="first", value=1, passed=True)
        written = json.loads((place / "made.json").read_text("utf-8"))
        assert [check["name"] for check in written["checks"]] == ["first"]
        raise OSError("no such device")

    part_of(monkeypatch, checks)
    runner.measure("made", Device("cpu"), tmp_path, time.monotonic() + 60)
    first, failed = json.loads((tmp_path / "made.json").read_text("utf-8"))["checks"]
    assert first["pass"] is True
    assert (failed["name"], failed["pass"], failed["why"]) == ("made", False, "OSError: no such device")


def test_no_check_starts_after_the_time_for_all(tmp_path, monkeypatch):
    part_of(monkeypatch, lambda *_: (Check(name=name, value=1) for name in ("first", "second")))
    now_s = count()
    monkeypatch.setattr(runner, "time", types.SimpleNamespace(monotonic=lambda: next(now_s)))
    result = runner.measure("made", Device("cpu"), tmp_path, 1.5)
    assert [check.name for check in result.checks] == ["first", "the rest"]


def test_a_part_that_would_begin_too_late_leaves_what_an_earlier_run_measured(tmp_path, monkeypatch):
    part_of(monkeypatch, lambda *_: iter([Check(name="first", value=1)]))
    runner.measure("made", Device("cpu"), tmp_path, time.monotonic() + 60)
    result = runner.measure("made", Device("cpu"), tmp_path, time.monotonic() - 1)
    assert [check.name for check in result.checks] == ["the rest"]
    assert "first" in (tmp_path / "made.json").read_text("utf-8")


def test_a_part_that_does_not_run_stays_in_the_report(tmp_path):
    """Only the scenarios are run again, at another place."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "scenarios.json").write_text('{"part": "scenarios", "checks": []}', "utf-8")
    before = {part["part"]: part for part in json.loads(REPORT.read_text("utf-8"))["parts"]}
    after = {part["part"]: part for part in runner.document(tmp_path / "parts", REPORT)["parts"]}
    assert {name for name in runner.PARTS if after[name] != before[name]} == {"scenarios"}
    assert runner.document(tmp_path / "parts", tmp_path / "none.json")["parts"][0]["device"] is None


@pytest.mark.parametrize("part", ["micro", "peaks", "graphs", "nvml", "models", "tries", "overhead", "oom", "shared"])
def test_what_needs_a_gpu_says_so_on_a_cpu(tmp_path, part):
    (check,) = runner.measure(part, Device("cpu"), tmp_path, time.monotonic() + 60).checks
    assert (check.value, check.passed, check.why) == (None, None, "skipped: needs a GPU")


def test_every_fault_has_a_rule_and_every_fix_changes_the_loop():
    codes = {rule.code for rule in RULES}
    for name, scenario in SCENARIOS.items():
        assert (scenario.bounds == HEALTHY) == name.startswith("healthy_")
        assert (scenario.bounds == HEALTHY) != bool(scenario.rules)
        assert set(scenario.rules) <= codes
        assert scenario.fix != scenario.fault


def test_a_run_on_a_gpu_is_named_in_the_place_of_the_notice():
    checks = [{"name": "a", "value": 1.0, "reference": [0, 2], "pass": True, "why": ""}]
    part = {"part": "clock", "about": "", "versions": "", "quick": False, "seconds": 1.0, "checks": checks}
    page = render({"version": "1", "parts": [{**part, "device": "NVIDIA H100"}, {**part, "device": "CPU"}]})
    assert "Run on NVIDIA H100." in page
    assert NOT_YET not in page


def test_the_committed_page_is_what_its_checks_give_today():
    document = json.loads(REPORT.read_text("utf-8"))
    assert [part["part"] for part in document["parts"]] == list(runner.PARTS)
    assert render(document) == REPORT.with_suffix(".html").read_text("utf-8")
