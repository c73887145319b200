"""Names of frames are hostile text: whatever they say, reading them takes little time and claims nothing."""

import time

import pytest

from profilerkit.analysis.host.names import Frame, HostNames
from tests.recipes import Trace


@pytest.mark.parametrize(
    "text", ["", "aten::mm", "ProfilerStep#3", "volta_sgemm_128x32_tn", "cudaLaunchKernel", "\x00<"]
)
def test_other_names_are_no_frames_and_feed_nothing(text):
    assert Frame.of(text) == Frame(feeding=-1, phase=-1, feeds=False, runs_python=False, offloads=False)


@pytest.mark.parametrize(
    "piece",
    ["data", "dataload", "collate", "a.py(1): ", "safetensors/", "<built-in method ", "numpy/", "torch/x(", "_"],
)
def test_a_name_made_to_be_slow_to_search_is_not(piece):
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    for index in range(40):
        trace.frame(f"{index}{piece * 4_000}", 1_000, 1_500)
        trace.annotation(f"profilerkit.phase.{piece * 4_000}{index}", 1_000, 1_500)
    columns = trace.read()
    start = time.process_time()
    HostNames.of(columns)
    assert time.process_time() - start < 1.0


def test_a_name_is_asked_once_however_many_objects_it_is_of():
    trace = Trace()
    for index in range(100):
        trace.frame(f"<built-in method read of _io.BufferedReader object at 0x{index:x}>", 1_000, 1_500)
    names = HostNames.of(trace.read())
    assert len(set(names.feeding[names.feeding >= 0].tolist())) == 1
    assert (names.feeding >= 0).sum() == 100
