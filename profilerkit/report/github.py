"""Gates and findings as workflow commands of GitHub Actions, which shows them as annotations."""

from collections.abc import Iterator, Sequence

from profilerkit.model.finding import Severity
from profilerkit.model.gate import Gate
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.sarif import Alert

#: Gates fail a job, findings alone do not: none of them is an error.
_KINDS: dict[Severity, str] = {"high": "warning", "medium": "warning", "low": "notice", "info": "notice"}


def annotations(gates: Sequence[Gate], alerts: Sequence[Alert]) -> list[str]:
    """One line each: an error for a gate that failed, a warning for one that could not be judged, then the alerts."""
    return list(_lines(gates, alerts))


def _lines(gates: Sequence[Gate], alerts: Sequence[Alert]) -> Iterator[str]:
    for gate in gates:
        if gate.status != "passed":
            kind = "error" if gate.status == "failed" else "warning"
            yield _command(kind, f"profilerkit {gate.name}", f"{gate.reason}. Measured: {gate.measured}.")
    for alert in alerts:
        yield _command(_KINDS[alert.severity], alert.rule, alert.message)


def _command(kind: str, title: str, message: str) -> str:
    """A command whose text cannot end it or begin another one."""
    return f"::{kind} title={_property(title)}::{_escaped(inert(message, SENTENCE_LIMIT))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(inert(text)).replace(":", "%3A").replace(",", "%2C")
