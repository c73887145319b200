"""Reads a run directory, whatever state its writers left it in."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from profilerkit.errors import RunDirectoryError
from profilerkit.model.memory import OutOfMemory
from profilerkit.rundir import layout
from profilerkit.rundir.documents import DdpRecord, Flight
from profilerkit.rundir.files import DOCUMENT_BYTES, RECORDS_BYTES, read_regular, sound_batches, sound_events
from profilerkit.rundir.process import Clock, ClockAnchor, clock_of, still_runs
from profilerkit.rundir.sampled import Sample, StackSample
from profilerkit.units import format_ns

_LONGEST_REASON = 300  #: a reason longer than this is cut
#: What became of a process without an end, by whether it still runs.
_FATE = {True: "the process still runs", False: "the process was killed", None: "the process was killed, or still runs"}
#: A full disk takes no byte of a file it has made; a host that goes down before its pages are written leaves the same.
REFUSED = "the disk took nothing: it was full, or the host went down"
_Document = TypeVar("_Document", bound=msgspec.Struct)
#: Ranks named by their numbers; the others are counted.
_NAMED = 8
_WORKER_NAME = re.compile(
    rf"{re.escape(layout.WORKER_PREFIX)}(\d{{1,10}})\.(\d{{1,6}}){re.escape(layout.WORKER_SUFFIX)}"
)
_RANK_NAME = re.compile(rf"{layout.RANK_PREFIX}(\d{{5,}})")


class Name(msgspec.Struct, frozen=True):
    """One line of ``names.jsonl``."""

    id: int
    name: str


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process of a DataLoader left behind: whole records of ``layout.WORKER``, without the header."""

    pid: int
    number: int
    batches: bytes
    stacks: tuple[StackSample, ...] = ()


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank left behind."""

    rank: int
    path: Path
    meta: layout.RankMeta | None
    events: bytes  #: whole records of ``layout.EVENT``, without the header
    names: dict[int, str]
    samples: tuple[Sample, ...]
    #: Status and trace file of each deep window; no file means no usable trace.
    windows: tuple[tuple[layout.WindowStatus, Path | None], ...]
    end: layout.RankEnd | None  #: ``None`` means the process was killed, or still runs
    notes: tuple[str, ...]
    workers: tuple[WorkerRecord, ...] = ()
    oom: OutOfMemory | None = None
    fault: str = ""  #: the signal by which a fault ended the process, and where; empty without one
    clock: Clock | None = None  #: turns its times into the time of day; ``None`` without an anchor
    #: The last collectives before the end of each window and of the run, as far as they were recorded.
    flights: tuple[Flight, ...] = ()
    ddp: DdpRecord | None = None
    #: The disk took nothing of the first files, which are empty: it was full, or the host went down.
    refused: bool = False
    stacks: tuple[StackSample, ...] = ()


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory in memory."""

    path: Path
    manifest: layout.RunManifest | None  #: ``None`` when rank 0 did not write it or it cannot be read
    ranks: tuple[RankRecord, ...]
    missing_ranks: tuple[int, ...]  #: ranks of the job that left nothing; empty when the world size is not known
    notes: tuple[str, ...]


def is_run_directory(path: str | Path) -> bool:
    """Whether ``path`` is a directory with a manifest or at least one rank's part."""
    path = Path(path)
    return path.is_dir() and ((path / layout.MANIFEST).is_file() or next(rank_directories(path), None) is not None)


def read_run(path: str | Path) -> RunRecord:
    """Everything that can be read of the run in ``path``. Damage costs the damaged record, and is said in ``notes``.

    Raises ``RunDirectoryError`` where ``path`` is not a run directory.
    """
    path, newest = Path(path), layout.FORMAT_VERSION
    if not is_run_directory(path):
        raise RunDirectoryError(
            f"not a run directory: {path}",
            cause=f"it holds neither {layout.MANIFEST} nor {layout.RANK_PREFIX}00000",
            hint="name the directory given to profilerkit.profile(), or a trace file",
        )
    notes = list(left_out(path))
    _bytes(
        path / layout.LAUNCH, notes, optional=True, most_bytes=DOCUMENT_BYTES
    )  # of no use here, unless it is no file
    manifest = _document(path / layout.MANIFEST, layout.RunManifest, notes)
    if manifest is not None and manifest.format_version > newest:
        notes.append(f"{layout.MANIFEST} has format {manifest.format_version}; this version reads up to {newest}")
    ranks = tuple(_read_rank(rank, directory) for rank, directory in sorted(rank_directories(path)))
    if manifest is not None and manifest.world_size > layout.MOST_RANKS:
        notes.append(f"{layout.MANIFEST} says {manifest.world_size:,} ranks; how many there are is not known")
    manifest, missing = with_possible_world(manifest, {rank.rank for rank in ranks})
    if manifest is not None and missing:
        notes.append(f"{named_ranks(missing)} of {manifest.world_size} left nothing.")
    return RunRecord(path=path, manifest=manifest, ranks=ranks, missing_ranks=missing, notes=tuple(notes))


def with_possible_world(
    manifest: layout.RunManifest | None, present: Collection[int]
) -> tuple[layout.RunManifest | None, tuple[int, ...]]:
    """Return the manifest, and the ranks of its world that left nothing.

    Its world is the ranks that are there where it says more than any job has: to count those would take for ever.
    """
    if manifest is None:
        return None, ()
    if manifest.world_size > layout.MOST_RANKS:
        return msgspec.structs.replace(manifest, world_size=len(present)), ()
    return manifest, tuple(rank for rank in range(manifest.world_size) if rank not in present)


def named_ranks(ranks: Sequence[int]) -> str:
    """Ranks as the beginning of a sentence, the first eight by their numbers.

    >>> named_ranks([3]), named_ranks([0, 1, 2]), named_ranks(range(20))
    ('Rank 3', 'Ranks 0, 1 and 2', 'Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    shown = numbers[:_NAMED] if len(numbers) > _NAMED else numbers[:-1]
    rest = f"{len(numbers) - _NAMED} more" if len(numbers) > _NAMED else numbers[-1]
    return f"Ranks {', '.join(shown)} and {rest}"


def rank_directories(path: Path) -> Iterator[tuple[int, Path]]:
    """Rank number and directory of every rank's part."""
    for child in path.glob(f"{layout.RANK_PREFIX}*"):
        match = _RANK_NAME.fullmatch(child.name)
        if match and not child.is_symlink() and ((child / layout.META).is_file() or (child / layout.EVENTS).is_file()):
            yield int(match[1]), child


def left_out(path: Path) -> Iterator[str]:
    """Which ranks' parts are there and cannot be read."""
    read = {directory for _, directory in rank_directories(path)}
    for child in sorted(path.glob(f"{layout.RANK_PREFIX}*")):
        if child.is_symlink():
            yield f"{child.name} is a link and was left out"
        elif child not in read and ((child / layout.META).exists() or (child / layout.EVENTS).exists()):
            yield f"{child.name} was left out: its {layout.META} and {layout.EVENTS} are no files"


def worker_of(name: str) -> tuple[int, int] | None:
    """The process and the number of a loader's worker, by the name of its file; ``None`` for another file.

    >>> worker_of("worker.4711.2.bin"), worker_of("worker.4711.2.failed")
    ((4711, 2), None)
    """
    match = _WORKER_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def _read_rank(rank: int, path: Path) -> RankRecord:
    notes: list[str] = []
    end = _document(path / layout.END, layout.RankEnd, notes, optional=True)
    meta = _document(path / layout.META, layout.RankMeta, notes)
    refused = meta is None and _is_refused(path)
    if end is None and not (path / layout.END).exists():
        fate = _FATE[still_runs(meta) if meta is not None else None]
        notes.append(f"{layout.END} is missing: {REFUSED if refused else fate}")
    clock = clock_of(_lines(path / layout.CLOCK, ClockAnchor, notes), meta)
    if clock is not None and (steps := clock.steps_ns()):
        by = format_ns(abs(max(steps, key=abs)))
        notes.append(
            f"the host's clock was set by up to {by} during the run; times of day around that are off by as much"
        )
    windows = _window_directories(path / layout.WINDOWS, notes)
    flights = [_document(place / layout.FLIGHT, Flight, notes, optional=True) for place in (*windows, path)]
    events = _records(path / layout.EVENTS, layout.MAGIC, layout.EVENT.size, sound_events, notes)
    joined_late = [
        f"the process became rank {now} of {size} only after the recording had begun; the other ranks recorded into "
        "directories of their own. Open the block after init_process_group to have them in one report"
        for now, size in ([meta.joined] if meta and meta.joined else [])
    ]
    return RankRecord(
        rank=rank,
        path=path,
        meta=meta,
        events=events,
        names={line.id: line.name for line in _lines(path / layout.NAMES, Name, notes)},
        samples=tuple(_lines(path / layout.SAMPLES, Sample, notes)),
        windows=tuple(_windows(windows, notes)),
        end=end,
        workers=tuple(_workers(path, notes)),
        oom=_document(path / layout.OOM, OutOfMemory, notes, optional=True),
        fault=_fault(path / layout.FAULT, notes),
        clock=clock,
        flights=tuple(flight for flight in flights if flight is not None),
        ddp=_document(path / layout.DDP, DdpRecord, notes, optional=True),
        refused=refused,
        stacks=tuple(_lines(path / layout.STACKS, StackSample, notes)),
        notes=(*notes, *joined_late),
    )


def _is_refused(path: Path) -> bool:
    """Whether the disk took nothing of one of the rank's first files, which is there and empty."""
    documents = (path.parent / layout.MANIFEST, path / layout.END, path / layout.META)
    parts = (document.with_name(document.name + layout.PART_SUFFIX) for document in documents if not document.exists())
    return any(file.is_file() and not file.stat().st_size for file in (path / layout.EVENTS, *parts))


def _bytes(path: Path, notes: list[str], *, optional: bool = False, most_bytes: int = RECORDS_BYTES) -> bytes | None:
    """The file's content; ``None``, with a note unless ``optional``, when there is none."""
    try:
        return read_regular(path, most_bytes)
    except FileNotFoundError:
        if not optional:
            notes.append(f"{path.name} is missing")
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
    return None


def _document(path: Path, kind: type[_Document], notes: list[str], *, optional: bool = False) -> _Document | None:
    data = _bytes(path, notes, optional=optional, most_bytes=DOCUMENT_BYTES)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        notes.append(f"{path.name} is damaged: {error}")
        return None


#: The signals that Python's faulthandler knows, by its words, and the innermost line outside of packages.
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
_FAULT = re.compile(rf"Fatal Python error: ({'|'.join(_SIGNALS)})")
_FAULT_LINE = re.compile(r'\n  File "(?![^"\n]*/lib/python\d)(?:[^"\n]*/)?([^"/\n]{1,100})", line (\d{1,9}) in ')


def _fault(path: Path, notes: list[str]) -> str:
    text = (_bytes(path, notes, optional=True, most_bytes=DOCUMENT_BYTES) or b"").decode("utf-8", "replace")
    if (match := _FAULT.match(text)) is None:
        return ""
    line = _FAULT_LINE.search(text)
    return f"{match[1]} ({_SIGNALS[match[1]]})" + (f" at {line[1]}:{line[2]}" if line is not None else "")


def _lines(path: Path, kind: type[_Document], notes: list[str]) -> list[_Document]:
    """The good lines of a JSON-lines file; a torn last line is ignored, other bad ones are counted in a note."""
    data = _bytes(path, notes, optional=True) or b""
    *whole, _torn = data.split(b"\n")
    decoder = msgspec.json.Decoder(kind)
    good: list[_Document] = []
    bad = 0
    for line in whole:
        try:
            good.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            bad += 1
    if bad:
        notes.append(f"{path.name}: {bad} of {len(whole)} lines are damaged and were left out")
    return good


def _records(path: Path, magic: bytes, size: int, kept: Callable[[bytes], bytes], notes: list[str]) -> bytes:
    """Whole records of ``size`` bytes whose times can be true, which are ``kept``; the others are counted in a note.

    None, with a note, when the header is not one this version reads.
    """
    data = _bytes(path, notes)
    if data is None:
        return b""
    if len(data) < layout.HEADER.size:
        notes.append(f"{path.name} has no header")
        return b""
    found, version, record_bytes = layout.HEADER.unpack_from(data)
    if found != magic or version != layout.FORMAT_VERSION or record_bytes != size:
        notes.append(f"{path.name} has an unknown format: {found!r} version {version}, {record_bytes} bytes per record")
        return b""
    count = (len(data) - layout.HEADER.size) // size
    sound = kept(data[layout.HEADER.size : layout.HEADER.size + count * size])
    bad = count - len(sound) // size
    if bad:
        notes.append(f"{path.name}: {bad} of {count} records have impossible times and were left out")
    return sound


def _workers(path: Path, notes: list[str]) -> Iterator[WorkerRecord]:
    """The workers that wrote anything, by pid; a note for each that had to stop."""
    for file in sorted(path.glob(f"{layout.WORKER_PREFIX}*")):
        worker = worker_of(file.name)
        if file.name.endswith(layout.FAILED_SUFFIX):
            reason = (_bytes(file, notes) or b"").decode("utf-8", "replace")[:_LONGEST_REASON]
            notes.append(f"{file.name.removesuffix(layout.FAILED_SUFFIX)} stopped recording: {reason}")
        elif worker:
            batches = _records(file, layout.WORKER_MAGIC, layout.WORKER.size, sound_batches, notes)
            stacks = tuple(_lines(file.with_suffix(f".{layout.STACKS}"), StackSample, notes))
            yield WorkerRecord(pid=worker[0], number=worker[1], batches=batches, stacks=stacks)


def _window_directories(path: Path, notes: list[str]) -> list[Path]:
    if path.is_symlink():
        notes.append(f"{path.name} is a link and was left out")
        return []
    children = sorted(path.glob("*"))
    notes += [f"window {child.name} is a link and was left out" for child in children if child.is_symlink()]
    return [child for child in children if child.name.isdecimal() and child.is_dir() and not child.is_symlink()]


def _windows(directories: Sequence[Path], notes: list[str]) -> Iterator[tuple[layout.WindowStatus, Path | None]]:
    for directory in directories:
        step = int(directory.name)
        status = _document(directory / layout.WINDOW_STATUS, layout.WindowStatus, notes) or layout.WindowStatus(
            first_step=step,
            last_step=step - 1,
            ok=False,
            reason="it was never completed: the process ended, or there was no room to write",
        )
        traces = (directory / layout.WINDOW_TRACE, directory / layout.WINDOW_TRACE_GZ)
        trace = next((trace for trace in traces if trace.is_file() and not trace.is_symlink()), None)
        if status.ok and (trace is None or status.reason):
            notes.append(f"window {directory.name}: {status.reason or 'the trace is missing'}")
        yield status, trace
