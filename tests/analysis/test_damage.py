"""Damage of traces in sentences: whole ones, named where there are several, and never a page of them."""

import doctest

import pytest

import profilerkit
from profilerkit.analysis import trust as module
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.analysis.trust import NAMED, damage_notes
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Damage
from tests.recipes import host_training

HALF = Damage(repaired=1, dropped=1_200, truncated=True, samples=("event 3 at byte 7",), notes=("it ends in zeros",))


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(module).failed == 0


def test_of_one_trace_the_counts_stand_elsewhere():
    assert damage_notes([("a.json", HALF)]) == ["It ends in zeros.", "Damaged: event 3 at byte 7"]


def test_of_several_traces_each_sentence_names_its_own():
    assert damage_notes([("a.json", HALF), ("b.json", Damage()), ("c.json", Damage(dropped=1))]) == [
        "a.json: 1,200 events dropped, 1 event repaired, the end is missing.",
        "a.json: It ends in zeros.",
        "c.json: 1 event dropped.",
        "Damaged: a.json: event 3 at byte 7",
    ]


def test_of_many_damaged_traces_the_first_are_named_and_the_rest_counted():
    notes = damage_notes([(f"{rank}.json", HALF) for rank in range(64)])
    assert len(notes) == NAMED + 1 + NAMED
    assert notes[NAMED] == "123 more sentences about damaged traces are left out."


def test_whole_traces_need_no_word():
    assert damage_notes([("a.json", Damage()), ("b.json", Damage())]) == []


@pytest.mark.parametrize(("fields", "is_missing"), [({"deviceProperties": []}, False), ({}, True)])
def test_a_cut_file_of_a_machine_without_a_device_lacks_none_of_its_events(tmp_path, fields, is_missing):
    path = tmp_path / "trace.json"
    whole = host_training(12, fetch=80, **fields).bytes()
    path.write_bytes(whole[: len(whole) // 2])
    facts = trace_facts(read_trace(path))
    assert facts.damage.truncated
    assert facts.no_kernels == ("cut" if is_missing else None)


@pytest.mark.parametrize(
    ("operator", "why"),
    [
        ("aten::cudnn_convolution", "not_asked"),
        ("aten::miopen_batch_norm", "not_asked"),
        ("aten::_mps_convolution", "mps"),
        ("aten::lstm_mps_backward", "mps"),
        ("aten::_scaled_dot_product_attention_math_for_mps", "mps"),
        ("aten::clamps", None),
        ("aten::cudnn_is_acceptable", None),
        ("aten::mkldnn_convolution", None),
    ],
)
def test_operators_that_only_a_gpu_has_show_that_its_events_are_missing(operator, why):
    trace = host_training(12)
    trace.op(1_010, 1_050, name=operator)
    assert trace.facts().no_kernels == why


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernelExC", "cuLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel"]
)
def test_calls_that_launch_show_that_the_device_s_events_are_missing(call):
    trace = host_training(12)
    trace.call(call, 1_010, 1_015)
    assert trace.facts().no_kernels == "unknown"


@pytest.mark.parametrize(
    ("device_type", "times", "why"), [(1, 2, "not_asked"), (13, 2, "mps"), (1, 1, None), (14, 2, None)]
)
def test_memory_of_a_device_shows_that_its_events_are_missing(device_type, times, why):
    trace = host_training(12)
    for number in range(times):
        trace.memory(1_010 + number, 4_096, allocated=4_096, reserved=4_096, device_type=device_type)
    assert trace.facts().no_kernels == why


@pytest.mark.parametrize(
    ("call", "operator", "said"),
    [
        ("cudaLaunchKernel", "aten::cudnn_convolution", "NVreg_RestrictProfilingToAdminUsers"),
        (None, "aten::_mps_convolution", "Instruments"),
    ],
)
def test_where_asking_for_the_device_would_not_show_it_the_advice_is_another(tmp_path, call, operator, said):
    trace = host_training(12)
    trace.op(1_010, 1_050, name=operator)
    if call is not None:
        trace.call(call, 1_010, 1_015)
    report = profilerkit.analyze(trace.write(tmp_path / "trace.json"))
    hints = [signal.hint for signal in report.trust.signals if signal.name == "device events"]
    told = [report.verdict.refuted_by, *hints, *(entry.hint for entry in report.outcomes if entry.hint in hints)]
    assert len(told) >= 2
    assert all(said in text and "ProfilerActivity" not in text for text in told)
