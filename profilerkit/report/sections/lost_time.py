"""The section about lost time: hours of all ranks by cause, what each fix gives back, and with a price the money."""

from profilerkit.model.ledger import ENTRIES, Cost, FixValue, LostTime
from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Heading, Section, Table, Text
from profilerkit.report.inert import inert
from profilerkit.report.wording import METHOD_WORDS, marks_none, part_label, plural, share_text
from profilerkit.units import format_count, is_open

#: Causes that take less of all hours are left to the JSON, and so are those beyond the largest.
_LEAST_SHARE = 0.01
_ROWS = 10
_TITLE_LIMIT = 120
#: From this many hours on a unit is used, and how many of it an hour has.
_UNITS = ((1.0, "hours", 1.0), (1 / 60, "minutes", 60.0), (0.0, "seconds", 3_600.0))


def section(report: Report) -> Section | None:
    """Lost time; ``None`` where no step or run was timed, or nothing marks a step."""
    cost = report.cost
    if cost is None or not cost.hours or (marks_none(report) and cost.scope != "run"):
        return None
    blocks: list[Block] = [Text.of(_caption(cost), style="note"), *((lost,) if (lost := _lost(cost)) else ())]
    if fixes := _fixes(cost):
        blocks += [Heading("What each finding gives back"), fixes]
    return Section("lost-time", "Lost time", _title(cost), tuple(blocks), prints=False)


def _unit(cost: Cost) -> tuple[str, float]:
    """What hours are told in, and how many of it one hour has."""
    name, factor = next((name, factor) for least, name, factor in _UNITS if cost.hours >= least)
    return f"{cost.unit}-{name}", factor


def _amount(value: float) -> str:
    """Three significant digits: 1,240, 12.4, 0.00124."""
    return f"{value:,.0f}" if value >= 1_000 else f"{float(f'{value:.3g}'):g}"


def _money(value: float) -> str:
    """A price or cost; below a tenth with two significant digits.

    >>> _money(1234.5), _money(0.25), _money(0.00123), _money(0.0)
    ('1,234.50', '0.25', '0.0012', '0.00')
    """
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def _title(cost: Cost) -> str:
    """The finding in words: how much the training lost, of what, and what that costs."""
    unit, factor = _unit(cost)
    hours = sum(row.hours for row in cost.lost_in_training)
    of = f"{_amount(cost.hours * factor)} {unit}" + ("" if cost.scope == "run" else " of 1,000 steps")
    priced = "" if cost.price is None else f"; cost {_money(hours * cost.price)} of {_money(cost.hours * cost.price)}"
    return f"Lost: {_amount(hours * factor)} of {of} ({share_text(hours / cost.hours)}){priced}"


def _caption(cost: Cost) -> str:
    """Whose hours are counted, at which price, what start-up took beside them, and what was not recorded."""
    whole = (
        "The whole recorded run"
        if cost.scope == "run"
        else "1,000 steps like the judged ones, because no run was recorded"
    )
    sentences = [f"{whole}, {plural(cost.ranks, 'rank')}."]
    if cost.ranks_read < cost.ranks:
        sentences.append(f"{format_count(cost.ranks_read)} of them {'was' if cost.ranks_read == 1 else 'were'} read;")
        sentences.append("the others are assumed to match their mean.")
    if cost.unit == "rank":
        sentences.append("No GPU was seen: a rank-hour is one process for one hour, without a price.")
    if cost.price is not None:
        sentences.append(f"Priced at {_money(cost.price)} per {cost.unit}-hour.")
    return " ".join([*sentences, *_start_up(cost)])


def _start_up(cost: Cost) -> list[str]:
    """What went before the first step, which no fix of a step gives back; nothing where it was not recorded."""
    hours = sum(row.hours for row in cost.start_up)
    if not hours:
        return []
    unit, factor = _unit(cost)
    priced = "" if cost.price is None else f", cost {_money(hours * cost.price)}"
    took = f"{_amount(hours * factor)} {unit} ({share_text(hours / cost.hours)}{priced})"
    return [f"Start-up, including imports, took {took}. It is paid once and not counted as lost."]


def _label(row: LostTime) -> str:
    """The words for a cause; what lies outside of the steps begins with the stage of the run."""
    if row.inside:
        return part_label(row.cause)
    known = ENTRIES.get(row.cause)
    return f"{known[0].capitalize()}: {known[1][0].lower()}{known[1][1:]}" if known else inert(row.cause)


def _lost(cost: Cost) -> Table | None:
    """What the training lost by cause, largest first."""
    lost = cost.lost_in_training
    shown = [row for row in lost if row.share >= _LEAST_SHARE][:_ROWS]
    if not shown:
        return None
    unit, factor = _unit(cost)
    priced = cost.price is not None
    rows = tuple(
        (
            _label(row),
            row.source,
            _amount(row.hours * factor),
            share_text(row.share),
            *((_money(row.cost or 0.0),) if priced else ()),
        )
        for row in shown
    )
    columns = ("Lost to", "Source", unit, "Share", *(("Cost",) if priced else ()))
    left = len(lost) - len(shown)
    more = f"{plural(left, 'smaller cause')} in the JSON." if left else ""
    return Table("", columns, rows, 2, more)


def _fixes(cost: Cost) -> Table | None:
    """What each finding would give back."""
    if not cost.fixes:
        return None
    unit, factor = _unit(cost)
    priced = cost.price is not None

    def row(fix: FixValue) -> tuple[str, ...]:
        is_wide = is_open(fix.low / cost.hours, fix.high / cost.hours, fix.method)
        span = f"{'up' if is_wide else _amount(fix.low * factor)} to {_amount(fix.high * factor)}"
        money = (_money(fix.cost or 0.0),) if priced else ()
        found = f"{inert(fix.rule, 24)} {inert(fix.title, _TITLE_LIMIT)}"
        return (found, METHOD_WORDS[fix.method], _amount(fix.expected * factor), span, *money)

    columns = ("Finding", "Method", unit, "Range", *(("Cost",) if priced else ()))
    left = len(cost.fixes) - _ROWS
    more = f"{plural(left, 'finding')} more in the JSON." if left > 0 else ""
    caption = "Time gained if a finding's cause goes away. These overlap: do not add them."
    return Table(caption, columns, tuple(row(fix) for fix in cost.fixes[:_ROWS]), 2, more)
