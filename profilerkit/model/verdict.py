"""Define the verdict: what bounds the run, how sure that is, why not the others, and what the fixes save together."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Bound, Confidence, Saving
from profilerkit.model.step import Family

RECORD = "profilerkit run -- train.py"  #: the command that records a program of which only files or logs are here
#: The command that shows more than a first recording does: three times the default of steps, and Python's functions.
RECORD_MORE = "profilerkit run --trace-steps 30 --with-stack -- train.py"

#: The family of parts each bound is about; ``balanced`` and ``inconclusive`` are about none.
BOUND_FAMILY: dict[Bound, Family] = {
    "input-bound": "input",
    "memory-bound": "memory",
    "comm-bound": "communication",
    "overhead-bound": "overhead",
    "compute-bound": "compute",
}

#: The bound that is about each of these families.
FAMILY_BOUND: dict[Family, Bound] = {family: bound for bound, family in BOUND_FAMILY.items()}

#: How the codes of the rules begin that look for each bound.
RULE_LETTERS: dict[Bound, str] = {
    "input-bound": "IN",
    "memory-bound": "ME",
    "comm-bound": "CO",
    "overhead-bound": "OV",
    "compute-bound": "CP",
}


class RuledOut(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a bound that was not chosen, and why.

    Attributes:
        share: its share of the steady step; ``None`` when this recording does not measure it.
        state: a bound that was not measured is not ruled out.
    """

    bound: Bound
    share: float | None
    saving: float | None
    reason: str
    state: Literal["ruled out", "not measured"] = "ruled out"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what bounds the run.

    Attributes:
        headline: one sentence made of numbers, at most 14 words.
        share: share of the winning family in the steady step; ``None`` when inconclusive.
        contenders: every other bound with an expected saving of at least 5 %. ``compute-bound`` is added if the
            recorder slowed the host and kernels take as much of the step as the best fix saves.
        command: the command that records what would; empty where none fits.
        consequence: scope in one line: savings, rules fired and not run, weak data.
    """

    bound: Bound
    confidence: Confidence
    headline: str
    detail: str = ""
    share: float | None = None
    saving: Saving | None = None
    rank: int | None = None
    contenders: tuple[Bound, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    refuted_by: str = ""
    command: str = ""
    consequence: str = ""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Hold how far the replayed steps can be trusted.

    Attributes:
        error_ratio: by how much the unmodified replay misses their time; above 0 where it is longer.
        worst_step_ratio: the same of the step it misses most, without its sign.
        failing: numbers of the steps that it misses by more than is allowed.
        refused: why no saving comes from the replay; empty where some are.
    """

    steps: int
    of: int
    error_ratio: float
    worst_step_ratio: float
    failing: tuple[int, ...] = ()
    refused: str = ""


class AfterFix(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the step once this fix and those before it are applied.

    Attributes:
        title: what it is about: the title of the finding.
        step_ns: mean step then.
        saving: what all fixes up to this one save together, ratio of the step now.
        fair: its part of what all of them save together, the mean over all orders; ``None`` where not computed.
    """

    rule: str
    title: str
    step_ns: float
    saving: float
    alone: float
    fair: float | None = None


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Hold fixes in the order in which each adds most; their savings are replayed together, never added.

    Attributes:
        fixes: at most five; empty where none is worth naming or no replay is to be trusted.
        floor_ns: the step if the device waited for nothing, or after what a fix saves at most, whichever is less.
            ``None`` where not replayed.
        replay: the self-check.
    """

    now_ns: float
    fixes: tuple[AfterFix, ...]
    floor_ns: float | None
    replay: Replay
