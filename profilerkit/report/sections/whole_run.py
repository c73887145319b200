"""The section about the whole run: where its wall clock went, from the start of the process to its end."""

from collections.abc import Sequence

from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, LedgerSource, Stage
from profilerkit.model.report import Report
from profilerkit.model.step import Family
from profilerkit.report.blocks import Bar, Block, Cell, Heading, Section, Segment, Table, Value
from profilerkit.report.wording import listed, plural, share_text
from profilerkit.units import format_count, format_long_ns, format_ns, format_ratio

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
#: A stage other than the steps that takes this share of the run is what the run mostly is …
_MOST_OF_THE_RUN = 0.5
#: … and one of these that takes this share is worth a look whatever bounds the step.
_NOTED_SHARE = 0.10
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
    """The finding in words: what most of the run was."""
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
