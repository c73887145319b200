"""Samplers against a fake NVML library and fake system files."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from profilerkit.capture import environment, host
from profilerkit.capture.environment import cgroup_quota, place, script_name
from profilerkit.capture.host import HostSource, pressure_total_us, throttled_us
from profilerkit.capture.nvml import NvmlSource
from profilerkit.capture.sampler import Sampler
from profilerkit.rundir.sampled import Sample

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_UNKNOWN = 999


class FakeNvml:
    """Stands where pynvml keeps the loaded driver library; functions fill the structures they are given."""

    def __init__(self, devices=("GPU-a", "GPU-b"), fail=()):
        self.devices = devices
        self.fail = set(fail)
        self.calls = []

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*args):
            self.calls.append(name)
            if name in self.fail:
                return NVML_ERROR_NOT_SUPPORTED
            return self.answer(name, args)

        return function

    def answer(self, name, args):
        values = {
            "nvmlDeviceGetPowerUsage": 250_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 45,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 8,
        }
        if name in ("nvmlInitWithFlags", "nvmlShutdown"):
            return 0
        if name == "nvmlDeviceGetCount_v2":
            args[0]._obj.value = len(self.devices)
        elif name == "nvmlDeviceGetHandleByUUID":
            uuid = args[0].value if hasattr(args[0], "value") else args[0]
            return 0 if uuid.decode() in self.devices else NVML_ERROR_UNKNOWN
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            return 0
        elif name == "nvmlDeviceGetUtilizationRates":
            args[1]._obj.gpu, args[1]._obj.memory = 37, 12
        elif name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
            args[1]._obj.used, args[1]._obj.total = 3 << 30, 80 << 30
        elif name in values:
            args[-1]._obj.value = values[name]
        else:
            return NVML_ERROR_UNKNOWN
        return 0


@pytest.fixture
def nvml(monkeypatch):
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**settings):
        library = FakeNvml(**settings)
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return install


@pytest.fixture
def on_device(monkeypatch):
    """CUDA in use on the device with this UUID, as torch reports it."""

    def use(uuid):
        properties = type("Properties", (), {"name": "H200", "uuid": uuid})
        cuda = type(
            "Cuda",
            (),
            {
                "is_initialized": staticmethod(lambda: True),
                "device_count": staticmethod(lambda: 2),
                "memory_allocated": staticmethod(lambda index: index * 100),
                "get_device_properties": staticmethod(lambda index: properties if index == 1 else None),
            },
        )
        monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"cuda": cuda}))

    return use


def test_device_is_found_by_uuid_and_read(nvml, on_device):
    nvml()
    on_device("b")
    source = NvmlSource()
    assert source.open() == ""
    gpu = source.read().gpu
    assert (gpu.utilization_ratio, gpu.memory_utilization_ratio) == (0.37, 0.12)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (3 << 30, 80 << 30)
    assert (gpu.power_mw, gpu.power_limit_mw) == (250_000, 700_000)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) == (1500, 1980)
    assert (gpu.temperature_c, gpu.throttle_reasons) == (45, 4)
    source.close()


def test_only_reading_functions_are_called(nvml, on_device):
    library = nvml()
    on_device("b")
    source = NvmlSource()
    source.open()
    source.read()
    source.close()
    allowed = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGet")
    assert all(name.startswith(allowed) for name in library.calls)


def test_unsupported_query_is_none_and_asked_once(nvml, on_device):
    failing = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo_v2"}
    failing.add("nvmlDeviceGetCurrentClocksEventReasons")
    library = nvml(fail=failing)
    on_device("b")
    source = NvmlSource()
    source.open()
    for _ in range(3):
        gpu = source.read().gpu
        assert gpu.utilization_ratio is None
        assert gpu.power_mw is None
        assert gpu.memory_used_bytes == 3 << 30  # from the older call
        assert gpu.throttle_reasons == 8
    assert all(library.calls.count(name) == 1 for name in failing)


def test_nothing_is_read_until_the_device_is_known(nvml, monkeypatch):
    nvml()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    source = NvmlSource()
    source.open()
    assert source.read() is None


def test_hidden_devices_switch_the_sampler_off(nvml, monkeypatch):
    nvml()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert NvmlSource().open() == "CUDA_VISIBLE_DEVICES hides every device"


def test_missing_driver_is_a_reason(light, recorded):
    pynvml = pytest.importorskip("pynvml")
    if pynvml.nvmlLib is not None or any(Path(f"/dev/{name}").exists() for name in ("nvidiactl", "nvidia0")):
        pytest.skip("there is a driver here")
    with light(nvml=True) as prof:
        pass
    feature = recorded(prof.directory).rank.meta.features["nvml"]
    assert not feature.on
    assert "NVML is not available" in feature.reason


def test_real_pynvml_against_a_compiled_stub(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    pytest.importorskip("pynvml")
    (tmp_path / "stub.c").write_text(
        textwrap.dedent("""
        typedef struct { unsigned gpu, memory; } use_t;
        int nvmlInitWithFlags(unsigned f) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)1; return 0; }
        int nvmlDeviceGetUtilizationRates(void *h, use_t *u) { u->gpu = 88; u->memory = 5; return 0; }
        int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { return 3; }
        int nvmlDeviceGetTemperature(void *h, int s, unsigned *c) { *c = 51; return 0; }
        """)
    )
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "stub.c")], check=True
    )
    code = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")
from profilerkit.capture.nvml import NvmlSource
source = NvmlSource()
assert source.open() == "", source.open()
gpu = source.read().gpu
assert (gpu.utilization_ratio, gpu.temperature_c, gpu.power_mw, gpu.memory_used_bytes) == (0.88, 51, None, None), gpu
source.close()
"""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**env, "LD_LIBRARY_PATH": str(tmp_path)})


def test_host_is_sampled_at_start_and_end(light, recorded):
    with light(host=True) as prof:
        pass
    samples = recorded(prof.directory).rank.samples
    assert len(samples) >= 2
    assert samples[0].host.cpu_ratio is None  # a rate needs two readings
    assert samples[-1].host.process_rss_bytes > 1 << 20
    assert samples[-1].host.memory_total_bytes > samples[-1].host.memory_used_bytes > 0


def test_host_without_proc_files_says_none(monkeypatch):
    monkeypatch.setattr(host, "_open", lambda path: -1)
    source = HostSource()
    source.open()
    sample = source.read().host
    assert sample.process_rss_bytes is None
    assert sample.read_bytes is None
    assert sample.cpu_pressure_ratio is None
    source.close()


def test_pressure_is_the_total_of_the_some_line():
    assert pressure_total_us("some avg10=0.00 avg60=1.00 total=1234\nfull avg10=0.00 total=9\n") == 1234
    assert pressure_total_us("") is None
    assert pressure_total_us("some avg10=0.00 total=x\n") is None


def test_throttling_is_the_cgroups_own_count():
    text = "usage_usec 99\nuser_usec 50\nnr_periods 3\nnr_throttled 2\nthrottled_usec 1234\nnr_bursts 0\n"
    assert throttled_us(text) == 1234
    assert throttled_us("usage_usec 99\n") is None
    assert throttled_us("") is None


def test_waiting_is_a_share_of_the_time_between_two_samples(monkeypatch, tmp_path):
    files = {"/proc/pressure/io": "some avg10=0 total={}\n", "/sys/fs/cgroup/cpu.stat": "throttled_usec {}\n"}
    for number, (path, text) in enumerate(files.items()):
        files[path] = (tmp_path / str(number), text)
    monkeypatch.setattr(host, "_open", lambda path: os.open(files[path][0], os.O_RDONLY) if path in files else -1)
    clock = iter([10**9, 2 * 10**9])
    monkeypatch.setattr(host, "perf_counter_ns", lambda: next(clock))
    samples = []
    for total in (1_000, 251_000):
        for path, text in files.values():
            path.write_text(text.format(total))
        if not samples:
            source = HostSource()
            source.open()
        samples.append(source.read().host)
    source.close()
    assert (samples[0].io_pressure_ratio, samples[0].cpu_throttled_ratio) == (None, None)
    assert samples[1].io_pressure_ratio == pytest.approx(0.25)
    assert samples[1].cpu_throttled_ratio == pytest.approx(0.25)
    assert samples[1].cpu_pressure_ratio is None


def test_failing_sampler_stops_alone_with_a_reason(recwarn):
    class Broken:
        closed = False

        def open(self):
            return ""

        def read(self):
            raise OSError("gone")

        def close(self):
            self.closed = True

    source = Broken()
    sampler = Sampler("host", source, lambda sample: None)
    sampler.start()
    sampler.stop()
    assert "OSError" in sampler.reason
    assert source.closed
    assert any("host sampler switched itself off" in str(warning.message) for warning in recwarn)


def test_sample_without_a_reading_is_not_written():
    class Empty:
        def open(self):
            return ""

        def read(self):
            return None

        def close(self):
            pass

    written: list[Sample] = []
    sampler = Sampler("nvml", Empty(), written.append)
    sampler.start()
    sampler.stop()
    assert written == []


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("100000 0\n", None)]
)
def test_cgroup_quota_is_cores(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_quota(tmp_path) == cores


def test_older_cgroup_quota_is_cores(tmp_path):
    assert cgroup_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    assert cgroup_quota(tmp_path) == 2.5


def test_place_comes_from_torchrun_and_is_shared_by_its_ranks():
    job = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    places = [place({**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, 1) for rank in range(4)]
    assert [found.rank for found in places] == [0, 1, 2, 3]
    assert len({found.launch_id for found in places}) == 1
    assert place({**job, "RANK": "0"}, 2).launch_id != places[0].launch_id


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "x"}])
def test_single_process_is_rank_0_of_1(variables):
    found = place(variables, 1)
    assert (found.rank, found.local_rank, found.world_size) == (0, 0, 1)
    assert found.launch_id != place(variables, 1).launch_id


def test_only_allow_listed_variables_are_recorded():
    variables = {"OMP_NUM_THREADS": "4", "WANDB_API_KEY": "secret", "PATH": "/bin"}
    assert environment.allowed(variables) == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("argv", "name"),
    [(["a/train.py"], "train"), (["-c"], "run"), ([""], "run"), ([], "run"), (["pkg/__main__.py"], "pkg")],
)
def test_script_names_the_run(monkeypatch, argv, name):
    monkeypatch.setattr(sys, "argv", argv)
    assert script_name() == name
