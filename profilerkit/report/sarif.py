"""Gates and findings as SARIF 2.1.0 (OASIS), which code scanning shows as alerts."""

from collections.abc import Sequence
from typing import Any

import msgspec

from profilerkit.model.finding import Severity
from profilerkit.model.gate import Gate
from profilerkit.report.inert import SENTENCE_LIMIT, inert

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "info": "note"}


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One finding to show: its rule, what the rule claims in general, and what was found."""

    rule: str
    summary: str
    severity: Severity
    message: str


def render(gates: Sequence[Gate], alerts: Sequence[Alert], *, version: str, location: str) -> str:
    """A log with one run: a result for each gate that failed and for each alert.

    Args:
        gates: what was asked and found; those that passed or could not be judged give no result.
        alerts: findings to show.
        version: of profilerkit.
        location: file of the repository at which they are shown.
    """
    failed = [gate for gate in gates if gate.status == "failed"]
    rules = {f"budget/{gate.name}": f"{gate.name} within its limit" for gate in failed}
    rules |= {alert.rule: alert.summary for alert in alerts}
    said = [(f"budget/{gate.name}", "error", f"{gate.reason}. Measured: {gate.measured}.") for gate in failed]
    said += [(alert.rule, _LEVELS[alert.severity], alert.message) for alert in alerts]
    results = [_result(*claim, location) for claim in said]
    driver = {
        "name": "profilerkit",
        "version": version,
        "rules": [
            {"id": rule, "shortDescription": {"text": inert(text, SENTENCE_LIMIT)}} for rule, text in rules.items()
        ],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode("utf-8") + "\n"


def _result(rule: str, level: str, message: str, location: str) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": inert(message, SENTENCE_LIMIT)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}}}],
    }
