"""ME004: memory in use grows from step to step."""

from profilerkit.analysis.memory.allocator import FEWEST_POINTS
from profilerkit.analysis.memory.history import file_and_line
from profilerkit.analysis.memory.use import CopiedPages
from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Finding, Fix, Source
from profilerkit.model.memory import FEWEST_TO_EXTEND, MemoryGrowth, Tracked
from profilerkit.rules.api import Facts, Fired, MissingData, Passed, Result, Rule, finding_for, record_longer
from profilerkit.units import format_about, format_bytes, format_count, format_long_ns

_WORDS: dict[Tracked, tuple[str, str, str]] = {
    "allocated": ("Allocated memory", "the device", "[memory] instants"),
    "device": ("The device's memory", "the device", "NVML, all processes"),
    "process": ("The process", "the host", "/proc/self/statm"),
    "worker": ("Each worker", "the host", "/proc/PID/smaps_rollup of one worker"),
}
#: Memory that one garbage collection may copy at once: half more than the 82 MB of a process that had imported torch's
#: compiler and FSDP, and transformers.
_COLLECTED_BYTES = 120_000_000
_SAMPLED: dict[Tracked, str] = {"device": "gpu.memory_used", "process": "host.process_memory"}
_SNAPSHOT = "torch.cuda.memory._record_memory_history(), then _dump_snapshot(path) after 50 steps"
_FIX = Fix(
    text="Keep `loss.item()` or `loss.detach()` instead of `loss`, and clear lists and hooks that collect tensors.",
    code="total += loss.detach()",
)
_IN_A_WORKER = Fix(
    text="Look in the data set for what it keeps: a cache without a limit, open files, a list of samples."
)
_ARRAYS = Fix(
    text="Keep the data set's samples in one array, tensor or Arrow table, strings too: not in lists of objects.",
    code="self.samples = numpy.array(samples)",
)


class GrowingMemory(Rule, frozen=True):
    """Find memory that grows by {smallest_growth_bytes} or more over the run, without stopping.

    Why it costs: Endless growth exhausts the memory, and the run fails after hours.

    Example:
        losses = []
        for batch in loader:
            losses.append(train_step(batch))
    Use instead:
        losses = []
        for batch in loader:
            losses.append(train_step(batch).detach())
    How it is measured: The Theil-Sen slope of memory over steps must be above zero with 99 % confidence. From 50 steps
        on, {smallest_step_bytes} a step is enough. The last third must gain half as much as the third before. Pages
        that a worker no longer shares count as well.
    When it is wrong: Sequences that get longer look the same below 50 steps. A cache can fill during the first epoch. A
        garbage collection copies a worker's shared objects once.
    Sources: https://github.com/pytorch/pytorch/issues/13246
    """

    code = "ME004"
    summary = "Memory in use grows from step to step"
    reads_logs = True

    smallest_growth_bytes: int = 100_000_000
    smallest_step_bytes: int = 1_000_000

    def check(self, facts: Facts) -> Result:
        growth, copied = facts.memory.growth, facts.memory_use.copied
        found = self._grown(facts)
        if copied is not None:
            lasting = copied.copied_bytes - min(copied.at_once_bytes, _COLLECTED_BYTES)
            if lasting >= self.smallest_growth_bytes / 2:
                found = (_copied(facts, copied), *found)
        if found:
            return Fired(found)
        if not growth and facts.logs is not None and facts.logs.alone:
            if any((one.rises or 0) >= FEWEST_POINTS for one in facts.logs.own):
                return MissingData("the rises and falls of the memory look like layers of one pass", _SNAPSHOT)
            return MissingData("no history of eight rises and falls of the memory was given", _SNAPSHOT)
        if not growth:
            return MissingData("memory was not recorded over enough steps", record_longer(facts, "20 s"))
        most = max(growth, key=lambda row: row.total_bytes if row.grows else 0.0)
        grown = f"it grew by {format_bytes(most.total_bytes)}" if most.grows else "it does not grow for good"
        return Passed(f"{grown} over {format_count(most.last_step - most.first_step)} steps")

    def _grown(self, facts: Facts) -> tuple[Finding, ...]:
        large = {row.of: row for row in facts.memory.growth if row.grows and self._is_large(row)}
        if "allocated" in large:
            large.pop("device", None)
        return tuple(self._finding(facts, row) for row in large.values())

    def _is_large(self, row: MemoryGrowth) -> bool:
        in_each_step = row.lasts and row.bytes_per_step >= self.smallest_step_bytes
        return in_each_step or row.total_bytes >= self.smallest_growth_bytes

    def _finding(self, facts: Facts, row: MemoryGrowth) -> Finding:
        what, whole, _ = _WORDS[row.of]
        if row.of == "allocated" and facts.memory.place == "host":
            whole = "the host"
        why = "The growth goes on through all judged steps: it is neither a jump nor a cache that fills up."
        if row.steps < FEWEST_TO_EXTEND:
            few = format_count(row.steps)
            why += f" In {few} steps, batches that get longer look the same: record {FEWEST_TO_EXTEND}."
        epochs = facts.loading.epochs if facts.loading is not None else None
        may_fill = row.of in ("process", "worker") and epochs is not None and epochs.count < 2
        if may_fill:
            why += " A cache that fills during the first epoch grows the same way, and stops at its end."
        title = f"{what} grows by {format_bytes(row.bytes_per_step)} in every step"
        if not row.lasts:
            title = f"{what} grew by {format_bytes(row.bytes_per_step)} a step over {format_count(row.steps)} steps"
        if row.steps_to_full is not None and row.ns_to_full is not None:
            title += f": {whole} is full in about {format_about(row.steps_to_full)} steps"
            title += f", {format_long_ns(row.ns_to_full)}"
        return finding_for(
            facts,
            bound=None,
            title=title,
            why=why + (_largest(facts) if row.of == "allocated" else ""),
            evidence=_evidence(facts, row, whole),
            at_most="medium" if row.lasts and not may_fill else "low",
            fix=None if not row.lasts else _IN_A_WORKER if row.of == "worker" else _FIX,
            confirm="The memory of the last steps must be that of the first.",
        )


def _copied(facts: Facts, copied: CopiedPages) -> Finding:
    count = facts.workers.count if facts.workers is not None else (facts.loader and facts.loader.num_workers) or 1
    origin, n, steps = _WORDS["worker"][2], copied.counts, (copied.first_step, copied.last_step)
    sizes = {
        "Copied by one worker": copied.copied_bytes,
        "Private memory of the worker": copied.private_bytes,
        "Shared memory that it can still copy": copied.shared_bytes,
    }
    each = "Each worker" if count > 1 else "The worker"
    why = "Reading a Python object changes its reference count, which copies the shared page into the worker."
    if copied.shared_bytes:
        why += f" The workers can still copy {format_bytes(copied.shared_bytes * count)}."
    return finding_for(
        facts,
        bound=None,
        title=f"{each} copied {format_bytes(copied.copied_bytes)} of memory that it shared with the training process",
        why=why,
        evidence=tuple(facts.evidence(label, size, "bytes", origin, n=n, steps=steps) for label, size in sizes.items()),
        at_most="medium",
        fix=_ARRAYS,
        confirm="The memory of the host must stay the same through the epoch.",
    )


def _evidence(facts: Facts, row: MemoryGrowth, whole: str) -> tuple[Evidence, ...]:
    """Return the growth, over how many steps, and what it leads to where that is known."""
    what, _, origin = _WORDS[row.of]
    if facts.logs is not None and facts.logs.alone:
        origin = "lows of the memory in use in the snapshot's history"

    def known(label: str, value: float | None, unit: str, source: Source = "derived") -> Evidence:
        return facts.evidence(label, value, unit, origin, source, n=None)

    low, high, steps = row.low_bytes_per_step, row.high_bytes_per_step, (row.first_step, row.last_step)
    label, behind = f"{what}, growth per step", (_SAMPLED[row.of],) if row.of in _SAMPLED else ()
    growth = revise(known(label, row.bytes_per_step, "bytes"), n=row.n, low=low, high=high, steps=steps, behind=behind)
    # Two digits, as the headline has it.
    left = None if row.steps_to_full is None else float(f"{row.steps_to_full:.2g}")
    return (
        growth,
        known("Judged steps", row.steps, "count", "measured"),
        known(f"Room left in the memory of {whole}", row.headroom_bytes, "bytes"),
        known("Steps until it is full, about", left, "count", "estimated"),
        known("Time until it is full", row.ns_to_full, "ns", "estimated"),
    )


def _largest(facts: Facts) -> str:
    """Who asked for most of what was alive at the peak, as a sentence: an operator, or a line; empty when not known."""
    known = next((entry for entry in facts.memory.alive if entry.op is not None), None)
    own = facts.logs.own if facts.logs is not None else ()
    line = next((row for one in own for row in one.live if row.line is not None), None)
    if known is None and line is not None:
        held = f"{format_bytes(line.bytes)} in {format_count(line.count)} block{'' if line.count == 1 else 's'}"
        return f" Most of what was in use at the peak was asked for at {file_and_line(line.line)}: {held}."
    if known is None:
        return ""
    blocks = f"{format_count(known.count)} block{'' if known.count == 1 else 's'}"
    return f" Most of what was alive at the peak was asked for by {known.op}: {format_bytes(known.bytes)} in {blocks}."
