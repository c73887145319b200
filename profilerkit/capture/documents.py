"""Fills in the documents of a run directory: manifest, meta and end."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Collection

from profilerkit import __version__
from profilerkit.capture import environment
from profilerkit.capture.ending import ExitCall, exit_call_of
from profilerkit.capture.place import Place
from profilerkit.capture.settings import Settings
from profilerkit.capture.start_up import noted
from profilerkit.model.run import Loader
from profilerkit.rundir.clock import ClockAnchor
from profilerkit.rundir.layout import (
    FORMAT_VERSION,
    OFF_BY_SETTINGS,
    Feature,
    OwnCost,
    ProcessMark,
    RankEnd,
    RankMeta,
    RunManifest,
)
from profilerkit.rundir.sampled import GpuFacts
from profilerkit.secrets import masked, masked_arguments

_LONGEST_TEXT = 2000


def manifest(settings: Settings, place: Place) -> RunManifest:
    """What was started, without secrets, and with the versions of what is loaded by now."""
    return RunManifest(
        format_version=FORMAT_VERSION,
        profilerkit_version=__version__,
        created_unix_ns=time.time_ns(),
        argv=tuple(_writable(argument) for argument in masked_arguments(sys.argv)),
        world_size=place.world_size,
        settings=settings.as_text(),
        environment={name: _writable(value) for name, value in environment.allowed(os.environ).items()},
        versions=environment.versions(),
    )


def meta(
    place: Place,
    anchor: ClockAnchor,
    *,
    joined: tuple[int, int] | None,
    features: dict[str, Feature],
    loader: Loader | None,
    self_ns_per_step: float | None,
    own_cost: OwnCost,
    steps_found_by: str | None,
    process: ProcessMark | None,
    gpu: GpuFacts | None,
    switches: Collection[str],
) -> RankMeta:
    """What is known of this rank by now; ``anchor`` is of its start.

    ``joined`` is rank and size of the process group, as far as there was one by now.
    """
    device_name, device_uuid = environment.cuda_device()
    return RankMeta(
        format_version=FORMAT_VERSION,
        rank=place.rank,
        local_rank=place.local_rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        anchor_unix_ns=anchor.unix_ns,
        anchor_perf_ns=anchor.perf_ns,
        usable_cores=environment.usable_cores(),
        device_name=device_name,
        device_uuid=device_uuid,
        features=features,
        loader=loader,
        self_ns_per_step=self_ns_per_step,
        own_cost=own_cost,
        steps_found_by=steps_found_by,
        process_start_perf_ns=environment.process_start_ns(os.getpid()) if place.first_here else None,
        process=process,
        node=place.node,
        joined=joined if place.world_size == 1 else None,
        gpu=gpu,
        threads=environment.intra_op_threads(),
        processor=environment.processor_name(),
        start_up=noted() if place.first_here else None,
        switches=tuple(sorted(switches)),
    )


def end(
    cause: BaseException | ExitCall | None,
    failure: str | None,
    *,
    steps: int,
    dropped_records: int,
    end_perf_ns: int,
    stopped: str | None,
) -> RankEnd:
    """How the recording ended: by the user's exception or exit, by capture's own ``failure``, or as planned."""
    leave = exit_call_of(cause)
    error = cause if isinstance(cause, BaseException) and leave is None else None
    reason = "finished" if error is None else "exception"
    if isinstance(error, KeyboardInterrupt):
        reason = "interrupted"
    if leave is not None:
        reason = "exit"
    return RankEnd(
        reason=reason if failure is None else "switched_off",
        exception=None if error is None else _bounded("".join(traceback.format_exception_only(error)).strip()),
        steps=steps,
        dropped_records=dropped_records,
        end_perf_ns=end_perf_ns,
        switched_off_because=None if failure is None else _bounded(failure),
        left_by=None if leave is None else _bounded(str(leave)),
        exit_code=None if leave is None else leave.code,
        stopped_because=stopped,
        closed_perf_ns=time.perf_counter_ns(),
    )


def _bounded(text: str) -> str:
    return _writable(masked(text))[:_LONGEST_TEXT]


def _writable(text: str) -> str:
    """``text`` with a question mark for what UTF-8 cannot write: half a character, a file name in no encoding."""
    return text.encode(errors="replace").decode()


def feature(wanted: bool, reason: str) -> Feature:
    """On when it is wanted and nothing speaks against it."""
    return Feature(on=wanted and not reason, reason=reason if wanted else OFF_BY_SETTINGS)
