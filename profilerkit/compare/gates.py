"""Limits on one run (budgets) and on what changed between two: parsed and judged, with the numbers they are set on."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import msgspec

from profilerkit.compare.findings import ORDER
from profilerkit.compare.parts import doubt
from profilerkit.compare.sides import share_of, side_of
from profilerkit.config import SEVERITIES, unknown_word
from profilerkit.errors import UsageError
from profilerkit.model.diff import Diff, Gate, GateStatus, StepChange
from profilerkit.model.finding import Severity, in_order
from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, QUEUE, Family, own_ratio, taken_share
from profilerkit.units import format_bytes, format_change, format_ns, format_ratio

Unit = Literal["ns", "bytes", "ratio", "per_s"]

#: What a unit of a limit stands for, in the unit of the metric.
UNITS: dict[Unit, dict[str, float]] = {
    "ns": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9},
    "ratio": {"%": 0.01, "pt": 0.01},
    "per_s": {"/s": 1.0},
}
_EXAMPLES: dict[Unit, str] = {"ns": "200ms", "bytes": "12GiB", "ratio": "20%", "per_s": "500/s"}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*(\D*)")


class Metric(msgspec.Struct, frozen=True):
    """A number of a report."""

    name: str  #: as it stands in a gate
    unit: Unit  #: of the number
    read: Callable[[Report], float | None]  #: the number; ``None`` where it was not measured
    more_is_better: bool = False  #: which way it may go
    #: Which of several things the number is of in this report; empty where there is but one.
    kind: Callable[[Report], str] = lambda _: ""

    def text(self, value: float | None) -> str:
        """The value for a person."""
        if value is None:
            return "not measured"
        if self.unit == "per_s":
            return f"{value:,.4g}/s"
        return {"ns": format_ns, "bytes": format_bytes, "ratio": format_ratio}[self.unit](value)


def _share_of(name: str) -> Callable[[Report], float | None]:
    def read(report: Report) -> float | None:
        share = share_of(report, name)
        if share is None or name == QUEUE:
            return share
        taken = taken_share(report.breakdown) if name == "other" else 0.0
        return (share - taken) / max(own_ratio(report.breakdown), 1e-9)

    return read


def _step(name: str) -> Callable[[Report], float | None]:
    # Of a quantile as of the mean: how much others took of single steps is not kept in a report.
    def read(report: Report) -> float | None:
        time = getattr(report.step_times, name, None)
        return None if time is None else time * own_ratio(report.breakdown)

    return read


def _busy(report: Report) -> float | None:
    """The least busy device's share: by its events or samples in the judged steps, else by all samples there are."""
    known = [ratio for rank in report.ranks if (ratio := rank.device_busy_ratio) is not None]
    sampled = [series.mean for series in report.run.samples if series.name == "gpu.utilization"]
    return min(known or sampled, default=None)


_METRICS = (
    Metric("step_time", "ns", _step("mean")),
    Metric("step_time_median", "ns", _step("median")),
    Metric("step_time_p90", "ns", _step("p90")),
    Metric("throughput", "per_s", lambda report: side_of(report).samples_per_s, more_is_better=True),
    Metric(
        "peak_memory",
        "bytes",
        lambda report: side_of(report).peak_memory_bytes,
        kind=lambda report: side_of(report).peak_memory_of or "",
    ),
    Metric(
        "busy",
        "ratio",
        _busy,
        more_is_better=True,
        kind=lambda report: "" if any(rank.busy_ratio is not None for rank in report.ranks) else "sampled",
    ),
    *(Metric(family, "ratio", _share_of(family)) for family in get_args(Family)),
    *(Metric(part, "ratio", _share_of(part)) for part in PARTS),
)
METRICS = {metric.name: metric for metric in _METRICS}
SHARES = (*get_args(Family), *PARTS)  #: metrics that are shares of the step
FINDINGS = "findings"  #: the gate on findings: its limit is a severity
NAMED = (*(name for name in METRICS if "." not in name), FINDINGS)  #: metrics that an error message names


def quantity(text: str, units: dict[str, float], *, whole: str, example: str) -> float:
    """A number with one of ``units``; ``whole`` is what the user wrote. Raises ``UsageError`` for anything else.

    >>> quantity("1.5 GiB", UNITS["bytes"], whole="x", example="y") == 1.5 * 2**30
    True
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2].strip() not in units:
        raise UsageError(
            f"{whole!r} has an unreadable limit",
            cause=f"{text.strip()!r} is not a number with one of the units {', '.join(units)}",
            hint=f"write {example}",
        )
    return float(found[1]) * units[found[2].strip()]


#: Metrics of the step time, which noise alone must not fail; of the first two the verdict decides.
_OF_THE_STEP = ("step_time", "throughput", "step_time_median", "step_time_p90")
_BY_THE_VERDICT = _OF_THE_STEP[:2]
#: How much more a quantile of the step varies from run to run than its mean (a choice).
QUANTILE_NOISE = 2.0
_NAMES_SHOWN = 3


class Limit(msgspec.Struct, frozen=True):
    """The most that a metric may change or be: ``amount`` in its unit, or relative to its value before.

    Without a metric it is about findings, of which none may have ``severity`` or a higher one.
    """

    text: str
    metric: Metric | None
    amount: float = 0.0
    is_relative: bool = False
    severity: Severity = "high"


def parse_limit(text: str) -> Limit:
    """``step_time:+5%``, ``input:+3pt``, ``peak_memory:+1GiB``, ``throughput:-5%`` or ``findings:high``.

    A percentage is of the value before; shares of the step, which are percentages themselves, change by points.
    Raises ``UsageError`` for anything else.
    """
    name, colon, change = (piece.strip() for piece in text.partition(":"))
    if not colon:
        raise UsageError(f"{text!r} is not a gate", cause="it has no colon", hint="write a gate such as step_time:+5%")
    if name == FINDINGS:
        return Limit(text, None, severity=_severity(change))
    metric = _metric(name)
    sign = "-" if metric.more_is_better else "+"
    example = f"{name}:{sign}{'3pt' if metric.unit == 'ratio' else '5%'}"
    if change[:1] != sign:
        better = "more" if metric.more_is_better else "less"
        raise UsageError(
            f"{text!r} is not a gate",
            cause=f"{better} of {name} is better, so the gate needs {'a fall' if sign == '-' else 'a rise'}",
            hint=f"write {example}",
        )
    percent = {"%": 0.01}
    is_relative = change.endswith("%") and metric.unit != "ratio"
    known = percent if is_relative else {"pt": 0.01} if metric.unit == "ratio" else UNITS[metric.unit] | percent
    return Limit(text, metric, quantity(change[1:], known, whole=text, example=example), is_relative)


def judge_change(limit: Limit, before: Report, after: Report, diff: Diff) -> Gate:
    """Whether a change between two runs stays within its limit.

    Of step times, the throughput and shares of the step only a change that is real can fail. One beyond the limit that
    may be noise is not judged: it did not pass either.
    """
    if limit.metric is None:
        asked = f"no new or worse finding of severity {limit.severity} or above"
        # A rule that could not look before has not found anything new.
        news = [row for row in diff.findings if row.state in ("new", "worse") and not row.reason]
        return _of_findings(asked, limit, [(row.rule, row.title, row.after_severity) for row in news])
    metric = limit.metric
    first, second = metric.read(before), metric.read(after)
    kinds = metric.kind(before), metric.kind(after)
    shown = f"{metric.text(first)} → {_of(metric.text(second), kinds[1])}"
    asked = f"change of at most {limit.text.partition(':')[2].strip()}"
    if first is None or second is None:
        missing = "before" if first is None else "after"
        return _gate(metric.name, asked, shown, "not judged", f"{metric.name} was not measured {missing}")
    if kinds[0] != kinds[1]:
        shown = f"{_of(metric.text(first), kinds[0])} → {_of(metric.text(second), kinds[1])}"
        return _gate(metric.name, asked, shown, "not judged", f"{metric.name} measures different memory on each side")
    if not first and (limit.is_relative or metric.name in _OF_THE_STEP):
        return _gate(metric.name, asked, shown, "not judged", f"{metric.name} was 0 before")
    change, step = -(second - first) if metric.more_is_better else second - first, diff.step
    if step is None and metric.name in (*_OF_THE_STEP, *SHARES):
        return _gate(metric.name, asked, shown, "not judged", f"not comparable: {'; '.join(diff.obstacles)}")
    if step is not None and metric.name in _BY_THE_VERDICT:
        # The verdict's own estimate: without what other programs took.
        ratio = step.judged.expected
        change = first * (ratio if metric.name == "step_time" else ratio / (1 + ratio))
        own = format_change(second / first - 1)
        judged = format_change(ratio if metric.name == "step_time" else 1 / (1 + ratio) - 1)
        shown += f" ({own})" if own == judged else f" ({own}; judged {judged})"
    if change <= (limit.amount * first if limit.is_relative else limit.amount):
        return _gate(metric.name, asked, shown, "passed")
    if (
        metric.name in _OF_THE_STEP
        and step is not None
        and not _is_real(metric.name, change / first if first else math.inf, diff, step)
    ):
        seen = format_ratio(step.visible_ratio)
        return _gate(metric.name, asked, shown, "not judged", f"it may be noise: a change below {seen} cannot be seen")
    if metric.name in SHARES and step is not None and change <= (least := doubt(first, second, step.visible_ratio)):
        reason = f"it may be noise: a change below {100 * least:.1f} points cannot be seen"
        return _gate(metric.name, asked, shown, "not judged", reason)
    return _gate(metric.name, asked, shown, "failed", f"{metric.name} changed by more than {limit.text.split(':')[1]}")


def _is_real(name: str, ratio: float, diff: Diff, step: StepChange) -> bool:
    """Whether a change for the worse is more than noise: of the mean as the verdict says.

    A quantile is as it was timed: it has to change by more than ``QUANTILE_NOISE`` times what the mean could show, and
    that beyond what the two sides differ in waiting for a processor.
    """
    if name in _BY_THE_VERDICT:
        return diff.verdict == "slower"
    waits = [side.queued_ratio or 0.0 for side in (diff.before, diff.after)]
    return ratio > QUANTILE_NOISE * step.visible_ratio + abs(waits[1] - waits[0]) / max(1 - max(waits), 0.01)


def parse_budget(name: str, value: str) -> Limit:
    """A limit on one run: ``step_time = "200 ms"``, ``input = "20 %"``, ``findings = "high"``.

    It is the most that is allowed; of a metric of which more is better, the least. Raises ``UsageError``.
    """
    whole = f'{name} = "{value}"'
    if name == FINDINGS:
        return Limit(whole, None, severity=_severity(value.strip()))
    metric = _metric(name)
    units = {"%": 0.01} if metric.unit == "ratio" else UNITS[metric.unit]
    example = f'{name} = "{_EXAMPLES[metric.unit]}"'
    return Limit(whole, metric, quantity(value, units, whole=whole, example=example))


def judge_budget(limit: Limit, report: Report) -> Gate:
    """Whether a run stays within a budget."""
    if limit.metric is None:
        asked = f"no finding of severity {limit.severity} or above"
        pairs = in_order(report.outcomes)
        return _of_findings(asked, limit, [(outcome.rule, one.title, one.severity) for outcome, one in pairs])
    metric, value = limit.metric, limit.metric.read(report)
    limited = metric.text(limit.amount)
    asked = f"at {'least' if metric.more_is_better else 'most'} {limited}"
    if value is None:
        return _gate(metric.name, asked, "not measured", "not judged", f"{metric.name} was not measured")
    shown = _of(metric.text(value), metric.kind(report))
    within = value >= limit.amount if metric.more_is_better else value <= limit.amount
    if within:
        return _gate(metric.name, asked, shown, "passed")
    over = f" ({format_change(value / limit.amount - 1)})" if metric.unit != "ratio" and limit.amount else ""
    return _gate(metric.name, asked, shown, "failed", f"{metric.name} is {shown}; the limit is {limited}{over}")


def _of(value: str, kind: str) -> str:
    return f"{value} ({kind})" if kind else value


def _gate(name: str, limit: str, measured: str, status: GateStatus, reason: str = "") -> Gate:
    return Gate(name=name, limit=limit, measured=measured, status=status, reason=reason)


def _metric(name: str) -> Metric:
    if name not in METRICS:
        raise unknown_word(
            name, NAMED, what="metric", hint="a part of the step has a metric, too, for example input.prep"
        )
    return METRICS[name]


def _severity(word: str) -> Severity:
    for severity in ORDER:
        if severity == word and word in SEVERITIES:
            return severity
    raise unknown_word(word, SEVERITIES, what="severity", hint="write findings:high")


def _of_findings(asked: str, limit: Limit, known: Sequence[tuple[str, str, Severity | None]]) -> Gate:
    least = ORDER.index(limit.severity)
    found = [f"{rule} {title}" for rule, title, severity in known if severity and ORDER.index(severity) >= least]
    if not found:
        return _gate(FINDINGS, asked, "none", "passed")
    left = [f"{len(found) - _NAMES_SHOWN} more"] if len(found) > _NAMES_SHOWN else []
    return _gate(FINDINGS, asked, f"{len(found)}", "failed", "; ".join([*found[:_NAMES_SHOWN], *left]))
