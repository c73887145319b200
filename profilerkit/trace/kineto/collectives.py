"""Collective metadata of the few events that carry it."""

from collections.abc import Sequence

from profilerkit.trace.columns import CollectiveArgs
from profilerkit.trace.kineto import records
from profilerkit.trace.kineto.numbers import whole_number
from profilerkit.trace.kineto.records import CollectiveSpan, CollectiveSpanArgs, Span, SpanArgs
from profilerkit.trace.strings import id_text, printable_text


def collective_args(events: Sequence[records.Event], text: bytes) -> list[SpanArgs]:
    """Return the args of each complete event in order, wide where the event is a collective.

    Args:
        events: the events of one chunk.
        text: the JSON array they were decoded from in one go; unused where the events are wide already.
    """
    spans = [(index, event) for index, event in enumerate(events) if isinstance(event, Span)]
    narrow = any(span.args.collective and not isinstance(span.args, CollectiveSpanArgs) for _, span in spans)
    if not narrow:
        return [span.args for _, span in spans]
    wide = records.COLLECTIVE_ARGS.decode(text)
    return [found.args for index, _ in spans if isinstance(found := wide[index], CollectiveSpan)]


def collective(row: int, args: SpanArgs) -> CollectiveArgs | None:
    """Return the collective of row ``row``, or None where the args are not of one."""
    if not isinstance(args, CollectiveSpanArgs) or not args.collective:
        return None
    return CollectiveArgs(
        row=row,
        name=printable_text(args.collective),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=None if args.dtype is None else printable_text(args.dtype),
        group_size=_count(args.group_size),
        group_name=None if args.group_name is None else id_text(args.group_name),
        sequence=_count(args.sequence),
    )


def _count(value: object) -> int | None:
    number = whole_number(value)
    return number if number >= 0 else None
