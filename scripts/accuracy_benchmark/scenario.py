"""What a scenario is: a training program with a known fault, the fixes that are really applied, and the label."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from accuracy_benchmark.training import Job, Training

#: The words of a verdict, without the package that states it: the peers' environments do not have it.
HEALTHY = ("balanced", "compute-bound")

Build = Callable[[Job], Training]


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that is really made, so that what it saves is known.

    Attributes:
        what: in words, for the report.
        rules: codes of the rules whose fix this is; the best finding of any of them is the prediction.
        build: the program with the change.
        setting: that ``profilerkit try`` can change to the same end; empty where none is.
        revalued: the same fix with another value of the setting; ``None`` where it has only one.
    """

    what: str
    rules: tuple[str, ...]
    build: Build
    setting: str = ""
    revalued: Callable[[Any], "Fix"] | None = None

    @property
    def is_switch(self) -> bool:
        """Whether it is the change of a setting, and nothing more."""
        return bool(self.setting and self.rules)


def changed(
    setting: str, now: int, then: int, rules: tuple[str, ...], build: Callable[[int], Build], what: str = "{} {} → {}"
) -> Fix:
    """Another value of a setting: ``then``, unless another one is proposed. Part of a larger fix if it has no rules."""

    def revalued(value: int) -> Fix:
        return Fix(what.format(setting, now, value), rules, build(value), setting, revalued)

    return revalued(then)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training program with a fault of known kind.

    Attributes:
        code: names it on the command line and in the JSON.
        what: the injected cause, in words.
        family: of the true cause: healthy, input, memory, communication, compute, overhead or mixed.
        bounds: verdicts that are right; for ``mixed`` all of them must be named, as verdict or contender.
        bad: the program.
        details: sub-causes that are right; empty where any is.
        rules: for the leaf to be right one of these must have fired; empty where none has to.
        fixes: what is really applied; none where nothing is to gain.
        steps: of the recorded run.
        block: steps that are measured in each block of the truth; a multiple of the fault's period.
        warm: steps before them, which are not.
        ranks: processes that train one model.
        rank: the one that is to blame; ``None`` where none is.
        fills_host: the fault itself makes processes wait for a core, so that such waiting tells nothing about others.
    """

    code: str
    what: str
    family: str
    bounds: tuple[str, ...]
    bad: Build
    details: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    steps: int = 60
    block: int = 15
    warm: int = 5
    ranks: int = 1
    rank: int | None = None
    fills_host: bool = False

    def as_proposed(self, values: Mapping[str, Any]) -> "Scenario":
        """With the proposed value of each setting in its fixes; with their own where none is proposed."""
        fixes = (
            fix.revalued(values[fix.setting]) if fix.revalued and fix.setting in values else fix for fix in self.fixes
        )
        return replace(self, fixes=tuple(fixes))
