"""What has to run in a process of its own: CUDA graphs, running out of memory, CUPTI after a window, a neighbour."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measured_processes import SCRIPTS
from torch.utils.data import DataLoader, TensorDataset

import profilerkit
from gpu_truth_parts.device import Device
from gpu_truth_parts.loop import HOST_LOOPS, record, wall_s

_MOST_SECONDS = 240
#: CUPTI's behaviour after a window goes by this variable (pytorch/pytorch#144455).
TEARDOWN = "TEARDOWN_CUPTI"


def environment(**variables: str | None) -> dict[str, str]:
    """The variables of this process with this tree first; ``None`` takes one away."""
    places = [str(SCRIPTS.parent), str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(places), **variables}
    return {name: value for name, value in found.items() if value is not None}


def command(name: str, *arguments: object) -> list[str]:
    """The command line of one of the programs below."""
    return [sys.executable, "-m", "gpu_truth_parts.program", name, *map(str, arguments)]


def run(name: str, *arguments: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run one of the programs below to its end."""
    return ended(command(name, *arguments), **variables)


def ended(asked: list[str], **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; after four minutes it is ended, with exit code 124."""
    env = environment(**variables)
    try:
        return subprocess.run(asked, env=env, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(asked, 124, "", f"took more than {_MOST_SECONDS} s")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments to its end."""
    return ended([sys.executable, *arguments])


def step_ms(done: subprocess.CompletedProcess[str]) -> float:
    """What a program printed last; raises with its last words where it failed."""
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return float(done.stdout.split()[-1])


def _training() -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of a small model on the GPU: whole, and by a compiled forward pass."""
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
    inputs = torch.randn(64, 512, device="cuda")
    compiled = torch.compile(net, mode="reduce-overhead")

    def step(forward: Callable[..., torch.Tensor] = net) -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(inputs).square().mean().backward()
        optimizer.step()

    return step, lambda: step(compiled)


def whole_step(path: str, warmup_steps: str) -> None:
    """Capture a whole step as a CUDA graph while recording, and replay it; an early window is open at the capture."""
    step, _ = _training()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with profilerkit.profile(path, analyze=False, warmup_steps=int(warmup_steps)) as prof:
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
                prof.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(200):
            graph.replay()
            prof.step()
    torch.cuda.synchronize()


def compiled(path: str) -> None:
    """Train with ``torch.compile``'s own graphs through several windows."""
    _, step = _training()
    with profilerkit.profile(path, analyze=False, trace_every=100) as prof:
        for _ in range(300):
            step()
            prof.step()


def forked(path: str) -> None:
    """Fork loader workers after CUDA is in use."""
    step, _ = _training()
    step()
    data = TensorDataset(torch.randn(4096, 512))
    with profilerkit.profile(path, analyze=False) as prof:
        for _ in range(3):
            for _ in prof.wrap(DataLoader(data, batch_size=64, num_workers=4, multiprocessing_context="fork")):
                step()


def out_of_memory(path: str, later: str, fixed: str) -> None:
    """Train with a batch too large for the device, at once or ``later``; or with ``fixed`` samples, which fit or not.

    What 24 layers keep of one sample for the backward pass is 24 x 8192 x 4 bytes: with the parameters this passes the
    memory.
    """
    layers, width = 24, 8192
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    batch = int(fixed) or torch.cuda.mem_get_info()[1] // (layers * width * 4)
    small = [1024] * 3 if int(later) and not int(fixed) else [batch] * 3
    loader = DataLoader(TensorDataset(torch.zeros(4 * batch, 1)), batch_size=batch)
    with profilerkit.profile(path, deep=False, analyze=False) as prof:
        for rows, _ in zip([*small, batch], prof.wrap(loader), strict=False):
            net(torch.randn(rows, width, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def after_window(path: str, kind: str) -> None:
    """Print the time of a step of many launches, or of many reads, before and after one window, as JSON."""
    device = Device("cuda")

    def bare_ms() -> float:
        return 1e3 * statistics.median(wall_s(HOST_LOOPS[kind], device, 150) for _ in range(3))

    before_ms = bare_ms()
    record(HOST_LOOPS[kind], device, Path(path), 60)
    print(json.dumps({"before_ms": before_ms, "after_ms": bare_ms()}))


def neighbour() -> None:
    """Keep the GPU busy until this process is ended; prints a line once it does."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end, said = time.monotonic() + _MOST_SECONDS, False
    while time.monotonic() < end:
        matrix @ matrix
        torch.cuda.synchronize()
        if not said:
            said = True
            print("busy", flush=True)


if __name__ == "__main__":
    programs = (whole_step, compiled, forked, out_of_memory, after_window, neighbour)
    {program.__name__: program for program in programs}[sys.argv[1]](*sys.argv[2:])
