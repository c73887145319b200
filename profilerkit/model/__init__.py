"""The typed records of a report, and copies of them with some fields changed."""

from typing import Any, Protocol, Self, TypeVar

import msgspec


class Replaceable(Protocol):
    """A record of another kind that makes changed copies, as ``copy.replace`` of Python 3.13 asks."""

    def __replace__(self, **changes: Any) -> Self: ...


_Record = TypeVar("_Record", bound=msgspec.Struct | Replaceable)


def revise(record: _Record, **changes: object) -> _Record:
    """``record`` with ``changes``; a name that is no field is a TypeError."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return record.__replace__(**changes)


def fields_of(record: object, *names: str) -> dict[str, Any]:
    """Return these fields of ``record`` by name, for another record that has them too."""
    return {name: getattr(record, name) for name in names}
