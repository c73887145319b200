"""The whole run: where its wall clock went, and what its lost time costs."""

from collections.abc import Iterator, Sequence

from profilerkit.model.ledger import ENTRIES, Cost, FixValue, Ledger, LedgerEntry, LedgerSource, LostTime, Stage
from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.report.blocks import Bar, Block, Cell, Heading, Section, Segment, Table, Text, Value
from profilerkit.report.inert import inert
from profilerkit.report.wording import METHOD_WORDS, listed, marks_none, part_label, plural, share_text
from profilerkit.units import format_count, format_long_ns, format_ns, format_ratio, is_open

#: Stage to the colour it has, that of the family its time would be in a step, and to its words.
_STAGES: dict[Stage, tuple[Family, str]] = {
    "start-up": ("other", "Start-up"),
    "warm-up": ("overhead", "Warm-up"),
    "steps": ("compute", "Steps"),
    "between": ("input", "Between steps"),
    "evaluation": ("overhead", "Evaluation"),
    "checkpoint": ("overhead", "Checkpoints"),
    "logging": ("overhead", "Logging"),
    "phases": ("overhead", "Other named phases"),
    "profiler": ("other", "Profiler windows"),
    "end": ("other", "After the last step"),
    "unexplained": ("other", "Not explained"),
}
_SOURCES: tuple[LedgerSource, ...] = ("measured", "derived", "inferred")
_MOST_OF_THE_RUN = 0.5  #: a stage other than the steps that takes this share of the run is what the run mostly is …
_NOTED_SHARE = 0.10  #: … and one of these that takes this share is worth a look whatever bounds the step
#: Wall clocks of ranks that are shown, and the least share of any for which a stage has a column.
_RANK_ROWS = 64
_COLUMN_SHARE = 0.01
#: Packages whose imports are named.
_NAMED = 3
_LONG_NS = 120_000_000_000


def section(report: Report) -> Section | None:
    """The wall clock by stage; ``None`` without a ledger."""
    ledger = report.ledger
    if ledger is None or not ledger.wall_ns:
        return None
    stages = _by_stage(ledger)
    bar = Bar("Shares of the whole run", tuple(_segment(stage, entries, ledger) for stage, entries in stages.items()))
    rows = tuple(row for stage, entries in stages.items() for row in _rows(stage, entries, ledger))
    columns = ("Stage", "Detail", "Source", "Time", "Share")
    begin = "the process's start" if ledger.from_process_start else "the recording's start"
    end = "its last record: no end was written" if ledger.to_last_record else "the recording's end"
    whose = f", rank {ledger.rank}" if ledger.ranks else ""
    worker = "device" if any(entry.entry == "step.device" for entry in ledger.entries) else "training thread"
    blocks: list[Block] = [
        bar,
        Table(f"Time of the {worker}{whose}, from {begin} to {end}.", columns, rows, 3, title="The whole run by stage"),
    ]
    if ranks := _ranks(ledger):
        blocks += [Heading("Every rank"), ranks]
    return Section("whole-run", "The whole run", _title(ledger, stages), tuple(blocks))


def _by_stage(ledger: Ledger) -> dict[Stage, list[LedgerEntry]]:
    """The entries of each stage that took time, in the order in which a run passes through them.

    What is not explained is a number even where it is none.
    """
    found: dict[Stage, list[LedgerEntry]] = {stage: [] for stage in _STAGES}
    for entry in ledger.entries:
        found[entry.stage].append(entry)
    if not found["unexplained"]:
        nothing = LedgerEntry(entry="unexplained", stage="unexplained", time_ns=0, share=0.0, source="derived")
        found["unexplained"].append(nothing)
    return {stage: entries for stage, entries in found.items() if entries}


def _share(entries: Sequence[LedgerEntry]) -> float:
    return sum(entry.share for entry in entries)


def _time(time_ns: int) -> str:
    return format_long_ns(time_ns) if time_ns >= _LONG_NS else format_ns(time_ns)


def _largest(stages: dict[Stage, list[LedgerEntry]], least: float) -> list[tuple[Stage, float]]:
    shares: list[tuple[Stage, float]] = [(stage, _share(entries)) for stage, entries in stages.items()]
    others = [pair for pair in shares if pair[0] != "steps" and pair[1] >= least]
    return sorted(others, key=lambda pair: -pair[1])[:2]


def _title(ledger: Ledger, stages: dict[Stage, list[LedgerEntry]]) -> str:
    wall, steps = _time(ledger.wall_ns), share_text(_share(stages.get("steps", ())))
    largest = _largest(stages, _NOTED_SHARE) or _largest(stages, 0.0)[:1]
    others = listed([f"{_STAGES[stage][1].lower()} {share_text(share)}" for stage, share in largest])
    if not ledger.steps:
        return f"No step ended in the {wall} of this run: {others}"
    if largest and largest[0][1] >= _MOST_OF_THE_RUN:
        stage, share = largest[0]
        return f"{_STAGES[stage][1]}: {share_text(share)} of the run's {wall}; steps {steps}"
    return f"Steps: {steps} of the run's {wall}" + (f"; {others}" if others else "")


def _segment(stage: Stage, entries: list[LedgerEntry], ledger: Ledger) -> Segment:
    family, label = _STAGES[stage]
    time_ns = sum(entry.time_ns for entry in entries)
    return Segment(family, label, time_ns / ledger.wall_ns, Value(time_ns, _unit(time_ns)), source=_weakest(entries))


def _unit(time_ns: int) -> str:
    return "long_ns" if time_ns >= _LONG_NS else "ns"


def _weakest(entries: Sequence[LedgerEntry]) -> LedgerSource:
    return max((entry.source for entry in entries), key=_SOURCES.index)


def _detail(entries: Sequence[LedgerEntry]) -> str:
    largest = max(entries, key=lambda entry: entry.time_ns)
    named = ", ".join(f"{name} {_time(time_ns)}" for name, time_ns in largest.largest[:_NAMED])
    if len(entries) == 1:
        count = largest.count
        return named or ("" if not count else "once" if count == 1 else f"{format_count(count)} times")
    label = ENTRIES[largest.entry][1]
    share = format_ratio(largest.time_ns / sum(entry.time_ns for entry in entries))
    return f"{label[0].lower()}{label[1:]} {share}" + (f": {named}" if named else "")


def _rows(stage: Stage, entries: list[LedgerEntry], ledger: Ledger) -> list[tuple[Cell, ...]]:
    """The stage, and its entries where it has several; a wait for data that was not measured is among them."""
    segment = _segment(stage, entries, ledger)
    blind = stage == "steps" and not ledger.loader_seen
    alone = len(entries) == 1 and not blind
    detail = _detail(entries) if alone else plural(ledger.steps, "step") if stage == "steps" else ""
    if alone and ENTRIES[entries[0].entry][1] != segment.label:
        detail = ", ".join(piece for piece in (ENTRIES[entries[0].entry][1], detail) if piece)
    rows: list[tuple[Cell, ...]] = [
        (segment.label, detail, segment.source, segment.time, Value(segment.ratio, "ratio"))
    ]
    if blind:
        rows.append((f"– {ENTRIES['step.input'][1]}", "no loader seen", "", "not measured", ""))
    for entry in () if alone else entries:
        time = Value(entry.time_ns, _unit(entry.time_ns))
        label = f"– {ENTRIES[entry.entry][1]}"
        rows.append((label, _detail([entry]), entry.source, time, Value(entry.share, "ratio")))
    return rows


def _ranks(ledger: Ledger) -> Table | None:
    if not ledger.ranks:
        return None
    most = {
        stage: max(rank.stages.get(stage, 0) / rank.wall_ns if rank.wall_ns else 0.0 for rank in ledger.ranks)
        for stage in _STAGES
    }
    shown = [stage for stage, share in most.items() if share >= _COLUMN_SHARE]
    rows = tuple(
        (
            f"Rank {rank.rank}",
            _time(rank.wall_ns),
            *(share_text(rank.stages.get(stage, 0) / rank.wall_ns if rank.wall_ns else 0.0) for stage in shown),
        )
        for rank in ledger.ranks[:_RANK_ROWS]
    )
    left = len(ledger.ranks) - len(rows)
    more = f"{plural(left, 'rank')} more in the JSON." if left else ""
    return Table("", ("Rank", "Wall clock", *(_STAGES[stage][1] for stage in shown)), rows, 1, more)


#: Causes that take less of all hours are left to the JSON, and so are those beyond the largest.
_LEAST_SHARE = 0.01
_ROWS = 10
_TITLE_LIMIT = 120
#: From this many hours on a unit is used, and how many of it an hour has.
_UNITS = ((1.0, "hours", 1.0), (1 / 60, "minutes", 60.0), (0.0, "seconds", 3_600.0))


def lost_time(report: Report) -> Section | None:
    """Lost time; ``None`` where no step or run was timed, or nothing marks a step."""
    cost = report.cost
    if cost is None or not cost.hours or (marks_none(report) and cost.scope != "run"):
        return None
    blocks: list[Block] = [Text.of(" ".join(_caption(cost)), style="note"), *((lost,) if (lost := _lost(cost)) else ())]
    if fixes := _fixes(cost):
        blocks += [Heading("What each finding gives back"), fixes]
    return Section("lost-time", "Lost time", _lost_title(cost), tuple(blocks), prints=False)


def _hours_unit(cost: Cost) -> tuple[str, float]:
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


def _lost_title(cost: Cost) -> str:
    unit, factor = _hours_unit(cost)
    hours = sum(row.hours for row in cost.lost_in_training)
    of = f"{_amount(cost.hours * factor)} {unit}" + ("" if cost.scope == "run" else " of 1,000 steps")
    priced = "" if cost.price is None else f"; cost {_money(hours * cost.price)} of {_money(cost.hours * cost.price)}"
    return f"Lost: {_amount(hours * factor)} of {of} ({share_text(hours / cost.hours)}){priced}"


def _caption(cost: Cost) -> Iterator[str]:
    steps = "1,000 steps like the judged ones, because no run was recorded"
    yield f"{'The whole recorded run' if cost.scope == 'run' else steps}, {plural(cost.ranks, 'rank')}."
    if cost.ranks_read < cost.ranks:
        yield f"{format_count(cost.ranks_read)} of them {'was' if cost.ranks_read == 1 else 'were'} read;"
        yield "the others are assumed to match their mean."
    if cost.unit == "rank":
        yield "No GPU was seen: a rank-hour is one process for one hour, without a price."
    if cost.price is not None:
        yield f"Priced at {_money(cost.price)} per {cost.unit}-hour."
    if hours := sum(row.hours for row in cost.start_up):
        unit, factor = _hours_unit(cost)
        priced = "" if cost.price is None else f", cost {_money(hours * cost.price)}"
        took = f"{_amount(hours * factor)} {unit} ({share_text(hours / cost.hours)}{priced})"
        yield f"Start-up, including imports, took {took}. It is paid once and not counted as lost."


def _label(row: LostTime) -> str:
    if row.inside:
        return part_label(row.cause)
    known = ENTRIES.get(row.cause)
    return f"{known[0].capitalize()}: {known[1][0].lower()}{known[1][1:]}" if known else inert(row.cause)


def _lost(cost: Cost) -> Table | None:
    lost = cost.lost_in_training
    shown = [row for row in lost if row.share >= _LEAST_SHARE][:_ROWS]
    if not shown:
        return None
    unit, factor = _hours_unit(cost)
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
    if not cost.fixes:
        return None
    unit, factor = _hours_unit(cost)
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


SECTIONS = {110: section, 120: lost_time}
