"""Where this process stands in its job, told by what launched it: without a port, a server or a barrier."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from profilerkit.capture.guard import attempt

#: Slurm numbers the steps that it makes itself (batch script, interactive shell, extern) from here; ``srun`` counts its
#: own from 0 (slurm.h: SLURM_MAX_NORMAL_STEP_ID). Only the latter start one process per task.
_SLURM_OWN_STEPS = 0xFFFFFFF0
#: Ten times the largest jobs there are. A larger size is no size, and nobody waits for so many.
_MOST_RANKS = 1_000_000
#: Where a rendezvous on one host may be.
_ON_THIS_HOST = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands in its job.

    Attributes:
        rank: from 0 to ``world_size`` - 1.
        local_rank: among the ranks of its host.
        world_size: ranks of the job.
        launch_id: equal for all ranks of one job, and for them only.
        node: number of its host in the job; ``None`` when the launcher does not say.
        first_here: this process recorded nothing before.
    """

    rank: int
    local_rank: int
    world_size: int
    launch_id: str
    node: int | None = None
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


def joined() -> tuple[int, int] | None:
    """Rank and size of torch's process group; ``None`` without one of several ranks."""
    group = with_process_group()
    if group is None or group.get_world_size() < 2:
        return None
    return int(group.get_rank()), int(group.get_world_size())


def with_process_group() -> Any:
    """``torch.distributed``, if it was imported and a process group is initialised; else ``None``."""
    group: Any = sys.modules.get("torch.distributed")
    return group if group is not None and group.is_available() and group.is_initialized() else None


def _by_rank(variables: Mapping[str, str], session: int) -> Place | None:
    """By the variables of torchrun, which other launchers and scripts set as well."""
    rank, world_size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if rank is None or world_size is None or not rank < world_size or not 2 <= world_size <= _MOST_RANKS:
        return None
    # torchrun may run in several steps of one Slurm job, one per host; what Slurm starts itself is one step.
    names = ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID"]
    names += [] if "TORCHELASTIC_RUN_ID" in variables else ["SLURM_STEP_ID"]
    parts = [*(variables.get(name, "") for name in names), str(world_size), str(session)]
    spawned = multiprocessing.parent_process() is not None and variables.get("MASTER_ADDR") in _ON_THIS_HOST
    if _number(variables, "LOCAL_WORLD_SIZE") == world_size or spawned:
        parts.append(str(os.getppid()))  # one node: what started them is the parent of every rank
    local = _number(variables, "LOCAL_RANK")
    node = _number(variables, "GROUP_RANK")
    return Place(rank, rank if local is None else local, world_size, ":".join(parts), node)


def _spawned_place(variables: Mapping[str, str], session: int) -> Place | None:
    """By the process group of ranks that a script spawned itself; ``None`` without a group.

    On several hosts their parents differ, and where they met is what they share.
    """
    found = joined()
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
    if rank is None or tasks is None or not rank < tasks or not 2 <= tasks <= _MOST_RANKS:
        return None
    launch = f"slurm:{variables.get('SLURM_JOB_ID', '')}:{step}:{variables.get('SLURM_RESTART_COUNT', '')}:{session}"
    return Place(rank, rank if local is None else local, tasks, launch, _number(variables, "SLURM_NODEID"))


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
        if rank is not None and size is not None and rank < size and 2 <= size <= _MOST_RANKS and job:
            return Place(rank, rank if local is None else local, size, f"mpi:{job}:{session}")
    return None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 20 else None
