"""Samplers: a source is read every second on a thread of its own, and fails alone."""

import json
from pathlib import Path

import pytest

from profilerkit.capture.background import Sampler
from profilerkit.rundir.sampled import Sample


def test_missing_driver_is_a_reason(light, recorded):
    pynvml = pytest.importorskip("pynvml")
    if pynvml.nvmlLib is not None or any(Path(f"/dev/{name}").exists() for name in ("nvidiactl", "nvidia0")):
        pytest.skip("there is a driver here")
    with light(nvml=True) as prof:
        pass
    feature = recorded(prof.directory).rank.meta.features["nvml"]
    assert not feature.on
    assert "NVML is not available" in feature.reason


def test_host_is_sampled_at_start_and_end(light, recorded):
    with light(host=True) as prof:
        pass
    samples = recorded(prof.directory).rank.samples
    assert len(samples) >= 2
    assert samples[0].host.cpu_ratio is None  # a rate needs two readings
    assert samples[-1].host.process_rss_bytes > 1 << 20
    assert samples[-1].host.memory_total_bytes > samples[-1].host.memory_used_bytes > 0


def test_failing_sampler_stops_alone_with_a_reason(recwarn):
    class Broken:
        closed = False

        def open(self):
            return ""

        def read(self):
            raise OSError("gone")

        def missing(self):
            return ""

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

        def missing(self):
            return "nobody knows which device it is"

        def close(self):
            pass

    written: list[Sample] = []
    sampler = Sampler("nvml", Empty(), written.append)
    sampler.start()
    sampler.stop()
    assert written == []
    assert sampler.reason == "nobody knows which device it is"


def test_what_was_not_measured_is_not_written(light, recorded):
    with light(host=True) as prof:
        pass
    lines = (recorded(prof.directory).rank.path / "samples.jsonl").read_text().splitlines()
    assert {tuple(json.loads(line)) for line in lines} == {("t_ns", "host")}
