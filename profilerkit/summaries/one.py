"""Give any executor a function for the traces of a run: a path in, the path of a summary out."""

from collections.abc import Sequence
from pathlib import Path

from profilerkit.analysis.communication.registry import with_patterns
from profilerkit.errors import UsageError
from profilerkit.formats.jobs import Reading
from profilerkit.formats.remote import RemoteFile, is_remote, listed, shown
from profilerkit.summaries.files import is_fresh, place_of
from profilerkit.summaries.files import summarise as write_summary


def summarise(
    path: str | Path,
    output: str | Path | None = None,
    *,
    device: str | None = None,
    communication_kernels: Sequence[str] = (),
) -> Path:
    """Summarise one trace into a file of at most 120 kB, for ``reduce``; an existing summary is kept.

    A plain function of a path: any ``concurrent.futures`` executor can map it over a run:
    ``list(executor.map(profilerkit.summarise, paths))``.

    Args:
        path: the trace; a URL is fetched through fsspec.
        output: directory of the summary; default beside the trace. Remote traces need one.
        device: device name, where the trace does not name it.
        communication_kernels: regular expressions of kernel names that are communication beside the known ones.

    Raises:
        UsageError: there is no such file, or the summary cannot be written.
        UnreadableInputError: it is not a readable trace.
    """
    trace, directory = _trace(path), None if output is None else Path(output)
    reading = Reading(device=device, registry=with_patterns(communication_kernels))
    target = place_of(trace, directory)
    if not is_fresh(target, trace, reading):
        try:
            write_summary(trace, target, reading)
        except OSError as error:
            raise UsageError(
                f"cannot summarise {shown(str(path))}",
                cause=error.strerror or str(error),
                hint="check that the trace exists and that its summary can be written",
            ) from error
    return target


def _trace(path: str | Path) -> Path | RemoteFile:
    if not is_remote(path):
        return Path(path)
    found = listed(str(path))
    if len(found) > 1:
        raise UsageError(
            f"{shown(str(path))} is not a trace", cause=f"{len(found):,} files are there", hint="name one of them"
        )
    return found[0]
