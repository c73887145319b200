"""The GPU sampler against a stub of NVIDIA's library, through the real pynvml."""

import subprocess
import sys

import pytest

from profilerkit.rundir.reader import read_run
from tests.capture.nvml_stub import FIRST, MIG, SECOND, Stub, compiled

GIB = 1 << 30
NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN = 3, 15, 999


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(library, tmp_path):
    return Stub(library, tmp_path / "calls.log")


@pytest.fixture
def old_stub(tmp_path):
    return Stub(compiled(tmp_path, "-DOLD"), tmp_path / "calls.log")


def test_a_device_is_read(stub):
    found = stub.run("cuda(); read(times=2, pause=0.3)")
    first, second = found["samples"]
    assert (second["utilization_ratio"], second["memory_utilization_ratio"]) == (0.37, 0.12)
    assert (second["memory_used_bytes"], second["memory_total_bytes"]) == (3 * GIB, 141 * GIB)
    assert (second["power_mw"], second["power_instant_mw"]) == (250_000, 300_000)
    assert (second["sm_clock_mhz"], second["memory_clock_mhz"]) == (1500, 2600)
    assert (first["power_limit_mw"], first["sm_clock_max_mhz"]) == (700_000, 1980)
    assert (second["temperature_c"], second["throttle_reasons"]) == (45, 4)
    assert (second["pcie_generation"], second["pcie_width"]) == (4, 16)
    assert second["energy_mj"] > first["energy_mj"]
    assert "is_lost" not in second
    assert found["missing"] == ""


def test_counters_become_shares_of_the_time_between_samples(stub):
    first, second = stub.run("cuda(); read(times=2, pause=0.5)", PROFILERKIT_GPM="0")["samples"]
    assert "power_throttle_ratio" not in first  # one reading of a counter says nothing
    # The counters run on the same clock as the readings, a moment apart: a busy machine makes that moment longer.
    assert second["power_throttle_ratio"] == pytest.approx(0.25, rel=0.3)
    assert second["sw_thermal_throttle_ratio"] == pytest.approx(0.1, rel=0.3)
    assert second["hw_thermal_throttle_ratio"] == pytest.approx(0.02, rel=0.3)
    assert second["pcie_tx_bytes_per_s"] == pytest.approx(1e9, rel=0.3)
    assert second["pcie_rx_bytes_per_s"] == pytest.approx(2e9, rel=0.3)
    assert second["nvlink_tx_bytes_per_s"] == pytest.approx(2_000_000 * 1024, rel=0.3)
    assert second["nvlink_rx_bytes_per_s"] == pytest.approx(1_000_000 * 1024, rel=0.3)


def test_fields_of_driver_580_have_other_numbers(stub):
    code = "cuda(); read(times=2, pause=0.5)"
    second = stub.run(code, FAKE_NVML_FIELDS="580")["samples"][1]
    assert second["power_throttle_ratio"] == pytest.approx(0.25, rel=0.3)
    assert second["sw_thermal_throttle_ratio"] == pytest.approx(0.2, rel=0.3)  # not the power smoothing under 269
    assert second["hw_thermal_throttle_ratio"] == pytest.approx(0.05, rel=0.3)


def test_a_narrow_counter_of_traffic_is_not_measured(stub):
    code = "cuda(); read(times=2, pause=0.3)"
    second = stub.run(code, FAKE_NVML_FIELDS="narrow", PROFILERKIT_GPM="0")["samples"][1]
    assert "pcie_tx_bytes_per_s" not in second
    assert "power_throttle_ratio" in second


def test_facts_are_asked_once(stub):
    facts = stub.run("cuda(); read(times=3)")["facts"]
    assert facts == {
        "found_by": "the only device",
        "driver_version": "610.57",
        "name": "Fake H200",
        "uuid": FIRST,
        "pcie_generation": 4,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "power_limit_mw": 700_000,
        "power_limit_default_mw": 700_000,
        "sm_clock_max_mhz": 1980,
    }
    assert stub.calls.count("nvmlDeviceGetEnforcedPowerLimit") == 2  # as a fact, and with the samples once a minute


def test_only_reading_functions_are_called_and_all_is_given_back(stub):
    stub.run("cuda(); read(times=2, pause=0.2)")
    names = [name for name in stub.calls if name.startswith("nvml")]
    reading = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGet", "nvmlDeviceIs", "nvmlSystemGet", "nvmlGpmQuery")
    sampling = ("nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree", "nvmlGpmMetricsGet")
    assert all(name.startswith(reading + sampling) for name in names)
    assert stub.calls[-1] == "samples left: 0"


def test_gpm_tells_how_busy_the_parts_are(stub):
    first, second = stub.run("cuda(); read(times=2, pause=0.2)")["samples"]
    assert "sm_active_ratio" not in first
    assert (second["sm_active_ratio"], second["sm_occupancy_ratio"]) == (0.8, 0.4)
    assert (second["tensor_active_ratio"], second["dram_active_ratio"]) == (0.3, 0.55)
    assert "fp32_active_ratio" not in second  # not a number
    assert (second["pcie_tx_bytes_per_s"], second["pcie_rx_bytes_per_s"]) == (100 << 20, 200 << 20)
    assert second["nvlink_rx_bytes_per_s"] == 400 << 20


def test_gpm_is_not_asked_twice_within_a_tenth_of_a_second(stub):
    code = """
cuda()
source = NvmlSource()
source.open()
began = time.monotonic()
samples = [source.read().gpu.sm_active_ratio for _ in range(3)]
say(samples=samples, spent_s=time.monotonic() - began)
"""
    found = stub.run(code)
    if found["spent_s"] >= 0.1:
        pytest.skip("the machine was too busy to read three times in a tenth of a second")
    assert found["samples"] == [None, None, None]
    assert stub.calls.count("nvmlGpmSampleGet") == 1


def test_gpm_can_be_switched_off(stub):
    found = stub.run("cuda(); read(times=2, pause=0.2)", PROFILERKIT_GPM="0")
    assert found["facts"]["gpm"] == "switched off by PROFILERKIT_GPM=0"
    assert not any("nvmlGpm" in name for name in stub.calls)


def test_device_is_cudas_own_whatever_its_number(stub):
    # CUDA counts the second device of NVML as its first, or the other way round: only the UUID says which it is.
    found = stub.run(f"cuda('{SECOND[4:]}'); read()", FAKE_NVML_DEVICES=f"{FIRST},{SECOND}")
    assert found["facts"]["uuid"] == SECOND
    assert found["facts"]["found_by"] == "the UUID of the device that CUDA uses"
    assert found["samples"][0]["utilization_ratio"] == 0.38


def test_device_is_not_known_before_one_of_several_holds_memory(stub):
    found = stub.run(f"cuda('{SECOND[4:]}', held=(0, 0)); read()", FAKE_NVML_DEVICES=f"{FIRST},{SECOND}")
    assert found["samples"] == [None]
    assert found["missing"] == "this process never used CUDA, and could use any of 2 devices"


@pytest.mark.parametrize("visible", [SECOND, SECOND[:12]])
def test_device_is_the_one_uuid_that_is_visible(stub, visible):
    found = stub.run("read()", FAKE_NVML_DEVICES=f"{FIRST},{SECOND}", CUDA_VISIBLE_DEVICES=visible)
    assert found["facts"]["uuid"] == SECOND
    assert found["facts"]["found_by"] == "the UUID in CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize("visible", ["1", "0,1", f"{FIRST},{SECOND}"])
def test_a_number_names_no_device(stub, visible):
    found = stub.run("cuda(); read()", FAKE_NVML_DEVICES=f"{FIRST},{SECOND}", CUDA_VISIBLE_DEVICES=visible)
    assert found["samples"] == [None]
    assert found["missing"].endswith(f"any of 2 devices; CUDA_VISIBLE_DEVICES is {visible}")


def test_a_shortened_uuid_of_two_devices_names_none(stub):
    found = stub.run("cuda(); read()", FAKE_NVML_DEVICES=f"{FIRST},{FIRST[:-1]}9", CUDA_VISIBLE_DEVICES=FIRST[:12])
    assert found["samples"] == [None]
    assert found["missing"] == f"NVML has no device {FIRST[:12]}, which CUDA_VISIBLE_DEVICES names"


@pytest.mark.parametrize("visible", ["", "-1", "-1,0"])
def test_hidden_devices_switch_the_sampler_off(stub, visible):
    found = stub.run("cuda(); read()", CUDA_VISIBLE_DEVICES=visible)
    assert found["reason"] == "CUDA_VISIBLE_DEVICES excludes every device"


def test_the_device_is_looked_for_until_cuda_is_in_use(stub):
    code = f"""
source = NvmlSource()
source.open()
cuda()
before = source.read()
cuda('{SECOND[4:]}')
say(before=before, after=source.read().gpu.utilization_ratio, missing=source.missing())
"""
    found = stub.run(code, FAKE_NVML_DEVICES=f"{FIRST},{SECOND}")
    assert found == {"before": None, "after": 0.38, "missing": ""}
    assert stub.calls.count("nvmlDeviceGetHandleByIndex_v2") == 2


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        (f"cuda('{MIG[4:]}'); read(times=2, pause=0.2)", {}),
        ("cuda(); read(times=2, pause=0.2)", {"CUDA_VISIBLE_DEVICES": MIG}),
        ("cuda(); read(times=2, pause=0.2)", {"CUDA_VISIBLE_DEVICES": MIG[:12]}),
        ("cuda(); read(times=2, pause=0.2)", {}),
    ],
    ids=["cuda", "uuid", "short", "only"],
)
def test_a_mig_device_has_its_own_memory_and_the_whole_ones_power(stub, code, variables):
    found = stub.run(code, FAKE_NVML_MIG=MIG, **variables)
    assert found["facts"]["uuid"] == MIG
    second = found["samples"][1]
    assert "utilization_ratio" not in second
    assert (second["memory_used_bytes"], second["memory_total_bytes"]) == (GIB, 18 * GIB)
    assert second["power_mw"] == 250_000
    assert second["sm_active_ratio"] == 0.6  # GPM of the instance


def test_unsupported_is_none_and_asked_once(stub):
    failing = ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo_v2"]
    failing += ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues", "nvmlGpmQueryDeviceSupport"]
    found = stub.run("cuda(); read(times=3)", FAKE_NVML_FAIL=",".join(f"{name}:{NOT_SUPPORTED}" for name in failing))
    for sample in found["samples"]:
        assert not {"utilization_ratio", "power_mw", "power_instant_mw", "power_throttle_ratio"} & set(sample)
        assert sample["memory_used_bytes"] == 3 * GIB  # from the older call
        assert sample["throttle_reasons"] == 8
    assert all(stub.calls.count(name) == 1 for name in failing if name != "nvmlDeviceGetFieldValues")
    assert stub.calls.count("nvmlDeviceGetFieldValues") == 3  # three groups of fields, each once
    assert found["facts"]["gpm"].startswith("the device has none")


def test_a_passing_failure_costs_one_value_only(stub):
    found = stub.run("cuda(); read(times=3)", FAKE_NVML_FAIL=f"nvmlDeviceGetTemperature:{UNKNOWN}")
    assert not any("temperature_c" in sample for sample in found["samples"])
    assert all(sample["power_mw"] == 250_000 for sample in found["samples"])
    assert stub.calls.count("nvmlDeviceGetTemperature") == 3


def test_an_older_driver_lacks_functions(old_stub):
    found = old_stub.run("cuda(); read(times=2, pause=0.2)")
    second = found["samples"][1]
    assert (second["memory_total_bytes"], second["throttle_reasons"]) == (80 * GIB, 8)
    assert not {"power_throttle_ratio", "sm_active_ratio", "pcie_tx_bytes_per_s"} & set(second)
    assert found["facts"]["gpm"].startswith("the device has none")


def test_a_lost_device_is_told_once_and_not_asked_again(stub):
    fail = f"nvmlDeviceGetTemperature:{GPU_IS_LOST}:3"
    found = stub.run("cuda(); read(times=5, pause=0.15)", FAKE_NVML_FAIL=fail)
    assert [sample and sample.get("temperature_c") for sample in found["samples"]] == [45, 45, None, None, None]
    assert found["samples"][2:] == [{"is_lost": True}, None, None]
    assert found["missing"] == "the device was lost: GPU is lost"
    assert stub.calls.count("nvmlDeviceGetTemperature") == 3
    assert stub.calls[-1] == "samples left: 0"


@pytest.mark.parametrize(
    ("processes", "count", "size"),
    [
        ("self:1000", 0, 0),
        ("77:2000,self:1000,78:500", 2, 2500),
        (f"77:{2**64 - 1},self:1000", 1, None),  # the driver does not tell how much
        ("77:2000", None, None),  # of another namespace: which of them is this process is not known
        ("", None, None),
    ],
)
def test_other_processes_on_the_device_are_counted_rarely(stub, processes, count, size):
    samples = stub.run("cuda(); read(times=2)", FAKE_NVML_PROCESSES=processes)["samples"]
    assert (samples[0].get("other_processes"), samples[0].get("other_processes_bytes")) == (count, size)
    assert "other_processes" not in samples[1]
    assert (samples[0]["ecc_corrected"], samples[0]["ecc_uncorrected"]) == (7, 1)
    assert "ecc_corrected" not in samples[1]


@pytest.mark.parametrize("how", ["SLOW", "SLEEPS"])
def test_a_slow_query_is_asked_rarely(stub, how):
    settings = {f"FAKE_NVML_{how}": "nvmlDeviceGetTemperature:30"}  # other threads and a busy host are far quicker
    samples = stub.run("cuda(); read(times=8)", **settings)["samples"]
    assert [sample.get("temperature_c") for sample in samples] == 5 * [45] + 3 * [None]


def test_a_missing_library_is_a_reason(tmp_path):
    pytest.importorskip("pynvml")
    stub = Stub(tmp_path, tmp_path / "calls.log")
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    assert stub.run("read()")["reason"].startswith("NVML is not available")


def test_a_failing_start_is_a_reason(stub):
    found = stub.run("read()", FAKE_NVML_FAIL="nvmlInitWithFlags:9")
    assert found["reason"].startswith("NVML is not available")


RECORDING = """
import sys, time, torch, profilerkit
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
with profilerkit.profile(sys.argv[1], deep=False, analyze=False) as prof:
    ended = time.monotonic() + 2.3
    while time.monotonic() < ended:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.mark.parametrize("fail", ["", f"nvmlDeviceGetTemperature:{GPU_IS_LOST}:2"], ids=["whole", "lost"])
def test_a_recording_holds_the_devices_samples(stub, tmp_path, fail):
    pytest.importorskip("torch")
    run = tmp_path / "run"
    env = stub.environment(FAKE_NVML_FAIL=fail, CUDA_VISIBLE_DEVICES=FIRST)
    subprocess.run([sys.executable, "-c", RECORDING, run], check=True, capture_output=True, timeout=300, env=env)
    rank = read_run(run).ranks[0]
    gpu = [sample.gpu for sample in rank.samples if sample.gpu is not None]
    feature = rank.meta.features["nvml"]
    assert rank.meta.gpu.uuid == FIRST
    assert gpu[0].utilization_ratio == 0.37
    assert gpu[0].ecc_uncorrected == 1
    if fail:
        assert (len(gpu), gpu[-1].is_lost) == (2, True)
        assert (feature.on, feature.reason) == (False, "the device was lost: GPU is lost")
        return
    assert len(gpu) >= 3
    assert feature.on
    assert gpu[1].sm_active_ratio == 0.8
    assert gpu[1].power_throttle_ratio == pytest.approx(0.25, rel=0.3)
    # One clock for steps and samples.
    assert rank.meta.anchor_perf_ns <= rank.samples[0].t_ns < rank.end.end_perf_ns
    assert any(sample.host is not None for sample in rank.samples)
