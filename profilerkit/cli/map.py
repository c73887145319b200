"""``profilerkit map``: traces to their summaries, in as many processes, machines and turns as it takes."""

import argparse
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import one_of
from profilerkit.cli.console import DONE, FAILED, Console
from profilerkit.cli.places import REMOTE_HELP, Progress, place
from profilerkit.config import load_settings
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.units import format_bytes

if TYPE_CHECKING:
    from profilerkit.formats.remote import RemoteFile
    from profilerkit.summaries.mapping import Done, Task

_EPILOG = (
    """\
examples:
  profilerkit map traces/ -o summaries/
  profilerkit map traces/ -o summaries/ --shard $SLURM_ARRAY_TASK_ID/64
  profilerkit map traces/ --shard $RANK/$WORLD_SIZE
  profilerkit map traces/ --engine dask --scheduler tcp://head:8786
  profilerkit map 's3://bucket/run/*.json.gz' -o summaries/
  profilerkit reduce summaries/

A summary has at most 120 kB and is written beside its trace, or to the
directory of -o. Existing summaries are kept, so an interrupted map continues.
Traces are read in parallel: one for each free core, within half of the free
memory. In a Slurm array or under torchrun, --shard gives each process its part.

A remote file is fetched by the process that summarises it, and then removed.
Summaries of remote files need -o.

"""
    + REMOTE_HELP
)

_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
_ENGINES = ("pool", "inline", "dask")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``map``."""
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="PATH", type=place, help="traces, or directories of traces")
    parser.add_argument("-o", "--output", metavar="DIR", type=place, help="write there (default: beside each trace)")
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="summarise only part I of N, from 0 to N - 1; the path of a trace decides its part",
    )
    parser.add_argument("--workers", metavar="N", type=int, help="use N processes (default: one for each free core)")
    parser.add_argument(
        "--engine",
        metavar="|".join(_ENGINES),
        type=one_of("--engine", _ENGINES),
        default="pool",
        help="use processes of this machine (default), this process alone, or workers of Dask",
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="address of a running Dask scheduler")
    parser.add_argument("--device", metavar="NAME", help="assume this device for traces that do not name one")
    parser.add_argument(
        "--communication-kernels",
        metavar="PATTERN",
        action="append",
        help="name your own communication kernels, for example all_reduce=^my_sum",
    )
    parser.add_argument("--force", action="store_true", help="make existing summaries again")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Summarise what is not summarised yet; return 0, or 2 where a trace that was named, or none, could be read."""
    from profilerkit.analysis.communication.registry import with_patterns
    from profilerkit.formats.jobs import Reading, needed_bytes, room_bytes
    from profilerkit.formats.remote import is_remote, shown
    from profilerkit.model import revise
    from profilerkit.summaries import mapping
    from profilerkit.summaries.files import is_fresh, place_of
    from profilerkit.summaries.mapping import Task, map_all, shard_of

    if arguments.scheduler and arguments.engine != "dask":
        raise UsageError("--scheduler needs Dask", cause=f"the engine is {arguments.engine}", hint="add --engine dask")
    if arguments.workers is not None and arguments.workers < 1:
        raise UsageError(f"--workers {arguments.workers} is too few", hint="name at least 1")
    here = {"pool": mapping.pool, "inline": mapping.inline}
    engine = here.get(arguments.engine) or mapping.dask(arguments.scheduler)
    index, count = _shard(arguments.shard)
    settings = load_settings(vars(arguments))
    reading = Reading(device=settings.device, registry=with_patterns(settings.communication_kernels))
    # Workers of Dask may have another working directory.
    output = None if arguments.output is None else _made(arguments.output)
    traces = shard_of(_traces(arguments.paths), index, count)
    every = [Task(trace, place_of(trace, output), reading) for trace in traces]
    stale = [task for task in every if arguments.force or not is_fresh(task.target, task.trace, reading)]
    tasks = [revise(task, memory_bytes=needed_bytes(_text_bytes(task.trace))) for task in stale]
    workers = min(mapping.usable_workers(arguments.workers), max(len(tasks), 1))
    # Dask looks after the memory of its workers itself, which may be on other machines.
    room = room_bytes() if arguments.engine == "pool" else math.inf
    _tell_room(tasks, workers, room, console)
    results = list(_shown(map_all(tasks, engine, workers, room_bytes=room), len(tasks), console))
    problems = [done for done in results if done.problem]
    for done in problems:
        console.note(f"{_told(done.task)} was left out: {done.problem}")
    size = sum(done.task.target.stat().st_size for done in results if not done.problem)
    made, skipped = len(tasks) - len(problems), len(every) - len(tasks)
    where = "beside the traces" if arguments.output is None else f"in {arguments.output}"
    known = f"; {skipped} {'was' if skipped == 1 else 'were'} there already" if skipped else ""
    target = arguments.output if arguments.output is not None else arguments.paths[0]
    words = "summary" if made == 1 else "summaries"
    wrote = f"wrote {made} {words} {where} ({format_bytes(size)}){known}"
    console.note(f"{wrote}; next: profilerkit reduce {quote(str(target))}")
    named = {shown(path) if is_remote(path) else str(path.absolute()) for path in arguments.paths}
    # Of a directory what is no trace is left out, as analyze does.
    is_lost = any(_told(done.task) in named for done in problems) or (problems and made + skipped == 0)
    return FAILED if is_lost else DONE


def _tell_room(tasks: "Sequence[Task]", workers: int, room: float, console: Console) -> None:
    """Say where memory, and not the cores, limits how many traces are read at once."""
    largest = sorted((task.memory_bytes for task in tasks), reverse=True)[:workers]
    fitting = max(sum(total <= room for total in accumulate(largest)), 1)
    if fitting < len(largest):
        console.note(
            f"memory: {fitting} of {workers} processes at a time for the largest traces, which take about "
            f"{format_bytes(largest[0])} each; half of what is free is used, {format_bytes(room)}"
        )


def _shown(results: "Iterable[Done]", count: int, console: Console) -> "Iterator[Done]":
    with Progress(console) as progress:
        progress.begin(f"summarising {count:,} traces")
        for number, done in enumerate(results):
            progress.begin(f"summarised {number + 1:,} of {count:,} traces")
            yield done


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    match = _SHARD.fullmatch(text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not match or index >= count:
        raise UsageError(
            f"--shard {text} is no share",
            cause="I/N means the I-th of N, counted from 0",
            hint="for example --shard 0/4, 1/4, 2/4 and 3/4",
        )
    return index, count


def _told(task: "Task") -> str:
    return str(task.trace) if isinstance(task.trace, Path) else task.trace.url


def _text_bytes(trace: "Path | RemoteFile") -> int:
    """About how long the text of a trace is; of one that lies elsewhere by how its name ends."""
    from profilerkit.formats.jobs import GZIP_RATIO, text_bytes

    if isinstance(trace, Path):
        return text_bytes(trace)
    return (trace.size_bytes or 0) * (GZIP_RATIO if trace.name.endswith(".gz") else 1)


def _traces(places: Sequence[str | Path]) -> "list[Path | RemoteFile]":
    from profilerkit.formats.directories import traces_below, traces_named
    from profilerkit.formats.remote import is_remote, listed, shown

    here: set[Path] = set()
    elsewhere: dict[str, RemoteFile] = {}
    for given in places:
        if is_remote(given):
            files = listed(str(given))
            named = traces_named(file.name for file in files) if len(files) > 1 else {files[0].name}
            elsewhere |= {file.identity: file for file in files if file.name in named}
            continue
        path = Path(given)
        if not path.exists():
            raise UnreadableInputError(f"{path} does not exist", hint="check the spelling of the path")
        here |= set(traces_below(path)) if path.is_dir() else {path}
    if not here and not elsewhere:
        raise UnreadableInputError(f"no trace in {shown(str(places[0]))}", hint="name the trace files themselves")
    return [*sorted(path.absolute() for path in here), *(elsewhere[identity] for identity in sorted(elsewhere))]


def _made(place: str | Path) -> Path:
    if isinstance(place, str):
        raise UsageError(
            "summaries are written to a local directory",
            cause="-o names a URL",
            hint="write them to a local directory, then copy them to the storage",
        )
    directory = place.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}", cause=error.strerror or str(error), hint="name another directory with -o"
        ) from error
    return directory
