"""Record Accelerate: call ``attach(prof, accelerator)`` inside ``with profilerkit.profile() as prof``.

With ``accelerator.accumulate``, a step ends with the block that took an optimizer step. Other loops are recorded as
they are. Saves of the accelerator are checkpoints. The block ends the recording.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profilerkit.errors import UsageError
from profilerkit.integrations import Replaced, TimedSave
from profilerkit.profiling import Profile

_SAVES = ("save", "save_model", "save_state")


def attach(prof: Profile, accelerator: Any) -> None:
    """End steps of ``prof`` where ``accelerator`` does, and time its saves as checkpoints.

    Raises:
        UsageError: ``accelerator`` is not an Accelerator.
    """
    if not callable(getattr(accelerator, "accumulate", None)) or not hasattr(accelerator, "sync_gradients"):
        raise UsageError(
            f"not an Accelerator: {type(accelerator).__name__}",
            cause="it has no accumulate() and no sync_gradients",
            hint="pass an accelerate.Accelerator()",
        )
    _SteppingBlock(accelerator, "accumulate", prof)
    for name in _SAVES:
        if hasattr(accelerator, name):
            TimedSave(accelerator, name, prof)


class _SteppingBlock(Replaced):
    """``accelerator.accumulate``, whose block ends a step where it synchronised the gradients."""

    @contextmanager
    def __call__(self, *models: Any) -> Iterator[Any]:
        with self.inner(*models) as value:
            yield value
        if self._owner.sync_gradients:
            self._prof.step()
