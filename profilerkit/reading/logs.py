"""Which of the paths that a person names are logs beside traces, and what is in them."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from profilerkit.errors import UnreadableInputError, unread
from profilerkit.trace.logs import Log
from profilerkit.trace.readers.logs import SUFFIXES, LogReader, reader_of


class LogsRead(msgspec.Struct, frozen=True):
    """The logs that could be read, the files they are, and those of a directory that could not, with the reason."""

    logs: tuple[Log, ...]
    files: tuple[Path, ...]
    left_out: tuple[tuple[Path, UnreadableInputError], ...]


def log_files(paths: Sequence[Path]) -> dict[Path, list[tuple[Path, LogReader]]]:
    """The logs that each path is or holds, with their readers; a path without any is not in it."""
    found = {}
    for path in paths:
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        known = [(file, reader) for file in files if (reader := reader_of(file)) is not None]
        if known:
            found[path] = known
    return found


def read_logs(found: dict[Path, list[tuple[Path, LogReader]]], *, strict: bool) -> LogsRead:
    """Read the files of ``log_files``. One of a directory that cannot be read is left out, unless ``strict``.

    Raises:
        UnreadableInputError: a log that was named cannot be read.
    """
    logs, files, left_out = [], [], []
    for path, known in found.items():
        for file, reader in known:
            try:
                logs.append(_read(file, reader))
                files.append(file)
            except UnreadableInputError as error:
                if strict or file == path:
                    raise
                left_out.append((file, error))
    return LogsRead(tuple(logs), tuple(files), tuple(left_out))


def _read(file: Path, reader: LogReader) -> Log:
    try:
        return reader.read(file)
    except OSError as error:
        raise unread(file, error) from error
