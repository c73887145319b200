"""Watches ``torch.compile`` compile, and compile again."""

import re
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.calls import skip_not_compiled
from profilerkit.capture.guard import asked
from profilerkit.capture.patches import Patches
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.writer import Record

_COMPILE, _INFERRED = int(EventKind.COMPILE), int(EventFlag.INFERRED)
_CALLBACK = "torch._dynamo.callback"
#: Characters of a guard that are kept (a choice: torch's own are 20 to 100 long, its comment on the source left out).
_MOST_OF_A_GUARD = 160
#: Before a guard stands what was compiled with it.
_OF_A_COMPILATION = re.compile(r"^\S{0,40}\d/\d{1,9}\S{0,40}: ")


class CompileWatch:
    """Records one COMPILE per compilation, through the callbacks that torch has for it.

    Torch calls them around the outermost compilation, under a lock of its own. The start of the one that was under way
    when the watch was hung is not known: it counts from then on and is marked inferred. Where a guard's failure made
    torch compile again, the record is named for that guard as well, as torch keeps it.
    """

    name = "compiles"
    needs: tuple[str, ...] = (_CALLBACK,)

    def __init__(self, record: Callable[[Record], None], name_id: Callable[[str], int]) -> None:
        self._record = record
        self._name_id = name_id
        self._start_ns = 0
        self._flags = _INFERRED
        self._seen = False
        self._failed: dict[Any, int] = {}  # guards of each code so far
        self._hung: list[tuple[list[Any], Callable[..., None]]] = []

    def hang(self, patches: Patches) -> None:
        """Have torch say when it compiles, and not compile what was hung into it before."""
        skip_not_compiled()
        self._start_ns = perf_counter_ns()
        handler = sys.modules[_CALLBACK].callback_handler
        self._hung = [(handler.start_callbacks, self._started), (handler.end_callbacks, self._ended)]
        asked(self._guard)  # what failed before the watch is of no compilation that it sees
        self.beat()
        patches.later(self._leave)

    def _leave(self) -> None:
        hung, self._hung = self._hung, []
        for callbacks, callback in hung:
            if callback in callbacks:
                callbacks.remove(callback)

    # Older versions of torch call both without arguments.
    def _started(self, *_args: Any) -> None:
        self._start_ns = perf_counter_ns()
        self._flags = 0

    def _ended(self, *args: Any) -> None:
        now_ns, start_ns = perf_counter_ns(), self._start_ns
        number = asked(lambda: self._name_id(f"{args[0].compile_id} {asked(self._guard) or ''}".strip())) or 0
        self._record((_COMPILE, self._flags, number, start_ns, now_ns - start_ns, 0))
        self._seen = True

    def _guard(self) -> str:
        """The first guard that failed since the compilation before, on one line; empty where none did."""
        failures = sys.modules["torch._dynamo.utils"].guard_failures
        before, self._failed = self._failed, {code: len(found) for code, found in failures.items()}
        new = (found[before.get(code, 0) :] for code, found in failures.items())
        text = str(next((found[0] for found in new if found), ""))
        return " ".join(_OF_A_COMPILATION.sub("", text.partition("#")[0]).split())[:_MOST_OF_A_GUARD]

    def beat(self) -> None:
        """Ask again where ``torch._dynamo.reset()`` has emptied torch's lists."""
        for callbacks, callback in self._hung:
            if callback not in callbacks:
                callbacks.append(callback)

    def close(self) -> None:
        """Nothing is left to do."""

    def reason(self) -> str:
        """Why no compilation was seen."""
        return "" if self._seen else "torch.compile compiled nothing"
