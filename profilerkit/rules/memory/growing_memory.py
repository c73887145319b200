"""ME004 (R28): memory in use grows from step to step."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.logs.history import file_and_line
from profilerkit.model.finding import Evidence, Finding, Fix, Source
from profilerkit.model.memory import FEWEST_TO_EXTEND, MemoryGrowth, Tracked
from profilerkit.rules.rule import Fired, MissingData, Passed, Result, Rule, evidence_of, finding_for, record_longer
from profilerkit.units import format_about, format_bytes, format_count, format_long_ns

_WORDS: dict[Tracked, tuple[str, str, str]] = {
    "allocated": ("Allocated memory", "the device", "[memory] instants"),
    "device": ("The device's memory", "the device", "NVML, all processes"),
    "process": ("The process", "the host", "/proc/self/statm"),
}
_SAMPLED: dict[Tracked, str] = {"device": "gpu.memory_used", "process": "host.process_memory"}
_SNAPSHOT = "torch.cuda.memory._record_memory_history(), then _dump_snapshot(path) after 50 steps"
_FIX = Fix(
    text="Keep `loss.item()` or `loss.detach()` instead of `loss`, and clear lists and hooks that collect tensors.",
    code="total += loss.detach()",
)


@dataclass(frozen=True)
class GrowingMemory(Rule):
    """Creep or leak (R28).

    Claim: Memory in use grows from step to step, and does not stop.
    Evidence: Theil-Sen slope with its 99 % interval: of the least allocated memory of each traced step, of the sampled
        memory of the device and of the process, or of the lows in a memory snapshot's history, each taken for a step.
    Threshold: The interval lies above zero, the last third of the steps gains at least half of what the third before it
        gained, and the growth over the judged steps is at least 100 MB.
    Fix: Keep numbers instead of tensors with their graph, and clear what collects them.
    Saving: None: this is a risk, not lost time. Steps to a full memory are headroom / slope, from 50 steps on.
    Traps: Sequences that get longer from step to step: below 50 steps or samples growth is an observation without a
        fix. A cache of data that the run fills on purpose.
    Confidence: Medium; low below 50 steps or samples.
    """

    code: ClassVar[str] = "ME004"
    name: ClassVar[str] = "growing_memory"
    family: ClassVar[str] = "memory"
    summary: ClassVar[str] = "Memory in use grows from step to step"
    reads_logs: ClassVar[bool] = True

    smallest_growth_bytes: int = 100_000_000

    def check(self, facts: Facts) -> Result:
        """Fires once per memory that grows; what the device holds is not told where the allocator's growth is."""
        growth = facts.memory.growth
        if not growth and facts.logs is not None and facts.logs.alone:
            return MissingData("no history of eight rises and falls of the memory was given", _SNAPSHOT)
        if not growth:
            return MissingData("memory was not recorded over enough steps", record_longer(facts, "half a minute"))
        large = {row.of: row for row in growth if row.grows and row.total_bytes >= self.smallest_growth_bytes}
        if "allocated" in large:
            large.pop("device", None)
        if large:
            return Fired(tuple(self._finding(facts, row) for row in large.values()))
        most = max(growth, key=lambda row: row.total_bytes if row.grows else 0.0)
        grown = f"it grew by {format_bytes(most.total_bytes)}" if most.grows else "it does not grow for good"
        return Passed(f"{grown} over {format_count(most.last_step - most.first_step)} steps")

    def _finding(self, facts: Facts, row: MemoryGrowth) -> Finding:
        what, whole, _ = _WORDS[row.of]
        if row.of == "allocated" and facts.memory.place == "host":
            whole = "the host"
        why = "The growth goes on through all judged steps: it is neither a jump nor a cache that fills up."
        if row.steps < FEWEST_TO_EXTEND:
            few = format_count(row.steps)
            why += f" In {few} steps, batches that get longer look the same: record {FEWEST_TO_EXTEND}."
        elif not row.lasts:
            why += f" {format_count(row.n)} points do not tell how it goes on: record {FEWEST_TO_EXTEND}."
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
            at_most="medium" if row.lasts else "low",
            fix=_FIX if row.lasts else None,
            confirm="The memory of the last steps must be that of the first.",
        )


def _evidence(facts: Facts, row: MemoryGrowth, whole: str) -> tuple[Evidence, ...]:
    """The growth, over how many steps, and what it leads to where that is known."""
    what, _, origin = _WORDS[row.of]
    if facts.logs is not None and facts.logs.alone:
        origin = "lows of the memory in use in the snapshot's history"

    def known(label: str, value: float | None, unit: str, source: Source = "derived") -> tuple[Evidence, ...]:
        if value is None:
            return ()
        return (evidence_of(facts, label, value, unit, origin, source, n=None),)

    growth = Evidence(
        label=f"{what}, growth per step",
        value=row.bytes_per_step,
        unit="bytes",
        source="derived",
        origin=origin,
        n=row.n,
        low=row.low_bytes_per_step,
        high=row.high_bytes_per_step,
        rank=facts.rank.rank,
        steps=(row.first_step, row.last_step),
        behind=(_SAMPLED[row.of],) if row.of in _SAMPLED else (),
    )
    # Two digits, as the headline has it.
    left = None if row.steps_to_full is None else float(f"{row.steps_to_full:.2g}")
    return (
        growth,
        *known("Judged steps", row.steps, "count", "measured"),
        *known(f"Room left in the memory of {whole}", row.headroom_bytes, "bytes"),
        *known("Steps until it is full, about", left, "count", "estimated"),
        *known("Time until it is full", row.ns_to_full, "ns", "estimated"),
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
