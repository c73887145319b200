"""The scores over all rows that a quiet host let us judge, and the goals they are held against."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FAMILIES = ("healthy", "input", "memory", "communication", "compute", "overhead", "mixed")
#: From this true saving on a prediction is missed (a choice: a verdict may name no contender below it).
WORTH = 0.05
#: What a row may be taken for, beside the families.
ABSTAINED = "abstained"


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: what is scored, in which unit, and the closed range it should lie in."""

    name: str
    what: str
    unit: str
    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies in the range."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


GOALS = (
    Goal("family", "family right", "ratio", least=0.95),
    Goal("leaf", "leaf right", "ratio", least=0.85),
    Goal("alarms", "false alarms on healthy runs", "ratio", most=0.05),
    Goal("harm", "advised fixes that do harm", "ratio", most=0.0),
    Goal("error_median", "predicted against measured saving, median", "points", most=4.0),
    Goal("error_p90", "predicted against measured saving, 90th percentile", "points", most=10.0),
    Goal("coverage", "measured savings inside the promised interval", "ratio", least=0.80, most=0.95),
    Goal("found", "best fix is a switch: found and kept by try", "ratio", least=0.90),
    Goal("tried_p90", "measured by try against the stopwatch, 90th percentile", "points", most=3.0),
    Goal("kept_harm", "changes that try keeps and that do harm", "ratio", most=0.0),
    Goal("unsaid", "other numbers that try calls the same", "ratio", most=0.0),
    Goal("false_wins", "healthy runs in which try keeps a change", "ratio", most=0.02),
)
#: A fix that lengthens the step by more than this share of it does harm.
HARM = -0.02


def scores(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every score; ``None`` where no judged row can tell. Skipped rows count nowhere, least of all as passed."""
    judged = [row for row in rows if not row["skipped"]]
    healthy = [row for row in judged if row["family"] == "healthy"]
    fixes = [fix for row in judged for fix in row["fixes"]]
    told = [fix for fix in fixes if fix["predicted"] is not None]
    errors = [100.0 * abs(fix["error"]) for fix in told]
    return {
        "judged": len(judged),
        "skipped": len(rows) - len(judged),
        "family": _share(judged, "family_is_right"),
        "leaf": _share(judged, "leaf_is_right"),
        "macro_f1": macro_f1([(row["family"], taken_for(row)) for row in judged]),
        "alarms": _share(healthy, "alarm"),
        "abstained": _share(judged, "abstained"),
        "predictions": len(told),
        "unpredicted": sum(fix["predicted"] is None and fix["truth"]["low"] >= WORTH for fix in fixes),
        "error_median": statistics.median(errors) if errors else None,
        "error_p90": float(np.percentile(errors, 90)) if errors else None,
        "bias": 100.0 * statistics.fmean(fix["error"] for fix in told) if told else None,
        "coverage": _share(told, "covered"),
        "harm": _share([fix for fix in fixes if fix["advised"]], "harm"),
        "within": within(rows),
        **trying(judged),
    }


def trying(judged: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How ``profilerkit try`` did, held against the stopwatch; rows that it did not run count nowhere."""
    rows = [row for row in judged if row["tried"]]
    healthy = [row for row in rows if row["family"] == "healthy"]
    winning = [fix for row in rows if (fix := winner(row)) is not None]
    tried = [fix for row in rows for fix in row["fixes"] if fix["tried"]]
    kept = [fix for fix in tried if fix["tried"]["kept"]]
    apart = [
        100.0 * abs(fix["tried"]["saving"]["expected"] - fix["truth"]["saving"])
        for fix in tried
        if fix["tried"]["saving"]
    ]
    same = [fix for fix in tried if fix["tried"]["numbers"] == "same"]
    return {
        "switches": len(winning),
        "found": _ratio([bool(fix["tried"] and fix["tried"]["kept"]) for fix in winning]),
        "tried_p90": float(np.percentile(apart, 90)) if apart else None,
        "kept_harm": _ratio([fix["truth"]["saving"] < HARM for fix in kept]),
        "unsaid": _ratio([fix["truth"]["differs"] for fix in same]),
        "false_wins": _ratio([any(one["kept"] for one in row["tried"]["attempts"]) for row in healthy]),
    }


def winner(row: dict[str, Any]) -> dict[str, Any] | None:
    """The fix that saves most and is a switch; ``None`` where no switch is worth having."""
    worth = [fix for fix in row["fixes"] if fix["is_switch"] and fix["truth"]["low"] >= WORTH]
    return max(worth, key=lambda fix: fix["truth"]["saving"], default=None)


def within(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method, what nine of ten predictions were off at most, relative to themselves: what intervals are made with.

    A fix that was applied in several runs is one of ``fixes``, and all that was measured of it counts.

    >>> fix = {"what": "two", "predicted": {"rule": "IN002", "method": "replay", "expected": 0.5}, "error": 0.05}
    >>> within(2 * [{"code": "C03", "skipped": None, "fixes": [fix]}])
    [{'method': 'replay', 'rules': ['IN002'], 'fixes': 1, 'p90': 0.1}]
    """
    found: dict[str, list[tuple[tuple[str, str], str, float]]] = {}
    for row in rows:
        for fix in row["fixes"]:
            said = fix["predicted"]
            if not row["skipped"] and said is not None and said["expected"] > 0:
                off = abs(fix["error"]) / said["expected"]
                found.setdefault(said["method"], []).append(((row["code"], fix["what"]), said["rule"], off))
    return [
        {
            "method": method,
            "rules": sorted({rule for _, rule, _ in told}),
            "fixes": len({fix for fix, _, _ in told}),
            "p90": float(np.percentile([off for _, _, off in told], 90)),
        }
        for method, told in sorted(found.items())
    ]


def taken_for(row: dict[str, Any]) -> str:
    """The family a row was taken for.

    A right verdict of another family (some faults may be told two ways), or one that blames the right kind of cause on
    the wrong rank, counts as what ``family_is_right`` says.
    """
    said: str = row["said"]["family"]
    if row["family_is_right"]:
        return str(row["family"])
    return said if said != row["family"] else ABSTAINED


def checks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every goal whose score was measured."""
    return [
        {**asdict(goal), "measured": found[goal.name], "holds": goal.holds(found[goal.name])}
        for goal in GOALS
        if found[goal.name] is not None
    ]


def confusion(rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Judged rows by true family (rows) and what they were taken for (columns, the last one abstained)."""
    counts = Counter((row["family"], taken_for(row)) for row in rows if not row["skipped"])
    return [[counts[true, said] for said in (*FAMILIES, ABSTAINED)] for true in FAMILIES]


def macro_f1(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Mean over the true families of the harmonic mean of precision and recall.

    >>> macro_f1([("input", "input"), ("input", "overhead"), ("overhead", "overhead")])
    0.6666666666666666
    """
    found = []
    for family in sorted({true for true, _ in pairs}):
        both = sum(true == said == family for true, said in pairs)
        either = sum((true == family) + (said == family) for true, said in pairs)
        found.append(2.0 * both / either)
    return statistics.fmean(found) if found else None


def _share(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    return _ratio([bool(row[name]) for row in rows])


def _ratio(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None
