"""What stands against the headline: damage, and what was set aside."""

from profilerkit.model.finding import Outcome
from profilerkit.model.report import Report
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_count, format_ratio

# Suppressed rules named beside the verdict, and how much of each reason.
_SUPPRESSED_SHOWN = 4
_REASON_LIMIT = 200


def limits_of(report: Report) -> tuple[str, ...]:
    """What stands against the headline, in whole sentences: missing events, suppressed findings."""
    trust = report.trust
    lines: list[str] = []
    if trust.truncated or trust.dropped:
        alone = len(report.run.files) == 1
        what = "A trace is" if not alone else "The file is" if report.run.kind == "trace" else "The trace is"
        if not alone and len(trust.damaged) == 1:
            what = f"The trace of {inert(trust.damaged[0], 60)} is"
        read = f"{plural(trust.events, 'event')} {'was' if trust.events == 1 else 'were'} read"
        lost = f", {format_count(trust.dropped)} {'was' if trust.dropped == 1 else 'were'} dropped"
        lines.append(f"{what} {'cut off' if trust.truncated else 'damaged'}: {read}{lost if trust.dropped else ''}.")
    if trust.another_follows:
        lines.append(
            f"{'The' if len(report.run.files) == 1 else 'A'} file holds another document behind the first: "
            "only the first was read."
        )
    return (*lines, *_suppressed(report))


def _suppressed(report: Report) -> list[str]:
    """What was found and set aside, with the reason that was given, largest expected saving first."""

    def expected(outcome: Outcome) -> float:
        return max((found.saving.expected for found in outcome.suppressed if found.saving), default=0.0)

    def told(outcome: Outcome) -> str:
        saves = f" (saves {format_ratio(expected(outcome))})" if expected(outcome) else ""
        return f"{inert(outcome.rule, 24)}{saves}: {inert(outcome.reason or 'no reason', _REASON_LIMIT).rstrip('.')}."

    aside = sorted((outcome for outcome in report.outcomes if outcome.suppressed), key=expected, reverse=True)
    lines = [f"Suppressed: {told(outcome)}" for outcome in aside[:_SUPPRESSED_SHOWN]]
    left = len(aside) - len(lines)
    return [*lines, *([f"{plural(left, 'more rule')} {'was' if left == 1 else 'were'} suppressed."] if left else [])]
