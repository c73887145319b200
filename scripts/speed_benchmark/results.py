"""From single runs to what the report says: medians with their spread, paired ratios, growth, and the limits kept."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from speed_benchmark.measure import Cost
from speed_benchmark.tools import ANALYZE, HTA, JSON, PACKED, READER

#: Limits of the whole analysis hold from this many events on; below, start-up dominates.
MANY_EVENTS = 1_000_000
#: Limits of the reader hold from this size on, for the same reason.
LARGE_BYTES = 90_000_000
#: A columns cache is kept if it makes a second analysis this many times faster.
WORTH_A_CACHE = 5
GIGABYTE = 1_000_000_000

Quantity = Callable[[Cost], float]


def wall_s(cost: Cost) -> float:
    """Wall time."""
    return cost.wall_s


def cpu_s(cost: Cost) -> float:
    """CPU time."""
    return cost.cpu_s


def peak_bytes(cost: Cost) -> float:
    """Peak memory."""
    return float(cost.peak_bytes)


@dataclass(frozen=True, slots=True)
class Trace:
    """One generated trace and what was measured on it: runs by tool, in the order of the rounds."""

    megabytes: float
    size_bytes: int
    packed_bytes: int
    events: int
    runs: dict[str, list[Cost]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One limit: what is claimed, on which trace, the measured ratio with its spread, and whether it holds."""

    claim: str
    megabytes: float
    measured: float
    low: float
    high: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the median keeps the limit."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratios(trace: Trace, one: str, other: str, of: Quantity) -> list[float]:
    """One tool's cost over another's, round by round: what disturbs a round disturbs both."""
    pairs = zip(trace.runs.get(one, ()), trace.runs.get(other, ()), strict=False)
    return [of(a) / of(b) for a, b in pairs if of(b)]


def judging_to_reading(trace: Trace) -> list[float]:
    """CPU time of what follows reading, up to the report, over that of reading; nothing where no stage was measured."""
    return [trace.stages["analyze"] / trace.stages["read"]] if trace.stages else []


def checks(traces: Sequence[Trace]) -> list[Check]:
    """Every limit that the measured traces can show."""
    found: list[Check] = []

    def add(claim: str, trace: Trace, values: Sequence[float], limit: float, *, at_least: bool = False) -> None:
        if values:
            got = spread(values)
            found.append(
                Check(claim, trace.megabytes, got["median"], got["low"], got["high"], limit, at_least=at_least)
            )

    for trace in traces:
        own = trace.runs.get(ANALYZE, [])
        if trace.events >= MANY_EVENTS:
            add("analyze, wall time ÷ json.load", trace, ratios(trace, ANALYZE, JSON, wall_s), 0.5)
            add("HTA's load, CPU time ÷ analyze", trace, ratios(trace, HTA, ANALYZE, cpu_s), 15, at_least=True)
            add("analyze, peak memory ÷ file", trace, [peak_bytes(c) / trace.size_bytes for c in own], 1)
            add("analyze .gz, wall time ÷ plain", trace, ratios(trace, PACKED, ANALYZE, wall_s), 1.3)
            add("analysis and rules, CPU time ÷ reading", trace, judging_to_reading(trace), 1)
        if trace.size_bytes >= 0.95 * GIGABYTE:
            add("analyze, peak memory in GB", trace, [peak_bytes(cost) / GIGABYTE for cost in own], 1)
        if trace.size_bytes >= LARGE_BYTES:
            add("json.load, CPU time ÷ reader", trace, ratios(trace, JSON, READER, cpu_s), 4, at_least=True)
            add("json.load, peak memory ÷ reader", trace, ratios(trace, JSON, READER, peak_bytes), 5, at_least=True)
    base = traces[0]
    for trace in traces[1:]:
        pairs = zip(trace.runs.get(ANALYZE, ()), base.runs.get(ANALYZE, ()), strict=False)
        growth = [(a.cpu_s / trace.events) / (b.cpu_s / base.events) for a, b in pairs]
        add(f"analyze, CPU time per event ÷ {base.megabytes:g} MB", trace, growth, 1.15)
    return found


def marginal_us(traces: Sequence[Trace], name: str) -> list[tuple[float, float]]:
    """CPU time of each further event, µs, from one size to the next; start-up is left out. Pairs of (MB, µs)."""
    measured = [trace for trace in traces if trace.runs.get(name)]
    out = []
    for small, large in pairwise(measured):
        more_s = statistics.median(map(cpu_s, large.runs[name])) - statistics.median(map(cpu_s, small.runs[name]))
        out.append((large.megabytes, 1e6 * more_s / (large.events - small.events)))
    return out


def reopening(trace: Trace) -> float | None:
    """How many times faster a second analysis could be at most, if reading the columns again cost nothing."""
    rest = sum(trace.stages.get(name, 0.0) for name in ("import", "analyze", "html"))
    return (rest + trace.stages["read"]) / rest if rest else None


def notes(traces: Sequence[Trace]) -> list[str]:
    """What the figures decide."""
    bounds = [(trace.megabytes, bound) for trace in traces if (bound := reopening(trace)) is not None]
    if not bounds:
        return []
    told = ", ".join(f"{bound:.1f} times at {size:g} MB" for size, bound in bounds)
    return [
        f"Columns cache: if reading cost nothing the second time, a second analysis would be {told} faster in CPU "
        "time; imports, the analysis and the HTML are left. A real cache reads its columns too, so it stays below "
        f"that. It is worth having from {WORTH_A_CACHE} times on."
    ]


def document(traces: Sequence[Trace], about: dict[str, Any]) -> dict[str, Any]:
    """The whole result as JSON."""
    return {
        "schema_version": 1,
        **about,
        "traces": [
            {
                "megabytes": trace.megabytes,
                "size_bytes": trace.size_bytes,
                "packed_bytes": trace.packed_bytes,
                "events": trace.events,
                "stages_cpu_s": trace.stages or None,
                "measurements": [_measurement(trace, name, runs) for name, runs in trace.runs.items()],
            }
            for trace in traces
        ],
        "checks": [{name: getattr(check, name) for name in (*Check.__slots__, "holds")} for check in checks(traces)],
        "marginal_us_per_event": {
            name: [{"megabytes": size, "cpu_us": us} for size, us in marginal_us(traces, name)]
            for name in dict.fromkeys(name for trace in traces for name in trace.runs)
            if marginal_us(traces, name)
        },
        "notes": notes(traces),
    }


def _measurement(trace: Trace, name: str, runs: Sequence[Cost]) -> dict[str, Any]:
    wall = spread([cost.wall_s for cost in runs])
    return {
        "tool": name,
        "rounds": len(runs),
        "wall_s": wall,
        "cpu_s": spread([cost.cpu_s for cost in runs]),
        "peak_bytes": spread([float(cost.peak_bytes) for cost in runs]),
        "events_per_s": trace.events / wall["median"],
        "bytes_per_s": trace.size_bytes / wall["median"],
        "wall_ratio_to_json_load": spread(pairs) if (pairs := ratios(trace, name, JSON, wall_s)) else None,
        "cpu_ratio_to_json_load": spread(pairs) if (pairs := ratios(trace, name, JSON, cpu_s)) else None,
    }
