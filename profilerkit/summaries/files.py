"""Summaries as files beside their traces, or in a directory: written whole, read with suspicion."""

import hashlib
import os
import re
from pathlib import Path

import msgspec

from profilerkit import __version__
from profilerkit.analysis.ranks.scale import condition_of, is_sound
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.errors import UnreadableInputError, UsageError, unread
from profilerkit.formats.jobs import Reading, read_job
from profilerkit.formats.remote import RemoteFile, fetched
from profilerkit.formats.windows import job_of_trace, samples_beside, window_of
from profilerkit.model import revise
from profilerkit.model.communication import Condition
from profilerkit.rundir.files import open_regular, write_whole
from profilerkit.summaries.compact import MOST_COLLECTIVES, decode, encode, smaller, sound, thin
from profilerkit.units import format_bytes

SUFFIX = ".pksum"
MOST_FILE_BYTES = 120_000  #: largest file; the largest of the real traces at hand need less than a tenth of it
_REPLAY_EVENTS = 1_000  #: device events that are kept for a replay: of many ranks only a few are told in detail
#: A record of thousands of steps may be larger than the file should be; one of more than this is of no trace.
_MOST_READ_BYTES = 8 * MOST_FILE_BYTES
_MAGIC = b"PKSUM2\n"
#: What summaries of other versions begin with.
_ANY_MAGIC = re.compile(rb"PKSUM\d\n")
_LENGTH_BYTES = 4
#: What tells apart traces of one name from several directories: so many hexadecimal digits.
_DIGITS = 24
_OF_DIRECTORY = re.compile(rf"\.[0-9a-f]{{{_DIGITS}}}\Z")
_HEADER_BYTES = 1_000  #: room for the header


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a summary was made from, and by what."""

    version: str
    origin: str
    trace_bytes: int
    trace_mtime_ns: int
    reading: str
    stamp: str = ""  #: of a trace elsewhere, what changes with it; empty for one that is here
    outline_bytes: int = 0  #: length of the record by which ranks are compared; the rest is everything else
    details_bytes: int = 0  #: length of that rest
    rank: int | None = None  #: of a trace in a run directory, as that says; ``None`` elsewhere
    #: Of its window there: ``scheduled``, or ``anomaly`` where it was opened for slow steps; empty elsewhere.
    kind: str = ""
    first_step: int = -1  #: of that window; -1 elsewhere
    left_out: str = ""
    collectives: int = 0
    compared: int = 0
    #: Of the rank's device and host, as its run directory has samples of them; ``None`` elsewhere.
    condition: Condition | None = None


class Summary(msgspec.Struct, frozen=True):
    """The file of one rank: what it says of itself, and where the rest of it is."""

    path: Path
    header: Header
    outline_at: int

    @property
    def details_at(self) -> int:
        """Where the whole facts begin, bytes."""
        return self.outline_at + self.header.outline_bytes

    def outline(self) -> TraceFacts:
        """What ranks are compared by. Raises ``UnreadableInputError``."""
        facts = _record(self, self.outline_at, self.header.outline_bytes)
        if len(facts.collectives or ()) > MOST_COLLECTIVES:
            raise _broken(self.path, "it has more collectives than a summary keeps")
        return facts

    def details(self) -> TraceFacts:
        """Everything that was kept, which may be the outline alone. Raises ``UnreadableInputError``."""
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise unread(self.path, error) from error
        if size <= self.details_at:
            return self.outline()
        return _record(self, self.details_at, MOST_FILE_BYTES)


def digest(reading: Reading) -> str:
    """How traces are read, so that a summary of another reading is not taken for one of this."""
    own = reading.registry.custom if reading.registry is not None else ()
    said = repr((reading.strict, reading.device, [(kind, pattern.pattern) for kind, pattern in own]))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def place_of(trace: Path | RemoteFile, directory: Path | None) -> Path:
    """Where the summary of a trace lies: beside it, or in a directory, where the trace's own one tells it apart."""
    if isinstance(trace, RemoteFile):
        if directory is None:
            raise UsageError(
                "no directory for the summaries",
                cause=f"{trace.url} is remote, and remote storage is read-only",
                hint="name a local directory: -o summaries/",
            )
        within = trace.identity.encode("utf-8", "surrogateescape")
    elif directory is None:
        return trace.with_name(trace.name + SUFFIX)
    else:
        within = os.fsencode(trace.resolve().parent)
    parent = hashlib.sha256(within).hexdigest()[:_DIGITS]
    return directory / f"{trace.name}.{parent}{SUFFIX}"


def name_of_trace(summary: str) -> str:
    """The name of the trace from that of its summary.

    >>> name_of_trace("rank0.json.pksum"), name_of_trace("rank0.json.0123456789abcdef01234567.pksum")
    ('rank0.json', 'rank0.json')
    """
    return _OF_DIRECTORY.sub("", summary.removesuffix(SUFFIX)) if summary.endswith(SUFFIX) else summary


def is_fresh(target: Path, trace: Path | RemoteFile, reading: Reading) -> bool:
    """Whether there is a summary of this trace as it is now, by this version, read this way."""
    try:
        found = open_summary(target).header
        is_same = (
            found.stamp == trace.stamp()
            if isinstance(trace, RemoteFile)
            else (found.trace_bytes, found.trace_mtime_ns) == ((stat := trace.stat()).st_size, stat.st_mtime_ns)
        )
    except (UnreadableInputError, OSError):
        return False
    return is_same and (found.version, found.reading) == (__version__, digest(reading))


def summarise_into(trace: Path | RemoteFile, target: Path, reading: Reading) -> None:
    """Read one trace and write its summary; what lies elsewhere is fetched meanwhile."""
    if isinstance(trace, RemoteFile):
        stamp = trace.stamp()
        with fetched([trace]) as copies:
            _summarise(copies.paths[0], target, reading, stamp)
    else:
        _summarise(trace, target, reading, "")


def _summarise(trace: Path, target: Path, reading: Reading, stamp: str) -> None:
    stat = trace.stat()
    recorded = window_of(trace)
    result = read_job(job_of_trace(trace, recorded, reading, _REPLAY_EVENTS))
    if result.facts is None:
        raise result.errors[0][1]
    header = Header(
        version=__version__,
        origin=trace.name if recorded is None else str(trace.relative_to(trace.parents[3])),
        trace_bytes=stat.st_size,
        trace_mtime_ns=stat.st_mtime_ns,
        reading=digest(reading),
        stamp=stamp,
        rank=recorded[1].rank if recorded else None,
        kind=recorded[0].kind if recorded else "",
        first_step=recorded[0].first_step if recorded else -1,
        condition=condition_of(samples_beside(trace)) if recorded else None,
    )
    write(result.facts, target, header)


def write(facts: TraceFacts, target: Path, header: Header) -> None:
    """Write the summary of a trace, beside its place and renamed."""
    least = thin(facts)
    outline = encode(least)
    details, left_out = _fitted(facts, MOST_FILE_BYTES - len(outline) - _HEADER_BYTES)
    header = revise(
        header,
        outline_bytes=len(outline),
        details_bytes=len(details),
        left_out=left_out,
        collectives=len(facts.collectives or ()),
        compared=len(least.collectives or ()),
    )
    said = msgspec.msgpack.encode(header)
    write_whole(target, _MAGIC + len(said).to_bytes(_LENGTH_BYTES, "little") + said + outline + details)


def _fitted(facts: TraceFacts, room: int) -> tuple[bytes, str]:
    """The most of the facts that fits into so many bytes, and what it lacks; nothing where even the least is larger."""
    lost: list[str] = []
    for words, step in smaller(facts):
        lost += [words] if words else []
        data = encode(step)
        if len(data) <= room:
            return data, ", ".join(lost)
    return b"", "everything but steps and collectives"


def open_summary(path: Path) -> Summary:
    """What the file says of itself."""
    try:
        with open_regular(path, named=True) as file:
            start = file.read(len(_MAGIC) + _LENGTH_BYTES)
            length = int.from_bytes(start[len(_MAGIC) :], "little")
            text = file.read(min(length, MOST_FILE_BYTES))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise unread(path, error) from error
    if not start.startswith(_MAGIC) and _ANY_MAGIC.match(start):
        raise _broken(path, "another version of profilerkit made it")
    if not start.startswith(_MAGIC):
        raise _broken(path, "it does not begin as a summary does")
    try:
        header = msgspec.msgpack.decode(text, type=Header)
    except (msgspec.DecodeError, ValueError) as error:  # text that is no UTF-8 is a ValueError
        raise _broken(path, str(error)) from error
    if header.condition is not None and not is_sound(header.condition):
        raise _broken(path, "it holds a number that is not finite")
    if header.version != __version__:
        raise _broken(path, f"it was made by profilerkit {header.version[:20]}")
    found = Summary(path, header, len(start) + length)
    if min(header.outline_bytes, header.details_bytes) < 0 or found.details_at + header.details_bytes > size:
        raise _broken(path, "it is shorter than its header says")
    if size > _MOST_READ_BYTES:
        raise _broken(path, f"it is larger than any summary, {format_bytes(size)}")
    return found


def _record(summary: Summary, at: int, length: int) -> TraceFacts:
    path = summary.path
    try:
        with open_regular(path, named=True) as file:
            file.seek(at)
            facts = sound(decode(file.read(length), TraceFacts))
    except OSError as error:
        raise unread(path, error) from error
    except ValueError as error:
        raise _broken(path, str(error)) from error
    rank = facts.meta.rank if facts.meta.rank is not None else summary.header.rank
    return revise(facts, meta=revise(facts.meta, path=path.name, rank=rank))


def _broken(path: Path, cause: str) -> UnreadableInputError:
    return UnreadableInputError(
        f"{path} is not a readable summary", cause=cause, hint="make it again with profilerkit map"
    )
