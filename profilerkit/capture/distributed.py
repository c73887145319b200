"""Where this process stands in its job, and which collectives and wrapped models torch knows of at the end."""

import functools
import gc
import multiprocessing
import os
import socket
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Patches, Watch
from profilerkit.model.communication import DistributedModel
from profilerkit.rundir.documents import DdpRecord, ddp_model, flight_of
from profilerkit.rundir.files import write_document

#: Slurm numbers the steps that it makes itself (batch script, interactive shell, extern) from here; ``srun`` counts its
#: own from 0 (slurm.h: SLURM_MAX_NORMAL_STEP_ID). Only the latter start one process per task.
_SLURM_OWN_STEPS = 0xFFFFFFF0
#: Ten times the largest jobs there are. A larger size is no size, and nobody waits for so many.
_MOST_RANKS = 1_000_000
_ON_THIS_HOST = ("localhost", "127.0.0.1", "::1")  #: where a rendezvous on one host may be


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands in its job."""

    rank: int
    local_rank: int  #: among the ranks of its host
    world_size: int
    launch_id: str  #: equal for all ranks of one job, and for them only
    node: int | None = None  #: number of its host in the job; ``None`` when the launcher does not say
    first_here: bool = True


def place(variables: Mapping[str, str], session: int) -> Place:
    """The place that torchrun's variables give, else torch's process group, Slurm's or MPI's, else rank 0 of 1.

    ``session`` counts this process's blocks. A script that set ``RANK`` itself knows better than the scheduler.
    """
    given = _by_rank(variables, session) or attempt(_spawned_place, variables, session)
    if given is None and "RANK" not in variables:
        given = _by_slurm(variables, session) or _by_mpi(variables, session)
    found = given or Place(0, 0, 1, os.urandom(16).hex())
    return replace(found, first_here=session == 1)


def _joined() -> tuple[int, int] | None:
    """Rank and size of torch's process group; ``None`` without one of several ranks."""
    group = _with_process_group()
    if group is None or group.get_world_size() < 2:
        return None
    return int(group.get_rank()), int(group.get_world_size())


def _with_process_group() -> Any:
    group: Any = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_available() and group.is_initialized() else None


def _by_rank(variables: Mapping[str, str], session: int) -> Place | None:
    world_size = _number(variables, "WORLD_SIZE")
    # torchrun may run in several steps of one Slurm job, one per host; what Slurm starts itself is one step.
    names = ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID"]
    names += [] if "TORCHELASTIC_RUN_ID" in variables else ["SLURM_STEP_ID"]
    parts = [*(variables.get(name, "") for name in names), str(world_size), str(session)]
    spawned = multiprocessing.parent_process() is not None and variables.get("MASTER_ADDR") in _ON_THIS_HOST
    if _number(variables, "LOCAL_WORLD_SIZE") == world_size or spawned:
        parts.append(str(os.getppid()))  # one node: what started them is the parent of every rank
    rank, local, node = (_number(variables, name) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
    return _placed(rank, local, world_size, ":".join(parts), node)


def _placed(rank: int | None, local: int | None, size: int | None, launch: str, node: int | None) -> Place | None:
    if rank is None or size is None or not rank < size or not 2 <= size <= _MOST_RANKS:
        return None
    return Place(rank, rank if local is None else local, size, launch, node)


def _spawned_place(variables: Mapping[str, str], session: int) -> Place | None:
    """By the process group of ranks that a script spawned itself; ``None`` without a group.

    On several hosts their parents differ, and where they met is what they share.
    """
    found = _joined()
    if found is None:
        return None
    rank, world_size = found
    met_at = variables.get("MASTER_ADDR", "")
    if not met_at or met_at in _ON_THIS_HOST:
        return Place(rank, rank, world_size, f"{socket.gethostname()}:{os.getppid()}:{session}", 0)
    return Place(rank, rank, world_size, f"{met_at}:{variables.get('MASTER_PORT', '')}:{world_size}:{session}")


def _by_slurm(variables: Mapping[str, str], session: int) -> Place | None:
    """By the step that ``srun`` started; ``None`` in a batch script, an interactive shell or a step of one task."""
    step = _number(variables, "SLURM_STEP_ID")
    if step is None or step >= _SLURM_OWN_STEPS:
        return None
    # SLURM_NTASKS of a job stays set in its shells and in smaller steps; the step's own number goes before.
    tasks = _number(variables, "SLURM_STEP_NUM_TASKS") or _number(variables, "SLURM_NTASKS")
    rank, local = _number(variables, "SLURM_PROCID"), _number(variables, "SLURM_LOCALID")
    launch = f"slurm:{variables.get('SLURM_JOB_ID', '')}:{step}:{variables.get('SLURM_RESTART_COUNT', '')}:{session}"
    return _placed(rank, local, tasks, launch, _number(variables, "SLURM_NODEID"))


#: What MPI's launchers call the rank, the number of ranks, the rank on the host, and the job (Open MPI, then Hydra).
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_ess_base_jobid"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_PORT"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID"),
)


def _by_mpi(variables: Mapping[str, str], session: int) -> Place | None:
    """By MPI's launcher; ``None`` where it does not name the job: the ranks of two jobs could not be told apart."""
    for rank_name, size_name, local_name, job_name in _MPI:
        rank, size, local = (_number(variables, name) for name in (rank_name, size_name, local_name))
        job = variables.get(job_name)
        found = _placed(rank, local, size, f"mpi:{job}:{session}", None) if job else None
        if found is not None:
            return found
    return None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 20 else None


#: The recorder of all back-ends but NCCL, and NCCL's, which only CUDA builds have.
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def dump(path: Path, since_unix_ns: int = 0) -> str:
    """Write what the recorder holds to ``path``; the reason when there is nothing, else an empty string."""
    bindings: Any = sys.modules.get("torch._C._distributed_c10d")
    if bindings is None:
        return "torch.distributed is not available"
    known = [ask for name in _DUMPS if (ask := getattr(bindings, name, None)) is not None]
    if not known:
        return "this version of torch has no flight recorder"
    found = flight_of([ask() for ask in known], since_unix_ns)
    if not found.entries:
        return "no collective was recorded: there was no process group of several ranks, or TORCH_FR_BUFFER_SIZE is 0"
    try:
        write_document(path, found)
    except OSError as error:
        return f"{path.name} cannot be written: {error.strerror}"
    return ""


class FlightWatch(Watch):
    """Dumps the flight recorder when the block ends."""

    name = "flight"
    needs = ("torch.distributed",)
    unseen = "it is asked at the end of the block"

    def __init__(self, path: Path, since_unix_ns: int) -> None:
        """``path`` is the document's; collectives of before ``since_unix_ns`` are not the block's."""
        self.joined: tuple[int, int] | None = None
        self._path = path
        self._since_unix_ns = since_unix_ns

    def beat(self) -> None:
        """Look for a process group, which may be gone at the end of the block."""
        if self.joined is None:
            self.joined = _joined()

    def close(self) -> None:
        """Write what the recorder holds."""
        self.beat()
        self.unseen = dump(self._path, self._since_unix_ns)


_MOST_MODELS = 32  #: models asked; a program that wraps more makes them anew for each step


class DdpWatch(Watch):
    """Remembers the wrapped models without keeping one alive.

    A finalizer holds the model's logger, which its model holds as well: both go together, and the logger is asked then.
    """

    name = "ddp"
    needs = ("torch.nn.parallel.distributed",)
    unseen = "no DistributedDataParallel was seen"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._found: dict[int, DistributedModel] = {}
        self._pid = os.getpid()

    def install(self, patches: Patches) -> None:
        """Watch the making of models; those made before, which need a process group, are looked for once."""
        wrapper = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
        patches.patch(wrapper, "__init__", lambda original: self._watched(original, patches))
        if _with_process_group() is not None:
            for model in gc.get_referrers(wrapper, *wrapper.__subclasses__()):
                if issubclass(type(model), wrapper):
                    self._remember(model)

    def close(self) -> None:
        """Ask the models that are left, then write."""
        for finalizer in self._finalizers:
            finalizer()
        models = tuple(self._found[number] for number in sorted(self._found))
        if not models:
            return
        try:
            write_document(self._path, DdpRecord(models=models))
            self.seen = True
        except OSError as error:
            self.unseen = f"{self._path.name} cannot be written: {error.strerror}"

    def _watched(self, original: Callable[..., None], patches: Patches) -> Callable[..., None]:
        @functools.wraps(original)  # launchers look at the names of its arguments
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  what it replaces
            original(model, *args, **kwargs)
            if patches.armed:
                attempt(self._remember, model)

        return __init__

    def _remember(self, model: Any) -> None:
        logger = getattr(model, "logger", None)
        number = len(self._finalizers)
        if logger is None or number >= _MOST_MODELS:
            return
        finalizer = weakref.finalize(model, attempt, self._ask, number, logger)
        finalizer.atexit = False
        self._finalizers.append(finalizer)

    def _ask(self, number: int, logger: Any) -> None:
        """Keep the model's last word. Runs wherever the last reference goes: on any thread, inside a collection.

        So it takes no lock of ours; nor torch's in a forked child, where it may have been copied while held.
        """
        if os.getpid() == self._pid:
            data = logger._get_ddp_logging_data()
            self._found[number] = ddp_model(dict(data.ints_map), dict(data.strs_map))
