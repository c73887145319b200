"""What all ranks agree on before a probe goes on: asked through their store, so no collective is made and none waits.

A question has one answer, which the first writer sets and nobody changes: the last rank to reply says what all replied,
or a rank that has waited too long says that the ranks are lost. Whoever comes later reads the same.

One risk is left. A rank to which the store gives an error twice, when it asks and when it looks once more, takes all
for lost, while the others may have heard an answer. They then put in steps that it does not.
"""

import time
from typing import Any

from profilerkit.capture.distributed import with_process_group
from profilerkit.capture.guard import attempt
from profilerkit.capture.probes.found import UnprobedError

#: A rank that does not reply for so long is not at the same step, s (a choice: a checkpoint of one rank fits in).
PATIENCE_S = 10.0
#: Between two looks for an answer, s; from the first to the second, doubling.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
#: Of a rank's reason, what the others are told.
_LONGEST_ANSWER = 300
_SAID, _LOST = "said:", "lost:"


class LostError(UnprobedError):
    """The ranks do not ask the same at the same step; the message is the reason. Nothing can be asked any more."""


class Agreement:
    """The questions of one block, in their order."""

    def __init__(self, store: Any = None, world: int = 1, block: str = "") -> None:
        """``store`` is torch's, of ``world`` ranks that call this block so; ``None`` for a rank that trains alone."""
        self._store, self._world = store, world
        self._block, self._prefix = block, f"profilerkit/probes/{block}"
        self._number = 0
        self._lost = ""

    def ask(self, answer: str, about: str) -> str:
        """What some rank answered, ``""`` where all of them did; ``about`` is the question, the same on all ranks.

        Raises:
            LostError: a rank did not reply in time, or was asked something else; all ranks are told so.
        """
        if self._store is None:
            return answer
        if not self._lost:
            self._number += 1
            key = f"{self._prefix}/{self._number}"
            decided = attempt(self._decided, key, answer[:_LONGEST_ANSWER], about)
            if decided is None:  # the others may have heard an answer all the same
                decided = attempt(self._answer_at, f"{key}/decided")
            if decided is not None and decided.startswith(_SAID):
                return decided.removeprefix(_SAID)
            self._lost = (decided or "").removeprefix(_LOST) or "the store of the process group does not answer"
        raise LostError(self._lost)

    def beside(self, name: str) -> "Agreement":
        """Questions of their own, which some ranks may never come to."""
        return Agreement(self._store, self._world, f"{self._block}/{name}")

    def _decided(self, key: str, answer: str, about: str) -> str:
        store = self._store
        if _first(store, f"{key}/about", about) != about:
            return _first(store, f"{key}/decided", f"{_LOST}the ranks are not at the same step of the same probes")
        if answer:
            store.set(f"{key}/answer", answer)
        replies = store.add(f"{key}/replies", 1)
        if replies < self._world:
            self._wait_for(f"{key}/decided")
            replies = store.add(f"{key}/replies", 0)
        if replies == self._world:
            return _first(store, f"{key}/decided", _SAID + (self._answer_at(f"{key}/answer") or ""))
        silent = f"{self._world - replies} of {self._world} ranks did not reply within {PATIENCE_S:g} s"
        return _first(store, f"{key}/decided", _LOST + silent)

    def _wait_for(self, key: str) -> None:
        """Return when it is there, or after ``PATIENCE_S``.

        It is looked for: a wait of the store's own keeps torch's threads from it.
        """
        deadline, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while not self._store.check([key]) and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _answer_at(self, key: str) -> str | None:
        """What is there; ``None`` where nothing is."""
        return str(self._store.get(key).decode()) if self._store.check([key]) else None


def agreement(world: int, block: str) -> Agreement:
    """Between the ``world`` ranks of torch's process group, which all call this block so; of one rank without it.

    Raises:
        UnprobedError: the ranks cannot ask each other.
    """
    group = with_process_group()
    if group is None or group.get_world_size() < 2:
        return Agreement()
    if group.get_world_size() != world:
        raise UnprobedError("the other ranks record elsewhere")
    store = attempt(_default_store, group)
    if not hasattr(store, "compare_set"):
        raise UnprobedError("the process group has no store in which its ranks could agree")
    return Agreement(store, world, block)


def _default_store(group: Any) -> Any:
    return group.distributed_c10d._get_default_store()


def _first(store: Any, key: str, value: str) -> str:
    """What is at ``key``: ``value``, unless somebody was faster."""
    held: bytes | str = store.compare_set(key, "", value)
    return held.decode() if isinstance(held, bytes) else held
