"""The overhead report as one offline HTML page: the budgets, every row with its interval, the tools."""

from typing import Any

from machine import words as machine_words
from pages import environment, number

from overhead_benchmark.cases import CLOCKED, LIGHT, SAMPLERS
from overhead_benchmark.method import earlier
from overhead_benchmark.results import case_words


def render(document: dict[str, Any]) -> str:
    """The page, which says so of figures of an earlier method; everything that came from a tool is escaped."""
    made = environment(figure=_figure, percent=_percent, words=case_words, limit=_limit, value=_value)
    return made.get_template("overhead_benchmark/page.html.j2").render(
        document=document,
        earlier=earlier(document),
        headline=_headline(document),
        machine=_machine(document),
        bars=_bars(document["cases"]),
    )


def _figure(figure: dict[str, float] | None, scale: float = 1.0) -> str:
    """``median [low, high]``; ``not measured`` where nothing was."""
    if figure is None:
        return "not measured"
    median, low, high = (number(scale * figure[name]) for name in ("median", "low", "high"))
    return median if low == high else f"{median} [{low}, {high}]"


def _percent(figure: dict[str, float] | None) -> str:
    """A share in percent, to two digits after the point; ``not measured`` where nothing was."""
    if figure is None:
        return "not measured"
    median, low, high = (f"{100 * figure[name]:+.2f}" for name in ("median", "low", "high"))
    return f"{median} [{low}, {high}]"


def _value(check: dict[str, Any]) -> str:
    """The measured value of a budget."""
    figure = {"median": check["measured"], "low": check["low"], "high": check["high"]}
    return f"{_percent(figure)} %" if check["unit"] == "ratio" else f"{_figure(figure)} {_unit(check)}"


def _limit(check: dict[str, Any]) -> str:
    """The limit of a budget."""
    return f"{100 * check['limit']:g} %" if check["unit"] == "ratio" else f"{number(check['limit'])} {_unit(check)}"


def _unit(check: dict[str, Any]) -> str:
    return "B" if check["unit"] == "bytes" else str(check["unit"])


def _bars(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For one computing rank without workers, by step length: the CPU time that tools add, against the largest."""
    one = [case for case in cases if case["step_ms"] and case["ranks"] == 1]
    alone = [case for case in one if not case["workers"] and not case.get("wait_ms")]
    found = []
    for step_ms in sorted({case["step_ms"] for case in alone}):
        first: dict[str, Any] = {}
        for row in (row for case in alone if case["step_ms"] == step_ms for row in case["rows"] if not row["reason"]):
            first.setdefault(row["variant"], row["thread_cpu_ratio"])  # each program has a control of its own
        rows: list[dict[str, Any]] = [
            {"variant": name, "ratio": ratio, "ours": name in (LIGHT, SAMPLERS, CLOCKED)}
            for name, ratio in first.items()
        ]
        largest = max([row["ratio"]["median"] for row in rows], default=0.0) or 1.0
        for row in rows:
            row["width"] = round(100 * max(0.0, row["ratio"]["median"]) / max(largest, 1e-9), 1)
        found.append({"step_ms": step_ms, "rows": rows})
    return found


def _headline(document: dict[str, Any]) -> str:
    """The one sentence: what a step pays, and how many budgets are kept."""
    if document["quick"]:
        return "A quick run: it shows that everything runs, its figures mean nothing"
    told = [check for check in document["checks"] if check.get("is_told", True)]
    budgets = f"{sum(check['holds'] for check in told)} of {len(told)} budgets hold"
    if untold := len(document["checks"]) - len(told):
        budgets += f", {untold} cannot be told here"
    for check in document["checks"]:
        if check["unit"] == "µs":
            return f"Recording every step takes {number(check['measured'])} µs of it; {budgets}"
    return budgets


def _machine(document: dict[str, Any]) -> str:
    loads = [case["load"]["before"] for case in document["cases"]]
    load = f"; load average {min(loads):.1f} to {max(loads):.1f} before the rows" if loads else ""
    return machine_words(document["machine"], load)
