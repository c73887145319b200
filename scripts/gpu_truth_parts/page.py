"""The checks as one offline HTML page: what passed, what did not, and what nobody has measured."""

from pathlib import Path
from typing import Any

from markupsafe import Markup
from pages import environment

from profilerkit.report.blocks import Table
from profilerkit.report.html import page_css

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_CPU = "CPU"
NOT_YET = "Not run on a GPU yet; these rows are of a CPU run."
NOT_MEASURED = "not measured"
#: The row of a part that did not run.
_NOTHING = {"value": None, "reference": None, "pass": None, "why": ""}


def render(document: dict[str, Any]) -> str:
    """The page of a document of ``scripts/gpu_truth``."""
    parts = document["parts"]
    ran_on = sorted({part["device"] for part in parts if part["device"] not in (None, _CPU)})
    return (
        environment()
        .from_string(_TEMPLATE.read_text("utf-8"))
        .render(
            document=document,
            headline=_headline([check for part in parts for check in part["checks"]]),
            notice=f"Run on {', '.join(ran_on)}." if ran_on else NOT_YET,
            tables=[(part, _where(part), _table(part)) for part in parts],
            css=Markup(page_css()),
        )
    )


def _headline(checks: list[dict[str, Any]]) -> str:
    judged = [check["pass"] for check in checks if check["pass"] is not None]
    return f"{sum(judged)} of {len(judged)} checks pass"


def _where(part: dict[str, Any]) -> str:
    """The device and the versions that the part ran with."""
    if part["device"] is None:
        return NOT_MEASURED
    return f"{part['device']}, {part['versions']}, {part['seconds']:.0f} s" + (", quick" if part["quick"] else "")


def _table(part: dict[str, Any]) -> Table:
    rows = [
        (check["name"], _shown(check["value"]), _shown(check["reference"], ""), _result(check))
        for check in part["checks"]
        or [{"name": part["part"], "value": None, "reference": None, "pass": None, "why": ""}]
    ]
    return Table("", ("Check", "Measured", "Held against", "Result"), tuple(rows), text_columns=4)


def _result(check: dict[str, Any]) -> str:
    word = {True: "passes", False: "fails", None: "noted" if check["value"] is not None else NOT_MEASURED}[
        check["pass"]
    ]
    return f"{word}: {check['why']}" if check["why"] else word


def _shown(value: Any, missing: str = NOT_MEASURED) -> str:
    """A value as text, numbers to four digits."""
    if value is None:
        return missing
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(held)}" for name, held in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
