"""Evidence as numbered rows, and one row with the raw events behind it as text."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from profilerkit.errors import UsageError
from profilerkit.model.finding import Evidence, Finding, Outcome, in_order
from profilerkit.model.raw import RawEvent, RawEvents
from profilerkit.model.report import Report
from profilerkit.model.step import WHOLE_TRACE, as_judged
from profilerkit.report.blocks import EvidenceRow
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.page import Page
from profilerkit.report.wording import listed, share_text
from profilerkit.units import format_count, format_ns, format_value

# Their clock is not a trace's: no timeline viewer knows the time.
_STEP_TIMERS = "step timers"
# A name of raw events; the middle of a longer one is left out.
_NAME_LIMIT = 70
_WHERE_LIMIT = 18
# A number of evidence has so many digits at most.
_NUMBER = re.compile(r"E[0-9]{1,6}")
# How the label of a share of what was judged ends.
_SHARES = tuple(as_judged("share of the step", found_by) for found_by in ("", WHOLE_TRACE))


class Anchors:
    """Names for links: stable by meaning, unique within a page."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers = (f"E{number}" for number in range(1, 1_000_000))

    def take(self, wanted: str) -> str:
        """``wanted`` as a safe anchor that no evidence has; a second one of the same name gets a number."""
        safe = re.sub(r"[^A-Za-z0-9_-]", "", wanted)[:40] or "finding"
        safe = f"finding-{safe}" if _NUMBER.fullmatch(safe) or safe.startswith("evidence-") else safe
        names: Iterator[str] = (safe if count == 1 else f"{safe}-{count}" for count in range(1, 1_000_000))
        return self._first_free(names)

    def evidence(self, wanted: str) -> str:
        """The runner's number, or the next free one where it gave none."""
        if _NUMBER.fullmatch(wanted) and wanted not in self._used:
            self._used.add(wanted)
            return wanted
        return self._first_free(self._numbers)

    def _first_free(self, names: Iterator[str]) -> str:
        name = next(name for name in names if name not in self._used)
        self._used.add(name)
        return name


def evidence_row(evidence: Evidence, anchors: Anchors, mean_ns: int | None = None, found_by: str = "") -> EvidenceRow:
    """One number as a row of a table; what is not known of it is left out.

    Args:
        evidence: the number.
        anchors: gives it its own.
        mean_ns: the steady step, for a share of it as time.
        found_by: how the steps were found.
    """
    unit = inert(evidence.unit, 20)
    interval = ""
    if evidence.low is not None and evidence.high is not None:
        interval = f"{_value(evidence.low, unit)} to {_value(evidence.high, unit)}"
    return EvidenceRow(
        id=anchors.evidence(evidence.id),
        label=inert(as_judged(evidence.label, found_by)),
        value=_value(evidence.value, unit),
        interval=interval,
        basis=_basis(evidence),
        source=evidence.source,
        origin=inert(evidence.origin),
        also=as_judged(_as_time(evidence, mean_ns), found_by),
    )


def _as_time(evidence: Evidence, mean_ns: int | None) -> str:
    is_share = evidence.unit == "ratio" and evidence.label.lower().endswith(_SHARES)
    # What a fix saves has its time in a row of its own.
    if not is_share or "saving" in evidence.label.lower() or evidence.value is None or mean_ns is None:
        return ""
    return f"{format_ns(evidence.value * mean_ns)} per step"


def _basis(evidence: Evidence) -> str:
    """What the number rests on: observations, rank, steps, time range."""
    pieces = []
    if evidence.n is not None:
        pieces.append(f"n {format_count(evidence.n)}")
    if evidence.rank is not None:
        pieces.append(f"rank {evidence.rank}")
    if evidence.steps is not None:
        first, last = evidence.steps
        pieces.append(f"step {first}" if first == last else f"steps {first}–{last}")
    if evidence.range_ns is not None and evidence.origin != _STEP_TIMERS:
        pieces.append("trace time {}–{} ns".format(*evidence.range_ns))
    return " · ".join(pieces)


def _value(value: float | None, unit: str) -> str:
    return share_text(value) if unit == "ratio" and value is not None else format_value(value, unit)


class Backing(NamedTuple):
    """A piece of evidence and what it backs."""

    outcome: Outcome
    finding: Finding
    evidence: Evidence


def numbered(report: Report) -> dict[str, Backing]:
    """Every piece of evidence of the findings by its number."""
    found = [
        Backing(outcome, finding, evidence)
        for outcome, finding in in_order(report.outcomes)
        for evidence in finding.evidence
    ]
    anchors = Anchors()
    return {anchors.evidence(backing.evidence.id): backing for backing in found}


def require_evidence(report: Report, wanted: str) -> Evidence:
    """The evidence of a number, in any case. Raises ``UsageError`` with the numbers there are."""
    known = numbered(report)
    found = known.get(wanted.strip().upper())
    if found is not None:
        return found.evidence
    names = sorted(known, key=lambda name: int(name[1:]))
    is_whole = names[-1:] == [f"E{len(names)}"]
    there = "no evidence" if not names else f"{names[0]} to {names[-1]}" if is_whole else listed(names)
    raise UsageError(
        f"there is no evidence {inert(wanted, 20)}",
        cause=f"the report has {there}",
        hint="each finding in the report lists its evidence with these numbers",
    )


def render(
    report: Report,
    wanted: str,
    tables: Sequence[RawEvents],
    *,
    unknown: str = "",
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """One piece of evidence and the raw events behind it as text of at most ``width`` columns.

    Args:
        report: what holds it.
        wanted: its number, in any case.
        tables: the raw events.
        unknown: why there are none, a sentence; for where ``tables`` is empty.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours.
        ascii_only: print nothing outside ASCII.

    Raises:
        UsageError: the report has no such evidence.
    """
    require_evidence(report, wanted)
    number = wanted.strip().upper()
    backing = numbered(report)[number]
    row = evidence_row(backing.evidence, Anchors())
    page = Page(width, colour, ascii_only)
    interval = f" ({row.interval})" if row.interval else ""
    page.line((f"{number}  ", "bold"), (row.label, ""), (f": {row.value}", "bold"), (interval, ""))
    page.line((" · ".join(piece for piece in (row.source, row.basis) if piece), "dim"), indent=4)
    if row.origin:
        page.line((f"taken from {row.origin}", "dim"), indent=4)
    title = inert(backing.finding.title, SENTENCE_LIMIT).replace("`", "")
    page.line((f"backs {inert(backing.outcome.rule, 24)}: {title}", "dim"), indent=4)
    if not tables and unknown:
        page.blank()
        page.line((inert(unknown, SENTENCE_LIMIT), ""))
    for table in tables:
        page.blank()
        _table(page, table)
    return page.text()


def _table(page: Page, table: RawEvents) -> None:
    """The rows of one file; a column that none of them fills is left out."""
    shown, count = len(table.rows), format_count(table.count)
    which = {"longest": f"the {shown} longest of {count}", "even": f"{shown} of {count}, at an even distance"}
    title = f"{inert(table.what)}, from {inert(table.origin)}: "
    page.line((title, ""), (which[table.order] if shown < table.count else f"all {count}", "bold"))
    is_trace = table.clock == "trace"
    clock = "Trace time, ns" if is_trace else "After the first"
    known = [
        ("Step", True, [_step(row) for row in table.rows]),
        (clock, True, [str(row.start_ns) if is_trace else format_ns(row.start_ns) for row in table.rows]),
        ("Length" if table.unit == "ns" else "Value", True, [_value(row.value, table.unit) for row in table.rows]),
        ("Where", False, [inert(row.where, _WHERE_LIMIT) for row in table.rows]),
        ("What", False, [inert(row.name, _NAME_LIMIT) for row in table.rows]),
    ]
    columns = [column for column in known if any(column[2])]
    cells = [[(cells[index], "") for _, _, cells in columns] for index in range(shown)]
    page.table([(name, is_number) for name, is_number, _ in columns], cells)
    if shown < table.count:
        page.line((f"{format_count(table.count - shown)} more are not shown.", "dim"))


def _step(row: RawEvent) -> str:
    return "" if row.step is None else format_count(row.step)
