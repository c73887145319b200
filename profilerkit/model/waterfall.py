"""What the fixes save together: the step now, after the first of them, after two, and its floor."""

import msgspec


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How far the replayed steps are to be trusted.

    Attributes:
        steps: judged steps that were replayed.
        of: judged steps of the trace.
        error_ratio: by how much the unmodified replay misses their time; above 0 where it is longer.
        worst_step_ratio: the same of the step it misses most, without its sign.
        failing: numbers of the steps that it misses by more than is allowed.
        refused: why no saving is told from the replay; empty where some are.
    """

    steps: int
    of: int
    error_ratio: float
    worst_step_ratio: float
    failing: tuple[int, ...] = ()
    refused: str = ""


class AfterFix(msgspec.Struct, frozen=True, kw_only=True):
    """The step once this fix and those before it are applied.

    Attributes:
        rule: code of the rule that proposes it.
        title: what it is about: the title of the finding.
        step_ns: mean step then.
        saving: what all fixes up to this one save together, ratio of the step now.
        alone: what this one saves by itself.
        fair: its part of what all of them save together, the mean over all orders; ``None`` where not computed.
    """

    rule: str
    title: str
    step_ns: float
    saving: float
    alone: float
    fair: float | None = None


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Fixes in the order in which each adds most; their savings are replayed together, never added.

    Attributes:
        now_ns: mean steady step.
        fixes: at most five; empty where none is worth naming or no replay is to be trusted.
        floor_ns: the step if the device waited for nothing, or after what a fix saves at most, whichever is less.
            ``None`` where not replayed.
        replay: the self-check.
    """

    now_ns: float
    fixes: tuple[AfterFix, ...]
    floor_ns: float | None
    replay: Replay
