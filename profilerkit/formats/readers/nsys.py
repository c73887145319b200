"""Exports of Nsight Systems: the SQLite files of ``nsys export --type sqlite``, of any schema."""

from pathlib import Path

from profilerkit.trace.columns import ANALYZED, TraceColumns, Wanted

name = "nsys"
suffixes = (".sqlite",)

#: How every SQLite file begins.
MAGIC = b"SQLite format 3\0"
#: Where the first page of the file says of which kind it is: pages of this kind only point at others.
_KIND_OF_PAGE, _POINTING = 100, 0x05
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")  # of which a database has one


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is an SQLite database with a table of an export.

    The tables are defined in the first page, or where they are too many in pages it points at, which may lie anywhere.
    """
    if not head.startswith(MAGIC) or len(head) <= _KIND_OF_PAGE:
        return False
    from profilerkit.formats.nsys.database import READ

    tables = (table.encode(encoding) for table in READ for encoding in _ENCODINGS)
    return head[_KIND_OF_PAGE] == _POINTING or any(table in head for table in tables)


def read(path: Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the columns of the processes of an export that trained; what could not be read is counted in ``damage``.

    Raises ``UnreadableInputError`` for no export, for one without GPU work, CUDA calls and operators, and if ``strict``
    for a damaged one.
    """
    from profilerkit.formats.nsys.export import columns_of

    return columns_of(path, strict=strict)
