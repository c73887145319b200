"""The numbers that gates can be set on, by name: of a report, and what units a limit may have."""

import re
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from profilerkit.compare.shares import share_of
from profilerkit.compare.sides import side_of
from profilerkit.errors import UsageError
from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, Family
from profilerkit.units import format_bytes, format_ns, format_ratio

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
    """A number of a report.

    Attributes:
        name: as it stands in a gate.
        unit: of the number.
        read: the number; ``None`` where it was not measured.
        more_is_better: which way it may go.
        kind: which of several things the number is of in this report; empty where there is but one.
    """

    name: str
    unit: Unit
    read: Callable[[Report], float | None]
    more_is_better: bool = False
    kind: Callable[[Report], str] = lambda _: ""

    def text(self, value: float | None) -> str:
        """The value for a person."""
        if value is None:
            return "not measured"
        if self.unit == "per_s":
            return f"{value:,.4g}/s"
        return {"ns": format_ns, "bytes": format_bytes, "ratio": format_ratio}[self.unit](value)


def _share_of(name: str) -> Callable[[Report], float | None]:
    return lambda report: share_of(report, name)


def _busy(report: Report) -> float | None:
    """The least busy device's share: by its events or samples in the judged steps, else by all samples there are."""
    known = [ratio for rank in report.ranks if (ratio := rank.device_busy_ratio) is not None]
    sampled = [series.mean for series in report.run.samples if series.name == "gpu.utilization"]
    return min(known or sampled, default=None)


_METRICS = (
    Metric("step_time", "ns", lambda report: report.step_times.mean if report.step_times else None),
    Metric("step_time_median", "ns", lambda report: report.step_times.median if report.step_times else None),
    Metric("step_time_p90", "ns", lambda report: report.step_times.p90 if report.step_times else None),
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
#: Metrics that are shares of the step.
SHARES = (*get_args(Family), *PARTS)
#: The gate on findings: its limit is a severity.
FINDINGS = "findings"
#: Metrics that an error message names.
NAMED = (*(name for name in METRICS if "." not in name), FINDINGS)


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


def example_of(metric: Metric) -> str:
    """A limit in the unit of the metric."""
    return _EXAMPLES[metric.unit]
