"""IN006: the workers are blocked while they read."""

from profilerkit.analysis.whatif import BUSY_WORKERS, cheaper_batch, workers_busy
from profilerkit.analysis.workers.capacity import lock_held
from profilerkit.model.run import Workers
from profilerkit.rules.api import WAITS, Facts, Fix, Passed, Result, Rule, fired, saving
from profilerkit.rules.evidence import in_line, line_evidence, told_line
from profilerkit.rules.input.loader import measured, part_evidence, recorded_workers
from profilerkit.units import format_bytes, format_ns, format_ratio

_LOCKED = "Moments at which blocked workers waited for a lock"


class SlowStorage(Rule, frozen=True):
    """Find workers that are blocked on reads for {blocked_share} of the work on a batch.

    Why it costs: A blocked worker makes no progress. Storage, a network or a lock sets the pace of training.

    Example:
        def __getitem__(self, index):
            return torch.load(self.files[index])
    Use instead:
        def __init__(self, path):
            self.samples = torch.load(path, mmap=True)
        def __getitem__(self, index):
            return self.samples[index]
    How it is measured: Timers in the workers divide a batch into blocked and computing time. Storage is named where a
        batch reads {fewest_bytes} and {stored_ratio} of it comes from storage. Workers must be busy, else the step does
        not wait for them. The saving models reads that are {faster} times as fast.
    When it is wrong: The first epoch reads what later epochs find cached. A lock looks like a read, so the bytes are
        checked. Sockets and memory-mapped files count no bytes.
    """

    code = "IN006"
    summary = "Workers are blocked while they read"

    blocked_share: float = 0.5
    stored_ratio: float = 0.5  #: half of what is read comes from storage, not from the page cache
    #: Tasks and their answers are read from pipes, some hundred bytes per batch; a batch of files is larger than this.
    fewest_bytes: int = 1 << 16
    faster: float = 2.0  #: what is assumed of faster reads (a choice)

    def check(self, facts: Facts) -> Result:
        workers = recorded_workers(facts)
        if not isinstance(workers, Workers):
            return workers
        blocked = workers.share("fetch")
        if blocked < self.blocked_share:
            return Passed(f"a batch is blocked {format_ratio(blocked)} of the time it takes")
        busy = workers_busy(facts)
        said = f"a batch is blocked {format_ratio(blocked)} of its time"
        if busy is not None and busy < BUSY_WORKERS:
            return Passed(f"{said}, and the workers are busy {format_ratio(busy)}")
        expected = cheaper_batch(facts, workers.time_ns("fetch") * (1.0 - 1.0 / self.faster))
        if not self.worth_saying(facts, expected):
            return Passed(f"{said}, and the step hardly waits for it")
        time = format_ns(workers.time_ns("fetch"))
        reads = workers.read_bytes is not None and workers.read_bytes >= self.fewest_bytes
        is_storage = reads and (workers.storage_bytes or 0) >= self.stored_ratio * (workers.read_bytes or 0)
        is_locked = lock_held(facts) is not None
        size = format_bytes(workers.read_bytes or 0)
        line = facts.lines.get("fetch")
        if is_locked:
            why = "The blocked workers were seen waiting for a lock: they hold each other up, however many there are."
            text = "Read without the shared lock{}: one file handle or connection per worker, opened in the worker."
        elif reads:
            why = f"A batch reads {size}; meanwhile its worker neither computes nor waits for a core."
            text = "Halve the time blocked on reading{}: larger files read in sequence, a local copy, or a cache."
        else:
            why = "Hardly any bytes are read through files meanwhile: a network, a lock, or a sleep."
            text = "Halve the time the workers wait{}: ask the service for more at once, or remove the shared lock."
        return fired(
            facts,
            bound="input-bound",
            title=f"Workers are blocked {time} for every batch" + (", waiting for a lock" if is_locked else ""),
            why=f"{why}{told_line(line, 'the making of samples')}",
            evidence=(
                *part_evidence(facts, workers),
                measured(facts, workers, "Blocked while the samples are read", workers.time_ns("fetch"), "ns"),
                measured(facts, workers, "Read for a batch", workers.read_bytes, "bytes"),
                measured(facts, workers, "Read from storage", workers.storage_bytes, "bytes"),
                *line_evidence(facts, "Making samples", line),
                measured(facts, workers, _LOCKED, workers.locked_ratio, "ratio"),
            ),
            at_most="high" if is_storage or is_locked else "medium" if reads else "low",
            detail="fetch",
            saving=saving(expected, facts.share(*WAITS)),
            fix=Fix(text=text.format(in_line(line))),
            confirm="With the files in the page cache the wait must shrink."
            if reads
            else "A stack of a blocked worker (py-spy dump) names the call it waits in.",
        )
