"""Recordings with a single step, or none: how long their one span lasts on each side, without an interval.

One span of each side does not show what differs between two spans of one program. What differs between two runs of one
program is assumed, as for steps (``UNSEEN_RATIO``): a smaller difference is no real change, a larger one is only told.
"""

import math
from collections.abc import Iterator, Sequence

from profilerkit.compare.bootstrap import Z99
from profilerkit.compare.host import judged_rank
from profilerkit.compare.steps import UNSEEN_RATIO
from profilerkit.model.diff import Judgement, SpanChange, SpanOf
from profilerkit.model.report import Report
from profilerkit.model.step import WHOLE_TRACE, DeviceWindow
from profilerkit.units import format_change, format_ns, format_ratio

#: What two runs of one program may differ by in any span, as a ratio: the smallest difference that is told as one.
VISIBLE_RATIO = math.expm1(Z99 * math.sqrt(2) * UNSEEN_RATIO)
_WORDS: dict[SpanOf, str] = {
    "step": "the one step",
    "trace": "the whole trace",
    "device": "the device's whole span",
    "stretch": "its kernels up to the first pause",
}


def span_changes(before: Report, after: Report) -> tuple[SpanChange, ...]:
    """The spans that both sides have one of: the step, else the whole trace and what its device did.

    Empty unless both sides have one judged step, found in the same way.
    """
    steps = before.steps, after.steps
    if any(side.steady != 1 or side.time_ns is None for side in steps) or steps[0].found_by != steps[1].found_by:
        return ()
    return tuple(_spans(before, after))


def _spans(before: Report, after: Report) -> Iterator[SpanChange]:
    windows = _window(before), _window(after)
    if before.steps.found_by == WHOLE_TRACE and windows[0] is not None and windows[1] is not None:
        yield from _change("device", windows[0].window_ns, windows[1].window_ns)
        yield from _change("stretch", windows[0].stretch_ns, windows[1].stretch_ns)
    else:
        kind: SpanOf = "trace" if before.steps.found_by == WHOLE_TRACE else "step"
        yield from _change(kind, *(side.step_times.mean if side.step_times else None for side in (before, after)))


def _window(report: Report) -> DeviceWindow | None:
    judged = judged_rank(report)
    return next((rank.device_window for rank in report.ranks if rank.rank == judged), None)


def _change(span: SpanOf, before_ns: int | None, after_ns: int | None) -> Iterator[SpanChange]:
    if before_ns and after_ns:
        change = after_ns / before_ns - 1
        seen = abs(math.log(after_ns / before_ns)) > math.log1p(VISIBLE_RATIO)
        yield SpanChange(span=span, before_ns=before_ns, after_ns=after_ns, change=change, is_visible=seen)


def span_headline(verdict: Judgement, spans: Sequence[SpanChange]) -> str:
    """The spans with their numbers in one sentence."""
    told = [
        f"{_WORDS[row.span]} {format_ns(row.before_ns)} → {format_ns(row.after_ns)} ({format_change(row.change)})"
        for row in spans
    ]
    return f"{verdict.capitalize()}: {', '.join(told)}; one of each, so no interval"


def span_notes(spans: Sequence[SpanChange]) -> tuple[str, ...]:
    """What the spans do not say, in whole sentences; empty without any."""
    kinds = {row.span for row in spans}
    return tuple(_notes(kinds)) if kinds else ()


def _notes(kinds: set[SpanOf]) -> Iterator[str]:
    yield (
        "One recording of each does not show how much runs vary: a difference below "
        f"{format_ratio(VISIBLE_RATIO)} may be chance."
    )
    if "step" not in kinds:
        yield "Nothing marks steps in this trace: its length is that of the recording, not of a step."
    if "stretch" in kinds:
        yield (
            "A pause of more than 2 ms between kernels does not mark a step. The work before the first may differ "
            "between the two sides."
        )
