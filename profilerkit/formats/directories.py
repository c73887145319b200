"""What a directory holds that can be analysed: files that may be traces, profiles of JAX below it, and runs."""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.registry import reader_of, suffixes
from profilerkit.rundir import layout
from profilerkit.rundir.places import last_written_ns
from profilerkit.rundir.reader import is_run_directory
from profilerkit.units import format_long_ns

#: Where JAX and TensorFlow put their profiles below the directory they are given.
_PROFILES_BELOW = "plugins/profile/*"
#: A profile of theirs: beside it lies the same as JSON, of which a part may be left out.
_MESSAGE = re.compile(r"(.+?)(?:\.xplane)?\.pb(?:\.gz)?")
#: What ``jax.profiler.trace(create_perfetto_trace=True)`` adds.
_PERFETTO_COPY = "perfetto_trace.json.gz"
_NO_TRACES = {
    *(layout.LAUNCH, layout.MANIFEST, layout.META, layout.END, layout.WINDOW_STATUS),
    *(layout.FLIGHT, layout.DDP, layout.OOM, layout.TRIAL),
}
#: More runs, or files, than this are counted instead of named.
_NAMED = 6
#: Recordings of other tools by how their names end.
_OF_OTHER_TOOLS = {".nsys-rep": "Nsight Systems", ".qdrep": "Nsight Systems", ".ncu-rep": "Nsight Compute"}

_RECORD_INSTEAD = "record with torch.profiler, or with profilerkit run -- train.py"
#: Tools that can write their recordings in a form that is read.
_EXPORT_INSTEAD = {"Nsight Systems": "export it with nsys export -t sqlite, and name the .sqlite file"}
_NAMED_FILES = 3
#: What was written to since is written to now.
_NOW_NS = 2_000_000_000


def named_as_traces(directory: Path) -> list[Path]:
    """The files that may be traces by their names, and profiles by their content; sorted.

    Never a document of a run directory, a report of ours, or the JSON of a profile that is there itself. Beside run
    directories files count only if one of them is a trace by its content: settings and results lie there as well.
    """
    files = [path for path in directory.iterdir() if path.is_file()]
    shared = suffixes("trace", "shared_suffixes")
    known = {path.name for path in files if path.name.endswith(shared) and reader_of(path, "trace")}
    found = [directory / name for name in sorted(traces_named((path.name for path in files), known))]
    return found if not found or not _holds_runs(directory) or any(reader_of(path, "trace") for path in found) else []


def _holds_runs(directory: Path) -> bool:
    return any(is_run_directory(path) for path in directory.iterdir() if path.is_dir())


def traces_named(names: Iterable[str], also: Iterable[str] = ()) -> set[str]:
    """Which of the names of files in a directory may be of traces; ``also`` are names that are, whatever they say."""
    endings = suffixes("trace")
    found = {name for name in names if name.endswith(endings)} | set(also)
    profiles = {match[1] for name in found if (match := _MESSAGE.fullmatch(name))}
    copies = {f"{profile}.trace.json.gz" for profile in profiles} | ({_PERFETTO_COPY} if profiles else set())
    return {name for name in found - copies - _NO_TRACES if not name.endswith(layout.REPORT_JSON)}


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
    if not directory.is_dir() or is_run_directory(directory) or _traces(directory) or profiles_below(directory):
        return []
    runs = [path for path in directory.iterdir() if is_run_directory(path) or _traces(path)]
    return sorted(runs, key=lambda run: (-recorded_ns(run), run.name)) if len(runs) > 1 else []


def recorded_ns(run: Path) -> int:
    """Return when a run was last recorded to, ns since the epoch; 0 where no file tells."""
    written = last_written_ns(run)
    return written if written is not None else max((file.stat().st_mtime_ns for file in _traces(run)), default=0)


def holds_traces(directory: Path) -> bool:
    """Whether there are traces in a directory, or profiles below it."""
    return bool(named_as_traces(directory) or profiles_below(directory))


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


def ago(age_ns: int) -> str:
    """Return how long ago something was, in words: ``now``, ``3 h ago``."""
    return "now" if age_ns < _NOW_NS else f"{format_long_ns(age_ns)} ago"


def traces_in(directory: Path) -> list[Path]:
    """The files that may be traces by their names, of profiles below a log directory those of the newest one."""
    below = profiles_below(directory)
    files = named_as_traces(directory) or (named_as_traces(below[-1]) if below else [])
    if not files:
        refuse_other_tools(directory)
        if (several := several_runs(directory, "analyze")) is not None:
            raise several
        around = [directory.resolve().parent, *sorted(path for path in directory.iterdir() if path.is_dir())]
        run = next((path for path in around if is_run_directory(path)), None)
        raise UnreadableInputError(
            f"no trace in {directory}",
            cause=f"it has no trace ({', '.join(suffixes('trace'))}, .pb), log, memory snapshot or run directory",
            hint="name the trace files themselves" if run is None else f"analyze the run directory {run}",
        )
    return files


def older_notes(directories: Iterable[Path]) -> list[str]:
    """What was left out of log directories with several profiles."""
    notes = []
    for directory in directories:
        older = [] if named_as_traces(directory) else profiles_below(directory)[:-1]
        if older:
            many = f"{len(older)} older profiles" if len(older) > 1 else "one older profile"
            notes.append(
                f"Of {directory.name} only the newest profile was read, {many} left out; name the directory of another."
            )
    return notes


def refuse_other_tools(path: Path) -> None:
    """Raise ``UnreadableInputError`` where a file is, or a directory holds, a recording of an unsupported tool."""
    found: dict[str, list[str]] = {}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        tool = _OF_OTHER_TOOLS.get(file.suffix)
        if tool is not None and file.is_file():
            found.setdefault(tool, []).append(file.name)
    if found:
        shown = {
            tool: f"{', '.join(names[:_NAMED_FILES])}{' …' * (len(names) > _NAMED_FILES)}"
            for tool, names in found.items()
        }
        raise UnreadableInputError(
            f"{f'the recordings in {path} are' if path.is_dir() else f'{path} is'} of an unsupported kind",
            cause="; ".join(f"{names} of {tool}" for tool, names in shown.items()),
            hint="; or ".join([*(_EXPORT_INSTEAD[tool] for tool in found if tool in _EXPORT_INSTEAD), _RECORD_INSTEAD]),
        )
