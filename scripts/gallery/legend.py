"""What the colours, the signs and the confidence words of the samples mean, as the index page says it."""

from profilerkit.model.finding import Confidence
from profilerkit.model.step import Family
from profilerkit.report.blocks import Tone
from profilerkit.report.wording import FAMILY_LABELS, SHAPES
from profilerkit.rules.api import STEPS_FOR_HIGH
from profilerkit.rules.runner import HIGH_SAVING, MEDIUM_SAVING
from profilerkit.units import format_ratio

#: Every part of a step is of one family, and has its colour everywhere.
_FAMILIES: dict[Family, str] = {
    "input": "The step waits for data: it is read, prepared, handed over, or copied to the device.",
    "memory": "Kernels that memory's bandwidth limits, the allocator, and what is computed again to save room.",
    "communication": "Collectives that nothing hides, and waiting for another rank.",
    "compute": "Kernels that compute; without a device the operators of the training thread.",
    "overhead": "The host: launching work, Python, syncs, garbage collections, checkpoints, evaluation.",
    "other": "The profiler itself, and what nothing explains.",
}
_SAVES = "The largest finding behind the verdict saves"
_TONES: dict[Tone, str] = {
    "high": f"{_SAVES} {format_ratio(HIGH_SAVING)} of the step or more, weighed by its confidence.",
    "medium": f"{_SAVES} {format_ratio(MEDIUM_SAVING)} or more.",
    "low": f"{_SAVES} less than that.",
    "good": "Nothing is worth changing.",
    "info": "The recording cannot say: the report names what to record.",
}
_TONE_WORDS: dict[Tone, str] = {"high": "red", "medium": "brown", "low": "blue", "good": "green", "info": "grey"}
#: A comparison has signs of its own.
COMPARED = "Of two runs: ▼ the later one is faster, ▲ it is slower, = no real change, ? they cannot be compared."
_CONFIDENCE: dict[Confidence, str] = {
    "high": f"All signals that it takes were measured, over {STEPS_FOR_HIGH} steady steps or more, and none of them is "
    "in doubt.",
    "medium": "One doubt, such as few steps, noise, a drift or other programs on the machine; or an estimate stands in "
    "for a measurement.",
    "low": "Several doubts, a single step, or a damaged recording.",
}


def colours() -> list[tuple[str, str, str]]:
    """CSS class, name and meaning of each colour of a bar."""
    return [(family, FAMILY_LABELS[family], about) for family, about in _FAMILIES.items()]


def signs() -> list[tuple[str, str, str, str]]:
    """CSS class of the tone, sign, colour in a word, and meaning."""
    return [(tone, SHAPES[tone], _TONE_WORDS[tone], about) for tone, about in _TONES.items()]


def confidence() -> list[tuple[str, str]]:
    """Each confidence word and its meaning."""
    return list(_CONFIDENCE.items())
