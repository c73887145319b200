"""What the process runs on and with: ranks, versions, cores, device, allow-listed environment, loader settings."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profilerkit.capture.cgroup import quota_cores
from profilerkit.capture.guard import asked
from profilerkit.model.run import Loader

#: The only variables that are ever recorded: none of them holds a secret.
ALLOWED_VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "WORLD_SIZE",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands in its job; ``launch_id`` is equal for all ranks of one job, and for them only."""

    rank: int
    local_rank: int
    world_size: int
    launch_id: str


def place(variables: Mapping[str, str], session: int) -> Place:
    """The place torchrun's variables give, else torch's process group, else rank 0 of 1.

    ``session`` counts this process's blocks.
    """
    rank, world_size = _number(variables, "RANK", 0), _number(variables, "WORLD_SIZE", 1)
    if world_size < 2 or not 0 <= rank < world_size:
        return asked(_spawned_place, session) or Place(0, 0, 1, os.urandom(16).hex())
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE")
    parts = [variables.get(name, "") for name in names] + [str(session)]
    if variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"]:
        parts.append(str(os.getppid()))  # one node: the launcher is the parent of every rank
    return Place(rank, _number(variables, "LOCAL_RANK", rank), world_size, ":".join(parts))


def _spawned_place(session: int) -> Place | None:
    """The place in the process group of ranks that a script spawned itself, on one node; ``None`` without a group."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized() or group.get_world_size() < 2:
        return None
    rank = int(group.get_rank())
    return Place(rank, rank, int(group.get_world_size()), f"{socket.gethostname()}:{os.getppid()}:{session}")


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    value = variables.get(name, "")
    return int(value) if value.isdecimal() else default


def allowed(variables: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed variables that are set."""
    return {name: variables[name] for name in ALLOWED_VARIABLES if name in variables}


def versions() -> dict[str, str]:
    """Versions of Python, profilerkit and of what is loaded: nothing is imported to ask it."""
    from profilerkit import __version__

    found = {"python": sys.version.split()[0], "profilerkit": __version__}
    for name in ("torch", "numpy", "lightning", "transformers", "accelerate", "torchvision"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if cuda:
        found["cuda"] = str(cuda)
    return found


def script_name() -> str:
    """What the run is called when nobody names it: the script, or the interpreter's other ways to start."""
    stem = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    if stem in ("", "-c", "-m"):
        return "run"
    if stem == "__main__":
        return Path(sys.argv[0]).parent.name or "run"
    return "notebook" if stem.startswith("ipykernel") else stem


def usable_cores() -> float:
    """Cores this process may use: the scheduling affinity, capped by the cgroup's CPU quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores()
    return float(affinity) if quota is None else min(float(affinity), quota)


def cuda_device() -> tuple[str | None, str | None]:
    """Name and NVML's UUID of the device this process trains on; nothing before CUDA is in use.

    The device is the one that holds most of this process's memory: the current device is a property of a thread. Of
    several devices none is told before one holds any.
    CUDA is never initialised here: workers forked after that could not use it.
    """
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return None, None
    held = [int(cuda.memory_allocated(device)) for device in range(cuda.device_count())]
    if not held or (len(held) > 1 and not any(held)):
        return None, None
    index = held.index(max(held))
    properties = cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return str(properties.name), None if uuid is None else _nvml_uuid(str(uuid))


def _nvml_uuid(uuid: str) -> str:
    """NVML writes ``GPU-`` before what CUDA calls the UUID."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def loader_settings(loader: Any) -> Loader | None:
    """Settings of the loader that feeds the steps; ``None`` when there is none."""
    if loader is None:
        return None
    dataset: Any = asked(getattr, loader, "dataset")
    return Loader(
        kind=type(loader).__name__,
        num_workers=_whole(asked(getattr, loader, "num_workers")),
        batch_size=_whole(asked(getattr, loader, "batch_size")),
        pin_memory=_flag(asked(getattr, loader, "pin_memory")),
        prefetch_factor=_whole(asked(getattr, loader, "prefetch_factor")),
        persistent_workers=_flag(asked(getattr, loader, "persistent_workers")),
        dataset_len=asked(len, dataset),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
