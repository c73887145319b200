"""A small GPU training trace of real shape, in Kineto's own layout: the base that large traces are grown from.

A 12-layer transformer in data-parallel training, three steps under ``torch.profiler`` with shapes and memory. Every
kernel has its launch call, its operators and its flow; the backward pass runs on the autograd thread; gradients are
reduced bucket by bucket on a stream of their own. Times are drawn with a fixed seed, so the text never changes.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

STEPS = 3
LAYERS = 12
BUCKETS = 4
HIDDEN, TOKENS, HEADS, HEAD_SIZE = 768, 4096, 96, 64
PROCESS, MAIN, AUTOGRAD = 41234, 41234, 41301
COMPUTE_STREAM, COMM_STREAM = 7, 20
START_NS = 4_458_676_416_388_066
PAUSE_NS = 400_000

_TEMPLATE = "at::detail::Array<char*, {n}>"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
GEMM_WIDE = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x256x32_stage3_warpsize2x4x1_tensor16x8x16_kernel"
ATTENTION = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>, "
    "false, true, false, false, true, false>(pytorch_flash::Flash_fwd_params)"
)
ATTENTION_BACKWARD = ATTENTION.replace("fwd", "bwd").replace("Flash_bwd_kernel", "Flash_bwd_seqk_parallel_kernel")
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
)
NORM_BACKWARD = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>("
    "c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, c10::BFloat16*, int)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    f"{_TEMPLATE.format(n=3)} >(int, at::native::CUDAFunctor_add<c10::BFloat16>, {_TEMPLATE.format(n=3)})"
)
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    f"at::native::GeluType)::{{lambda()#2}}::operator()() const, {_TEMPLATE.format(n=2)} >(int)"
)
DROPOUT = (
    "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4, bool>("
    "at::cuda::detail::TensorInfo<c10::BFloat16 const, unsigned int>, unsigned int, float, at::PhiloxCudaState)"
)
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<float> > >"
FILL = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, {_TEMPLATE.format(n=1)} >"
EMBEDDING = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>, double>"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"

ACTIVATION = (TOKENS, HIDDEN)
WIDE = (TOKENS, 4 * HIDDEN)


@dataclass(frozen=True, slots=True)
class Layer:
    """One forward operator and its gradient.

    Attributes:
        operator: dispatched name, outermost first; the innermost launches the kernel.
        gradient: name of the autograd node.
        shapes: of the inputs.
        forward: kernel and its mean length in µs.
        backward: kernels of the gradient and their mean lengths in µs.
    """

    operator: tuple[str, ...]
    gradient: str
    shapes: tuple[tuple[int, ...], ...]
    forward: tuple[str, float]
    backward: tuple[tuple[str, float], ...]


def _linear(inputs: tuple[int, ...], weight: tuple[int, int], mean_us: float) -> Layer:
    return Layer(
        ("aten::linear", "aten::addmm"),
        "AddmmBackward0",
        (weight[:1], inputs, weight),
        (GEMM, mean_us),
        ((GEMM_WIDE, mean_us), (GEMM, 1.1 * mean_us), (SUM, 9.0)),
    )


_NORM = Layer(
    ("aten::layer_norm", "aten::native_layer_norm"),
    "NativeLayerNormBackward0",
    (ACTIVATION, (HIDDEN,), (HIDDEN,)),
    (NORM, 14.0),
    ((NORM_BACKWARD, 22.0), (SUM, 11.0)),
)
_ADD = Layer(("aten::add",), "AddBackward0", (ACTIVATION, ACTIVATION, ()), (ADD, 12.0), ((ADD, 12.0),))
_DROPOUT = Layer(
    ("aten::dropout", "aten::native_dropout"), "NativeDropoutBackward0", (ACTIVATION,), (DROPOUT, 16.0), ((ADD, 13.0),)
)
BLOCK: tuple[Layer, ...] = (
    _NORM,
    _linear(ACTIVATION, (HIDDEN, 3 * HIDDEN), 92.0),
    Layer(
        ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention", "aten::_flash_attention"),
        "ScaledDotProductFlashAttentionBackward0",
        ((8, HEADS // 8, TOKENS // 8, HEAD_SIZE),) * 3,
        (ATTENTION, 110.0),
        ((ATTENTION_BACKWARD, 260.0), (FILL, 4.0)),
    ),
    _linear(ACTIVATION, (HIDDEN, HIDDEN), 38.0),
    _DROPOUT,
    _ADD,
    _NORM,
    _linear(ACTIVATION, (HIDDEN, 4 * HIDDEN), 124.0),
    Layer(("aten::gelu",), "GeluBackward0", (WIDE,), (GELU, 34.0), ((GELU, 41.0),)),
    _linear(WIDE, (4 * HIDDEN, HIDDEN), 126.0),
    _DROPOUT,
    _ADD,
)


class Recording:
    """Events of one process and its device, as Kineto writes them; times are int ns."""

    def __init__(self, seed: int) -> None:
        self.host: list[tuple[int, str]] = []
        self.device: list[str] = []
        self.now = START_NS
        self.thread = MAIN
        self.free = {COMPUTE_STREAM: START_NS, COMM_STREAM: START_NS}
        self.operators: list[int] = []
        self.function = self.correlation = self.sequence = self.allocated = 0
        self._random = random.Random(seed)

    def about(self, mean_ns: float) -> int:
        """A time around the mean, skewed to the right as measured times are."""
        return int(mean_ns * (0.75 + 0.5 * self._random.random() ** 3))

    def wait(self, mean_ns: float) -> None:
        """Let time pass on the host."""
        self.now += self.about(mean_ns)

    @contextmanager
    def span(self, name: str, category: str = "cpu_op", args: str = "") -> Iterator[int]:
        """One operator or annotation around what runs inside; gives its ``External id``."""
        self.function += 1
        number, start, thread, index = self.function, self.now, self.thread, len(self.host)
        self.operators.append(number)
        self.wait(1_500)
        yield number
        self.wait(1_200)
        self.operators.pop()
        text = f'"External id": {number},"Record function id": {number}, {args}"Ev Idx": {index}'
        self.host.append((start, _span(category, name, PROCESS, thread, start, self.now - start, text)))
        self.wait(300)

    def operator(self, name: str, shapes: Sequence[tuple[int, ...]], sequence: int | None = None) -> str:
        """The args of an operator with recorded shapes."""
        kinds = ["c10::BFloat16" if shape else "Scalar" for shape in shapes]
        values = ["" if shape else "1" for shape in shapes]
        known = f'"Sequence number": {sequence}, "Fwd thread id": 0, ' if sequence is not None else ""
        return (
            f'"Concrete Inputs": {json.dumps(values)}, "Input type": {json.dumps(kinds)}, '
            f'"Input Strides": {json.dumps([_strides(shape) for shape in shapes])}, '
            f'"Input Dims": {json.dumps(shapes)}, {known}'
        )

    def runtime(self, name: str, mean_ns: float, *, linked: bool) -> int:
        """One runtime call; a call that starts device work also starts a flow. Gives its correlation."""
        self.correlation += 1
        start, length = self.now, self.about(mean_ns)
        self.now += length
        args = f'"External id": {self.operators[-1]},      "cbid": 211, "correlation": {self.correlation}'
        self.device.append(_span("cuda_runtime", name, PROCESS, self.thread, start, length, args))
        if linked:
            self.device.append(_flow("s", self.correlation, "ac2g", PROCESS, self.thread, start))
        return self.correlation

    def work(self, name: str, mean_us: float, category: str, call: str, args: str, stream: int) -> int:
        """Device work and the call that starts it; gives the end of the work."""
        correlation = self.runtime(call, 4_200, linked=True)
        start = max(self.now + self.about(3_000), self.free[stream] + self.about(900))
        length = self.about(mean_us * 1_000)
        self.free[stream] = start + length
        text = (
            f'"External id": {self.operators[-1]},      "queued": 0, "device": 0, "context": 1,      '
            f'"stream": {stream}, "correlation": {correlation},      {args}'
        )
        self.device.append(_span(category, name, 0, stream, start, length, text))
        self.device.append(_flow("f", correlation, "ac2g", 0, stream, start))
        return start + length

    def kernel(self, name: str, mean_us: float, *, stream: int = COMPUTE_STREAM, more: str = "") -> int:
        """One kernel; gives its end."""
        grid = self._random.choice((96, 192, 384, 512, 768, 1024, 3072))
        shape = (
            f'"registers per thread": 40,      "shared memory": 400,      "blocks per SM": {grid / 108:f},      '
            f'"warps per SM": {grid * 4 / 108:f},      "grid": [{grid}, 1, 1],      "block": [128, 1, 1],      '
            f'"est. achieved occupancy %": 37{more}'
        )
        return self.work(name, mean_us, "kernel", "cudaLaunchKernel", shape, stream)

    def memory(self, size: int) -> None:
        """One allocation, or a free when ``size`` is negative."""
        self.allocated += size
        text = (
            f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": {PROCESS}, '
            f'"tid": {self.thread},\n    "ts": {_us(self.now)},\n    "args": {{\n      '
            f'"Total Reserved": 9363783680, "Total Allocated": {self.allocated + 2_000_000_000}, "Bytes": {size}, '
            f'"Addr": {140_000_000_000_000 + self.allocated}, "Device Id": 0, "Device Type": 1, '
            f'"Ev Idx": {len(self.host)}\n    }}\n  }}'
        )
        self.host.append((self.now, text))

    def link(self, phase: str, number: int) -> None:
        """One end of the flow from a forward operator to its gradient."""
        self.host.append((self.now, _flow(phase, number, "fwdbwd", PROCESS, self.thread, self.now)))


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return strides[::-1]


def _span(category: str, name: str, pid: int, tid: int, start: int, length: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {_us(start)}, "dur": {_us(length)},\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def _flow(phase: str, number: int, category: str, pid: int, tid: int, at: int) -> str:
    binding = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {_us(at)},\n'
        f'    "cat": "{category}", "name": "{category}"{binding}\n  }}'
    )


def _name(kind: str, pid: int, tid: int, name: str) -> str:
    return (
        f'  {{\n    "name": "{kind}", "ph": "M", "ts": {_us(START_NS)}, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      "name": "{name}"\n    }}\n  }}'
    )


def _bytes(shape: tuple[int, ...]) -> int:
    size = 2
    for length in shape:
        size *= length
    return size


def _forward(trace: Recording, layer: Layer, index: int = 0) -> int:
    """The operators of a layer around its kernel; gives the sequence number its gradient will carry."""
    if index == 0:
        trace.sequence += 1
    sequence = trace.sequence
    name = layer.operator[index]
    with trace.span(name, args=trace.operator(name, layer.shapes, sequence)):
        if index + 1 < len(layer.operator):
            _forward(trace, layer, index + 1)
            return sequence
        trace.link("s", sequence)
        with trace.span("aten::empty", args=trace.operator("aten::empty", [()] * 6)):
            trace.memory(_bytes(layer.shapes[0]))
        trace.kernel(*layer.forward)
    return sequence


def _backward(trace: Recording, layer: Layer, sequence: int) -> None:
    known = f'"Sequence number": {sequence}, "Fwd thread id": 1, '
    with (
        trace.span(f"autograd::engine::evaluate_function: {layer.gradient}", args=known),
        trace.span(layer.gradient, args=known),
    ):
        trace.link("f", sequence)
        for name, mean_us in layer.backward:
            inner = "aten::mm" if "gemm" in name else "aten::sum" if name is SUM else "aten::mul"
            with trace.span(inner, args=trace.operator(inner, layer.shapes[:2])):
                trace.memory(_bytes(layer.shapes[0]))
                trace.kernel(name, mean_us)
    trace.memory(-_bytes(layer.shapes[0]) * (1 + len(layer.backward)))


def _reduce_bucket(trace: Recording, bucket: int) -> None:
    elements = LAYERS * 12 * HIDDEN * HIDDEN // BUCKETS
    what = (
        f'"Collective name": "allreduce", "In msg nelems": {elements}, "Out msg nelems": {elements}, '
        '"Group size": 2, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
        '"Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"'
    )
    with (
        trace.span("nccl:all_reduce", "user_annotation"),
        trace.span("record_param_comms", args=f'{what}, "Seq": {trace.sequence * BUCKETS + bucket}, '),
    ):
        trace.runtime("cudaEventRecord", 1_100, linked=False)
        trace.runtime("cudaStreamWaitEvent", 900, linked=False)
        trace.free[COMM_STREAM] = max(trace.free[COMM_STREAM], trace.free[COMPUTE_STREAM])
        trace.kernel(ALL_REDUCE, 2_600.0, stream=COMM_STREAM, more=f", {what}")
        trace.work("Memset (Device)", 2.0, "gpu_memset", "cudaMemsetAsync", '"bytes": 512', COMPUTE_STREAM)


def _optimise(trace: Recording) -> None:
    trace.free[COMPUTE_STREAM] = max(trace.free.values())
    with trace.span("Optimizer.step#AdamW.step", "user_annotation"):
        for _ in range(LAYERS):
            with trace.span("aten::_fused_adamw_", args=trace.operator("aten::_fused_adamw_", [()] * 5)):
                trace.kernel(ADAM, 95.0)
    with trace.span("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
        trace.wait(180_000)


def _step(trace: Recording, number: int) -> None:
    with trace.span(f"ProfilerStep#{number}", "user_annotation"):
        with trace.span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "user_annotation"):
            trace.wait(1_900_000)
        with trace.span("aten::to", args=trace.operator("aten::to", [(8, TOKENS // 8), (), ()])):
            trace.work("Memcpy HtoD (Pinned -> Device)", 24.0, "gpu_memcpy", "cudaMemcpyAsync", '"bytes": 262144', 7)
        layers = [
            Layer(("aten::embedding",), "EmbeddingBackward0", ((50257, HIDDEN),), (EMBEDDING, 30.0), ((FILL, 40.0),)),
            *BLOCK * LAYERS,
            Layer(("aten::log_softmax",), "NllLossBackward0", (ACTIVATION,), (SOFTMAX, 90.0), ((SOFTMAX, 120.0),)),
        ]
        with trace.span("DistributedDataParallel.forward", "user_annotation"):
            done = [(layer, _forward(trace, layer)) for layer in layers]
        trace.thread = AUTOGRAD
        for position, (layer, sequence) in enumerate(reversed(done)):
            _backward(trace, layer, sequence)
            if position % (len(done) // BUCKETS) == len(done) // BUCKETS - 1:
                _reduce_bucket(trace, position)
        trace.thread = MAIN
        _optimise(trace)
        with trace.span("aten::item", args=trace.operator("aten::item", [()])):
            trace.work("Memcpy DtoH (Device -> Pageable)", 1.5, "gpu_memcpy", "cudaMemcpyAsync", '"bytes": 4', 7)
            trace.now = max(trace.now, *trace.free.values())
            trace.runtime("cudaStreamSynchronize", 9_000, linked=False)


def base_trace() -> str:
    """The whole trace as text."""
    trace = Recording(seed=3)
    for number in range(STEPS):
        _step(trace, number + 10)
        trace.wait(PAUSE_NS)
    events = [text for _, text in sorted(trace.host, key=lambda entry: entry[0])]
    devices = [
        {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "computeMajor": 8,
         "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "warpSize": 32,
         "sharedMemPerBlock": 49152, "numSms": 108}
    ]  # fmt: skip
    group = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "nccl_version": "2.21.5"}
    head = (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {json.dumps(devices)},\n'
        f'  "distributedInfo": {json.dumps(group)},\n  "record_shapes": 1,\n  "profile_memory": 1,\n'
        '  "traceEvents": [\n'
    )
    names = [
        _name("process_name", PROCESS, 0, "python"),
        _name("process_name", 0, 0, "python"),
        _name("thread_name", PROCESS, MAIN, f"thread {MAIN} (python)"),
        _name("thread_name", PROCESS, AUTOGRAD, f"thread {AUTOGRAD} (pt_autograd_0)"),
        _name("thread_name", 0, COMPUTE_STREAM, f"stream {COMPUTE_STREAM}"),
        _name("thread_name", 0, COMM_STREAM, f"stream {COMM_STREAM}"),
    ]
    tail = '\n  ],\n  "traceName": "training.json",\n  "displayTimeUnit": "ms",\n'
    return head + ",\n".join(events + trace.device + names) + tail + '  "baseTimeNanoseconds": 1711964646000000000\n}\n'
