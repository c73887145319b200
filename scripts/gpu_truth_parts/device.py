"""The device under test, with the same calls on a GPU and on the CPU, where everything is synchronous."""

import time
from collections.abc import Callable
from functools import partial

import torch

MS = 1e-3
#: Sides of square matrices whose product is one piece of work, largest first. On an H100 in bf16 about 1.5 ms, 0.2 ms
#: and 30 µs: the host launches each in 5 µs, so it is done long before the device.
_SIDES = {"cuda": (8192, 4096, 2048), "cpu": (192, 64)}
#: A piece is at most this share of the work asked for.
_MOST_SHARE = 0.25


class Device:
    """Work of known length on a device.

    Attributes:
        name: torch's name of it, ``cuda`` or ``cpu``.
        label: the name of the product; ``CPU`` without a GPU.
        is_asynchronous: the host may run ahead of it.
        quick: a fifth of the steps, and fewer rounds.
        large: the largest matrix, in bf16 on a GPU.
    """

    def __init__(self, name: str, *, quick: bool = False) -> None:
        self.name, self.quick = name, quick
        self.is_asynchronous = name == "cuda"
        self.label = torch.cuda.get_device_name() if name == "cuda" else "CPU"
        dtype = torch.bfloat16 if name == "cuda" else torch.float32
        self._matrices = [torch.randn(side, side, device=name, dtype=dtype) for side in _SIDES[name]]
        self._products = [torch.empty_like(matrix) for matrix in self._matrices]
        self.large = self._matrices[0]
        self._small = torch.zeros(64, 64, device=name)
        self.piece_s = [self.seconds(partial(self._multiply, at)) for at in range(len(self._matrices))]

    def sync(self) -> None:
        """Wait for the device."""
        if self.name == "cuda":
            torch.cuda.synchronize()

    def steps(self, count: int) -> int:
        """As many steps; in a quick run a fifth of them, and 20 at least."""
        return max(20, count // 5) if self.quick else count

    def seconds(self, work: Callable[[], object], count: int = 20) -> float:
        """Return the mean time of ``work`` in seconds, warm, with the device's part of it."""
        for _ in range(5):
            work()
        self.sync()
        began = time.perf_counter()
        for _ in range(count):
            work()
        self.sync()
        return (time.perf_counter() - began) / count

    def burn(self, seconds: float) -> int:
        """Enqueue about this much work and return the number of kernels."""
        if seconds <= 0:
            return 0
        fitting = (at for at, piece_s in enumerate(self.piece_s) if piece_s <= _MOST_SHARE * seconds)
        at = next(fitting, len(self.piece_s) - 1)
        count = max(1, round(seconds / self.piece_s[at]))
        for _ in range(count):
            self._multiply(at)
        return count

    def tiny(self, count: int) -> None:
        """Enqueue that many kernels that take next to nothing each."""
        for _ in range(count):
            self._small.add_(0.0)

    def read(self) -> None:
        """Wait for a value, as ``loss.item()`` does."""
        self._small[0, 0].item()

    def _multiply(self, at: int) -> None:
        torch.mm(self._matrices[at], self._matrices[at], out=self._products[at])
