"""The trace files of one rank to the facts of the first that can be read."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from profilerkit.analysis.communication.registry import Registry
from profilerkit.analysis.trace_facts import TraceFacts, trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.reading.ahead import reading_ahead
from profilerkit.trace.readers import read_trace


@dataclass(frozen=True, slots=True)
class Reading:
    """How traces are read.

    Attributes:
        strict: the first damage of a trace is an error.
        device: a device name that overrides those in the traces.
        registry: which kernels are communication; ``None`` means the built-in table.
    """

    strict: bool = False
    device: str | None = None
    registry: Registry | None = None


@dataclass(frozen=True, slots=True)
class TraceJob:
    """What is to be read of one rank.

    Attributes:
        files: its traces, each with the first and last step that are known to be whole; ``None`` where nothing is.
        reading: how.
        steps_are_given: the step markers stand where the user put them, not where capture saw an optimizer step.
    """

    files: tuple[tuple[Path, tuple[int, int] | None], ...]
    reading: Reading = Reading()
    steps_are_given: bool = True


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What was read of one rank.

    Attributes:
        facts: of the first trace that could be read; ``None`` when none could.
        errors: the traces before it and why they could not be read.
    """

    facts: TraceFacts | None
    errors: tuple[tuple[Path, UnreadableInputError], ...] = ()


def read_job(job: TraceJob, *, alone: bool = False) -> TraceResult:
    """Read the traces of one rank until one can be read; with ``strict`` only the first.

    Args:
        job: what is read.
        alone: nothing else is read meanwhile, so that another process may help with a large trace.
    """
    errors: list[tuple[Path, UnreadableInputError]] = []
    how = job.reading
    for path, whole in job.files[: 1 if how.strict else None]:
        try:
            with reading_ahead(path) if alone else nullcontext() as ahead:
                columns = read_trace(path, strict=how.strict, ahead=ahead)
            facts = trace_facts(
                columns, whole, steps_are_given=job.steps_are_given, device=how.device, registry=how.registry
            )
            return TraceResult(facts, tuple(errors))
        except UnreadableInputError as error:
            errors.append((path, error))
    return TraceResult(None, tuple(errors))
