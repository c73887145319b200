"""RU008: a sampled device is idle for seconds at a time, or never fully busy."""

from profilerkit.analysis.memory.history import Rests
from profilerkit.rules.api import Evidence, Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired, revise
from profilerkit.units import format_count, format_long_ns, format_ratio

_CODE = "profilerkit run -- train.py"


class RestingDevice(Rule, frozen=True):
    """Find a device in a sampler's log that is idle for {idle_ratio} of the time between its first and last work.

    Why it costs: You pay for the device while it does nothing.

    Example:
        $ nvidia-smi --query-gpu=utilization.gpu --format=csv -l 1
    Use instead:
        $ profilerkit run -- train.py
    How it is measured: Samples below a quarter of the usual utilisation form idle stretches. Their length and spacing
        are reported. No saving is given: a log has no steps and no cause.
    When it is wrong: Utilisation counts kernels that wait for other ranks. Waits shorter than the sampling interval
        only lower the mean.
    """

    code = "RU008"
    summary = "The device is idle for seconds at a time, or never fully busy"
    reads_logs = True

    idle_ratio: float = 0.10

    def check(self, facts: Facts) -> Result:
        if facts.logs is not None and not facts.logs.alone:
            return NotApplicable("the steps show when the device is idle")
        if facts.mode == "cpu":
            return NotApplicable("no device")
        known = facts.logs.rests if facts.logs is not None else ()
        if not known:
            hint = "nvidia-smi --query-gpu=timestamp,index,utilization.gpu --format=csv -l 1"
            return MissingData("the use of a device was not sampled beside the run, or too seldom", hint)
        most = max(known, key=lambda one: one.idle_ratio)
        if most.idle_ratio < self.idle_ratio:
            return Passed(f"no device is idle for more than {format_ratio(most.idle_ratio)} of the sampled time")
        return _finding(facts, most)


def _finding(facts: Facts, one: Rests) -> Result:
    idle, origin = format_ratio(one.idle_ratio), "the log, from its first work to its last"
    pattern, why = _pattern(one)
    whole = Evidence(f"Idle time of {one.label}", one.idle_ratio, "ratio", "measured", origin, n=one.n)
    more = [
        Evidence(label, value, unit, "derived", origin, n=one.n)
        for label, value, unit in (
            ("Stretches at rest", one.count, "count"),
            ("Length of a stretch, median", *_length(one, one.length)),
            ("From one stretch to the next", *_length(one, one.period)),
        )
        if value
    ]
    return fired(
        facts,
        bound=None,
        title=f"{one.label[:1].upper()}{one.label[1:]} is idle {idle} of the time{pattern}",
        why=why,
        evidence=(revise(whole, behind=("gpu.utilization",)), *more),
        at_most="high",
        fix=Fix(text="Record the run: its steps show waits for data, checkpoints, evaluation and Python.", code=_CODE),
        confirm="The same log of the next run must show fewer or shorter stretches at rest.",
    )


def _pattern(one: Rests) -> tuple[str, str]:
    """Return how the idle time is spread, after the share, and what that means."""
    if one.period is not None:
        why = "What comes at such intervals is a checkpoint, an evaluation, or the end of an epoch"
        return f": for {_words(one, one.length)} every {_words(one, one.period)}", f"{why}: the run waits for it."
    if one.resting_ratio >= one.idle_ratio / 2:
        stretches = "in one stretch" if one.count == 1 else f"in {format_count(one.count)} stretches"
        why = "The device does nothing for so long only while the host does something else, or waits."
        return f", most of it {stretches} of about {_words(one, one.length)}", why
    why = "The device is at work in nearly every sample and never fully busy: it waits within the steps."
    return ", in waits shorter than a sample", why


def _length(one: Rests, samples: int | None) -> tuple[float | None, str]:
    if samples is None or one.sample_ns is None:
        return samples, "count"
    return float(samples * one.sample_ns), "ns"


def _words(one: Rests, samples: int) -> str:
    if one.sample_ns is None:
        return "one sample" if samples == 1 else f"{format_count(samples)} samples"
    return format_long_ns(samples * one.sample_ns)
