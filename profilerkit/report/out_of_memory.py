"""What a rank that ran out of memory held: one sentence, and the section about it."""

from profilerkit.model.oom import OutOfMemory
from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Fact, Facts, Heading, Table
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_bytes, format_count

_NAMES = {"other": "batch, activations and temporaries", "unseen": "outside of all tensors that Python holds"}
_LIMITS = {"control group": "the control group", "address space": "the address space", "host": "the host"}
#: Kinds in the sentence.
_TOLD = 3
#: Lines of Python told of the request that failed.
_FRAMES = 4


def oom_headline(oom: OutOfMemory, report: Report) -> str:
    """Return what was asked for, when, and what there was."""
    whose = "" if oom.rank is None or len(report.run.ranks) < 2 else f"Rank {oom.rank}: "
    after = f" after {plural(oom.step, 'step')}" if oom.step else ""
    asked = "" if oom.requested_bytes is None else f": {format_bytes(oom.requested_bytes)} were asked for"
    free = "" if oom.free_bytes is None else f" with {format_bytes(oom.free_bytes)} free"
    of = f" of {format_bytes(oom.total_bytes)}" if free and oom.total_bytes is not None else ""
    return f"{whose}{'out' if whose else 'Out'} of memory on {_place(oom)}{after}{asked}{free}{of}"


def oom_held(oom: OutOfMemory) -> str:
    """Return what held the most; empty where nothing is known of it."""
    live = ", ".join(f"{_name(kind.kind)} {format_bytes(kind.bytes)}" for kind in oom.live[:_TOLD])
    return f"The most was {live}." if live else ""


def oom_advice(oom: OutOfMemory) -> str:
    """Return the batch that may fit, or in words what to make smaller."""
    if oom.fitting_batch_size is None or oom.batch_size is None:
        return "Use a smaller batch, or free what holds the most"
    most, batch = format_count(oom.fitting_batch_size), format_count(oom.batch_size)
    return f"Batch size {batch} → {most} or smaller (estimated)"


def _place(oom: OutOfMemory) -> str:
    return "the host" if oom.device == "host" else inert(oom.device, 40)


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)


def oom_blocks(report: Report) -> tuple[Block, ...]:
    """Facts, live memory by kind, and the largest tensors; empty without a dossier."""
    oom = report.oom
    if oom is None:
        return ()
    blocks: list[Block] = [Facts(tuple(fact for fact in _facts(oom) if fact.value))]
    for title, table in (("What was live", _kinds(oom)), ("The largest tensors", _largest(oom))):
        blocks += [Heading(title), table] if table else []
    return tuple(blocks)


def _facts(oom: OutOfMemory) -> tuple[Fact, ...]:
    def size(value: int | None) -> str:
        return "" if value is None else format_bytes(value)

    idle = (
        None if oom.reserved_bytes is None or oom.allocated_bytes is None else oom.reserved_bytes - oom.allocated_bytes
    )
    limit = f"the tightest limit is that of {_LIMITS[oom.limit]}" if oom.limit in _LIMITS else ""
    fits = "" if oom.fitting_batch_size is None else f"at most {format_count(oom.fitting_batch_size)}"
    held = "in tensors" if oom.reserved_bytes is not None else "by the process"
    return (
        Fact("Error", inert(oom.message, 300)),
        Fact("Where", _place(oom), "" if oom.rank is None else f"rank {oom.rank}"),
        Fact("Steps before", "" if oom.step is None else format_count(oom.step)),
        Fact("Asked for", size(oom.requested_bytes), "the request that failed"),
        Fact("Asked for at", " < ".join(inert(frame, 160) for frame in oom.frames[:_FRAMES]), "innermost line first"),
        Fact("Free", size(oom.free_bytes), limit),
        Fact("In all", size(oom.total_bytes)),
        Fact("Held", size(oom.allocated_bytes), held),
        Fact("Reserved and idle", size(idle), "by torch's allocator: cached, or in pieces too small"),
        Fact("Batch size", "" if oom.batch_size is None else format_count(oom.batch_size)),
        Fact("Batch that may fit", fits, "estimated: all but the parameters, gradients, optimizer state and buffers "
             "shrinks with the batch; gradients and state still to come are counted, further activations are not"),
        Fact("Not all was looked at", "" if oom.complete else "there may be more tensors"),
    )  # fmt: skip


def _kinds(oom: OutOfMemory) -> Table | None:
    if not oom.live:
        return None
    rows = tuple(
        (
            _name(kind.kind),
            "derived" if kind.count is None else "measured",
            format_bytes(kind.bytes),
            "not counted" if kind.count is None else format_count(kind.count),
        )
        for kind in oom.live
    )
    return Table("", ("Live", "Source", "Size", "Storages"), rows, 2)


def _largest(oom: OutOfMemory) -> Table | None:
    if not oom.largest:
        return None
    rows = tuple(
        (_name(one.kind), f"{inert(one.dtype, 20)} {list(one.shape[:8])}", format_bytes(one.bytes))
        for one in oom.largest
    )
    return Table("", ("Kind", "Tensor", "Storage"), rows, 2)
