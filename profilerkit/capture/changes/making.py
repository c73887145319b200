"""Keep what is changed in a program while it runs: what was applied and where, what was refused, how it is undone."""

import functools
import inspect
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import tried
from profilerkit.capture.patches import UNCOUNTED, Patches, uncounted

Line = tuple[str, int, str]
_OWN, _STANDARD = str(Path(__file__).parents[1]), str(Path(os.__file__).parent)
#: A model, an optimizer and its loaders have been used after so many steps.
SETTLED = 3


class Changes:
    """The changes made in this process.

    Attributes:
        patches: replace what is changed; removing them leaves everything as it was.
        applied: setting to the user's lines that made what it changed. Empty for a setting of the whole process.
        refused: setting to the reason.
    """

    def __init__(self) -> None:
        self.patches = Patches()
        self.applied: dict[str, list[Line]] = {}
        self.refused: dict[str, str] = {}
        self._lacks: dict[str, str] = {}
        self._at_start: list[Callable[[], object]] = []
        self._at_step: list[tuple[int, Callable[[], object]]] = []

    def apply(self, work: "Callable[[Changes, dict[str, Any]], None]", wanted: dict[str, tuple[Any, str]]) -> None:
        """Apply settings of one kind: now, or when the program makes what they are about.

        ``wanted`` is setting to value, and to the reason where it turns out to be applied to nothing.
        """
        self._lacks |= {name: lacks for name, (_, lacks) in wanted.items()}
        self.refuse_all(wanted, tried(work, self, {name: value for name, (value, _) in wanted.items()})[1])

    def found(self, name: str, *, once: bool = False) -> None:
        """Note that the setting is applied, by the user's line that is running; ``once`` looks at the first only."""
        if once and name in self.applied:
            return
        lines, line = self.applied.setdefault(name, []), users_line()
        if line is not None and line not in lines:
            lines.append(line)

    def refuse(self, name: str, why: str) -> None:
        """Note why the setting is not applied to something; that counts where it is applied to nothing."""
        self.refused.setdefault(name, why)

    def at_start(self, work: Callable[[], object]) -> None:
        """Do this once more when training begins: the program may have set it back until then."""
        self._at_start.append(work)

    def at_step(self, number: int, work: Callable[[], object]) -> None:
        """Do this once that many steps have ended."""
        self._at_step.append((number, work))

    def started(self) -> None:
        """Training begins."""
        while self._at_start:
            tried(self._at_start.pop(0))

    def stepped(self, steps: int) -> None:
        """That many steps have ended."""
        due = [entry for entry in self._at_step if steps >= entry[0]]
        for entry in due:
            self._at_step.remove(entry)
            tried(entry[1])

    def results(self) -> tuple[dict[str, list[Line]], dict[str, str]]:
        """Return what was applied, and why the other settings were not."""
        refused = {name: self.refused.get(name) or lacks for name, lacks in self._lacks.items()}
        return self.applied, {n: why for n, why in {**self.refused, **refused}.items() if n not in self.applied}

    def attempt(self, name: str, work: "Callable[..., str | None]", *args: Any) -> bool:
        """Whether it was done; refuses where ``work`` returns a reason, or raises."""
        said, why = tried(work, *args)
        self.refuse_all([name], why or said or "")
        return not (why or said)

    def refuse_all(self, values: Iterable[str], why: str) -> None:
        """Refuse these settings, where there is a reason."""
        self.refused |= dict.fromkeys(values if why else (), why)

    def differs(self, name: str, now: object, wanted: object) -> bool:
        """Whether the program has another value than the wanted; refuses where it has that."""
        if now != wanted:
            return True
        self.refuse(name, f"{name} is {wanted} already")
        return False

    def in_calls(
        self,
        owner: type,
        wanted: dict[str, Any],
        amend: "Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None" = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """Change keywords of the calls that make objects of a class.

        ``amend`` takes the arguments of the call and the wanted ones, and returns those to change. A constructor that
        refuses them is called again as the user wrote it. ``after`` is called with the object.
        """

        def make(original: Callable[..., None]) -> Callable[..., None]:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def init(self_: Any, *args: Any, **kwargs: Any) -> None:
                bound, _ = tried(lambda: signature.bind(self_, *args, **kwargs))
                if bound is None or not self.patches.armed:
                    original(self_, *args, **kwargs)
                    return
                if isinstance(bound.arguments.get("params"), Iterator):  # of an optimizer, read by each call
                    bound.arguments["params"] = list(bound.arguments["params"])
                values, why = tried(amend or self._others, bound.arguments, wanted)
                self.refuse_all(wanted, why)
                values = values or {}
                changed = inspect.BoundArguments(signature, OrderedDict(bound.arguments | values))
                why = tried(lambda: original(*changed.args, **changed.kwargs))[1] if values else "nothing to change"
                if why:
                    self.refuse_all(values.keys() & wanted.keys(), why)
                    original(*bound.args, **bound.kwargs)
                for name in () if why else values.keys() & wanted.keys():
                    self.found(name)
                if after is not None:
                    tried(after, self_)

            return uncounted(init)

        self.patches.patch(owner, "__init__", make)

    def _others(self, given: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in wanted.items() if self.differs(name, given.get(name), value)}


def users_line() -> Line | None:
    """Return file, line and function of the innermost frame that is the user's own; ``None`` where none is seen."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        is_other = file.startswith(("<", UNCOUNTED, _OWN, _STANDARD)) or "-packages" in file
        if not is_other:
            return file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None
