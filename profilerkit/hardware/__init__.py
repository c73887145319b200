"""Device peaks with their sources, looked up by name."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from profilerkit.model import revise

#: For parts whose best matrix-multiply rate nobody has published; a guess, and labelled so in ``DeviceSpec``.
_DEFAULT_ACHIEVABLE_RATIO = 0.75

# A part sold as 80 GB reports 85.0e9 bytes (80 GiB less the reserve), one sold as 24 GB with ECC 23.6e9.
# The band accepts both and still tells 16 from 32, 40 from 80 and a MIG slice from a whole device.
_MEMORY_BAND_RATIO = (0.85, 1.10)

#: Words of makers and brands, which drivers write or leave out: from R470 on "NVIDIA" stands before "GeForce".
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct"})

#: MIG divides a device's memory, and with it the bandwidth, into eighths; A30 and RTX PRO into quarters (MIG guide).
_MIG_EIGHTHS = 8

_Words = tuple[str, ...]


class DeviceSpec(msgspec.Struct, frozen=True):
    """Dense peaks of one device as torch sees it. ``None`` means the part has none, or no source gives it."""

    name: str
    bf16_tflops: float | None  #: matrix units, FP32 accumulate, no sparsity; the same for the other matrix types
    fp16_tflops: float
    fp32_tflops: float  #: vector units; on MI300 parts the packed figure
    hbm_gb_per_s: float  #: device memory bandwidth, decimal
    memory_gb: float
    pcie_gb_per_s: float  #: host link, one way
    achievable_ratio: float  #: the best rate a matrix multiply reaches divided by the BF16 peak, 0 to 1
    achievable_is_measured: bool  #: false when ``achievable_ratio`` is the default guess of 0.75
    source: str
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    link_gb_per_s: float | None = None  #: to other devices, per device and one way
    compute_capability: str | None = None
    link_is_optional: bool = False  #: whether the link is there only with a bridge between two cards
    multiprocessors: int | None = None  #: of the whole device, or of the part of it that this is about

    @property
    def faster_than_fp32(self) -> Literal["tf32", "fp16"] | None:
        """Return the next type that runs matrix products faster than the vector units run FP32.

        TF32 does not where its rate equals that of FP32: on GeForce from Ampere on, A10G, L20 and L40. ``None`` for
        AMD's parts without TF32, which run FP32 on matrix units too.

        >>> lookup("NVIDIA A100-SXM4-80GB").faster_than_fp32, lookup("NVIDIA GeForce RTX 3060").faster_than_fp32
        ('tf32', 'fp16')
        """
        if self.tf32_tflops is not None and self.tf32_tflops > self.fp32_tflops:
            return "tf32"
        return "fp16" if self.compute_capability is not None else None


@cache
def _table() -> dict[str, tuple[frozenset[_Words], DeviceSpec]]:
    rows: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("specs.toml").read_text("utf-8"))
    table = {}
    for name, row in rows.items():
        words = frozenset(map(_words, (name, *row.pop("names"))))
        measured = "achievable_ratio" in row
        row.setdefault("achievable_ratio", _DEFAULT_ACHIEVABLE_RATIO)
        row.setdefault("bf16_tflops", None)
        table[name] = (words, DeviceSpec(name=name, achievable_is_measured=measured, **row))
    return table


def known_names() -> tuple[str, ...]:
    """The row names of the table, in its order."""
    return tuple(_table())


def lookup(device_name: str, memory_bytes: int | None = None, multiprocessors: int | None = None) -> DeviceSpec | None:
    """Peaks of the device, or ``None`` when no row has the name and memory size, or several have the name alone.

    Takes the name in ``deviceProperties`` of a trace or of ``torch.cuda.get_device_name``, or a row's own name.
    Every word but those of makers and brands must match: an L40S is not an L40, and a laptop's card is not a desktop's.

    A device with fewer multiprocessors than its row is a part of it: a MI250 of the MI250X, a share given out by MPS.
    Its arithmetic is scaled by them. A MIG slice is known where its memory and its multiprocessors are:

    >>> lookup("NVIDIA L4").bf16_tflops, lookup("NVIDIA L4 Laptop GPU")
    (121.0, None)
    >>> slice = lookup("NVIDIA A100-SXM4-40GB MIG 1g.5gb", memory_bytes=5_100_000_000, multiprocessors=14)
    >>> slice.bf16_tflops, slice.hbm_gb_per_s  # 312 × 14 / 108, 1555 / 8
    (40.44..., 194.375)
    """
    words = _words(device_name)
    whole = words[: words.index("mig")] if "mig" in words else words
    named = [spec for names, spec in _table().values() if whole in names]
    if whole != words:
        named = [part for spec in named if (part := _slice(spec, memory_bytes, multiprocessors)) is not None]
    if memory_bytes is not None:
        named = sorted(named, key=lambda spec: abs(_memory_ratio(spec, memory_bytes) - 1))[:1]
    low, high = _MEMORY_BAND_RATIO
    if len(named) != 1 or (memory_bytes is not None and not low <= _memory_ratio(named[0], memory_bytes) <= high):
        return None
    return _part(named[0], multiprocessors)


def is_by_amd(device_name: str) -> bool:
    """Return whether the maker is AMD, whose ``computeMajor`` is no CUDA compute capability.

    >>> is_by_amd("AMD Radeon Graphics"), is_by_amd("NVIDIA GeForce RTX 3060")
    (True, False)
    """
    return not {"amd", "radeon", "instinct"}.isdisjoint(device_name.lower().split())


def _words(name: str) -> _Words:
    """Split a device name into lower-case words without makers and brands.

    >>> _words("AMD Instinct MI250X / MI250"), _words("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    (('mi250x', 'mi250'), ('a100', 'sxm4', '40gb', 'mig', '1g', '5gb'))
    """
    return tuple(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MAKERS)


def _memory_ratio(spec: DeviceSpec, memory_bytes: int) -> float:
    return memory_bytes / (spec.memory_gb * 1e9)


def _slice(spec: DeviceSpec, memory_bytes: int | None, multiprocessors: int | None) -> DeviceSpec | None:
    """The memory of a MIG slice, by eighths; a slice has no links. ``None`` without its sizes."""
    if memory_bytes is None or multiprocessors is None or spec.multiprocessors is None:
        return None
    eighths = min(max(round(_MIG_EIGHTHS * _memory_ratio(spec, memory_bytes)), 1), _MIG_EIGHTHS)
    share = eighths / _MIG_EIGHTHS
    return revise(
        spec,
        name=f"{spec.name} MIG",
        hbm_gb_per_s=spec.hbm_gb_per_s * share,
        memory_gb=spec.memory_gb * share,
        link_gb_per_s=None,
        link_is_optional=False,
    )


def _part(spec: DeviceSpec, multiprocessors: int | None) -> DeviceSpec | None:
    """The arithmetic of as many multiprocessors; ``None`` where there are more than the row has."""
    whole = spec.multiprocessors
    if whole is None or multiprocessors is None or multiprocessors == whole:
        return spec
    if not 0 < multiprocessors < whole:
        return None
    share = multiprocessors / whole

    def scaled(tflops: float | None) -> float | None:
        return None if tflops is None else tflops * share

    return revise(
        spec,
        multiprocessors=multiprocessors,
        bf16_tflops=scaled(spec.bf16_tflops),
        fp16_tflops=spec.fp16_tflops * share,
        fp32_tflops=spec.fp32_tflops * share,
        tf32_tflops=scaled(spec.tf32_tflops),
        fp8_tflops=scaled(spec.fp8_tflops),
        source=f"{spec.source}; for {multiprocessors} of {whole} multiprocessors",
    )
