"""The virtual device shows a host what CUDA would; its clock is a number here."""

import sys

import pytest
import virtual_device

torch = pytest.importorskip("torch")


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def device(clock):
    return virtual_device.Device(clock=clock, sleep=clock.sleep)


@pytest.fixture
def cuda(device):
    placed = virtual_device.install(device)
    yield torch.cuda
    placed.remove()


def test_a_launch_returns_at_once_and_synchronising_waits(device, clock):
    for _ in range(5):
        device.launch(0.020)
    assert clock.now_s == 0.0
    device.synchronize()
    assert clock.now_s == pytest.approx(0.100)


def test_a_full_queue_holds_the_host_until_one_launch_is_done(clock):
    device = virtual_device.Device(clock=clock, sleep=clock.sleep, queue_depth=4)
    for _ in range(5):
        device.launch(0.020)
    assert clock.now_s == pytest.approx(0.020)
    for _ in range(100):
        device.launch(0.020)
    assert clock.now_s == pytest.approx(101 * 0.020)


def test_events_measure_the_device_and_are_reached_when_it_is_there(cuda, device, clock):
    first, second = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    device.launch(0.010)
    first.record()
    device.launch(0.025)
    second.record()
    assert not first.query()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(second)
    second.synchronize()
    assert first.query()
    assert first.elapsed_time(second) == pytest.approx(25.0)
    assert clock.now_s == pytest.approx(0.035)


def test_a_copy_stream_works_beside_the_kernels_until_it_is_waited_for(cuda, device):
    copies = cuda.Stream()
    with cuda.stream(copies):
        assert cuda.current_stream() is copies
        device.launch(0.030)
    device.launch(0.010)
    cuda.current_stream().wait_stream(copies)
    device.launch(0.010)
    assert device.current.free_s == pytest.approx(0.040)


def test_reading_a_loss_waits_and_reading_the_optimizers_counter_does_not(cuda, device, clock):
    device.launch(0.050)
    torch.tensor(3.0).item()
    assert clock.now_s == 0.0
    assert torch.tensor(3.0, requires_grad=True).item() == 3.0
    assert clock.now_s == pytest.approx(0.050)


@pytest.mark.parametrize(
    ("pinned", "non_blocking", "waits"), [(False, True, True), (True, True, False), (True, False, True)]
)
def test_only_a_copy_from_pinned_memory_that_need_not_block_returns_at_once(
    cuda, device, clock, pinned, non_blocking, waits
):
    batch = torch.zeros(1 << 20)
    batch = batch.pin_memory() if pinned else batch
    device.launch(0.050)
    moved = batch.to("cuda", non_blocking=non_blocking)
    assert moved.shape == batch.shape
    assert (clock.now_s > 0.050) == waits


def test_a_graph_is_captured_without_running_and_replayed_by_one_launch(cuda, device, clock):
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        assert cuda.is_current_stream_capturing()
        for _ in range(100):
            device.launch(0.001)
    assert not cuda.is_current_stream_capturing()
    assert device.current.free_s == 0.0
    graph.replay()
    assert device.current.free_s == pytest.approx(0.100)


def test_looking_at_the_device_while_a_graph_is_captured_ruins_it(cuda, device):
    event = cuda.Event()
    event.record()

    def capture():
        with cuda.graph(cuda.CUDAGraph()):
            with pytest.raises(RuntimeError, match="not permitted"):
                event.query()
            with pytest.raises(RuntimeError, match="not permitted"):
                cuda.synchronize()

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture()
    assert not cuda.is_current_stream_capturing()


def test_a_profiler_that_starts_while_a_graph_is_captured_ruins_it(cuda):
    def capture():
        with cuda.graph(cuda.CUDAGraph()), pytest.raises(RuntimeError, match="not permitted"), torch.profiler.profile():
            pass

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture()
    assert not torch.autograd._profiler_enabled()


def test_graphs_are_of_torchs_own_class_so_that_what_patched_it_before_sees_them(monkeypatch):
    heard, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.graphs.CUDAGraph, "replay", lambda graph: (heard.append(graph), replay(graph)))
    placed = virtual_device.install()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            placed.device.launch(0.001)
        graph.replay()
    finally:
        placed.remove()
    assert heard == [graph]


def test_memory_that_does_not_suffice_is_asked_for_again_and_then_refused(cuda, device, clock):
    device.allocate(60 << 30)
    device.free(40 << 30)
    device.launch(0.050)
    device.allocate(30 << 30)
    assert cuda.memory_stats()["num_alloc_retries"] == 0
    assert clock.now_s == 0.0
    device.free(20 << 30)
    device.allocate(45 << 30)
    assert cuda.memory_stats()["num_alloc_retries"] == 1
    assert clock.now_s == pytest.approx(0.050)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 10\.00 GiB\. GPU 0 has"):
        device.allocate(10 << 30)
    assert cuda.memory_stats()["num_ooms"] == 1
    assert cuda.memory_allocated() == 75 << 30


def test_nvml_sees_the_past_second_of_the_devices_work(cuda, device, clock):
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(10):
        device.launch(0.030)
        device.synchronize()
        clock.sleep(0.070)
    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 30
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetFieldValues(handle, [1])


def test_torch_is_put_back_as_it_was():
    before = {name: vars(torch.cuda)[name] for name in ("Event", "Stream", "synchronize", "is_available")}
    item, nvml = torch.Tensor.item, sys.modules.get("pynvml")
    virtual_device.install().remove()
    assert {name: vars(torch.cuda)[name] for name in before} == before
    assert torch.Tensor.item is item
    assert sys.modules.get("pynvml") is nvml
    assert not hasattr(torch._C, "_cuda_synchronize")
