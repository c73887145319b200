"""The settings that ``profilerkit try`` changes in a program while it runs.

What cannot be applied is refused with a reason, and the program goes on as its author wrote it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from profilerkit.capture.changes import ddp, loaders, models, process
from profilerkit.capture.changes.making import SETTLED, Changes

#: Each entry point is a function of ``Changes`` and the proposed value that applies the setting of its name.
CHANGE_GROUP = "profilerkit.changes"
#: Losses with the change: the same; apart by rounding; apart by more; other random numbers are drawn.
Effect = Literal["same", "rounding", "differs", "redrawn"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is applied, what it may do to the losses, and where it stands in the user's source.

    Attributes:
        apply: takes all settings of its kind that are wanted, by name.
        lacks: why it is not applied, where the program makes nothing that it is about.
        call: name of the call whose keyword it is; ``optimizer`` for that of any optimizer class. May be empty.
        only: the one value that can be proposed; ``None`` where there are several.
        statement: line to paste after the imports, with the place of the value in braces. May be empty.
    """

    apply: Callable[[Changes, dict[str, Any]], None]
    numbers: Effect
    lacks: str
    call: str = ""
    statement: str = ""
    only: bool | str | None = None


_NO_LOADER, _NO_OPTIMIZER = "no DataLoader was made", "no optimizer was made"
_NO_MODEL, _NO_DDP = "no module with parameters was called", "no DistributedDataParallel was made"
_precision = process.process_wide(
    "matmul_precision",
    lambda torch: torch.get_float32_matmul_precision(),
    lambda torch, value: torch.set_float32_matmul_precision(value),
)
_benchmark = process.process_wide(
    "cudnn_benchmark",
    lambda torch: torch.backends.cudnn.benchmark,
    lambda torch, value: setattr(torch.backends.cudnn, "benchmark", value),
)
_threads = process.process_wide(
    "threads", lambda torch: torch.get_num_threads(), lambda torch, value: torch.set_num_threads(value)
)
_IN_DDP = "DistributedDataParallel"

SETTINGS: dict[str, Setting] = {
    "num_workers": Setting(loaders.loaders, "redrawn", _NO_LOADER, "DataLoader"),
    "persistent_workers": Setting(loaders.loaders, "redrawn", _NO_LOADER, "DataLoader"),
    "prefetch_factor": Setting(loaders.loaders, "same", _NO_LOADER, "DataLoader"),
    "pin_memory": Setting(loaders.loaders, "same", _NO_LOADER, "DataLoader"),
    "non_blocking": Setting(loaders.non_blocking, "same", "no tensor was copied to a device"),
    "ceiling": Setting(loaders.ceiling, "differs", "no DataLoader of known length was iterated", only="input"),
    "fused": Setting(process.optimizers, "rounding", _NO_OPTIMIZER, "optimizer"),
    "foreach": Setting(process.optimizers, "rounding", _NO_OPTIMIZER, "optimizer"),
    "set_to_none": Setting(process.set_to_none, "same", "no call of zero_grad fills gradients", "zero_grad"),
    "matmul_precision": Setting(
        _precision, "rounding", "training did not begin", statement="torch.set_float32_matmul_precision({!r})"
    ),
    "cudnn_benchmark": Setting(
        _benchmark, "rounding", "training did not begin", statement="torch.backends.cudnn.benchmark = {!r}"
    ),
    "threads": Setting(_threads, "rounding", "training did not begin", statement="torch.set_num_threads({!r})"),
    "autocast": Setting(models.models, "differs", _NO_MODEL),
    "channels_last": Setting(models.models, "rounding", _NO_MODEL, only=True),
    "compile": Setting(models.models, "redrawn", _NO_MODEL),
    "compile_dynamic": Setting(models.compile_dynamic, "rounding", "torch.compile was not called"),
    "gc_freeze": Setting(process.gc_freeze, "same", f"fewer than {SETTLED} steps were made", only=True),
    "anomaly": Setting(process.anomaly, "same", "anomaly detection was not on", only=False),
    "checkpointing": Setting(models.no_recompute, "same", "torch.utils.checkpoint was not called", only=False),
    "bucket_cap_mb": Setting(ddp.ddp_models, "rounding", _NO_DDP, _IN_DDP),
    "gradient_as_bucket_view": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP),
    "static_graph": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP),
    "find_unused_parameters": Setting(ddp.ddp_models, "same", _NO_DDP, _IN_DDP),
    "no_sync": Setting(ddp.ddp_models, "rounding", _NO_DDP, only=True),
    "comm_hook": Setting(ddp.ddp_models, "differs", _NO_DDP),
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
        elif setting.only not in (None, value):
            changes.refuse(name, f"{name} can be {setting.only} only")
        else:
            groups.setdefault(setting.apply, {})[name] = (value, setting.lacks)
    for work, values in groups.items():
        changes.apply(work, values)
