"""The records of one rank's loader to what is derived of them beyond the workers' means."""

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, Events
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.skipped import skipped_batches
from profilerkit.analysis.workers.batches import all_records, judged_fetches
from profilerkit.analysis.workers.capacity import PREFETCH
from profilerkit.analysis.workers.epochs import epoch_facts
from profilerkit.analysis.workers.loading import LoadingFacts, PaddingFacts
from profilerkit.analysis.workers.queue_facts import queue_facts
from profilerkit.model.change import revise
from profilerkit.model.workers import Workers
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord


def loading_facts(record: RankRecord | None, log: StepLog | None, workers: Workers | None) -> LoadingFacts | None:
    """The queue, the epochs and the samples of a batch; ``None`` without records of steps.

    Args:
        record: what the rank left.
        log: its steps.
        workers: what its workers did in the judged ones.
    """
    if record is None or log is None:
        return None
    records, pids = all_records(record.workers)
    loader = record.meta.loader if record.meta else None
    epochs = epoch_facts(record.events, log, records, pids, loader)
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    known = LoadingFacts(epochs=epochs, skipped=skipped_batches(events), padding=_padding(events, log))
    if workers is None:
        return known
    fetches = judged_fetches(record.events, log, records, pids)
    queue = queue_facts(
        fetches,
        records,
        workers=(loader.num_workers if loader else None) or workers.count,
        prefetch=(loader.prefetch_factor if loader else None) or PREFETCH,
        delivery_ns=workers.delivery_ns,
        pinned=bool(loader and loader.pin_memory),
    )
    items = float(records["items"][fetches.row[fetches.row >= 0]].mean())
    return revise(known, queue=queue, items=items)


def _padding(events: Events, log: StepLog) -> PaddingFacts | None:
    """What the looks at batches in the judged steps found; ``None`` without any."""
    low, high = log.window
    looks = events[(events["kind"] == EventKind.PADDING) & (events["start"] >= low) & (events["start"] < high)]
    tokens = float((looks["value"] >> 32).sum())
    if tokens <= 0:
        return None
    padded, beyond = float((looks["value"] & 0xFFFFFFFF).sum()), float(looks["name"].sum())
    return PaddingFacts(len(looks), min(padded / tokens, 1.0), min(beyond / tokens, 1.0))
