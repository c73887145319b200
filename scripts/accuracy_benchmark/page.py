"""The accuracy report as one offline HTML page: goals, confusion matrix, scenarios with their savings, other tools."""

from typing import Any

from machine import words as machine_words
from pages import environment

from accuracy_benchmark import peers


def render(document: dict[str, Any]) -> str:
    """The page; everything that came from a report or a tool is escaped."""
    made = environment(
        percent=_percent, signed=_signed, score=_score, goal=_goal, result=_result, short=_short, also=_also
    )
    return made.get_template("accuracy_benchmark/page.html.j2").render(
        document=document,
        headline=_headline(document),
        machine=_machine(document),
        judged=_judged(document),
        others=_others(document),
        tables=_tables(),
        cannot=peers.CANNOT,
    )


def _percent(value: float | None, digits: int = 0) -> str:
    """A share, or that it was not measured."""
    return "not measured" if value is None else f"{100 * value:.{digits}f} %"


def _signed(value: float | None) -> str:
    """A difference of shares in points."""
    return "not measured" if value is None else f"{100 * value:+.1f}"


def _number(value: float, unit: str) -> str:
    return f"{100 * value:.3g} %" if unit == "ratio" else f"{value:.1f} {unit}"


def _score(value: float | None, unit: str = "") -> str:
    """A score with its unit, or that it was not measured."""
    return "not measured" if value is None else _number(value, unit) if unit else f"{value:.2f}"


def _goal(check: dict[str, Any]) -> str:
    """The range of a goal."""
    least, most = (None if check[name] is None else _number(check[name], check["unit"]) for name in ("least", "most"))
    if least and most:
        return f"{least} to {most}"
    return f"≥ {least}" if least else f"≤ {most}"


def _result(row: dict[str, Any]) -> str:
    """How a row went, in a word."""
    if row["skipped"]:
        return "skipped"
    return "right" if row["leaf_is_right"] else "family right" if row["family_is_right"] else "wrong"


def _also(row: dict[str, Any]) -> str:
    """What was tried and is no fix of the scenario, with what came of it."""
    known = [fix["tried"] for fix in row["fixes"]]
    return "; ".join(
        f"{one['what']}: {_percent(one['saving']['expected']) if one['saving'] else one['reason']}"
        f"{', kept' if one['kept'] else ''}"
        for one in (row["tried"] or {"attempts": ()})["attempts"]
        if one not in known
    )


def _short(text: str, most: int = 90) -> str:
    """Text for a cell."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _headline(document: dict[str, Any]) -> str:
    """The one sentence: how many verdicts are right, and how far predicted savings are off."""
    found = document["scores"]
    if document["quick"]:
        return "A quick run: it shows that everything runs, its figures mean nothing"
    if not found["judged"]:
        return "No scenario could be judged: the host was too noisy"
    family = f"{_percent(found['family'])} of {found['judged']} real runs get the right verdict"
    if found["error_median"] is None:
        return family
    return f"{family}; predicted savings miss the measured ones by {found['error_median']:.1f} points in the median"


def _judged(document: dict[str, Any]) -> str:
    """Which code was judged: rows that were measured again may be of a later commit."""
    commits = [row.get("commit") or "not recorded" for row in document["rows"]]
    return f"Commit of the code that was judged: {', '.join(dict.fromkeys(commits))}"


def _machine(document: dict[str, Any]) -> str:
    quiet = [row["host"]["quiet_pressure"] for row in document["rows"]]
    known = [value for value in quiet if value is not None]
    pressure = (
        f"; processes waited for a core {_percent(max(known))} of the time at most between the rows" if known else ""
    )
    return machine_words(document["machine"], pressure)


def _others(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours and the others, in the same terms."""
    found = document["scores"]
    ours = {
        "tool": "profilerkit",
        "asked": found["judged"],
        "read": found["judged"],
        "right": round((found["family"] or 0.0) * found["judged"]),
        "of_all": found["family"],
        "of_read": found["family"],
        "alarms": found["alarms"],
    }
    return [ours, *(entry for entry in document["peers"] if entry["asked"])]


def _tables() -> list[tuple[str, dict[str, str]]]:
    """What each tool's words stand for."""
    return [
        (f"{peers.HTA}, largest part of the temporal breakdown", peers.HTA_FAMILIES),
        (f"{peers.TORCH_TB}, text of a recommendation (none: healthy)", peers.TORCH_TB_FAMILIES),
        (f"{peers.TRACEML}, kind of the primary diagnosis", peers.TRACEML_FAMILIES),
    ]
