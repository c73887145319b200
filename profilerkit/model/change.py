"""A copy of a frozen record with some fields changed, and fields for a record of another type."""

from typing import Any, TypeVar

import msgspec

_Record = TypeVar("_Record", bound=msgspec.Struct)


def revise(record: _Record, **changes: object) -> _Record:
    """``record`` with ``changes``; a name that is no field is a TypeError."""
    return msgspec.structs.replace(record, **changes)


def fields_of(record: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return these fields of ``record`` by name, for another record that has them too."""
    return {name: getattr(record, name) for name in names}
