"""How long the training thread waits for a processor, as evidence: in the judged steps where they are long enough."""

from profilerkit.analysis.facts import Facts
from profilerkit.model.change import revise
from profilerkit.model.finding import Evidence
from profilerkit.rules.rule import sampled_evidence
from profilerkit.units import format_ratio

#: Where the share comes from.
ORIGIN = "run queue of the training thread"
SIGNAL = "host.thread_queue"
#: Judged steps of that long, in seconds, have samples of their own (a choice: a sample is taken every second).
_ENOUGH_S = 5


def queued_evidence(facts: Facts, label: str) -> Evidence | None:
    """The share of the time in which the training thread was ready and had no processor; ``None`` if it is not known.

    A run waits elsewhere than in its steps, too: while it starts, and while it saves.
    """
    series = facts.series(SIGNAL)
    if series is None:
        return None
    judged_s = facts.steps.steady * (facts.mean_step_ns or 0.0) / 1e9
    of_steps = facts.steps.queued_ratio if facts.taken or judged_s >= _ENOUGH_S else None
    found = sampled_evidence(facts, series, label, ORIGIN)
    return found if of_steps is None else revise(found, value=of_steps, source="derived", n=None, low=None, high=None)


def over_all_samples(facts: Facts, evidence: Evidence) -> str:
    """Return what all samples say beside the evidence of the judged steps, a sentence; empty where it is theirs."""
    series = facts.series(SIGNAL)
    if series is None or evidence.behind != (SIGNAL,) or evidence.source != "derived":
        return ""
    return f"In the judged steps; {format_ratio(series.mean)} over all samples. "
