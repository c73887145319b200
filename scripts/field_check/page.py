"""The checks as one offline HTML page: truth beside what is said, and predicted numbers against measured ones."""

from pathlib import Path
from typing import Any

from markupsafe import Markup
from pages import environment

from profilerkit.report.blocks import Table
from profilerkit.report.html import page_css

_TEMPLATE = Path(__file__).with_name("page.html.j2")
#: How a number of each kind is printed, and what it is off by: a ratio of the measured one, or points.
_NUMBERS = {
    "step": ("Step time", "{:.2f} ms", "{:+.1f} %"),
    "saving": ("Saving, share of the step", "{:.0%}", "{:+.0f} points"),
    "change": ("Change of the step", "{:+.1%}", "{:+.1f} points"),
}


def render(document: dict[str, Any]) -> str:
    """The page of a document of ``scripts/check_field``."""
    checks = document["checks"]
    held = sum(check["passed"] for check in checks)
    return (
        environment()
        .from_string(_TEMPLATE.read_text("utf-8"))
        .render(
            document=document,
            headline=f"{held} of {len(checks)} claims hold",
            kinds=_kinds(checks),
            claims=_claims(checks, document["known_misses"]),
            numbers=[(title, _numbers(checks, what)) for what, (title, _, _) in _NUMBERS.items()],
            programs=_programs(document.get("programs", [])),
            css=Markup(page_css()),
        )
    )


def _kinds(checks: list[dict[str, Any]]) -> Table:
    """How many claims of each kind hold."""
    kinds = list(dict.fromkeys(check["what"] for check in checks))
    rows = []
    for kind in kinds:
        of_kind = [check["passed"] for check in checks if check["what"] == kind]
        rows.append((kind.capitalize(), str(sum(of_kind)), str(len(of_kind))))
    return Table("", ("Claim", "Holds", "Of"), tuple(rows))


def _claims(checks: list[dict[str, Any]], known: list[dict[str, str]]) -> Table:
    """Every claim, those that do not hold first."""
    why = {(miss["name"], miss["what"]): miss["why"] for miss in known}
    rows = []
    for check in sorted(checks, key=lambda check: check["passed"]):
        word = "holds" if check["passed"] else "does not hold"
        if not check["passed"] and (check["name"], check["what"]) in why:
            word += f": {why[check['name'], check['what']]}"
        rows.append((check["name"], check["what"], check["truth"], check["said"], word))
    return Table("", ("Set", "Claim", "Truth", "What is said", "Result"), tuple(rows), text_columns=5)


def _numbers(checks: list[dict[str, Any]], what: str) -> Table:
    """The numbers of a kind beside the nearest measured ones."""
    _, form, off_form = _NUMBERS[what]
    rows = []
    for check in checks:
        if check["what"] != what:
            continue
        off = "not said"
        if check["predicted"] is not None:
            low, high = check["measured"]
            nearest = min(max(check["predicted"], low), high)
            off_by = check["predicted"] - nearest
            off = off_form.format(100 * (off_by / nearest if what == "step" else off_by))
        said = "not said" if check["predicted"] is None else form.format(check["predicted"])
        rows.append((check["name"], said, check["truth"], off.replace("-", "−")))
    return Table("", ("Set", "Predicted", "Measured", "Off by"), tuple(rows))


def _programs(found: list[dict[str, Any]]) -> Table:
    """Every recording of a program whose cause is known."""
    rows = []
    for row in found:
        missed = [word for word, holds in (("verdict", row["family"]), ("cause", row["cause"])) if not holds]
        rows.append(
            (
                row["name"],
                "profile()" if row["way"] == "profile" else "run",
                str(row["busy"]),
                f"{', '.join(missed)} missed" if missed else "right",
                row["said"],
                "yes" if row["machine"] else "no",
                _range(row["saving"] and (row["saving"][0], row["saving"][2])),
                _range(row["measured"]),
            )
        )
    columns = ("Program", "Recorded by", "Busy processes", "Result", "Verdict, first findings", "Machine busy")
    return Table("", (*columns, "Predicted", "Measured"), tuple(rows), text_columns=8)


def _range(found: list[float] | tuple[float, float] | None) -> str:
    if found is None:
        return ""
    low, high = (f"{value:.0%}" for value in found)
    return (low if low == high else f"{low} to {high}").replace("-", "\u2212")
