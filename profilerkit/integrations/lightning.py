"""Lightning: ``Trainer(callbacks=[ProfilerkitCallback()])`` records the fit.

Both ``lightning`` and ``pytorch_lightning`` will do. A step is an optimizer step, also with gradient accumulation and
with several optimizers. Validation and checkpoints are named phases. The recording ends with the fit or with the
exception that ends it.
"""

import sys
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from profilerkit.errors import UsageError
from profilerkit.integrations.replaced import TimedSave
from profilerkit.results import Profile, profile

#: Two distributions of one framework, whose classes do not know each other.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class LightningHooks:
    """What ``ProfilerkitCallback`` does; its other base is Lightning's ``Callback``.

    Attributes:
        prof: the recording; its ``report`` is there after the fit.
    """

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
        """Name what follows."""
        self._phases.enter_context(self.prof.phase("evaluation"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
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


ProfilerkitCallback: type[LightningHooks]


def __getattr__(name: str) -> Any:
    """Make the callback when it is first asked for: Lightning takes seconds to import."""
    if name != "ProfilerkitCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (LightningHooks, _callback()), {"__module__": __name__, "__doc__": __doc__})
    return globals().setdefault(name, made)


def _callback() -> type:
    """Lightning's own base class: of the distribution that is imported, else of the first that can be."""
    failures = []
    for package in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        try:
            base: type = import_module(package).Callback
        except ImportError as error:
            failures.append(str(error))
        else:
            return base
    raise UsageError("Lightning cannot be imported", cause="; ".join(failures), hint="pip install lightning")
