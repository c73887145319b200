"""From pairs of blocks, and turns of steps, to what the report says: medians with their intervals, and budgets."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from overhead_benchmark.cases import CLOCKED, LIGHT, SAMPLERS, Case

#: What the light tier and the samplers may cost.
MOST_US = {
    LIGHT: ("hook time per step", "thread_cpu_us", 15.0),
    CLOCKED: ("time in hooks per step with the device's clock", "hooks_us", 12.0),
}
MOST_RATIO = {5.0: 0.005, 50.0: 0.001}
MOST_GROWTH_BYTES = 5_000_000
MOST_BYTES_PER_STEP = 300.0
#: Steps between two trace windows over which their cost is spread.
SPREAD_STEPS = 1_000
#: Of the bootstrap.
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Check:
    """One budget: what is claimed, where, the measured value with its 95 % interval, and the limit."""

    claim: str
    where: str
    unit: str
    measured: float
    low: float
    high: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the median keeps the limit."""
        return self.measured <= self.limit

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval lies on one side of the limit."""
        return self.high <= self.limit or self.low > self.limit

    @property
    def is_told(self) -> bool:
        """Whether the figure says anything of the limit: it is told more closely than to plus or minus the limit.

        A tenth of a percent of a step cannot be told where two bare steps differ by more than that.
        """
        return self.is_certain or (self.high - self.low) / 2 <= self.limit


def median_interval(values: Sequence[float], scale: float = 1.0) -> dict[str, float]:
    """Median and its 95 % interval, multiplied by ``scale``.

    The interval is from order statistics: as many values lie below the median as heads fall in as many throws.
    """
    found = np.sort(np.asarray(values, dtype=np.float64)) * scale
    middle, reach = (len(found) - 1) / 2, 1.96 * math.sqrt(len(found)) / 2
    low, high = max(math.floor(middle - reach), 0), min(math.ceil(middle + reach), len(found) - 1)
    return {"median": float(np.median(found)), "low": float(found[low]), "high": float(found[high])}


def turns_interval(
    with_tool: Sequence[Sequence[float]], bare: Sequence[Sequence[float]], processes: int = 1
) -> dict[str, float]:
    """How much longer a step is with a tool: the median of all differences within a turn, and its 95 % interval.

    The interval is a bootstrap's over processes, of which each made as many of the turns as the others, one after
    another, and over whole turns of each. It is widened for how few they are.
    """
    ours, usual = np.asarray(with_tool, dtype=np.float64), np.asarray(bare, dtype=np.float64)
    longer = (ours[:, :, None] - usual[:, None, :]).reshape(len(ours), -1)
    parts, order = np.stack(np.split(longer, processes)), np.random.default_rng(0)
    chosen = order.integers(0, processes, (_RESAMPLES, processes, 1))
    turns = order.integers(0, parts.shape[1], (_RESAMPLES, processes, parts.shape[1]))
    again = np.median(parts[chosen, turns].reshape(_RESAMPLES, -1), axis=1)
    low, high = np.quantile(again, (0.025, 0.975))
    middle, wider = float(np.median(longer)), _for_few(processes)
    return {
        "median": middle,
        "low": middle + wider * (float(low) - middle),
        "high": middle + wider * (float(high) - middle),
    }


def _for_few(processes: int) -> float:
    """How many times wider an interval is than that of a bootstrap over so few processes.

    A bootstrap draws from a variance that is (n - 1) / n of the unbiased one, and takes it for known: Student's
    quantile instead of the normal one, by the expansion of Abramowitz and Stegun, 26.7.5, makes up for that. In
    simulations intervals over five held the truth in 87 to 89 of 100 cases without it.

    >>> round(_for_few(5), 2), round(_for_few(20), 2), _for_few(1)
    (1.56, 1.1, 1.0)
    """
    if processes < 2:
        return 1.0
    z, free = 1.96, processes - 1
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return student / z * math.sqrt(processes / free)


def joined(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several processes of one case found, as if one had: turns one after another, and the mean of what is one.

    Args:
        found: by process, as ``program.py`` writes it.
    """
    if len(found) == 1:
        return found[0]
    whole = {**found[0], "layers": statistics.median_low([each["layers"] for each in found])}
    whole["variants"] = {
        name: _joined([each["variants"][name] for each in found]) | {"processes": len(found)}
        for name in found[0]["variants"]
    }
    return whole


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [entry for value in values for entry in value]
    return first if first is None else statistics.fmean(values)


def case_record(case: Case, found: dict[str, Any], load: tuple[float, float]) -> dict[str, Any]:
    """One case of the document; ``load`` is the machine's before and after."""
    variants = found.get("variants", {})
    rows = [_row(name, pair, waits=bool(case.wait_ms)) for name, pair in variants.items()]
    rows += [{"variant": name, "reason": reason} for name, reason in found.get("reasons", {}).items()]
    bare_ns = [value for pair in variants.values() for value in _bare_ns(pair, "wall")]
    windows = found.get("windows")
    return {
        **{name: value for name, value in case.as_json().items() if name not in ("variants", "deep", "traceml")},
        "layers": found.get("layers"),
        "bare_step_ms": statistics.median(bare_ns) / 1e6 if bare_ns else None,
        "load": {"before": load[0], "after": load[1]},
        "rows": rows,
        "windows": _windows(windows) if windows and windows["windows"] else None,
    }


def _row(name: str, pair: dict[str, Any], *, waits: bool) -> dict[str, Any]:
    """One variant. Where the step ``waits`` all is a share of its whole length, of which little is CPU time."""
    added = pair["added"] if "added" in pair else pair["turns_with"]
    row: dict[str, Any] = {"variant": name, "reason": None, "pairs": len(added["wall"])}
    for clock in added:
        row |= _shown(clock, _added_ns(pair, clock), _bare_ns(pair, "wall" if waits else clock))
    hooks = pair.get("hooks")
    row |= _shown(
        "hooks", hooks and _more_ns(hooks, hooks["extra_ns"], pair.get("processes", 1)), _bare_ns(pair, "wall")
    )
    row["enter_ms"] = median_interval(pair["enter_ns"], 1e-6)
    row["leave_ms"] = median_interval(pair["leave_ns"], 1e-6)
    return row


def _shown(name: str, added_ns: dict[str, float] | None, bare_ns: list[float]) -> dict[str, Any]:
    """What is added to a step, in µs and as a ratio of the bare one; ``None`` where it was not measured."""
    if added_ns is None:
        return {f"{name}_us": None, f"{name}_ratio": None}
    bare = statistics.median(bare_ns)
    return {
        f"{name}_us": {key: value / 1e3 for key, value in added_ns.items()},
        f"{name}_ratio": {key: value / bare for key, value in added_ns.items()},
    }


def _added_ns(pair: dict[str, Any], clock: str) -> dict[str, float]:
    """What is added to a step, with its interval."""
    if "added" in pair:
        return median_interval(pair["added"][clock])
    of_clock = {name: pair[name][clock] for name in ("turns_with", "turns_bare")}
    return _more_ns(of_clock, pair["extra_ns"][clock], pair.get("processes", 1))


def _more_ns(turns: dict[str, Any], extra_ns: float, processes: int) -> dict[str, float]:
    """What turns show to be added to a step, and what few steps take longer."""
    figure = turns_interval(turns["turns_with"], turns["turns_bare"], processes)
    return {key: value + extra_ns for key, value in figure.items()}


def _bare_ns(pair: dict[str, Any], clock: str) -> list[float]:
    if "bare" in pair:
        return list(pair["bare"][clock])
    return [value for turn in pair["turns_bare"][clock] for value in turn]


def _windows(found: dict[str, list[float]]) -> dict[str, Any]:
    """A window in ms, the steps inside it against the others, and both spread over many steps."""
    outside_ns = statistics.median(found["outside_ns"])
    inside = [inside / outside for inside, outside in zip(found["inside_ns"], found["outside_ns"], strict=True)]
    return {
        "runs": len(found["windows"]),
        "per_window_ms": median_interval(found["per_window_ns"], 1e-6),
        "inside_ratio": median_interval(inside),
        "spread_steps": SPREAD_STEPS,
        "spread_ratio": median_interval(found["per_window_ns"], 1 / (SPREAD_STEPS * outside_ns)),
    }


def checks(document: dict[str, Any]) -> list[Check]:
    """Every budget that the measured cases can show."""
    found = []
    for case in document["cases"]:
        rows = {row["variant"]: row for row in case["rows"] if not row["reason"]}
        where = case_words(case)
        for name, (claim, figure, most_us) in MOST_US.items():
            if not case["step_ms"] and name in rows and rows[name][figure]:
                found.append(_check(claim, where, "µs", rows[name][figure], most_us))
        limit = MOST_RATIO.get(case["step_ms"])
        for name in (LIGHT, SAMPLERS, CLOCKED):
            if limit is None or name not in rows:
                continue
            for words, figure in (("hooks", "hooks"), ("thread CPU time", "thread_cpu"), ("wall time", "wall")):
                if rows[name].get(f"{figure}_ratio"):
                    found.append(_check(f"{name}, {words}", where, "ratio", rows[name][f"{figure}_ratio"], limit))
    growth = document.get("growth")
    if growth:
        memory = growth["memory"]
        first, last = memory["bytes"]
        words = f"{memory['first_steps']:,} to {memory['steps']:,} steps"
        found.append(_check("memory growth", words, "bytes", _exact(last - first), MOST_GROWTH_BYTES))
        for disk in growth["disk"]:
            for step_ms in (1.0, 5.0, 50.0):
                per_step = disk["bytes_per_step"] + disk["bytes_per_second"] * step_ms / 1e3
                words = f"{step_ms:g} ms steps, {'with' if disk['workers'] else 'without'} workers"
                found.append(_check("run directory per step", words, "bytes", _exact(per_step), MOST_BYTES_PER_STEP))
    return found


def _check(claim: str, where: str, unit: str, figure: dict[str, float], limit: float) -> Check:
    return Check(claim, where, unit, figure["median"], figure["low"], figure["high"], limit)


def _exact(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value}


def case_words(case: dict[str, Any]) -> str:
    """A case in words."""
    step = f"{case['step_ms']:g} ms steps" if case["step_ms"] else "shortest step"
    ranks = f", {case['ranks']} ranks" if case["ranks"] > 1 else ""
    waits = f", {case['wait_ms']:g} ms of them waiting" if case.get("wait_ms") else ""
    return f"{step}{ranks}{', loader workers' if case['workers'] else ''}{waits}"


def merged(earlier: dict[str, Any] | None, document: dict[str, Any]) -> dict[str, Any]:
    """The document with what an earlier one has and it lacks, its cases in the order of the table, and the budgets."""
    cases = {case["key"]: case for case in (earlier or {}).get("cases", ())}
    cases |= {case["key"]: case for case in document["cases"]}
    order = {key: number for number, key in enumerate(document["order"])}
    whole = {**document, "cases": sorted(cases.values(), key=lambda case: order.get(case["key"], len(order)))}
    whole["growth"] = document.get("growth") or (earlier or {}).get("growth")
    del whole["order"]
    whole["checks"] = [
        {**asdict(check), "holds": check.holds, "is_certain": check.is_certain, "is_told": check.is_told}
        for check in checks(whole)
    ]
    return whole
