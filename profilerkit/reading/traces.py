"""The trace files of one rank to the facts of the first that can be read."""

from contextlib import nullcontext
from pathlib import Path

import msgspec

from profilerkit.analysis.communication.registry import Registry
from profilerkit.analysis.replay.device_side import MOST_EVENTS
from profilerkit.analysis.steps.slow import SlowTrace, slow_trace
from profilerkit.analysis.trace_facts import TraceFacts, trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.model.change import revise
from profilerkit.reading.ahead import reading_ahead
from profilerkit.trace.columns import TraceColumns
from profilerkit.trace.pool import pooled
from profilerkit.trace.processes import by_process
from profilerkit.trace.readers import read_trace


class Reading(msgspec.Struct, frozen=True):
    """How traces are read.

    Attributes:
        strict: the first damage of a trace is an error.
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
        reading: how.
        steps_are_given: the step markers stand where the user put them, not where capture saw an optimizer step.
        slow: a trace of slow steps to be read beside; ``None`` where there is none.
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


def read_job(job: TraceJob, *, alone: bool = False) -> TraceResult:
    """Read the traces of one rank until one can be read; with ``strict`` only the first.

    Args:
        job: what is read.
        alone: nothing else is read meanwhile, so that another process may help with a large trace.
    """
    if job.are_windows:
        return _read_windows(job)
    errors: list[tuple[Path, UnreadableInputError]] = []
    facts: tuple[TraceFacts, ...] = ()
    for path, whole in job.files[: 1 if job.reading.strict else None]:
        try:
            facts = tuple(_facts(job, part, whole) for part in by_process(_columns(job, path, alone=alone)))
            break
        except UnreadableInputError as error:
            errors.append((path, error))
    result = TraceResult(facts[0] if facts else None, tuple(errors), beside=facts[1:])
    if job.slow is None:
        return result
    try:
        seen = _facts(job, _columns(job, job.slow.path, alone=alone), job.slow.whole)
    except UnreadableInputError as error:
        return revise(result, slow_error=(job.slow.path, error))
    return revise(result, slow=slow_trace(seen, result.facts, job.slow.step))


def _read_windows(job: TraceJob) -> TraceResult:
    """The facts of all files together."""
    columns = pooled([_columns(job, path, alone=False) for path, _ in job.files])
    return TraceResult(_facts(job, columns, None))


def _columns(job: TraceJob, path: Path, *, alone: bool) -> TraceColumns:
    """The events of one trace. Raises ``UnreadableInputError``."""
    with reading_ahead(path) if alone else nullcontext() as ahead:
        return read_trace(path, strict=job.reading.strict, ahead=ahead)


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
