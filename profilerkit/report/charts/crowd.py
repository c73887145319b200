"""Who of many ranks makes the others wait, and when: rows of ranks, columns of steps."""

from profilerkit.model.crowd import Crowd, Heat
from profilerkit.model.report import Report
from profilerkit.report.blocks import Axis, Chart, Shape, Table, Tick
from profilerkit.report.charts.axes import Scale
from profilerkit.report.charts.chart import rectangle
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_count, format_ns

#: Waiting as a share of the median step, above which a cell is drawn: faint (a rank is late) or full (a half).
_FAINT, _FULL = 0.05, 0.5
_TABLE_ROWS = 20
_NAMED_ROWS = 6


def crowd_chart(report: Report) -> Chart | None:
    """The heat map of many ranks; ``None`` where all are told in detail, or nothing was matched."""
    crowd = report.crowd
    if crowd is None or crowd.heat is None or crowd.step_ns is None or not crowd.heat.columns:
        return None
    heat, step_ns = crowd.heat, max(crowd.step_ns.median, 1.0)
    down, across = Scale(0.0, float(len(heat.rows))), Scale(0.0, float(len(heat.columns)))
    paths = {"communication": "", "communication pale": ""}
    for row, line in enumerate(heat.waited_ns):
        for column, waited in enumerate(line):
            if waited >= _FAINT * step_ns:
                key = "communication" if waited >= _FULL * step_ns else "communication pale"
                top, left = down.at(row), across.at(column)
                paths[key] += rectangle(left, top, across.at(column + 1), down.at(row + 1))
    return Chart(
        anchor="crowd",
        title=_title(crowd),
        caption=_caption(crowd, heat, step_ns),
        height_px=max(160, min(6 * len(heat.rows), 380)),
        shapes=tuple(Shape(key, "area", path) for key, path in paths.items() if path),
        x=Axis("First step of a column" if heat.steps_each > 1 else "Step", _ticks(heat.columns, across)),
        y=Axis(
            "First rank of a row" if heat.ranks_each > 1 else "Rank",
            tuple(Tick(100.0 - tick.at, tick.label) for tick in _ticks(heat.rows, down)),
        ),
        legend=(
            ("communication pale", f"The others wait {format_ns(_FAINT * step_ns)} or more"),
            ("communication", f"{format_ns(_FULL * step_ns)} or more"),
        ),
        labels=(),
        table=_table(heat),
    )


def _title(crowd: Crowd) -> str:
    names = [inert(f"{'host ' if row.kind == 'host' else ''}{row.name}", 40) or "a rank" for row in crowd.culprits]
    if not names:
        return "No rank keeps the others waiting for long"
    first = crowd.culprits[0]
    told = (
        f"{names[0][:1].upper()}{names[0][1:]} keeps the median other rank waiting {format_ns(first.waited_ns)} of "
        "every step"
    )
    return told + (f", then {names[1]} {format_ns(crowd.culprits[1].waited_ns)}" if len(names) > 1 else "")


def _caption(crowd: Crowd, heat: Heat, step_ns: float) -> str:
    each = f"Each row is the worst of {heat.ranks_each} neighbouring ranks. " if heat.ranks_each > 1 else ""
    steps = f"Each column is the worst of {heat.steps_each} steps. " if heat.steps_each > 1 else ""
    return (
        f"{plural(crowd.ranks, 'rank')}, median step {format_ns(step_ns)}. {each}{steps}Derived from matched "
        "collectives. A cell shows how long the other members of a rank's groups wait for it, on average. The title "
        "names the wait of the median other rank."
    )


def _ticks(values: tuple[int, ...], scale: Scale) -> tuple[Tick, ...]:
    every = max(1, -(-len(values) // _NAMED_ROWS))
    return tuple(Tick(scale.at(at + 0.5), format_count(values[at])) for at in range(0, len(values), every))


def _table(heat: Heat) -> Table:
    worst = sorted(range(len(heat.rows)), key=lambda row: -max(heat.waited_ns[row]))[:_TABLE_ROWS]
    rows = []
    for row in sorted(worst):
        line = heat.waited_ns[row]
        column = line.index(max(line))
        rank, step = _from(heat.rows[row], heat.ranks_each), _from(heat.columns[column], heat.steps_each)
        rows.append((rank, format_ns(max(line)), step))
    more = f"{len(heat.rows) - len(rows)} more rows in the JSON." if len(heat.rows) > len(rows) else ""
    return Table(
        "The figure as a table",
        ("Rank", "Caused in its worst step", "Worst step"),
        tuple(rows),
        1,
        more,
    )


def _from(first: int, each: int) -> str:
    """A row or a column by the first number in it.

    >>> _from(1200, 1), _from(1200, 50)
    ('1,200', 'from 1,200')
    """
    return format_count(first) if each == 1 else f"from {format_count(first)}"
