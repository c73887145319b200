"""Any log into its records: the table of readers, and the choice between them by content."""

from pathlib import Path
from typing import Protocol, cast

from profilerkit.trace.blocks import BlockSource
from profilerkit.trace.logs import Log
from profilerkit.trace.readers import memory_snapshot, nvidia_smi

#: How the names of logs end that are looked for in a directory; a log that is named may have any name.
SUFFIXES = (".csv", ".txt", ".log", ".pickle", ".pkl")


class LogReader(Protocol):
    """One kind of log: a module with a name and two functions."""

    @property
    def name(self) -> str:
        """The kind in a word or two."""

    def sniff(self, head: bytes, /) -> bool:
        """Return whether a file whose plain bytes begin with ``head`` is of this kind; must not raise."""

    def read(self, path: Path, /) -> Log:
        """Return what the file holds, or raise ``UnreadableInputError``."""


LOG_READERS: tuple[LogReader, ...] = (cast(LogReader, memory_snapshot), cast(LogReader, nvidia_smi))


def reader_of(path: Path) -> LogReader | None:
    """The reader of a file; ``None`` for what is no log, which may be a trace, and for what cannot be read at all."""
    if not path.is_file():
        return None
    try:
        head = BlockSource(path).beginning()
    except OSError:
        return None
    return next((reader for reader in LOG_READERS if reader.sniff(head)), None)
