"""The trace files of one rank to the facts of the first that can be read."""

from dataclasses import dataclass
from pathlib import Path

from profilerkit.analysis.trace_facts import TraceFacts, trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.trace.readers import read_trace


@dataclass(frozen=True, slots=True)
class TraceJob:
    """What is to be read of one rank.

    Attributes:
        files: its traces, each with the first and last step that are known to be whole; ``None`` where nothing is.
        strict: whether the first damage is an error.
    """

    files: tuple[tuple[Path, tuple[int, int] | None], ...]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What was read of one rank.

    Attributes:
        facts: of the first trace that could be read; ``None`` when none could.
        errors: the traces before it and why they could not be read.
    """

    facts: TraceFacts | None
    errors: tuple[tuple[Path, UnreadableInputError], ...] = ()


def read_job(job: TraceJob) -> TraceResult:
    """Read the traces of one rank until one can be read; with ``strict`` only the first."""
    errors: list[tuple[Path, UnreadableInputError]] = []
    for path, whole in job.files[: 1 if job.strict else None]:
        try:
            return TraceResult(trace_facts(read_trace(path, strict=job.strict), whole), tuple(errors))
        except UnreadableInputError as error:
            errors.append((path, error))
    return TraceResult(None, tuple(errors))
