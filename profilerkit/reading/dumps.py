"""Which of the paths that a person names are dumps of flight recorders, and the ranks that they are of."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from profilerkit.errors import UnreadableInputError, UsageError, unread
from profilerkit.trace.blocks import BlockSource
from profilerkit.trace.readers import flight_recorder
from profilerkit.trace.readers.flight_recorder import FlightDump

#: How the names of dumps end that are looked for in a directory; torch's own end in the number of the rank.
_NAMES = re.compile(r".*(\.json|\.json\.gz|\.pickle|\.pkl|\.bin|\.dump|\d)")
#: The rank in a name such as ``nccl_trace_rank_0`` or ``dump-rank3.json``, else the last number of it.
_RANK, _LAST_NUMBER = re.compile(r"rank[_\-.]?(\d{1,6})(?!\d)", re.IGNORECASE), re.compile(r"(?<!\d)(\d{1,6})\D*$")


class DumpsRead(msgspec.Struct, frozen=True):
    """The dumps that could be read, the rank of each, and what is to be said of that."""

    dumps: tuple[FlightDump, ...]
    ranks: tuple[int, ...]
    left_out: tuple[tuple[Path, UnreadableInputError], ...]
    notes: tuple[str, ...]


def dump_files(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The dumps that each path is or holds; a path without any is not in it."""
    found = {}
    for path in paths:
        files = sorted(file for file in path.iterdir() if _NAMES.fullmatch(file.name)) if path.is_dir() else [path]
        dumps = [file for file in files if _is_dump(file)]
        if dumps:
            found[path] = dumps
    return found


def read_dumps(paths: Sequence[Path], found: dict[Path, list[Path]], *, strict: bool) -> DumpsRead:
    """Read the files of ``dump_files``. One of a directory that cannot be read is left out, unless ``strict``.

    Raises:
        UsageError: something else was named beside them.
        UnreadableInputError: a dump that was named, or each of a directory, cannot be read.
    """
    other = next((path for path in paths if path not in found), None)
    if other is not None:
        raise UsageError(
            "flight recorder dumps cannot be combined with other inputs",
            cause=f"{other} is not a dump",
            hint="name the dumps of all ranks, or the directory that holds them",
        )
    dumps, left_out = [], []
    for path, files in found.items():
        for file in files:
            try:
                dumps.append(_read(file))
            except UnreadableInputError as error:
                if strict or file == path:
                    raise
                left_out.append((file, error))
    if not dumps:
        raise left_out[0][1]
    ranks, said = _ranks([dump.origin for dump in dumps])
    return DumpsRead(tuple(dumps), ranks, tuple(left_out), said)


def _is_dump(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        return flight_recorder.sniff(BlockSource(file).beginning())
    except OSError:
        return False


def _read(file: Path) -> FlightDump:
    try:
        return flight_recorder.read(file)
    except OSError as error:
        raise unread(file, error) from error


def _ranks(names: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rank of each dump by its name, where every name tells one; else by their order, which is said.

    A last number that several names share is not taken for a rank: it may be a date, or the step.

    >>> _ranks(["nccl_trace_rank_1", "nccl_trace_rank_0"])[0], _ranks(["b.json", "a.json"])[0]
    ((1, 0), (0, 1))
    """
    marked = [_RANK.search(name) for name in names]
    if all(marked):
        return tuple(int(match[1]) for match in marked if match), ()
    numbered = [_LAST_NUMBER.search(name) for name in names]
    numbers = tuple(int(match[1]) for match in numbered if match)
    if len(set(numbers)) == len(names):
        return numbers, ()
    order = ", ".join(f"{name} as rank {place}" for place, name in enumerate(names[:4]))
    more = ", and so on" if len(names) > 4 else ""
    return tuple(range(len(names))), (
        f"The names of the dumps do not tell the ranks, which were numbered in the order given: {order}{more}.",
    )
