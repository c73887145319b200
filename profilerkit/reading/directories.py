"""What a directory holds that can be analysed: files that may be traces, profiles of JAX below it, and runs."""

import time
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from profilerkit.errors import UnreadableInputError
from profilerkit.rundir.age import last_written_ns
from profilerkit.rundir.layout import (
    DDP,
    END,
    FLIGHT,
    LAUNCH,
    MANIFEST,
    META,
    OOM,
    REPORT_JSON,
    WINDOW_STATUS,
)
from profilerkit.rundir.reader import is_run_directory
from profilerkit.trace.blocks import BlockSource
from profilerkit.trace.readers import xplane
from profilerkit.units import format_long_ns

#: How profiles of JAX and TensorFlow end; beside one lies the same as JSON, of which a part may be left out.
XPLANE_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
#: File names taken for traces when a directory is given.
TRACE_SUFFIXES = (".json", ".json.gz", ".json.tmp", ".sqlite", *XPLANE_SUFFIXES)
#: Names of any message of protocol buffers: a profile that was renamed, by its content, or a model.
_MESSAGE_SUFFIXES = (".pb", ".pb.gz")

#: Where JAX and TensorFlow put their profiles below the directory they are given.
_PROFILES_BELOW = "plugins/profile/*"
#: What ``jax.profiler.trace(create_perfetto_trace=True)`` adds.
_PERFETTO_COPY = "perfetto_trace.json.gz"
_NO_TRACES = {LAUNCH, MANIFEST, META, END, WINDOW_STATUS, FLIGHT, DDP, OOM}
#: More runs than this are counted instead of named.
_NAMED = 6
#: What was written to since is written to now.
_NOW_NS = 2_000_000_000


def named_as_traces(directory: Path) -> list[Path]:
    """The files that may be traces by their names, and profiles by their content; sorted.

    Never a document of a run directory, a report of ours, or the JSON of a profile that is there itself.
    """
    files = [path for path in directory.iterdir() if path.is_file()]
    renamed = {path.name for path in files if _is_renamed_profile(path)}
    return [directory / name for name in sorted(traces_named((path.name for path in files), renamed))]


def traces_named(names: Iterable[str], also: Iterable[str] = ()) -> set[str]:
    """Which of the names of files in a directory may be of traces; ``also`` are names that are, whatever they say."""
    found = {name for name in names if name.endswith(TRACE_SUFFIXES)} | set(also)
    messages = (*XPLANE_SUFFIXES, *_MESSAGE_SUFFIXES)
    profiles = {_without(name, messages) for name in found if name.endswith(messages)}
    copies = {f"{profile}.trace.json.gz" for profile in profiles} | ({_PERFETTO_COPY} if profiles else set())
    return {name for name in found - copies - _NO_TRACES if not name.endswith(REPORT_JSON)}


def traces_below(directory: Path) -> list[Path]:
    """The files in a directory, and in those below it, that may be traces."""
    places = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
    return sorted(file for place in places for file in named_as_traces(place))


def profiles_below(directory: Path) -> list[Path]:
    """The profiles that JAX or TensorFlow put below the directory they were given, the newest last."""
    return sorted(path for path in directory.glob(_PROFILES_BELOW) if path.is_dir() and named_as_traces(path))


def runs_in(directory: Path) -> list[Path]:
    """Return the runs that a directory holds, the newest first: run directories, and directories of traces.

    Empty for a run, for a directory that holds a recording itself, and for what holds fewer than two.
    """
    if not directory.is_dir() or is_run_directory(directory) or _holds_traces(directory) or profiles_below(directory):
        return []
    runs = [path for path in directory.iterdir() if is_run_directory(path) or _holds_traces(path)]
    return sorted(runs, key=lambda run: (-recorded_ns(run), run.name)) if len(runs) > 1 else []


def recorded_ns(run: Path) -> int:
    """Return when a run was last recorded to, ns since the epoch; 0 where no file tells."""
    written = last_written_ns(run)
    return written if written is not None else max((file.stat().st_mtime_ns for file in _traces(run)), default=0)


def _holds_traces(path: Path) -> bool:
    return bool(_traces(path))


def _traces(path: Path) -> list[Path]:
    try:
        return named_as_traces(path) if path.is_dir() else []
    except OSError:
        return []


def several_runs(directory: Path, verb: str) -> UnreadableInputError | None:
    """The error for a directory that holds several runs, with their ages and the newest as the hint; else ``None``."""
    # Only a run directory grows while it is watched.
    newest_first = [run for run in runs_in(directory) if verb == "analyze" or is_run_directory(run)]
    if len(newest_first) < 2:
        return None
    now_ns = time.time_ns()
    told = [f"{run.name} ({ago(now_ns - recorded_ns(run))})" for run in newest_first[:_NAMED]]
    more = f" and {len(newest_first) - _NAMED} more" if len(newest_first) > _NAMED else ""
    return UnreadableInputError(
        f"{directory} holds {len(newest_first)} runs",
        cause=f"last written to: {', '.join(told)}{more}",
        hint=f"profilerkit {verb} {quote(str(newest_first[0]))}",
    )


def _is_renamed_profile(path: Path) -> bool:
    if not path.name.endswith(_MESSAGE_SUFFIXES) or path.name.endswith(XPLANE_SUFFIXES):
        return False
    try:
        return xplane.sniff(BlockSource(path).beginning())
    except OSError:
        return False


def _without(name: str, suffixes: tuple[str, ...]) -> str:
    """The name without the first of the endings, of which it has one."""
    return next(name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix))


def ago(age_ns: int) -> str:
    """Return how long ago something was, in words: ``now``, ``3 h ago``."""
    return "now" if age_ns < _NOW_NS else f"{format_long_ns(age_ns)} ago"
