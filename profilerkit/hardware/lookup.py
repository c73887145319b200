"""Peaks of a device by the name torch reports for it, or nothing when the part is not in the table."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

#: For parts whose best matrix-multiply rate nobody has published; a guess, and labelled so in ``DeviceSpec``.
_DEFAULT_ACHIEVABLE_RATIO = 0.75

# A part sold as 80 GB reports 85.0e9 bytes (80 GiB less the reserve), one sold as 24 GB with ECC 23.6e9.
# The band accepts both and still tells 16 from 32, 40 from 80 and a MIG slice from a whole device.
_MEMORY_BAND_RATIO = (0.85, 1.10)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Dense peaks of one device as torch sees it. ``None`` means the part has none, or no source gives it.

    Attributes:
        name: the row's name in the table, for example ``h100-sxm``.
        bf16_tflops: matrix units, FP32 accumulate, no sparsity; the same for the other matrix types.
        fp16_tflops: as above.
        fp32_tflops: vector units; on MI300 parts the packed figure.
        hbm_gb_per_s: device memory bandwidth, decimal.
        memory_gb: as sold, decimal.
        pcie_gb_per_s: host link, one way.
        achievable_ratio: the best rate a matrix multiply reaches divided by the BF16 peak, 0 to 1.
        achievable_is_measured: false when ``achievable_ratio`` is the default guess of 0.75.
        source: where the peaks come from.
        tf32_tflops: matrix units.
        fp8_tflops: matrix units.
        link_gb_per_s: to other devices, per device and one way.
        compute_capability: of NVIDIA parts, for example ``9.0``.
        link_is_optional: whether the link is there only with a bridge between two cards.
    """

    name: str
    bf16_tflops: float | None
    fp16_tflops: float
    fp32_tflops: float
    hbm_gb_per_s: float
    memory_gb: float
    pcie_gb_per_s: float
    achievable_ratio: float
    achievable_is_measured: bool
    source: str
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    link_gb_per_s: float | None = None
    compute_capability: str | None = None
    link_is_optional: bool = False

    @property
    def ridge_flop_per_byte(self) -> float:
        """Arithmetic intensity above which the matrix peak, not the memory, is the limit.

        >>> lookup("NVIDIA H100 80GB HBM3").ridge_flop_per_byte  # 989e12 / 3350e9
        295.22...
        """
        return 1e3 * (self.bf16_tflops or self.fp16_tflops) / self.hbm_gb_per_s


@cache
def _table() -> dict[str, tuple[tuple[re.Pattern[str], ...], DeviceSpec]]:
    rows: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("specs.toml").read_text("utf-8"))
    table = {}
    for name, row in rows.items():
        patterns = tuple(re.compile(pattern, re.IGNORECASE) for pattern in row.pop("match"))
        measured = "achievable_ratio" in row
        row.setdefault("achievable_ratio", _DEFAULT_ACHIEVABLE_RATIO)
        row.setdefault("bf16_tflops", None)
        table[name] = (patterns, DeviceSpec(name=name, achievable_is_measured=measured, **row))
    return table


def known_names() -> tuple[str, ...]:
    """The row names of the table, in its order."""
    return tuple(_table())


def lookup(device_name: str, memory_bytes: int | None = None) -> DeviceSpec | None:
    """Peaks of the device, or ``None`` when the name, or the name with this memory size, is not in the table.

    Takes the name in ``deviceProperties`` of a trace or of ``torch.cuda.get_device_name``, or a row's own name.
    The whole name must match: an L40S is not an L4, and a MIG slice of an A100 is not an A100.

    >>> lookup("NVIDIA L4").bf16_tflops, lookup("NVIDIA A10G")
    (121.0, None)
    """
    wanted = " ".join(device_name.split())
    for name, (patterns, spec) in _table().items():
        if wanted.lower() == name or any(pattern.fullmatch(wanted) for pattern in patterns):
            return spec if _memory_fits(spec, memory_bytes) else None
    return None


def _memory_fits(spec: DeviceSpec, memory_bytes: int | None) -> bool:
    if memory_bytes is None:
        return True
    low, high = _MEMORY_BAND_RATIO
    return low <= memory_bytes / (spec.memory_gb * 1e9) <= high
