"""What to change: every finding with its evidence, and the step after each fix."""

from profilerkit.model.report import Report
from profilerkit.model.step import as_judged
from profilerkit.model.verdict import Waterfall
from profilerkit.report.blocks import Bar, Block, Cell, Fact, Heading, Section, Segment, Table, Text, Value
from profilerkit.report.findings import findings_of, first_sentence
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.sections.first import first_of
from profilerkit.report.wording import plural
from profilerkit.units import format_ns, format_ratio

_NAMED = 2


def section(report: Report) -> Section | None:
    """Every finding; ``None`` without any."""
    findings = findings_of(report)
    if not findings.all:
        return None
    shown = first_of(report, findings).fixes[:1]
    more = [found for found in findings.fixes if found not in shown]
    named = [f"{first_sentence(found.fix)}{f': {found.saves}' if found.saves else ''}" for found in more[:_NAMED]]
    blocks: list[Block] = list(findings.all)
    if waterfall := waterfall_blocks(report):
        blocks += [Heading("The step after each fix"), *waterfall]
    return Section(
        "fixes",
        f"{len(more)} {'more ' if shown else ''}{'fix' if len(more) == 1 else 'fixes'}" if more else "Evidence",
        " · ".join(named) if named else "why, and the numbers",
        tuple(blocks),
    )


_TITLE_LIMIT = 120


def waterfall_blocks(report: Report) -> tuple[Block, ...]:
    """A bar for each fix, set one after another; empty where no fix was replayed."""
    found = report.waterfall
    if found is None or not found.fixes:
        return ()
    last = found.fixes[-1]
    # The largest finding may be none that a replay tells.
    these = f"the fix of {inert(last.rule, 40)}" if len(found.fixes) == 1 else f"these {len(found.fixes)} fixes"
    title = f"With {these} the step takes {format_ns(last.step_ns)} instead of {format_ns(found.now_ns)}."
    rows: list[tuple[Cell, ...]] = [("Now", "", _bar("Now", found.now_ns, found), Value(found.now_ns, "ns"), "")]
    for number, fix in enumerate(found.fixes, start=1):
        label = inert(f"After {fix.rule}" if number == 1 else f"and {fix.rule}", 40)
        bar, time = _bar(label, fix.step_ns, found), Value(fix.step_ns, "ns")
        rows.append((label, inert(fix.title, _TITLE_LIMIT), bar, time, Value(fix.saving, "ratio")))
    if found.floor_ns is not None:
        bar, time = _bar("Floor", found.floor_ns, found), Value(found.floor_ns, "ns")
        rows.append(("Floor", "no fix named here gets below this", bar, time, ""))
    caption = f"Replayed together, never added. {_basis(found)}"
    table = Table(
        caption, ("Step", "Fix", "Length", "Time", "Saved so far"), tuple(rows), 3, title="The step after each fix"
    )
    return (Text.of(as_judged(title, report.steps.found_by)), table)


def _bar(label: str, step_ns: float, found: Waterfall) -> Bar:
    ratio = min(max(step_ns / found.now_ns, 0.0), 1.0) if found.now_ns else 0.0
    return Bar(label, (Segment("compute", label, ratio, Value(step_ns, "ns")),))


def _basis(found: Waterfall) -> str:
    replay = found.replay
    which = plural(replay.steps, "traced step") if replay.steps == replay.of else f"{replay.steps} of {replay.of} steps"
    return f"n {which}; the unchanged replay is within {format_ratio(replay.worst_step_ratio)}."


def replay_facts(report: Report) -> tuple[Fact, ...]:
    """For the trust section: whether savings are told from a replay; empty where there was nothing to replay."""
    found = report.waterfall
    if found is None:
        return ()
    if found.replay.refused:
        refused = inert(found.replay.refused, SENTENCE_LIMIT)
        return (Fact("Replay", "not used", f"{refused}: savings are bounds and formulas"),)
    return (Fact("Replay", "used for savings", _basis(found)),)
