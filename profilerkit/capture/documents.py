"""Fills in the documents of a run directory: manifest, meta and end."""

import os
import socket
import sys
import time
import traceback

from profilerkit import __version__
from profilerkit.capture import environment
from profilerkit.capture.secrets import masked, masked_arguments
from profilerkit.capture.settings import Settings
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import FORMAT_VERSION, Feature, OwnCost, RankEnd, RankMeta, RunManifest

_LONGEST_EXCEPTION = 2000


def manifest(settings: Settings, place: environment.Place) -> RunManifest:
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
    place: environment.Place,
    anchor: tuple[int, int],
    *,
    features: dict[str, Feature],
    loader: Loader | None,
    self_ns_per_step: float | None,
    own_cost: OwnCost,
    steps_found_by: str | None,
) -> RankMeta:
    """What is known of this rank by now; ``anchor`` is unix and ``perf_counter_ns`` time of one moment."""
    device_name, device_uuid = environment.cuda_device()
    unix_ns, perf_ns = anchor
    return RankMeta(
        format_version=FORMAT_VERSION,
        rank=place.rank,
        local_rank=place.local_rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        anchor_unix_ns=unix_ns,
        anchor_perf_ns=perf_ns,
        usable_cores=environment.usable_cores(),
        device_name=device_name,
        device_uuid=device_uuid,
        features=features,
        loader=loader,
        self_ns_per_step=self_ns_per_step,
        own_cost=own_cost,
        steps_found_by=steps_found_by,
    )


def end(
    error: BaseException | None, failure: str | None, *, steps: int, dropped_records: int, end_perf_ns: int
) -> RankEnd:
    """How the recording ended: by the user's ``error``, by capture's own ``failure``, or as planned."""
    reason = "switched_off" if failure is not None else "finished" if error is None else "exception"
    text = None if error is None else "".join(traceback.format_exception_only(error)).strip()
    return RankEnd(
        reason=reason,
        exception=None if text is None else _writable(masked(text))[:_LONGEST_EXCEPTION],
        steps=steps,
        dropped_records=dropped_records,
        end_perf_ns=end_perf_ns,
        switched_off_because=failure,
        closed_perf_ns=time.perf_counter_ns(),
    )


def _writable(text: str) -> str:
    """``text`` with a question mark for what UTF-8 cannot write: half a character, a file name in no encoding."""
    return text.encode(errors="replace").decode()


def feature(wanted: bool, reason: str) -> Feature:
    """On when it is wanted and nothing speaks against it."""
    return Feature(on=wanted and not reason, reason=reason if wanted else "switched off by the settings")
