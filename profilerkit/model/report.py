"""The Report: everything a renderer may know, and its JSON schema."""

from pathlib import Path
from typing import Any

import msgspec

from profilerkit.model.communication import Communication
from profilerkit.model.finding import Finding, Outcome, Source
from profilerkit.model.run import Run, Trust
from profilerkit.model.step import Part, Rank, Steps
from profilerkit.model.verdict import Verdict

SCHEMA_VERSION = 1


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel (or, on a CPU-only run, an operator) summed over the steady window.

    Operators count with their own time, without what is nested in them. ``share`` is total time / steady time and may
    overlap with other streams; ``kind`` is math, membw, comm or other.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    median_ns: int
    share: float


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one name and group, summed over the steady window. ``None`` means not recorded.

    Attributes:
        name: as the metadata has it, else the name of the kernel or transfer.
        count: how many.
        total_ns: their durations, waiting for other ranks included.
        exposed_ns: when no compute kernel ran beside them.
        bytes: what they moved, by the convention of nccl-tests.
        dtype: element type in torch's words.
        group_size: members of the process group.
        kind: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, send_recv, barrier
            or unknown.
        bytes_source: measured where the metadata says the bytes, derived where the operator's shapes do.
        matched: how many could be matched with the same collective of other ranks; ``None`` if none could.
        wait_ns: of ``total_ns``, waiting for the last rank to arrive; ``None`` unless all were matched.
        transfer_ns: the rest of ``total_ns``; ``None`` likewise.
        algorithm_bytes_per_s: bytes / time, over the transfers where ranks were matched, else over ``total_ns``, which
            makes it a lower bound.
        bus_bytes_per_s: the same by what a link carries (nccl-tests' factors by kind and group size).
        link_ratio: bus bandwidth / peak of the device's link; ``None`` where either is not known.
    """

    name: str
    count: int
    total_ns: int
    exposed_ns: int
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    kind: str = "unknown"
    bytes_source: Source | None = None
    matched: int | None = None
    wait_ns: int | None = None
    transfer_ns: int | None = None
    algorithm_bytes_per_s: float | None = None
    bus_bytes_per_s: float | None = None
    link_ratio: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory; ``None`` means not measured."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    allocator_calls_per_step: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One analysed run. ``None`` anywhere below means not measured, never zero."""

    schema_version: int = SCHEMA_VERSION
    verdict: Verdict
    steps: Steps
    breakdown: tuple[Part, ...]
    ranks: tuple[Rank, ...]
    outcomes: tuple[Outcome, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    memory: Memory
    trust: Trust
    run: Run
    communication: Communication | None = None

    def findings(self) -> list[tuple[Outcome, Finding]]:
        """All findings with the outcome they belong to, largest expected saving first."""
        pairs = [(outcome, finding) for outcome in self.outcomes for finding in outcome.findings]
        return sorted(pairs, key=lambda pair: -(pair[1].saving.expected if pair[1].saving else -1.0))

    def __repr__(self) -> str:
        """The verdict in one line: ``<Report input-bound: Training waits …>``; ``to_json`` has everything."""
        headline = "".join(char if char.isprintable() else "?" for char in self.verdict.headline)
        return f"<Report {self.verdict.bound}: {headline}>"

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON text; also written to ``path`` when given."""
        from profilerkit.report import save
        from profilerkit.report.json import render

        return save(render(self), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one offline HTML document; also written to ``path`` when given."""
        from profilerkit.report import save
        from profilerkit.report.html import render

        return save(render(self), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """The report as Markdown of at most 6 kB; also written to ``path`` when given."""
        from profilerkit.report import save
        from profilerkit.report.markdown import render

        return save(render(self), path)

    def _repr_html_(self) -> str:
        """The verdict for a notebook cell, without script."""
        from profilerkit.report.html import render_verdict

        return render_verdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``Report``, generated from the types."""
    schema = msgspec.json.schema(Report)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "profilerkit report", **schema}
