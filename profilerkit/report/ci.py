"""Gates and findings as CI services read them: annotations of GitHub Actions, JUnit XML, SARIF."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

import msgspec

from profilerkit.model.diff import Gate
from profilerkit.model.finding import Severity
from profilerkit.report.inert import SENTENCE_LIMIT, inert


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One finding to show: its rule, what the rule claims in general, and what was found."""

    rule: str
    summary: str
    severity: Severity
    message: str


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "info": "note"}


#: Gates fail a job, findings alone do not: none of them is an error.
_KINDS: dict[Severity, str] = {"high": "warning", "medium": "warning", "low": "notice", "info": "notice"}


def annotations(gates: Sequence[Gate], alerts: Sequence[Alert]) -> list[str]:
    """One line each: an error for a gate that failed, a warning for one that could not be judged, then the alerts."""
    said = [
        ("error" if gate.status == "failed" else "warning", f"profilerkit {gate.name}", _measured(gate))
        for gate in gates
        if gate.status != "passed"
    ]
    said += [(_KINDS[alert.severity], alert.rule, alert.message) for alert in alerts]
    return [
        f"::{kind} title={_escaped(inert(title)).translate(_IN_TITLE)}::{_escaped(inert(message, SENTENCE_LIMIT))}"
        for kind, title, message in said
    ]


_IN_TITLE = str.maketrans({":": "%3A", ",": "%2C"})  #: a command's title ends at one of these


def _measured(gate: Gate) -> str:
    return f"{gate.reason}. Measured: {gate.measured}."


def _escaped(text: str) -> str:
    """Text that cannot end its command or begin another one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(name: str, gates: Sequence[Gate]) -> str:
    """One test suite for a run or comparison; a gate that could not be judged is a skipped test."""
    failed = sum(gate.status == "failed" for gate in gates)
    skipped = sum(gate.status == "not judged" for gate in gates)
    counts = f'tests="{len(gates)}" failures="{failed}" errors="0" skipped="{skipped}"'
    cases = "".join(_case(name, gate) for gate in gates)
    suite = f'  <testsuite name="profilerkit" {counts}>\n{cases}  </testsuite>\n'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n{suite}</testsuites>\n'


def _case(name: str, gate: Gate) -> str:
    title = quoteattr(inert(f"{gate.name}: {gate.limit}", SENTENCE_LIMIT))
    head = f"    <testcase classname={quoteattr(inert(name) or 'run')} name={title}"
    if gate.status == "passed":
        return f"{head}/>\n"
    said = inert(gate.reason, SENTENCE_LIMIT)
    found = escape(inert(f"measured: {gate.measured}", SENTENCE_LIMIT))
    kind = "failure" if gate.status == "failed" else "skipped"
    return f"{head}>\n      <{kind} message={quoteattr(said)}>{found}</{kind}>\n    </testcase>\n"


def sarif(gates: Sequence[Gate], alerts: Sequence[Alert], *, version: str, location: str) -> str:
    """A log with one run: a result for each gate that failed and for each alert.

    ``version`` is that of profilerkit, ``location`` the file of the repository at which they are shown.
    """
    failed = [gate for gate in gates if gate.status == "failed"]
    rules = {f"budget/{gate.name}": f"{gate.name} within its limit" for gate in failed}
    rules |= {alert.rule: alert.summary for alert in alerts}
    said = [(f"budget/{gate.name}", "error", _measured(gate)) for gate in failed]
    said += [(alert.rule, _LEVELS[alert.severity], alert.message) for alert in alerts]
    place = {"physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}}}
    results = [
        {"ruleId": rule, "level": level, "message": {"text": inert(text, SENTENCE_LIMIT)}, "locations": [place]}
        for rule, level, text in said
    ]
    driver = {
        "name": "profilerkit",
        "version": version,
        "rules": [
            {"id": rule, "shortDescription": {"text": inert(text, SENTENCE_LIMIT)}} for rule, text in rules.items()
        ],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode("utf-8") + "\n"
