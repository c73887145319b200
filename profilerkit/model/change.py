"""A copy of a frozen record with some fields changed."""

from typing import TypeVar

import msgspec

_Record = TypeVar("_Record", bound=msgspec.Struct)


def revise(record: _Record, **changes: object) -> _Record:
    """``record`` with ``changes``; a name that is no field is a TypeError."""
    return msgspec.structs.replace(record, **changes)
