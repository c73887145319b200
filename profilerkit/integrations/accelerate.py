"""Accelerate: ``attach(prof, accelerator)`` in the block of ``profilerkit.profile() as prof``.

Where the loop uses ``accelerator.accumulate``, a step ends with the block that took an optimizer step; any other
loop is understood as it is. Whatever the accelerator saves is a checkpoint. The block ends the recording.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from profilerkit.capture.profiler import Profile
from profilerkit.errors import UsageError

_SAVES = ("save", "save_model", "save_state")


def attach(prof: Profile, accelerator: Any) -> None:
    """Have ``accelerator`` tell ``prof`` where steps end and checkpoints are written.

    Raises:
        UsageError: ``accelerator`` is none.
    """
    if not callable(getattr(accelerator, "accumulate", None)) or not hasattr(accelerator, "sync_gradients"):
        raise UsageError(
            f"not an Accelerator: {type(accelerator).__name__}",
            cause="it has no accumulate() and no sync_gradients",
            hint="pass what accelerate.Accelerator() gave",
        )
    accelerator.accumulate = _ending_steps(accelerator, accelerator.accumulate, prof)
    for name in _SAVES:
        if hasattr(accelerator, name):
            setattr(accelerator, name, _as_checkpoint(getattr(accelerator, name), prof))


def _ending_steps(accelerator: Any, accumulate: Callable[..., Any], prof: Profile) -> Callable[..., Any]:
    @contextmanager
    def accumulate_and_step(*models: Any) -> Iterator[Any]:
        with accumulate(*models) as value:
            yield value
        if accelerator.sync_gradients:
            prof.step()

    return accumulate_and_step


def _as_checkpoint(save: Callable[..., Any], prof: Profile) -> Callable[..., Any]:
    def timed_save(*args: Any, **kwargs: Any) -> Any:
        with prof.phase("checkpoint"):
            return save(*args, **kwargs)

    return timed_save
