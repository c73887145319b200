"""The scores over all rows that a quiet host let us judge, and the goals they are held against."""

import itertools
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
)


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
        "order": order(judged),
        "errors": relative_errors(told),
        "within": within(rows),
    }


def relative_errors(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By rules and method, how far predictions are off relative to themselves: what §3.1 of the method calls model_err.

    >>> fix = {"predicted": {"rule": "IN002", "method": "replay", "expected": 0.5}, "error": 0.05}
    >>> relative_errors([fix])
    [{'rules': 'IN', 'method': 'replay', 'fixes': 1, 'rms': 0.1}]
    """
    found: dict[tuple[str, str], list[float]] = {}
    for fix in told:
        said = fix["predicted"]
        if said["expected"] > 0:
            found.setdefault((said["rule"][:2], said["method"]), []).append(fix["error"] / said["expected"])
    return [
        {"rules": rules, "method": method, "fixes": len(errors), "rms": float(np.sqrt(np.mean(np.square(errors))))}
        for (rules, method), errors in sorted(found.items())
    ]


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


def order(rows: Sequence[dict[str, Any]]) -> float | None:
    """Spearman's rank correlation of predicted and true savings of the fixes of a row, mean over rows with several.

    A fix that no finding proposes is predicted to save nothing; one that no rule could propose is left out.
    """
    found = []
    for row in rows:
        fixes = [fix for fix in row["fixes"] if fix["rules"]]
        if len(fixes) > 1:
            predicted = [fix["predicted"]["expected"] if fix["predicted"] else 0.0 for fix in fixes]
            found.append(spearman(predicted, [fix["truth"]["saving"] for fix in fixes]))
    return statistics.fmean(found) if found else None


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, ties shared; 0 where one side is all ties.

    >>> spearman([1, 2, 3], [10, 30, 20])
    0.5
    """
    ranks = [_ranks(values) for values in (first, second)]
    spread = [float(np.std(values)) for values in ranks]
    if not all(spread):
        return 0.0
    return round(
        float(np.mean(np.prod([values - np.mean(values) for values in ranks], axis=0))) / float(np.prod(spread)), 9
    )


def _ranks(values: Sequence[float]) -> Any:
    ordered = sorted(values)
    place = {
        value: statistics.fmean(index for index, _ in group)
        for value, group in ((key, list(found)) for key, found in itertools.groupby(enumerate(ordered), lambda e: e[1]))
    }
    return np.asarray([place[value] for value in values])


def _share(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    return sum(bool(row[name]) for row in rows) / len(rows) if rows else None
