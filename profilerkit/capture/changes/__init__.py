"""The settings that ``profilerkit try`` changes in a program while it runs.

What cannot be applied is refused with a reason, and the program goes on as its author wrote it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from profilerkit.capture.changes import ddp, frameworks, loaders, models, process
from profilerkit.capture.changes.making import SETTLED, Changes

#: Each entry point is a function of ``Changes`` and the proposed value that applies the setting of its name.
CHANGE_GROUP = "profilerkit.changes"
#: Losses with the change: the same; apart by rounding; apart by more; other random numbers are drawn.
Effect = Literal["same", "rounding", "differs", "redrawn"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is applied, what it may do to the losses, and where it stands in the user's source."""

    apply: Callable[[Changes, dict[str, Any]], None]  #: takes all settings of its kind that are wanted, by name
    numbers: Effect
    lacks: str  #: why it is not applied, where the program makes nothing that it is about
    #: Name of the call whose keyword it is; ``optimizer`` for that of any optimizer class. May be empty.
    call: str = ""
    #: The values that can be proposed, or the least number: whole, unless it has a fraction itself; ``None`` where that
    #: is not known.
    takes: tuple[bool | str, ...] | float | None = None
    statement: str = ""  #: line to paste after the imports, with the place of the value in braces. May be empty.
    share: bool = False  #: it takes a fraction up to 1, too

    def instead_of(self, value: object) -> str:
        """Return what it takes where it does not take this value; empty where it does.

        >>> SETTINGS["num_workers"].instead_of(-1), SETTINGS["fused"].instead_of(1), SETTINGS["fused"].instead_of(True)
        ('a whole number from 0 on', 'True or False', '')
        """
        if isinstance(self.takes, (int, float)):
            kinds, kind = (int, "whole number") if isinstance(self.takes, int) else ((int, float), "number")
            is_share = self.share and isinstance(value, float) and 0 < value <= 1
            is_from = isinstance(value, kinds) and not isinstance(value, bool) and value >= self.takes
            said = f"a {kind} from {self.takes} on{', or a fraction up to 1' if self.share else ''}"
            return "" if is_share or is_from else said
        is_one = any(value == one and type(value) is type(one) for one in self.takes or (value,))
        return "" if is_one else " or ".join(map(str, self.takes or ()))


_NO_LOADER, _NO_OPTIMIZER = "no DataLoader was made", "no optimizer was made"
_NO_MODEL, _NO_DDP = "no module with parameters was called", "no DistributedDataParallel was made"
_NO_START = "training did not begin"
_IN_DDP, _FLAG, _HALF = "DistributedDataParallel", (True, False), ("bf16", "fp16")
_PRECISIONS = ("highest", "high", "medium")
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", True)
_trainer, _NO_TRAINER = frameworks.training_arguments, "no TrainingArguments of transformers were made"
_lightning, _NO_LIGHTNING = frameworks.trainers, "no Trainer of Lightning was made"

SETTINGS: dict[str, Setting] = {
    "num_workers": Setting(loaders.loaders, "redrawn", _NO_LOADER, "DataLoader", 0),
    "persistent_workers": Setting(loaders.loaders, "redrawn", _NO_LOADER, "DataLoader", _FLAG),
    "prefetch_factor": Setting(loaders.loaders, "same", _NO_LOADER, "DataLoader", 1),
    "pin_memory": Setting(loaders.loaders, "same", _NO_LOADER, "DataLoader", _FLAG),
    "non_blocking": Setting(loaders.non_blocking, "same", "no tensor was copied to a device", "", _FLAG),
    "ceiling": Setting(loaders.ceiling, "differs", "no DataLoader of known length was iterated", "", ("input",)),
    "fused": Setting(process.optimizers, "rounding", _NO_OPTIMIZER, "optimizer", _FLAG),
    "foreach": Setting(process.optimizers, "rounding", _NO_OPTIMIZER, "optimizer", _FLAG),
    "set_to_none": Setting(process.set_to_none, "same", "no call of zero_grad fills gradients", "zero_grad", _FLAG),
    "matmul_precision": Setting(
        process.wide, "rounding", _NO_START, "", _PRECISIONS, "torch.set_float32_matmul_precision({!r})"
    ),
    "cudnn_benchmark": Setting(process.wide, "rounding", _NO_START, "", _FLAG, "torch.backends.cudnn.benchmark = {!r}"),
    "threads": Setting(process.wide, "rounding", _NO_START, "", 1, "torch.set_num_threads({!r})"),
    "autocast": Setting(models.models, "differs", _NO_MODEL, "", _HALF),
    "channels_last": Setting(models.models, "rounding", _NO_MODEL, "", (True,)),
    "compile": Setting(models.models, "redrawn", _NO_MODEL, "", _MODES),
    "compile_dynamic": Setting(models.compile_dynamic, "rounding", "torch.compile was not called", "", _FLAG),
    "gc_freeze": Setting(process.gc_freeze, "same", f"fewer than {SETTLED} steps were made", "", (True,)),
    "anomaly": Setting(process.anomaly, "same", "anomaly detection was not on", "", (False,)),
    "checkpointing": Setting(models.no_recompute, "same", "torch.utils.checkpoint was not called", "", (False,)),
    "bucket_cap_mb": Setting(ddp.ddp_models, "rounding", _NO_DDP, _IN_DDP, 1.0),
    "gradient_as_bucket_view": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP, _FLAG),
    "static_graph": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP, _FLAG),
    "find_unused_parameters": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP, _FLAG),
    "no_sync": Setting(ddp.ddp_models, "rounding", _NO_DDP, "", (True,)),
    "comm_hook": Setting(ddp.ddp_models, "differs", _NO_DDP, "", _HALF),
    # An evaluation may draw random numbers, by the loader that it iterates.
    "eval_steps": Setting(_trainer, "redrawn", _NO_TRAINER, "TrainingArguments", 1, share=True),
    "save_steps": Setting(_trainer, "same", _NO_TRAINER, "TrainingArguments", 1, share=True),
    "logging_steps": Setting(_trainer, "same", _NO_TRAINER, "TrainingArguments", 1, share=True),
    "val_check_interval": Setting(_lightning, "redrawn", _NO_LIGHTNING, "Trainer", 1, share=True),
    "check_val_every_n_epoch": Setting(_lightning, "redrawn", _NO_LIGHTNING, "Trainer", 1),
    "log_every_n_steps": Setting(_lightning, "same", _NO_LIGHTNING, "Trainer", 1),
}


def known_settings() -> dict[str, Setting]:
    """Return all settings by name, those of installed packages too; of two with one name ours counts."""
    others = {
        entry.name: Setting(partial(_by_entry, entry), "differs", "it found nothing to change")
        for entry in entry_points(group=CHANGE_GROUP)
    }
    return {**others, **SETTINGS}


def _by_entry(entry: EntryPoint, changes: Changes, wanted: dict[str, Any]) -> None:
    entry.load()(changes, wanted[entry.name])


def make(changes: Changes, wanted: Iterable[tuple[str, Any]]) -> None:
    """Make these changes, all of one kind together."""
    groups: dict[Callable[[Changes, dict[str, Any]], None], dict[str, tuple[Any, str]]] = {}
    settings = known_settings()
    for name, value in wanted:
        setting = settings.get(name)
        if setting is None:
            changes.refuse(name, "no setting of this name can be applied")
        elif allowed := setting.instead_of(value):
            changes.refuse(name, f"{name} is {allowed}")
        else:
            groups.setdefault(setting.apply, {})[name] = (value, setting.lacks)
    for work, values in groups.items():
        changes.apply(work, values)
