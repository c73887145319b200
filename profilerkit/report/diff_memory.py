"""What the memory of two snapshots holds, side by side."""

from profilerkit.model.diff import HolderChange, MemoryChange
from profilerkit.report.blocks import Table
from profilerkit.report.inert import inert
from profilerkit.report.paths import short_paths
from profilerkit.report.sections.logs import KINDS
from profilerkit.units import format_bytes, format_change

_NAMES: dict[str, str] = {str(kind): name for kind, name in KINDS.items()}


def memory_table(change: MemoryChange | None) -> Table | None:
    """The peak, its kinds and its lines, largest change first; ``None`` where no two snapshots were compared."""
    if change is None:
        return None
    whole = "At the peak" if change.at_peak else "At the snapshot"
    rows = (
        _row(whole, HolderChange(name="", before_bytes=change.before_bytes, after_bytes=change.after_bytes)),
        *(_row(_NAMES.get(row.name, inert(row.name, 40)), row) for row in change.kinds),
        *(_row(inert(short_paths(row.name), 160), row) for row in change.lines),
    )
    note = "A history begins late: its peak is a lower bound." if change.is_lower_bound else ""
    return Table(note, ("Memory", "Before", "After", "Change"), rows, text_columns=1)


def _row(name: str, row: HolderChange) -> tuple[str, ...]:
    sizes = ["none" if size is None else format_bytes(size) for size in (row.before_bytes, row.after_bytes)]
    ratio = row.bytes / row.before_bytes if row.before_bytes else None
    return (name, *sizes, "new" if ratio is None else format_change(ratio))
