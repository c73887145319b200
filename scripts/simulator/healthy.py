"""Healthy jobs that look like something: every one must be called compute-bound or balanced, without an alarm."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from simulator.job import Extra, Job, Odd, Tiny
from simulator.sample import averaging, plain


@dataclass(frozen=True)
class Variant:
    """One kind of healthy run: what could be mistaken in it."""

    code: str
    what: str
    draw: Callable[[random.Random], Job]


def _prefetched(rng: random.Random) -> Job:
    """Large batches, copied on a stream of their own while the device computes."""
    job = plain(rng)
    return replace(job, data=replace(job.data, bytes=rng.randint(10, 60) << 20, own_stream=True))


def _busy_host(rng: random.Random) -> Job:
    """Python of up to 60 % of the step, behind a queue that is never empty."""
    job = plain(rng, low_ms=15.0, readback=False)
    return replace(job, host=replace(job.host, python_us=1000 * rng.uniform(3.0, 9.0)))


def _read_often(rng: random.Random) -> Job:
    """A few small operators with one value read back: there and too short to matter."""
    return replace(plain(rng, low_ms=15.0, readback=True), tiny=Tiny(4, operator_us=20.0, kernel_us=5.0, reads=1))


def _skewed(rng: random.Random) -> Job:
    job = _overlapped(rng)
    offsets = tuple(round(rng.uniform(-5e6, 5e6)) for _ in range(job.comm.ranks))
    return replace(job, recording=replace(job.recording, offsets_ns=offsets))


def _cut(rng: random.Random) -> Job:
    job = plain(rng)
    return replace(job, recording=replace(job.recording, cut_start=True, lost_launches=rng.uniform(0.0, 0.2)))


def _compiled_once(rng: random.Random) -> Job:
    job = plain(rng)
    return replace(job, odd=Odd((rng.randint(1, 9),), 1000 * rng.uniform(50, 800)))


def _overlapped(rng: random.Random) -> Job:
    """Only the last bucket, which nothing can hide, is exposed: 1 to 3 % of the step."""
    return averaging(rng, plain(rng), hidden_ratio=rng.uniform(0.05, 0.15), buckets=(5, 8))


def _two_streams(rng: random.Random) -> Job:
    return replace(plain(rng), extra=Extra(side=rng.randint(2, 6), side_us=rng.uniform(20, 150)))


VARIANTS: tuple[Variant, ...] = (
    Variant("H01", "one device, nothing else", plain),
    Variant("H02", "batches prefetched on their own stream", _prefetched),
    Variant("H03", "Python behind a full queue", _busy_host),
    Variant("H04", "a few small operators and one value read", _read_often),
    Variant("H05", "gradients averaged behind backward", _overlapped),
    Variant("H06", "the same with clocks 5 ms apart", _skewed),
    Variant("H07", "the step as one CUDA graph", lambda rng: replace(plain(rng), odd=Odd(graph=True))),
    Variant("H08", "two streams", _two_streams),
    Variant(
        "H09", "two devices", lambda rng: replace(plain(rng), extra=Extra(second_device_ratio=rng.uniform(0.1, 0.8)))
    ),
    Variant("H10", "capture begins in the middle, launches lost", _cut),
    Variant("H11", "one step compiles", _compiled_once),
)

BY_CODE = {variant.code: variant for variant in VARIANTS}
