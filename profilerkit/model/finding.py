"""Define what a rule says: evidence, saving, fix, finding and outcome."""

from collections.abc import Iterable
from typing import Literal

import msgspec

Source = Literal["measured", "derived", "estimated"]
#: Best first: a sum may claim only the source of its weakest part.
SOURCES_BY_STRENGTH: tuple[Source, ...] = ("measured", "derived", "estimated")
Confidence = Literal["high", "medium", "low"]
Severity = Literal["high", "medium", "low", "info"]
Status = Literal["fired", "passed", "not_applicable", "missing_data", "error", "suppressed", "off"]
Bound = Literal[
    "input-bound", "memory-bound", "comm-bound", "compute-bound", "overhead-bound", "balanced", "inconclusive"
]
#: ``trial``: the change itself was made at run time, and measured.
Method = Literal["bound", "analytic", "replay", "trial"]

STEP_LENGTHS = "step"  #: in ``Evidence.behind``: the lengths of the steps


class CodeLine(msgspec.Struct, frozen=True):
    """Hold a line of the user's program: end of its path, number, and function. Hostile text."""

    file: str
    line: int
    function: str


class Evidence(msgspec.Struct, frozen=True):
    """Hold one number that backs a claim, and where it comes from.

    Attributes:
        id: ``E1``, ``E2`` … in report order; empty until the runner numbers it.
        unit: ``ns``, ``bytes``, ``ratio``, ``count``, ``per_s``, or a unit printed as it stands.
        origin: the file, event names or setting it was taken from.
        rank: the global rank; ``None`` if it holds for all.
        range_ns: start and end on the trace's clock, to be typed into a timeline viewer.
        behind: what it was computed from, to find its raw events: parts of the step, names of sampled signals, or
            ``step`` for step lengths. Empty where its events cannot be distinguished.
        line: the line of the user's program that the number is about; ``None`` where none is known.
    """

    label: str
    value: float | None
    unit: str
    source: Source
    origin: str
    id: str = ""
    n: int | None = None
    low: float | None = None
    high: float | None = None
    rank: int | None = None
    steps: tuple[int, int] | None = None
    range_ns: tuple[int, int] | None = None
    behind: tuple[str, ...] = ()
    line: CodeLine | None = None


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how much shorter the step gets, each end a ratio of the steady step time (0 to 1).

    Attributes:
        high: a value it should not exceed; where nothing narrowed the interval, the bound.
        calibration: ``uncalibrated``, on how many applied fixes the interval was calibrated, or ``measured by
            try``.
        bound: the largest possible saving, including noise, if ``high`` is below it.
    """

    low: float
    expected: float
    high: float
    method: Method
    calibration: str = "uncalibrated"
    bound: float | None = None

    @property
    def most(self) -> float:
        """Return the largest possible saving."""
        return self.high if self.bound is None else self.bound


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how many more samples per second a fix gives, as a ratio of today's rate: 0.5 means 50 % more.

    It is for fixes that put more into a step without making it shorter. A ``Saving`` is a share of the step's time.
    """

    low: float
    expected: float
    high: float
    method: Method
    calibration: str = "uncalibrated"


class SettingChange(msgspec.Struct, frozen=True):
    """Hold a setting by its name, with the value that it has, or torch's default, and the one that a fix proposes.

    >>> SettingChange("num_workers", 2, 6).text
    'num_workers 2 → 6'

    ``now`` is an empty text where it is not known.
    """

    setting: str
    now: bool | int | float | str
    proposed: bool | int | float | str

    @property
    def text(self) -> str:
        """Return the change as a fix words it."""
        before = f"{self.setting} =" if self.now == "" else f"{self.setting} {self.now} →"
        return f"{before} {self.proposed}"


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what to change: one sentence with the current and proposed value, and code to paste (may be empty).

    ``changes`` are the settings that the fix consists of, as values. A comparison reads whether it is in force from
    those that both reports hold, and a trial makes them at run time. Empty where the fix is in code.
    """

    text: str
    code: str = ""
    changes: tuple[SettingChange, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what a rule claims about this run.

    Attributes:
        bound: the verdict this finding argues for; ``None`` for guards and observations.
        detail: the sub-cause, for example ``prep`` or ``launch``; may be empty.
        saving: ``None`` when the saving is unknown.
        confirm: how to check that the fix worked, or what would refute the claim.
        throughput: of a fix that makes the step do more, not end sooner; ``None`` otherwise.
        overlaps: code of the rule whose finding saves no less, and some or all of the same time: the two do not add up.
            Empty where there is none.
    """

    title: str
    bound: Bound | None
    confidence: Confidence
    why: str
    evidence: tuple[Evidence, ...]
    detail: str = ""
    severity: Severity = "info"
    saving: Saving | None = None
    fix: Fix | None = None
    confirm: str = ""
    rank: int | None = None
    throughput: Throughput | None = None
    overlaps: str = ""

    @property
    def line(self) -> CodeLine | None:
        """Return the first line of the user's program that its evidence names; ``None`` where none is known."""
        return next((one.line for one in self.evidence if one.line is not None), None)

    def __post_init__(self) -> None:
        """Reject a claim without evidence: it must not be possible to build one."""
        if not self.evidence:
            raise ValueError(f"finding without evidence: {self.title}")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how one rule ended. Every rule of the run has exactly one outcome.

    Attributes:
        hint: for ``missing_data``: how to record the missing signal.
        findings: non-empty only when ``fired``.
        suppressed: what a ``suppressed`` rule found: it may name the bound, but its saving and fix are nobody's advice.
            ``reason`` is the user's own.
        page: the rule's documentation, heading to text, of a rule that found something; empty where it has none.
    """

    rule: str
    name: str
    summary: str
    status: Status
    reason: str | None = None
    hint: str | None = None
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Finding, ...] = ()
    page: dict[str, str] = {}


def in_order(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, Finding]]:
    """Return all findings with their outcomes in the order of a report: largest expected saving first."""
    pairs = [(outcome, finding) for outcome in outcomes for finding in outcome.findings]
    return sorted(pairs, key=lambda pair: -(pair[1].saving.expected if pair[1].saving else -1.0))


def with_fixes(outcomes: Iterable[Outcome]) -> list[Finding]:
    """Return the findings that propose a change, of those about the same time the first."""
    taken: set[str] = set()
    found = []
    for outcome, finding in in_order(outcomes):
        if finding.fix is None:
            continue
        if finding.overlaps not in taken:
            found.append(finding)
        taken.add(outcome.rule)
    return found


def require_writable(outcome: Outcome) -> None:
    """Raise ``TypeError`` or ``msgspec.ValidationError`` where a report with it could not be saved and loaded."""
    msgspec.convert(msgspec.to_builtins(outcome), Outcome)
