"""Read the traces of each rank, several at once in processes of our own where that pays."""

import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import msgspec

from profilerkit.analysis.communication.registry import Registry
from profilerkit.analysis.replay.device_side import MOST_EVENTS
from profilerkit.analysis.steps.table import SlowTrace, slow_trace
from profilerkit.analysis.trace_facts import TraceFacts, trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import GZIP_MAGIC
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.rundir.process import own_environment, own_program
from profilerkit.trace.columns import TraceColumns, TraceMeta
from profilerkit.trace.merged import by_process, pooled
from profilerkit.units import format_bytes

#: Peak memory over the size of the text, where traces are read one by one, and what a process takes without one.
MEMORY_RATIO = 0.4
PROCESS_BYTES = 100_000_000
#: Share of the memory that is free now which all processes together may take.
MEMORY_SHARE = 0.5


def needed_bytes(text_bytes: int) -> float:
    """What a process takes in which a trace of so many bytes of text is read."""
    return MEMORY_RATIO * text_bytes + PROCESS_BYTES


def room_bytes() -> float:
    """What all processes together may take now."""
    return MEMORY_SHARE * free_bytes()


def free_cores() -> int:
    """Cores that this process may use and that were free in the last minute: where all are busy, helpers only cost."""
    from profilerkit.capture.environment import usable_cores

    busy = min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else 0.0
    return round(usable_cores() * (1 - busy))


def free_bytes(root: Path = Path("/")) -> float:
    """Memory that is free, and that every control group around this process allows; infinite where nothing tells it."""
    from profilerkit.capture.proc_files import FreeMemory, ProcFiles

    files = ProcFiles(root)
    free = FreeMemory(files).now_bytes()
    files.close()
    return float("inf") if free is None else free


class Reading(msgspec.Struct, frozen=True):
    """How traces are read.

    Attributes:
        device: a device name that overrides those in the traces.
        registry: which kernels are communication; ``None`` means the built-in table.
        events: keep the longest events of two steps of each trace, for a timeline.
    """

    strict: bool = False
    device: str | None = None
    registry: Registry | None = None
    events: bool = False


class SlowJob(msgspec.Struct, frozen=True):
    """A trace of slow steps: its first and last whole step, the slow one if it is known, and why it was traced."""

    path: Path
    whole: tuple[int, int]
    step: int | None
    trigger: str


class TraceJob(msgspec.Struct, frozen=True):
    """What is to be read of one rank.

    Attributes:
        files: its traces, each with the first and last step that are known to be whole; ``None`` where nothing is.
        steps_are_given: the step markers stand where the user put them, not where capture saw an optimizer step.
        replay_events: device events that are kept for replaying steps.
        are_windows: the files are windows of one process, in order of time, and are read as one trace.
    """

    files: tuple[tuple[Path, tuple[int, int] | None], ...]
    reading: Reading = Reading()
    steps_are_given: bool = True
    slow: SlowJob | None = None
    replay_events: int = MOST_EVENTS
    are_windows: bool = False


class TraceResult(msgspec.Struct, frozen=True):
    """What was read of one rank.

    Attributes:
        facts: of the first trace that could be read; ``None`` when none could.
        errors: the traces before it and why they could not be read.
        slow: what the trace of slow steps showed; ``None`` where there is none, or none was slow.
        slow_error: why that one could not be read.
        beside: of the further processes in the same file.
    """

    facts: TraceFacts | None
    errors: tuple[tuple[Path, UnreadableInputError], ...] = ()
    slow: SlowTrace | None = None
    slow_error: tuple[Path, UnreadableInputError] | None = None
    beside: tuple[TraceFacts, ...] = ()


def read_job(job: TraceJob) -> TraceResult:
    """Read the traces of one rank until one can be read; with ``strict`` only the first."""
    if job.are_windows:
        columns = pooled([_columns(job, path) for path, _ in job.files])
        return TraceResult(_facts(job, columns, None))
    errors: list[tuple[Path, UnreadableInputError]] = []
    facts: tuple[TraceFacts, ...] = ()
    for path, whole in job.files[: 1 if job.reading.strict else None]:
        try:
            facts = tuple(_facts(job, part, whole) for part in by_process(_columns(job, path)))
            break
        except UnreadableInputError as error:
            errors.append((path, error))
    result = TraceResult(facts[0] if facts else None, tuple(errors), beside=facts[1:])
    if job.slow is None:
        return result
    try:
        seen = _facts(job, _columns(job, job.slow.path), job.slow.whole)
    except UnreadableInputError as error:
        return revise(result, slow_error=(job.slow.path, error))
    return revise(result, slow=slow_trace(seen, result.facts, job.slow.step))


def _columns(job: TraceJob, path: Path) -> TraceColumns:
    return read_trace(path, strict=job.reading.strict)


def _facts(job: TraceJob, columns: TraceColumns, whole: tuple[int, int] | None) -> TraceFacts:
    return trace_facts(
        columns,
        whole,
        steps_are_given=job.steps_are_given,
        device=job.reading.device,
        registry=job.reading.registry,
        replay_events=job.replay_events,
        events=job.reading.events,
    )


logger = logging.getLogger(__name__)

#: A process starts in about 0.3 s of CPU time, in which 50 MB are read and attributed; each gets twice as much.
BYTES_EACH = 100_000_000
#: Device events that all ranks together keep for a replay, of which only one is needed, and a rank at least: about 150
#: bytes each.
REPLAYED_TOGETHER, FEWEST_REPLAYED = 160_000, 1_000
#: Kineto traces compress 11:1 to 19:1.
GZIP_RATIO = 15


def read_all(jobs: Sequence[TraceJob]) -> Iterator[TraceResult]:
    """Return the result of each job, in order; read as they are asked for, or all at first in several processes.

    The processes run a module of ours, never the script of this one. A job whose process dies is read here.
    """
    budget = max(min(MOST_EVENTS, REPLAYED_TOGETHER // max(len(jobs), 1)), FEWEST_REPLAYED)
    jobs = [revise(job, replay_events=budget) for job in jobs]
    sizes = [text_bytes(job.files[0][0]) if job.files else 0 for job in jobs]
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
    job = jobs[number]
    if job.files:
        logger.info("reading rank %d/%d · %s", number + 1, len(jobs), format_bytes(_file_bytes(job)))
    return read_job(job)


@contextmanager
def _helper(jobs: list[tuple[int, TraceJob]]) -> Iterator[Callable[[], dict[int, TraceResult]]]:
    """A process that reads some of the jobs, as the wait for its results; it ends with the context at the latest.

    Raises ``OSError`` where no process can be started, or there is no room for its results.
    """
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as found:
        pickle.dump(jobs, told)
        told.seek(0)
        process = subprocess.Popen(  # noqa: S603  our own module, no shell
            own_program("profilerkit.formats.worker"),
            stdin=told,
            stdout=found,
            stderr=subprocess.DEVNULL,
            env=own_environment(),
        )
        try:
            yield lambda: _results(process, found)
        finally:
            process.kill()
            process.wait()


def _results(process: "subprocess.Popen[bytes]", found: IO[bytes]) -> dict[int, TraceResult]:
    """What a process has read, after its end; less than its jobs when it died."""
    process.wait()
    found.seek(0)
    results: dict[int, TraceResult] = {}
    try:
        while True:
            number, result = pickle.load(found)  # noqa: S301  written by our own process into a file without a name
            results[number] = result
    except (EOFError, pickle.UnpicklingError):
        return results


def _helpers(sizes: Sequence[int]) -> int:
    """How many processes beside this one pay for traces of these sizes, and find cores and memory."""
    wanted = min(len(sizes) - 1, sum(sizes) // BYTES_EACH - 1)
    if wanted < 1 or not sys.executable:
        return 0
    largest = sorted(sizes, reverse=True)
    helpers = max(0, min(wanted, free_cores() - 1))
    room = room_bytes()
    while helpers and MEMORY_RATIO * sum(largest[: helpers + 1]) + PROCESS_BYTES * helpers > room:
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
    try:
        return job.files[0][0].stat().st_size if job.files else 0
    except OSError:
        return 0


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


def read_pooled(meta: TraceMeta) -> TraceColumns:
    """Return the events of a trace again, from all files that it was read from."""
    return pooled([read_trace(path) for path in (meta.path, *meta.further)])
