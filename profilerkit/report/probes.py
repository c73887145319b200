"""What probes in the run measured, in words: beside a finding, and each by itself."""

from profilerkit.model.finding import Finding
from profilerkit.model.probe import Agreement, Probed
from profilerkit.model.probe_names import PROBE_WORDS
from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Fact, Facts, Text
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.wording import plural, saving_range
from profilerkit.units import format_ns, format_ratio, format_ratio_range

_AGREEMENTS: dict[Agreement, str] = {
    "agrees": "",
    "below": "This contradicts the prediction: the run itself gained less, so the saving is what was measured.",
    "above": "This is the most that all changes of this kind can save together; this one is predicted to save less.",
    "other": "The fix proposes other values, so this does not check its prediction.",
    "unlike": "The run's steps took a different time than the judged ones, so this does not check the prediction.",
}
#: Of a probe that made the very change that the fix proposes.
_BETTER = "The run itself gained more than predicted, so the saving is what was measured."
_NOTHING = "This contradicts the prediction: the run itself gained next to nothing, so no fix is proposed."


def probed_words(finding: Finding) -> str:
    """The probe beside the prediction; empty without one."""
    probe = finding.probed
    if probe is None:
        return ""
    if probe.share is None:
        return f"Not probed: {inert(probe.reason, SENTENCE_LIMIT)}."
    predicted = f"predicted {saving_range(finding.prediction)}" if finding.prediction else "no saving predicted"
    agreement = _AGREEMENTS[probe.agreement] if probe.agreement else ""
    if finding.predicted is not None:
        agreement = _NOTHING if finding.saving is None else _BETTER if probe.agreement == "above" else agreement
    return " ".join(piece for piece in (f"{_gain(probe)}, {predicted}. {_how(probe)}.", agreement) if piece)


def probe_blocks(report: Report) -> tuple[Block, ...]:
    """Every probe that was asked for, with its result or why there is none."""
    facts = tuple(
        Fact(
            f"{probe.name}: {inert(probe.change) or PROBE_WORDS[probe.name]}",
            _gain(probe) if probe.share is not None else "not measured",
            _note(probe),
        )
        for probe in report.probes
    )
    caption = _caption(report)
    return (Facts(facts), *((Text.of(caption, style="note"),) if caption else ())) if facts else ()


def _caption(report: Report) -> str:
    """What is to be known of them; empty without any."""
    steps = sum(
        probe.last_step - probe.first_step + 1
        for probe in report.probes
        if probe.first_step is not None and probe.last_step is not None
    )
    if not steps:
        return ""
    return (
        f"Probes put {plural(steps, 'step')} into the run and then put its state back. The rest of the report "
        "excludes them. Your loop's own counters, such as a step number or a mean loss, include them."
    )


def _gain(probe: Probed) -> str:
    """``22 % measured (20–24 %)``; of a change that takes time ``76 % longer measured (69–84 %)``."""
    share, low, high = probe.share or 0.0, probe.low or 0.0, probe.high or 0.0
    if low < 0 < high:
        return f"no clear difference measured ({format_ratio(-low)} longer to {format_ratio(high)} shorter)"
    if high <= 0 and share < 0:
        return f"{format_ratio(-share)} longer measured ({format_ratio_range(-high, -low)})"
    return f"{format_ratio(share)} measured ({format_ratio_range(low, high)})"


def _how(probe: Probed) -> str:
    return f"Probe {probe.name}, {inert(probe.change)}, in {_note(probe)}"


def _note(probe: Probed) -> str:
    if probe.share is None:
        return inert(probe.reason, SENTENCE_LIMIT)
    said = plural(probe.steps, "step")
    if probe.without_ns is not None and probe.probed_ns is not None:
        is_own = probe.without_ns == probe.step_ns
        said += "" if is_own else " on a batch at hand"
        said += f", {format_ns(probe.without_ns)} → {format_ns(probe.probed_ns)}"
        said += "" if is_own else f", as a share of the run's own step of {format_ns(probe.step_ns or 0)}"
    return f"{said}; {inert(probe.reason, SENTENCE_LIMIT)}" if probe.reason else said
