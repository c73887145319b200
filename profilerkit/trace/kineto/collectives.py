"""The metadata that collectives carry, for the few events that are collectives."""

from profilerkit.trace.columns import CollectiveArgs
from profilerkit.trace.kineto.numbers import whole_number
from profilerkit.trace.kineto.records import WideArgs
from profilerkit.trace.strings import printable_text


def collective(row: int, args: WideArgs) -> CollectiveArgs:
    """Return the metadata of the event in row ``row``, whose args name a collective."""
    return CollectiveArgs(
        row=row,
        name=printable_text(args.collective or ""),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=None if args.dtype is None else printable_text(args.dtype),
        group_size=_count(args.group_size),
        group_name=None if args.group_name is None else printable_text(str(args.group_name)),
        sequence=_count(args.sequence),
    )


def _count(value: object) -> int | None:
    number = whole_number(value)
    return None if number < 0 else number
