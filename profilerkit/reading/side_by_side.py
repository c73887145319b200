"""Many traces at once: some are read by processes of our own beside this one, where that pays."""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from profilerkit.analysis.replay.device_side import MOST_EVENTS
from profilerkit.model.change import revise
from profilerkit.reading.processes import free_cores, has_room, own_process
from profilerkit.reading.traces import TraceJob, TraceResult, read_job
from profilerkit.reading.worker import LENGTH_BYTES
from profilerkit.trace.blocks import GZIP_MAGIC
from profilerkit.units import format_bytes

logger = logging.getLogger(__name__)

#: A process starts in about 0.3 s of CPU time, in which 50 MB are read and attributed; each gets twice as much.
BYTES_EACH = 100_000_000
#: Device events that all ranks together keep for a replay, of which only one is needed, and a rank at least: about 150
#: bytes each.
REPLAYED_TOGETHER, FEWEST_REPLAYED = 160_000, 1_000
#: Kineto traces compress 11:1 to 19:1.
GZIP_RATIO = 15


def read_all(jobs: Sequence[TraceJob]) -> Iterator[TraceResult]:
    """The result of each job, in their order; read as they are asked for, or all at first in several processes.

    The processes run a module of ours and never the script of this one, so this is safe wherever it is called. A job
    whose process dies is read here.
    """
    budget = max(min(MOST_EVENTS, REPLAYED_TOGETHER // max(len(jobs), 1)), FEWEST_REPLAYED)
    jobs = [revise(job, replay_events=budget) for job in jobs]
    sizes = [_size_bytes(job) for job in jobs]
    helpers = _helpers(sizes)
    if not helpers:
        return (_read_told(number, jobs) for number in range(len(jobs)))
    shares = _shares(sizes, helpers + 1)
    with ExitStack() as running:
        try:
            waiting = [running.enter_context(_helper([(number, jobs[number]) for number in s])) for s in shares[1:]]
        except OSError:  # no process, or no room for its results
            waiting = []
        told = format_bytes(sum(map(_file_bytes, jobs)))
        logger.info("reading %d ranks in %d processes · %s", len(jobs), len(waiting) + 1, told)
        results = {number: read_job(jobs[number]) for number in shares[0]}
        for wait in waiting:
            results |= wait()
    return (results[number] if number in results else read_job(job) for number, job in enumerate(jobs))


def _read_told(number: int, jobs: Sequence[TraceJob]) -> TraceResult:
    """The result of one of the jobs, which are read one after the other; it is logged which."""
    job = jobs[number]
    if job.files:
        logger.info("reading rank %d/%d · %s", number + 1, len(jobs), format_bytes(_file_bytes(job)))
    return read_job(job, alone=len(jobs) == 1)


@contextmanager
def _helper(jobs: list[tuple[int, TraceJob]]) -> Iterator[Callable[[], dict[int, TraceResult]]]:
    """A process that reads some of the jobs, as the wait for its results; it ends with the context at the latest."""
    with own_process("profilerkit.reading.worker", jobs) as (process, found):
        yield lambda: _results(process, found)


def _results(process: "subprocess.Popen[bytes]", found: IO[bytes]) -> dict[int, TraceResult]:
    """What a process has read, after its end; less than its jobs when it died."""
    process.wait()
    found.seek(0)
    results: dict[int, TraceResult] = {}
    while len(length := found.read(LENGTH_BYTES)) == LENGTH_BYTES:
        record = found.read(int.from_bytes(length, "little"))
        if len(record) < int.from_bytes(length, "little"):
            break
        number, result = pickle.loads(record)  # noqa: S301  written by our own process into a file without a name
        results[number] = result
    return results


def _helpers(sizes: Sequence[int]) -> int:
    """How many processes beside this one pay for traces of these sizes, and find cores and memory."""
    wanted = min(len(sizes) - 1, sum(sizes) // BYTES_EACH - 1)
    if wanted < 1 or not sys.executable:
        return 0
    largest = sorted(sizes, reverse=True)
    helpers = max(0, min(wanted, free_cores() - 1))
    while helpers and not has_room(sum(largest[: helpers + 1]), helpers):
        helpers -= 1
    return helpers


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of the jobs in shares of about the same size: the largest first, each to the smallest share.

    >>> _shares([5, 40, 20, 30], 2)
    [[1, 0], [3, 2]]
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        least = totals.index(min(totals))
        shares[least].append(number)
        totals[least] += sizes[number]
    return shares


def _file_bytes(job: TraceJob) -> int:
    """How long the file of a job's first trace is; 0 where that cannot be known."""
    try:
        return job.files[0][0].stat().st_size if job.files else 0
    except OSError:
        return 0


def _size_bytes(job: TraceJob) -> int:
    """About how long the text of a job's first trace is; 0 where that cannot be known."""
    return text_bytes(job.files[0][0]) if job.files else 0


def text_bytes(path: Path) -> int:
    """About how long the text of a trace is, packed or not; 0 where that cannot be known."""
    try:
        if not path.is_file():
            return 0
        with path.open("rb") as file:
            is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        return path.stat().st_size * (GZIP_RATIO if is_packed else 1)
    except OSError:
        return 0
