"""The records of one rank's loader to what is derived of them beyond the workers' means."""

from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.workers.batches import all_records, judged_fetches
from profilerkit.analysis.workers.capacity import PREFETCH
from profilerkit.analysis.workers.epochs import epoch_facts
from profilerkit.analysis.workers.loading import LoadingFacts
from profilerkit.analysis.workers.queue_facts import queue_facts
from profilerkit.model.workers import Workers
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
    is_stream = loader is not None and bool(loader.is_iterable)
    epochs = epoch_facts(record.events, log, records, pids, is_stream=is_stream)
    if workers is None:
        return LoadingFacts(epochs=epochs)
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
    return LoadingFacts(queue=queue, epochs=epochs, items=items)
