"""Which phase of a training step a range is of, by the words that people and libraries name it with."""

import re
from functools import lru_cache
from typing import Literal

from profilerkit.trace.limits import DISTINCT_TEXTS

Phase = Literal["forward", "loss", "backward", "optimizer", "zero_grad"]

#: Each word that names a phase; a name may hold one phase, the ``loss`` beside it, and words that name none.
_WORDS: dict[str, Phase] = {
    **dict.fromkeys(("forward", "fwd", "fprop"), "forward"),
    **dict.fromkeys(("loss", "criterion"), "loss"),
    **dict.fromkeys(("backward", "bwd", "bprop", "backprop", "backpropagation"), "backward"),
    **dict.fromkeys(("optimizer", "optimiser", "optim", "opt"), "optimizer"),
    "zero": "zero_grad",
}
#: With other words a name is about something else: ``load optimizer``, ``eval forward``, ``on_before_optimizer_step``.
_FILLER = re.compile(
    r"a|and|apply|batch|call|compute|computation|do|grad(?:ient)?s?|inner|iter(?:ation)?|main|micro(?:batch|step)?|model"
    r"|net(?:work)?|of|pass|phase|run|section|steps?|the|torch|train(?:ing)?|update"
)
#: Words of snake_case, of CamelCase, and of plain text.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: What Lightning's profiler writes before the function, and the class that a method is of.
_ORIGIN = re.compile(r"^(?:\[[^\]]*\])*(?:[A-Z]\w*\.)?")
#: No longer name is one of a phase.
_LONGEST = 100


def phase_of(name: str) -> Phase | None:
    """The phase that a range's name says it is of, all its words considered; ``None`` where it says none, or several.

    >>> [phase_of(name) for name in ("## forward ##", "fwd_microstep", "opt.step()", "[pl][profile]Lit.optimizer_step")]
    ['forward', 'forward', 'optimizer', 'optimizer']
    >>> [phase_of(name) for name in ("load optimizer", "forward_backward", "step 5", "adopt", "Backward Pass")]
    [None, None, None, None, 'backward']
    """
    return _known(name) if len(name) <= _LONGEST else None


@lru_cache(maxsize=DISTINCT_TEXTS)  # every module that looks for phases asks of all ranges
def _known(name: str) -> Phase | None:
    return _phase(name) or _phase(_ORIGIN.sub("", name))


def _phase(name: str) -> Phase | None:
    words = {word.lower() for word in _WORD.findall(name)}
    named = {_WORDS[word] for word in words & _WORDS.keys()}
    if not named or not all(_FILLER.fullmatch(word) for word in words - _WORDS.keys()):
        return None
    if "zero_grad" in named:
        return "zero_grad" if named <= {"zero_grad", "optimizer"} and words & {"grad", "grads", "gradients"} else None
    one = named - {"loss"} or named
    return next(iter(one)) if len(one) == 1 else None
