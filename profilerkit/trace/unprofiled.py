"""Files in the format of traces that no profiler of a training wrote: own hooks, and the JSON of other tools."""

from collections.abc import Iterable

from profilerkit.trace.columns import Category, TraceColumns
from profilerkit.trace.strings import printable_text

#: Kineto's own frame around what it recorded, which may be nothing.
_FRAME = "Trace"
#: More kinds than this, or more of the text of one, say no more.
_NAMED, _LONGEST = 3, 40


def unprofiled(columns: TraceColumns, kinds: Iterable[str]) -> str | None:
    """Return of what kinds the events are, in words, where not one is of a profiler; ``None`` where some are.

    A file of ``torch.profiler`` in which nothing was recorded is known by what it says beside its events.

    Args:
        columns: what was read.
        kinds: the categories as written; empty for none.
    """
    texts = [text for text in kinds if text]
    if columns.meta.versions or _FRAME in texts or (columns.category != Category.OTHER).any():
        return None
    if not texts:
        return "its events have no category"
    shown = [f"“{printable_text(text[:_LONGEST])}”" for text in texts[:_NAMED]]
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"its events are of the {'categories' if len(texts) > 1 else 'category'} {', '.join(shown)}{more}"
