"""Hold a report, or a comparison, against what is true of the recordings that it is of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from profilerkit import analyze, diff
from profilerkit.errors import ProfilerkitError
from profilerkit.model.finding import in_order
from profilerkit.model.report import Report

#: A step may differ by this ratio from how often the device completes one, and so may a change of it (a choice).
STEP_TOLERANCE_RATIO = 0.03
#: True steps are written to a tenth of a millisecond.
STEP_ROUNDING_MS = 0.05
#: A predicted saving may lie outside the measured range by this ratio of the step (a choice).
SAVING_TOLERANCE_RATIO = 0.05
#: The sub-cause that a finding must name, by set.
FINDINGS = {"tinylm_04": "precision", "nsys_fp32_attention": "precision"}
#: Judgements of a comparison that agree with the truth of a pair.
JUDGEMENTS = {
    "no change": ("no real change",),
    "no change that can be told": ("no real change",),
    "slower, or not comparable by batch": ("slower", "not comparable"),
    "faster": ("faster",),
}

What = Literal["verdict", "step", "late rank", "ranks", "saving", "finding", "judgement", "change"]
NOTHING = "nothing"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One claim about a set or a pair beside the truth; both as text, and as numbers where they are numbers.

    Attributes:
        name: the set, or ``before → after``.
        what: which claim.
        truth: the value that is right.
        said: what the report says.
        passed: the two agree.
        predicted: number said, in the unit of the text's; ``None`` where nothing was said, or it is no number.
        measured: lowest and highest true number; ``None`` likewise.
    """

    name: str
    what: What
    truth: str
    said: str
    passed: bool
    predicted: float | None = None
    measured: tuple[float, float] | None = None


def checks_of_set(name: str, entry: dict[str, Any], directory: Path) -> list[Check]:
    """Analyze the files of a set; its claims beside the truth."""
    try:
        report = analyze(*(directory / file["file"] for file in entry["files"]))
    except ProfilerkitError as error:
        return [Check(name=name, what="verdict", truth=_allowed(entry), said=f"error: {error.cause}", passed=False)]
    return [*_claims(name, entry, report)]


def _claims(name: str, entry: dict[str, Any], report: Report) -> Iterator[Check]:
    verdict, times = report.verdict, report.step_times
    one_of, never = entry["verdict_one_of"], entry["verdict_never"]
    yield Check(
        name=name,
        what="verdict",
        truth=_allowed(entry),
        said=f"{verdict.bound} {verdict.detail}".strip(),
        passed=verdict.bound not in never and (one_of is None or verdict.bound in one_of),
    )
    if (true_ms := entry.get("device_step_ms")) is not None:
        said_ms = times.mean / 1e6 if times else None
        slack_ms = STEP_TOLERANCE_RATIO * true_ms + STEP_ROUNDING_MS
        yield _number(name, "step", said_ms, (true_ms, true_ms), (true_ms - slack_ms, true_ms + slack_ms), "{:.2f} ms")
    if "late_rank" in entry:
        late = verdict.rank if verdict.rank is not None else _late_rank(report)
        yield _same(name, "late rank", late, entry["late_rank"])
    if len(entry["files"]) > 1 or "ranks" in entry:
        yield _same(name, "ranks", len(report.ranks), entry.get("ranks", len(entry["files"])))
    if "saving" in entry:
        measured = (entry["saving"][0], entry["saving"][1])
        allowed = (measured[0] - SAVING_TOLERANCE_RATIO, measured[1] + SAVING_TOLERANCE_RATIO)
        expected = verdict.saving.expected if verdict.saving else None
        yield _number(name, "saving", expected, measured, allowed, "{:.0%}")
    if name in FINDINGS:
        said = [f"{outcome.rule} {finding.detail}".strip() for outcome, finding in in_order(report.outcomes)]
        passed = any(finding.detail == FINDINGS[name] for _, finding in in_order(report.outcomes))
        text = ", ".join(said) or NOTHING
        yield Check(name=name, what="finding", truth=FINDINGS[name], said=text, passed=passed)


def checks_of_pair(entry: dict[str, Any], sets: dict[str, Any], directory: Path) -> list[Check]:
    """Compare the two sets of a pair; what is said beside what really changed."""
    name = f"{entry['before']} → {entry['after']}"
    before, after = (directory / sets[entry[side]]["files"][0]["file"] for side in ("before", "after"))
    try:
        found = diff(before, after)
    except ProfilerkitError as error:
        return [Check(name=name, what="judgement", truth=entry["diff"], said=f"error: {error.cause}", passed=False)]
    true = entry["change_of_step"]
    said = found.step.mean.expected if found.step else None
    slack = STEP_TOLERANCE_RATIO * (1 + true)
    return [
        Check(
            name=name,
            what="judgement",
            truth=entry["diff"],
            said=found.verdict,
            passed=found.verdict in JUDGEMENTS[entry["diff"]],
        ),
        _number(name, "change", said, (true, true), (true - slack, true + slack), "{:+.1%}"),
    ]


def _allowed(entry: dict[str, Any]) -> str:
    if entry["verdict_one_of"] is None:
        return f"not {' or '.join(entry['verdict_never'])}"
    return " or ".join(entry["verdict_one_of"])


def _late_rank(report: Report) -> int | None:
    """The rank of the largest finding about a late rank."""
    return next((finding.rank for outcome, finding in in_order(report.outcomes) if outcome.name == "late_rank"), None)


def _same(name: str, what: What, said: int | None, true: int) -> Check:
    text = NOTHING if said is None else str(said)
    return Check(name=name, what=what, truth=str(true), said=text, passed=said == true)


def _number(
    name: str, what: What, said: float | None, measured: tuple[float, float], allowed: tuple[float, float], form: str
) -> Check:
    """A number beside the measured range; it passes inside the allowed one."""
    low, high = (form.format(value) for value in measured)
    return Check(
        name=name,
        what=what,
        truth=low if low == high else f"{low} to {high}",
        said=NOTHING if said is None else form.format(said),
        passed=said is not None and allowed[0] <= said <= allowed[1],
        predicted=said,
        measured=measured,
    )
