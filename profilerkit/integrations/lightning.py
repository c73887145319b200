"""Record Lightning's fit: ``Trainer(profiler=ProfilerkitProfiler("runs/x"))``, or the same as a callback.

``Trainer(callbacks=[ProfilerkitCallback()])`` allows another profiler.

Works with ``lightning`` and ``pytorch_lightning``. A step is an optimizer step, also with gradient accumulation and
with several optimizers. Validation and checkpoints are named phases. The recording ends with the fit or with the
exception that ends it.
"""

import os
import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from profilerkit.errors import UsageError
from profilerkit.integrations import TimedSave
from profilerkit.profiling import Profile, profile

#: Two distributions of one framework, whose classes do not know each other.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class LightningHooks:
    """Record the fit; the base of ``ProfilerkitCallback`` beside Lightning's ``Callback``."""

    def __init__(self, prof: Profile | None = None) -> None:
        """``prof`` is what ``profilerkit.profile()`` gave; in its ``with`` block that block ends the recording."""
        super().__init__()
        self.prof = profile() if prof is None else prof
        self._phases = ExitStack()
        self._is_ours = False
        self._optimizer_steps = 0
        self._save: TimedSave | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start recording."""
        if stage != "fit":
            return
        self._is_ours = self.prof.record_until_exit()
        self._save = TimedSave(trainer, "save_checkpoint", self.prof)

    def on_train_batch_end(self, trainer: Any, *_batch: Any, **_named: Any) -> None:
        """End a step where an optimizer stepped since the last one."""
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self.prof.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Name the evaluation."""
        self._phases.enter_context(self.prof.phase("evaluation"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End the evaluation."""
        self._phases.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording with what ended the fit."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the recording."""
        if stage == "fit":
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._phases.close()
        if self._save is not None:
            self._save.put_back()
            self._save = None
        if self._is_ours:
            self._is_ours = False
            self.prof.__exit__(None if error is None else type(error), error, None)


class ProfilerHooks:
    """Record as Lightning's ``Profiler``, the other base of ``ProfilerkitProfiler``: the callback does the work."""

    def __init__(self, recording: str | os.PathLike[str] | Profile | None = None) -> None:
        """``recording`` is the run directory, or what ``profilerkit.profile()`` gave."""
        super().__init__()
        self.prof = recording if isinstance(recording, Profile) else profile(recording)
        self._hooks: Any = None

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Add our callback to the trainer's, as the first: what the others do after a batch is of the next step.

        The trainer sets its profiler up before its callbacks.
        """
        callbacks = self._lightning_module.trainer.callbacks  # type: ignore[attr-defined]  # the trainer sets it
        if self._hooks is None:
            self._hooks = _made("ProfilerkitCallback")(self.prof)
        if self._hooks not in callbacks:
            callbacks.insert(0, self._hooks)

    def start(self, action_name: str) -> None:
        """Ignore the start of an action: the recording times what matters by itself."""

    def stop(self, action_name: str) -> None:
        """Ignore the end of an action."""


ProfilerkitCallback: type[LightningHooks]
ProfilerkitProfiler: type[ProfilerHooks]

#: The classes that are made when they are first asked for, of ours and one of Lightning's: it takes seconds to import.
_CLASSES: dict[str, tuple[type, str, str]] = {
    "ProfilerkitCallback": (LightningHooks, "", "Callback"),
    "ProfilerkitProfiler": (ProfilerHooks, ".profilers", "Profiler"),
}


def __getattr__(name: str) -> Any:
    """Make a class when it is first asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name)


def _made(name: str) -> Any:
    if name not in globals():
        ours, module, base = _CLASSES[name]
        made = type(name, (ours, _base(module, base)), {"__module__": __name__, "__doc__": ours.__doc__})
        globals()[name] = made
    return globals()[name]


def _base(module: str, name: str) -> type:
    """Lightning's own base class: of the distribution that is imported, else of the first that can be."""
    failures = []
    for package in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        try:
            base: type = getattr(import_module(package + module), name)
        except ImportError as error:
            failures.append(str(error))
        else:
            return base
    raise UsageError("Lightning cannot be imported", cause="; ".join(failures), hint="pip install lightning")
