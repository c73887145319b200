"""The Report: everything a renderer may know, and its JSON schema."""

from pathlib import Path
from typing import Any

import msgspec

from profilerkit.model.finding import Finding, Outcome
from profilerkit.model.memory import Memory
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
    """Collectives of one name and group, summed over the steady window. ``None`` means not recorded."""

    name: str
    count: int
    total_ns: int
    exposed_ns: int
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None


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
