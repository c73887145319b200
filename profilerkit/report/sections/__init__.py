"""The sections of a report: one file each, in the order of the page. A new one is a file here and a line below."""

from collections.abc import Callable

from profilerkit.model.report import Report
from profilerkit.report.blocks import Document, Section
from profilerkit.report.findings import findings_of
from profilerkit.report.inert import inert
from profilerkit.report.sections import (
    communication,
    fixes,
    kernels,
    logs,
    lost_time,
    memory,
    ranks,
    run,
    samples,
    steps,
    timeline,
    trust,
    whole_run,
    why_not,
    workers,
)
from profilerkit.report.sections.first import first_of

SECTIONS: tuple[Callable[[Report], Section | None], ...] = (
    fixes.section,
    timeline.section,
    steps.section,
    logs.section,
    why_not.section,
    ranks.section,
    kernels.section,
    communication.section,
    memory.section,
    workers.section,
    whole_run.section,
    lost_time.section,
    samples.section,
    trust.section,
    run.section,
)


def document(report: Report) -> Document:
    """The report as a page; a section that has nothing to show is left out."""
    made = (section(report) for section in SECTIONS)
    return Document(
        title=f"{report.verdict.bound}: {inert(report.run.name) or 'run'}",
        first=first_of(report, findings_of(report)),
        sections=tuple(section for section in made if section is not None),
    )
