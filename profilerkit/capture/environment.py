"""What the process runs on and with, and what it did before its recording."""

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

from profilerkit import __version__
from profilerkit.capture.device_clock import cuda_in_use, peaks_bytes
from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, uncounted
from profilerkit.capture.proc_files import ProcFiles, quota_cores
from profilerkit.rundir.layout import FORMAT_VERSION, RunManifest
from profilerkit.rundir.sampled import StartUp
from profilerkit.secrets import ALLOWED_VARIABLES, masked_arguments

NOTEBOOK = "notebook"  #: what a kernel's runs are called


def allowed(variables: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed variables that are set."""
    return {name: variables[name] for name in ALLOWED_VARIABLES if name in variables}


def versions() -> dict[str, str]:
    """Versions of Python, profilerkit and of what is loaded: nothing is imported to ask it."""
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
    return NOTEBOOK if stem.startswith("ipykernel") else stem


def in_kernel() -> bool:
    """Return whether this process is a notebook's kernel: what it writes is shown and saved in the cells."""
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    return app is not None and attempt(app.initialized) is True


@lru_cache(maxsize=1)
def process_start_ns(pid: int) -> int | None:
    """When this process, ``pid``, began, as ``perf_counter_ns`` would have told it to 10 ms.

    ``None`` where the system does not say (only Linux does), and for an interactive one: what it did before the block
    is not the run's.
    """
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or not sys.platform.startswith("linux"):
        return None
    try:
        # The name of the program, in parentheses, may hold anything; the start is the 20th field behind it.
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.perf_counter_ns() - age_ns if ticks and age_ns > 0 else None


def usable_cores() -> float:
    """Cores this process may use: the scheduling affinity, capped by the cgroup's CPU quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cores()
    return float(affinity) if quota is None else min(float(affinity), quota)


def intra_op_threads() -> int | None:
    """Threads that one operator of torch may use on the host; ``None`` before torch is loaded."""
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return None if ask is None else whole(attempt(ask))


#: What torch is asked for, by the call that switches it on.
_ASKED = {
    "torch.autograd.set_detect_anomaly": "is_anomaly_enabled",
    "torch.use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
}
#: Variables that switch on what is made for debugging, and their values that do not.
_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": ("", "0"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "OFF", "INFO"),
    "TORCH_SHOW_CPP_STACKTRACES": ("", "0"),
}


def switches() -> set[str]:
    """Switches made for debugging that are on now, as ``NAME`` or ``NAME=value``; of torch's once it is loaded."""
    torch = sys.modules.get("torch")
    on = {name for name, ask in _ASKED.items() if (call := getattr(torch, ask, None)) and attempt(call)}
    values = {name: os.environ.get(name, "") for name in _VARIABLES}
    return on | {f"{name}={value[:20]}" for name, value in values.items() if value.upper() not in _VARIABLES[name]}


@lru_cache(maxsize=1)
def processor_name() -> str | None:
    """Model of the host's processor, as Linux names the first one; ``None`` where it does not say."""
    lines = ProcFiles(Path("/")).once("proc/cpuinfo").splitlines()
    named = next((line for line in lines if line.startswith("model name")), "")
    return " ".join(named.partition(":")[2].split()) or None


def cuda_device() -> tuple[str | None, str | None]:
    """Return name and NVML's UUID of the device this process trains on; nothing before CUDA is in use.

    The device is the one that holds most of this process's memory, or held most of it where none holds any: the current
    device is a property of a thread. Where torch cannot ask its allocator, the only device is meant, or none.
    """
    if not cuda_in_use():
        return None, None
    peaks, cuda = peaks_bytes(), sys.modules["torch.cuda"]
    if len(peaks) > 1 and not any(peaks):
        return None, None
    held = [(attempt(cuda.memory_allocated, device) or 0, peak or 0) for device, peak in enumerate(peaks)]
    properties = cuda.get_device_properties(held.index(max(held)))
    uuid = str(getattr(properties, "uuid", None) or "")
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"  # as NVML writes it
    return str(properties.name), uuid or None


def whole(value: object) -> int | None:
    """Return ``value`` where it is a whole number, else ``None``."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def manifest(settings: dict[str, str], command: Sequence[str], world_size: int) -> RunManifest:
    """Return what was started, without secrets, and with the versions of what is loaded by now."""
    return RunManifest(
        format_version=FORMAT_VERSION,
        profilerkit_version=__version__,
        created_unix_ns=time.time_ns(),
        argv=tuple(writable(argument) for argument in masked_arguments(sys.argv)),
        world_size=world_size,
        settings=settings,
        command=tuple(writable(word) for word in command),
        environment={name: writable(value) for name, value in allowed(os.environ).items()},
        versions=versions(),
    )


def writable(text: str) -> str:
    """Return ``text`` with a question mark for what UTF-8 cannot write, as a file name in no encoding."""
    return text.encode(errors="replace").decode()


_NAMED = 5  #: packages that are named: a few hold most of what imports take (a choice)


class Imports(Protocol):
    """What was there before the program, and timed its imports."""

    began_ns: int
    spans: list[tuple[int, int]]
    own_ns: dict[str, int]
    aside: tuple[int, int] | None


class StartUpWatch:
    """Notes when parameters are registered, the first loader is made and CUDA is initialised, until ``end``."""

    def __init__(self, imports: Imports) -> None:
        self._imports = imports
        self._patches = Patches()
        self._model: tuple[int, int] | None = None
        self._loaders: list[tuple[int, int]] = []  # start and end of the first that was made; the same of CUDA
        self._devices: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Hook it into torch, which is loaded."""
        self._patches.apply(self._install)

    def _install(self, patches: Patches) -> None:
        module = sys.modules["torch.nn.modules.module"]
        patches.hang(module._global_parameter_registration_hooks, self._registered)
        self._time(sys.modules["torch.utils.data.dataloader"].DataLoader, "__init__", self._loaders)
        self._time(sys.modules["torch"]._C, "_cuda_init", self._devices)

    def end(self) -> StartUp:
        """Remove it, and return what was noted."""
        self._patches.remove()
        # Another thread that imports goes through the list that was there.
        ours: object = self._imports
        sys.meta_path = [finder for finder in sys.meta_path if finder is not ours]
        largest = sorted(self._imports.own_ns.items(), key=lambda item: -item[1])[:_NAMED]
        return StartUp(
            python_end_ns=self._imports.began_ns,
            imports=tuple(self._imports.spans),
            packages=dict(largest),
            model=self._model,
            loader_ns=self._loaders[0][0] if self._loaders else None,
            device=self._devices[0] if self._devices else None,
            own=self._imports.aside,
        )

    def _registered(self, _module: object, _name: object, _parameter: object) -> None:
        now_ns = perf_counter_ns()
        self._model = (self._model[0] if self._model else now_ns, now_ns)

    def _time(self, owner: Any, name: str, first: list[tuple[int, int]]) -> None:
        """Have the first call of ``owner.name`` noted; a torch without it is left alone."""

        def timed(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                start_ns = perf_counter_ns()
                try:
                    return original(*args, **kwargs)
                finally:
                    if not first:
                        first.append((start_ns, perf_counter_ns()))

            return uncounted(call)

        if name in vars(owner):
            self._patches.patch(owner, name, timed)


class _State:
    watch: StartUpWatch | None = None
    noted: StartUp | None = None


def note(imports: Imports) -> None:
    """Note what happens from here to the first recording."""
    _State.watch = StartUpWatch(imports)
    _State.watch.begin()


def noted() -> StartUp | None:
    """Return what happened before the first recording, which begins; ``None`` where nobody was there before."""
    watch, _State.watch = _State.watch, None
    if watch is not None:
        _State.noted = watch.end()
    return _State.noted
