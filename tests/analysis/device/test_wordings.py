"""Names that differ by their numbers alone are searched once, with the same answer as each by itself."""

import re
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest

from profilerkit import analysis
from profilerkit.analysis.device.kernels import by_wording, matching
from profilerkit.analysis.host import names
from profilerkit.trace.classify import PHASES, phase_of
from profilerkit.trace.columns import Category, TraceMeta, names_of, trace_columns

NAMES = (
    *(
        "ampere_sgemm_128x64_tn",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f",
        "sm80_xmma_fprop_f32f32_tf32f32",
        "sgemm",
    ),
    *(
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_bf16_256x128>",
        "flash_fwd_kernel<128, 64>",
        "layer_norm_f4",
    ),
    *(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(4096)",
        "rccl_kernel_12",
        "Memcpy HtoD (Pinned -> Device)",
        "aten::conv2d",
    ),
    *("void at::native::vectorized_elementwise_kernel<4, 16>", "index_elementwise_kernel<128>", "nchwToNhwcKernel<3>"),
    *("ProfilerStep#7", "ProfilerStep#12345", "Optimizer.step#AdamW", "Optimizer.zero_grad#SGD2", "step 12", "STEP_9"),
    *(
        "cudaMalloc",
        "cudaStreamWaitEvent",
        "cuLaunchKernelEx_v2",
        "hipModuleLaunchKernel",
        "autograd::engine::MulBackward0",
    ),
    *(
        "get_batch 12",
        "Data loading 3",
        "load checkpoint 5",
        "eval_2",
        "profilerkit.phase.fetch 4",
        "DataLoader2.__next__",
    ),
    *("train.py(12): step", "h5py/h5d.py(345): read", "cv2/__init__.py(6): imread", "nn.Module: Linear_12", "conv3d_0"),
    *("", "0", "12 34", "a1b22c333", "x" * 400 + "12"),
)


def columns_of(texts, category=Category.CPU_OP):
    count = len(texts)
    numbers = np.arange(count)
    return trace_columns(
        TraceMeta(path="t.json"),
        texts,
        [("1", "1")],
        name=numbers,
        category=category,
        ts_ns=numbers * 10,
        dur_ns=np.full(count, 5),
        thread=0,
    )


def patterns():
    """Every pattern of the analysis, by where it stands."""
    found = {}
    for module in walk_packages(analysis.__path__, "profilerkit.analysis."):
        for name, value in vars(import_module(module.name)).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found[value.pattern] = pytest.param(
                    value, id=f"{module.name.removeprefix('profilerkit.analysis.')}.{name}"
                )
    return list(found.values())


@pytest.mark.parametrize("pattern", patterns())
def test_a_name_matches_as_it_does_by_itself(pattern):
    columns = columns_of(NAMES)
    found = matching(columns, names_of(columns, *Category), pattern)
    assert found.tolist() == [pattern.search(name) is not None for name in NAMES]


@pytest.mark.parametrize("value", [names._annotation_leaf, names._is_feeding_phase, names._names_feeding])
def test_what_is_made_of_a_wording_is_made_of_each_name(value):
    columns = columns_of(NAMES)
    assert by_wording(columns, names_of(columns, *Category), value).tolist() == [value(name) for name in NAMES]


@pytest.mark.parametrize("phase", PHASES)
def test_a_numbered_range_is_of_the_phase_that_its_name_says_by_itself(phase):
    texts = [*NAMES, "forward 3", "forward 17", "opt.step(12)", "zero_grad", "backward_2"]
    found = names.phase_names(columns_of(texts, Category.ANNOTATION), phase)
    assert found.tolist() == [phase_of(text) == phase for text in texts]


def test_a_frame_says_what_its_name_says_by_itself():
    texts = [
        *(*NAMES, "boto3/s3.py(7): get", "s3fs/core.py(88): _cat", "urllib3/x.py(1): urlopen", "urllib/y.py(2): z"),
        *(f"<built-in method read of h5py.File object at 0x{number}>" for number in (3, 41)),
    ]
    found = names.HostNames.of(columns_of(texts, Category.PYTHON))
    frames = [names.Frame.of(text) for text in texts]
    assert found.feeding.tolist() == [frame.feeding for frame in frames]
    assert found.runs_python.tolist() == [frame.runs_python for frame in frames]
    assert {True, False} == set(found.runs_python.tolist())


@pytest.mark.parametrize(("package", "feeds"), [("cv2", True), ("cv3", False), ("h5py", True), ("h6py", False)])
def test_a_digit_in_the_name_of_a_library_is_part_of_the_name(package, feeds):
    found = names.HostNames.of(columns_of([f"{package}/core.py(12): read"], Category.PYTHON))
    assert (found.feeding >= 0).tolist() == [feeds]


def test_only_names_of_the_host_are_read_as_frames_and_numbered_ones_once(monkeypatch):
    asked, real = [], names.Frame.of
    monkeypatch.setattr(names.Frame, "of", lambda text: asked.append(text) or real(text))
    numbered = [f"worker {number}" for number in range(10, 500)]
    names.HostNames.of(columns_of(numbered))
    assert asked == ["worker 0"]
    names.HostNames.of(columns_of(numbered, Category.KERNEL))
    assert asked == ["worker 0"]


def test_a_range_is_asked_for_its_phase_once_for_all_its_numbers(monkeypatch):
    asked = []
    monkeypatch.setattr(names, "phase_of", asked.append)
    columns = columns_of([f"ProfilerStep#{number}" for number in range(100)], Category.ANNOTATION)
    for phase in PHASES:
        names.phase_names(columns, phase)
    assert asked == ["ProfilerStep#0"]
