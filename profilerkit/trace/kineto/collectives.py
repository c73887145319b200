"""The metadata that collectives carry, for the few events that are collectives."""

from sys import intern

import msgspec

from profilerkit.trace.columns import CollectiveArgs, Wanted
from profilerkit.trace.kineto.numbers import whole_number
from profilerkit.trace.kineto.records import Detail, WideArgs, WideSpan, decoder
from profilerkit.trace.strings import printable_text

_KEY = b'"Collective name"'
_LONGEST_TEXT = 256
_WIDE = decoder(Detail.WIDE, Wanted.NOTHING)


def collective_args(text: bytes, separator: bytes) -> list[WideArgs] | None:
    """Return all args of the events of a JSON list that name a collective; None when an event cannot be cut out.

    A collective is one event of a hundred or fewer, so that only these are decoded with all their args.
    """
    found: list[WideArgs] = []
    at = text.find(_KEY)
    while at >= 0:
        before, after = text.rfind(separator, 0, at), text.find(separator, at)
        end = after + 1 if after >= 0 else len(text) - 1
        try:
            events = _WIDE.decode(b"[%b]" % text[before + len(separator) - 1 if before >= 0 else 1 : end])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        found += [event.args for event in events if isinstance(event, WideSpan) and event.args.collective]
        at = text.find(_KEY, end)
    return found


def collective(row: int, args: WideArgs) -> CollectiveArgs:
    """Return the metadata of the event in row ``row``, whose args name a collective."""
    return CollectiveArgs(
        row=row,
        name=_short(args.collective or ""),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=None if args.dtype is None else _short(args.dtype),
        group_size=_count(args.group_size),
        group_name=None if args.group_name is None else _short(str(args.group_name)),
        sequence=_count(args.sequence),
        source=_count(args.source),
        target=_count(args.target),
    )


def _short(text: str) -> str:
    """Return the text as one object however often it is met; its end is cut off where no real one is so long."""
    return intern(printable_text(text[:_LONGEST_TEXT]))


def _count(value: object) -> int | None:
    number = whole_number(value)
    return None if number < 0 else number
