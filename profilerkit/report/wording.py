"""The words of the report: verdicts, savings, sources, counts, and the parts of a step."""

from collections.abc import Iterable, Sequence

from profilerkit.model.finding import SOURCES_BY_STRENGTH, Saving, Severity, Source, Status, Throughput
from profilerkit.model.memory import LiveKind
from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, QUEUE, WHOLE_TRACE, Family, Part, own_ratio
from profilerkit.report.blocks import Bar, Cell, Name, Segment, Tone, Value
from profilerkit.report.inert import NAME_LIMIT, inert
from profilerkit.units import format_count, format_gain, format_long_ns, format_ratio, format_value

FAMILY_LABELS: dict[Family, str] = {
    "input": "Input",
    "memory": "Memory",
    "communication": "Communication",
    "compute": "Compute",
    "overhead": "Host overhead",
    "other": "Other",
}

#: How a step stands to the steady window; also the usual reasons for leaving steps out.
STATE_WORDS = {
    "steady": "steady",
    "warmup": "warm-up",
    "compile": "compile",
    "cut": "cut off",
    "disturbed": "disturbed",
}

DETAIL_WORDS = {
    "fetch": "reading data",
    "prep": "preparing samples",
    "ipc": "joining and handing over batches",
    "h2d": "copying batches to the device",
    "wait": "waiting for batches",
    "bandwidth": "bandwidth",
    "capacity": "capacity",
    "latency": "latency",
    "imbalance": "uneven work",
    "slower": "a slower rank",
    "no-overlap": "no overlap",
    "launch": "issuing work",
    "python": "Python code",
    "sync": "host syncs",
    "gc": "garbage collection",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "compile": "compilation",
    "contention": "contention",
    "autotune": "searches for algorithms",
    "clock": "a throttled clock",
    "grid": "badly filled grids",
    "alignment": "odd matrix sizes",
    "optimizer": "the optimizer",
    "hook": "hooks",
    "rollout": "rollouts",
    "read": "reading values one by one",
    "layout": "layout conversions",
    "padding": "padding",
    "batch": "a small batch",
    "bubble": "the pipeline's idle stages",
    "engine": "copy engines",
    "debug": "debugging checks",
    "growing": "growing memory",
}

#: What a block is, by the lines that asked for it.
KINDS: dict[LiveKind, str] = {
    "parameters": "weights",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
    "other": "other",
    "unseen": "not known",
}

_NO_KINDS = ("", "likely")  #: verdicts' details that are no sub-cause


def kind_words(detail: str) -> str:
    """The sub-cause of a verdict in words; empty where it names none.

    >>> kind_words("prep"), kind_words("math"), kind_words("likely")
    ('preparing samples', 'math', '')
    """
    return "" if detail in _NO_KINDS else DETAIL_WORDS.get(detail, inert(detail, 40))


METHOD_WORDS = {
    "bound": "upper bound",
    "analytic": "analytic model",
    "replay": "replay of the step",
    "trial": "the change itself",
}

SHAPES: dict[Tone, str] = {"high": "▲", "medium": "■", "low": "●", "good": "●", "info": "◇"}

_TONES: dict[Severity, Tone] = {"high": "high", "medium": "medium", "low": "low", "info": "info"}

STATUS_LABELS: dict[Status, str] = {
    "passed": "Passed",
    "not_applicable": "Not applicable",
    "missing_data": "Could not run: data missing",
    "error": "Could not run: the rule failed",
    "suppressed": "Suppressed",
    "off": "Switched off",
}

_STEADY_STEPS = 8  # steps from which on their length is a steady state's even without a verdict
_LONGEST = 4_000  # of a text that no section has clipped
_SMALLEST_SHARE = 0.0005  # a smaller share would be printed as 0.0 %


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "step"), plural(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def listed(items: Sequence[str]) -> str:
    """Items as a person lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(piece for piece in (", ".join(items[:-1]), items[-1] if items else "") if piece)


def share_text(ratio: float) -> str:
    """A share of the step; one that is there but rounds to nothing says so.

    >>> share_text(0.24), share_text(0.0002), share_text(0.0)
    ('24 %', '< 0.1 %', '0 %')
    """
    return "< 0.1 %" if 0.0 < ratio < _SMALLEST_SHARE else format_ratio(ratio)


def weakest(sources: Iterable[Source]) -> Source:
    """The source that a sum of these numbers may claim."""
    return max(sources, key=SOURCES_BY_STRENGTH.index)


def part_label(part: str) -> str:
    """The words for a part; an unknown part keeps its own name."""
    return PARTS[part][1] if part in PARTS else inert(part)


def tone_of(severity: Severity) -> Tone:
    """The tone in which a finding of this severity is printed."""
    return _TONES[severity]


def verdict_tone(report: Report) -> Tone:
    """The tone of the worst finding that argues for the verdict; good where nothing does."""
    verdict = report.verdict
    if verdict.bound == "balanced" or (verdict.bound == "compute-bound" and verdict.saving is None):
        return "good"
    if verdict.bound == "inconclusive":
        return "info"
    severities = {finding.severity for finding in report.findings if finding.bound == verdict.bound}
    return next((tone_of(level) for level in ("high", "medium", "low") if level in severities), "medium")


def is_steady(report: Report) -> bool:
    """Whether the judged steps are a steady state: a few without a verdict, as of a cold start, are not."""
    return report.verdict.bound != "inconclusive" or report.steps.steady >= _STEADY_STEPS


def marks_none(report: Report) -> bool:
    """Whether nothing marks a step, so that the whole recording was judged like one."""
    return report.steps.found_by == WHOLE_TRACE


def judged_steps(report: Report) -> str:
    """How many steps the numbers are about, and whether they are steady: ``48 steady steps``."""
    return plural(report.steps.steady, "steady step" if is_steady(report) else "judged step")


def step_ns(report: Report) -> int | None:
    """Mean steady step of the program, ns, which savings are ratios of; ``None`` without a step.

    What the step waited for processors that other programs held is left out: no fix of the program takes it off.
    """
    return round(report.steps.time_ns.mean * own_ratio(report.breakdown)) if report.steps.time_ns else None


def saving_range(saving: Saving) -> str:
    """The saving as a share of the step: ``48–61 %``, or ``up to 61 %`` where the range is no help."""
    return format_gain(saving.low, saving.high, saving.method)


def throughput_text(gain: Throughput) -> str:
    """The gain in samples per second: ``60–85 % more samples per second``, or ``up to 120 %`` of a wide range."""
    return f"{format_gain(gain.low, gain.high, gain.method)} more samples per second"


def number_text(number: float | None, unit: str) -> str:
    """Return a number with its unit; ``None`` is not measured."""
    if unit == "ratio" and number is not None:
        return share_text(number)
    return format_long_ns(number or 0.0) if unit == "long_ns" else format_value(number, unit)


def value_text(value: Value) -> str:
    """A value as it is printed, with a no-break space before its unit."""
    if value.number is None:
        return "not measured"
    return number_text(value.number, value.unit).replace(" ", "\u00a0")


def segment_text(segment: Segment) -> str:
    """A piece of a bar by its name and share, and one beside the whole by its time."""
    return f"{segment.label} {value_text(segment.time) if segment.beside else share_text(segment.ratio)}"


def cell_text(cell: Cell, limit: int = NAME_LIMIT) -> str:
    """A cell of a table, or a piece of a paragraph, as one line of plain text."""
    if isinstance(cell, Value):
        return value_text(cell)
    if isinstance(cell, Name):
        return inert(cell.text, limit)
    if isinstance(cell, Bar):
        return ", ".join(map(segment_text, cell.segments))
    # The blanks at its ends stand between it and its neighbours.
    return f"{cell[:1] if cell[:1] == ' ' else ''}{inert(cell, _LONGEST)}{' ' if cell[-1:] == ' ' else ''}"


#: Of a cell without a value: nobody recorded it, or it cannot be derived.
NOT_RECORDED, NOT_KNOWN = "not recorded", "not known"


def known_columns(rows: Sequence[dict[str, Cell]]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Columns and rows of a table, without the columns of which nothing is known in any row; at least one row."""
    names = tuple(name for name in rows[0] if any(row[name] not in (NOT_RECORDED, NOT_KNOWN) for row in rows))
    return names, tuple(tuple(row[name] for name in names) for row in rows)


TAKEN = "Other programs"  #: the piece of a bar that is the machine's
RANK_ROWS = 128  #: a table of more ranks than this is no longer read row by row


def families_of(parts: Sequence[Part]) -> dict[Family, list[Part]]:
    """Parts by family in the report's fixed order, so that a colour keeps its place; empty families are left out."""
    grouped: dict[Family, list[Part]] = {family: [] for family in FAMILY_LABELS}
    for part in parts:
        if part.time_ns > 0:
            grouped[part.family].append(part)
    return {family: sorted(own, key=lambda part: -part.time_ns) for family, own in grouped.items() if own}


def own_share(part: Part, parts: Sequence[Part]) -> float | None:
    """Share of the step that verdict and savings are about; ``None`` for the time that other programs took of it."""
    return None if part.part == QUEUE else part.share / max(own_ratio(parts), part.share, 1e-9)


def bar_of(parts: Sequence[Part], label: str = "Shares of the step", caption: str = "") -> Bar:
    """One segment per family, named by its largest part, and beside them the time that other programs took."""
    grouped = families_of([part for part in parts if part.part != QUEUE])
    total_ns = sum(part.time_ns for own in grouped.values() for part in own)
    segments = [
        Segment(
            family=family,
            label=FAMILY_LABELS[family],
            ratio=sum(part.time_ns for part in own) / total_ns,
            time=Value(sum(part.time_ns for part in own), "ns"),
            detail=part_label(own[0].part),
            source=weakest(part.source for part in own),
        )
        for family, own in grouped.items()
    ]
    for part in parts:
        if part.part == QUEUE and part.time_ns > 0:
            time, ratio = Value(part.time_ns, "ns"), part.time_ns / (total_ns or part.time_ns)
            segments.append(Segment(part.family, TAKEN, ratio, time, part_label(QUEUE), part.source, beside=True))
    return Bar(label, tuple(segments), caption)


def judged_rank(report: Report) -> int | None:
    """The rank whose breakdown and steps the report shows; ``None`` where it has no number."""
    own = [rank for rank in report.ranks if len(report.ranks) == 1 or rank.breakdown == report.breakdown]
    return own[0].rank if own else None


def _judged_rank(report: Report) -> str:
    rank, of = judged_rank(report), report.run.world_size
    if len(report.ranks) == 1:
        return "" if rank is None or not of else f"rank {rank} of {of}"
    if rank is not None:
        return f"rank {rank} of {of or len(report.ranks)}"
    return f"{len(report.ranks)} ranks" if report.ranks else ""


def drawn_rank(report: Report) -> str:
    """Whose steps a figure draws, to end a phrase: ``, rank 3 of 8, the judged one``; empty where nobody is named."""
    rank = _judged_rank(report)
    return "".join((f", {rank}" if rank else "", ", the judged one" if rank and len(report.ranks) > 1 else ""))


def bar_caption(report: Report) -> str:
    """What the bar averages over."""
    if not report.breakdown:
        return ""
    scope = _judged_rank(report)
    of = "The recording, in which nothing marks a step" if marks_none(report) else f"Mean of {judged_steps(report)}"
    return f"{of}{', ' + scope if scope else ''}"


def parts_missing(report: Report) -> str:
    """Why there is no bar; empty when there is one."""
    if any(part.time_ns > 0 for part in report.breakdown):
        return ""
    if report.trust.mode == "logs":
        return "Logs have no steps, so they do not show where the time goes."
    if report.trust.mode == "dumps":
        return "Flight recorders show when collectives are issued, not what happens between them."
    if report.steps.time_ns is None and report.steps.count:
        return f"{plural(report.steps.count, 'step')} found, none of them steady, so there is no step time to divide."
    if report.steps.time_ns is None:
        return "No step was found, so there is no step time to divide."
    return "Only the length of each step is known. Record a trace window to see what it is made of."


def one_device(report: Report) -> str:
    """The device name when all ranks share it; then it is said once."""
    names = {rank.device for rank in report.ranks}
    return inert(names.pop() or "", 60) if len(names) == 1 else ""
