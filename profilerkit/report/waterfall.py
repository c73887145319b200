"""What the fixes save together: the figure's bars, its table, and the words about the replay."""

from profilerkit.model.report import Report
from profilerkit.model.step import as_judged
from profilerkit.model.waterfall import Waterfall
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.records import Bar, Fact, Table, WaterfallView
from profilerkit.report.wording import plural
from profilerkit.units import format_ns, format_ratio

_TITLE_LIMIT = 120
NO_WATERFALL = WaterfallView(title="", caption="", table=None, bars=())


def waterfall_view(report: Report) -> WaterfallView:
    """The waterfall in words; empty where no fix was replayed."""
    found = report.waterfall
    if found is None or not found.fixes:
        return NO_WATERFALL
    last = found.fixes[-1]
    # The largest finding may be none that a replay tells.
    these = f"the fix of {inert(last.rule, 40)}" if len(found.fixes) == 1 else f"these {len(found.fixes)} fixes"
    title = f"With {these} the step takes {format_ns(last.step_ns)} instead of {format_ns(found.now_ns)}"
    title = as_judged(title, report.steps.found_by)
    rows = [("Now", "", format_ns(found.now_ns), "", "")]
    bars = [Bar("Now", 1.0)]
    for number, fix in enumerate(found.fixes, start=1):
        label = f"After {fix.rule}" if number == 1 else f"and {fix.rule}"
        cells = (inert(fix.title, _TITLE_LIMIT), format_ns(fix.step_ns), format_ratio(fix.saving))
        rows.append((inert(label, 40), *cells, format_ratio(fix.alone)))
        bars.append(Bar(inert(label, 40), _ratio(fix.step_ns, found)))
    if found.floor_ns is not None:
        rows.append(("Floor", "no fix named here gets below that", format_ns(found.floor_ns), "", ""))
        bars.append(Bar("Floor", _ratio(found.floor_ns, found)))
    columns = ("Step", "Fix", "Time", "Saved so far", "Alone")
    return WaterfallView(
        title=title,
        caption=f"Replayed together, never added; what no replay knows takes its part of the rest. {_basis(found)}",
        table=Table("The step after each fix, and those before it", columns, tuple(rows), 2),
        bars=tuple(bars),
    )


def _ratio(step_ns: float, found: Waterfall) -> float:
    return min(max(step_ns / found.now_ns, 0.0), 1.0) if found.now_ns else 0.0


def _basis(found: Waterfall) -> str:
    replay = found.replay
    which = plural(replay.steps, "traced step") if replay.steps == replay.of else f"{replay.steps} of {replay.of} steps"
    return f"n {which}; unchanged they come out within {format_ratio(replay.worst_step_ratio)}."


def replay_facts(report: Report) -> tuple[Fact, ...]:
    """For the trust section: whether savings are told from a replay; empty where there was nothing to replay."""
    found = report.waterfall
    if found is None:
        return ()
    if found.replay.refused:
        refused = inert(found.replay.refused, SENTENCE_LIMIT)
        return (Fact("Replay", "not used", f"{refused}: savings are bounds and formulas"),)
    return (Fact("Replay", "used for savings", _basis(found)),)
