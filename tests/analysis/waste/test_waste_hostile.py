"""What kernels waste in traces that say what cannot be: no rule breaks, and no saving exceeds the step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit import analyze
from tests.recipes import ELEMENTWISE, GEMM, Trace

OPERATORS = (
    "aten::bmm",
    "aten::baddbmm",
    "aten::mm",
    "aten::_softmax",
    "aten::_softmax_backward_data",
    "aten::add_",
    "aten::addcdiv_",
    "aten::_foreach_addcdiv_",
    "aten::_fused_adamw_",
    "aten::cudnn_convolution",
)
KERNELS = (GEMM, ELEMENTWISE, "sm80_xmma_gemm_bf16bf16", "nchwToNhwcKernel", "nchw" + "w" * 40 + "to" + "x" * 40, "")
TYPES = ("float", "c10::BFloat16", "TensorList", "Scalar", "")
sizes = st.sampled_from((0, 1, 8, 9, 513, 2**20, 2**44, 2**63, -1))
shapes = st.lists(sizes, max_size=4)
same = st.just([64, 1024, 1024])
dims = st.lists(same | shapes | st.lists(shapes, max_size=2), max_size=4)
blocks = st.sampled_from((None, 0, -1, 0.001, 0.5, 1.25, 1e9, 1e300, "many", [], True))
calls = st.tuples(
    st.sampled_from(OPERATORS),
    st.sampled_from(KERNELS),
    dims,
    st.lists(st.sampled_from(TYPES), max_size=4),
    blocks,
    st.integers(0, 60),
    st.integers(0, 3),
)
DEVICES = ("NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "no such device")


@settings(max_examples=120, deadline=None)
@given(st.lists(calls, min_size=1, max_size=8), st.sampled_from(DEVICES), st.sampled_from(("Adam", "", "x" * 200)))
def test_no_trace_breaks_a_rule(tmp_path_factory, made, device, optimizer):
    trace = Trace(devices=[{"id": 0, "name": device, "computeMajor": 8, "numSms": 0}])
    trace.steps(*(1_000 * number for number in range(4)))
    for step in range(3):
        for number, (op, kernel, shape, types, size, length, syncs) in enumerate(made):
            at = 1_000 * step + 100 * number
            trace.op(at, at + 60, name=op, dims=shape, types=types or [""])
            trace.kernel(at + 30, at + 30 + length, name=kernel, launch=(at + 2, at + 4), **{"blocks per SM": size})
            for sync in range(syncs):
                trace.sync(at + 10 * sync + 10, at + 10 * sync + 15, name="cudaEventSynchronize")
        trace.annotation(f"Optimizer.step#{optimizer}.step", 1_000 * step + 150, 1_000 * step + 390)
    report = analyze(trace.write(tmp_path_factory.mktemp("hostile") / "trace.json"))
    for outcome in report.outcomes:
        assert outcome.status != "error", outcome.reason
        for finding in outcome.findings:
            if finding.saving is not None:
                saving = finding.saving
                assert 0.0 <= saving.low <= saving.expected <= saving.high <= 1.0
