"""Record Hugging Face's Trainer: ``Trainer(callbacks=[ProfilerkitCallback()])``.

A step is an optimizer step, also with gradient accumulation. Evaluation and checkpoints are named phases. The
recording ends with the training. The Trainer reports no exception to callbacks, so such a recording ends with the
program. To end it at once, train inside ``with profilerkit.profile() as prof`` with ``ProfilerkitCallback(prof)``.
"""

from contextlib import ExitStack
from typing import Any

from profilerkit.errors import UsageError
from profilerkit.profiling import Profile, profile


class TrainerHooks:
    """Record ``train()``; the base of ``ProfilerkitCallback`` beside the ``TrainerCallback`` of transformers."""

    def __init__(self, prof: Profile | None = None) -> None:
        """``prof`` is what ``profilerkit.profile()`` gave; in its ``with`` block that block ends the recording."""
        super().__init__()
        self.prof = profile() if prof is None else prof
        self._phases = ExitStack()
        self._is_ours = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """Start recording; end what an exception left open."""
        self._end()
        self._is_ours = self.prof.record_until_exit()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """End the named phase."""
        self._phases.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """End a step."""
        self.prof.step()
        self._name_what_follows(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """Name the evaluation or checkpoint that follows an epoch."""
        self._name_what_follows(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """End the evaluation; name the checkpoint that may follow."""
        self._phases.close()
        if control.should_save:
            self._phases.enter_context(self.prof.phase("checkpoint"))

    def on_save(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """End the checkpoint."""
        self._phases.close()

    def on_train_end(self, args: Any, state: Any, control: Any, **_objects: Any) -> None:
        """End the recording."""
        self._end()

    def _name_what_follows(self, control: Any) -> None:
        """The Trainer evaluates, then saves, right after it has asked its callbacks what to do."""
        self._phases.close()
        if control.should_evaluate:
            self._phases.enter_context(self.prof.phase("evaluation"))
        elif control.should_save:
            self._phases.enter_context(self.prof.phase("checkpoint"))

    def _end(self) -> None:
        self._phases.close()
        if self._is_ours:
            self._is_ours = False
            self.prof.__exit__(None, None, None)


ProfilerkitCallback: type[TrainerHooks]


def __getattr__(name: str) -> Any:
    """Make the callback when it is first asked for: transformers takes seconds to import."""
    if name != "ProfilerkitCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise UsageError(
            "transformers cannot be imported", cause=str(error), hint="pip install transformers"
        ) from error
    made = type(name, (TrainerHooks, TrainerCallback), {"__module__": __name__, "__doc__": __doc__})
    return globals().setdefault(name, made)
