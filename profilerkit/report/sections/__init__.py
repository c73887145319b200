"""The sections of a report by subject, in the order of the page. A new one is a file here and a line below."""

from collections.abc import Callable

from profilerkit.model.diff import Diff
from profilerkit.model.report import Report
from profilerkit.model.trial import Trial
from profilerkit.report.blocks import Document, Section
from profilerkit.report.diff_document import document_of_diff
from profilerkit.report.findings import findings_of
from profilerkit.report.inert import inert
from profilerkit.report.sections import (
    communication,
    fixes,
    kernels,
    memory,
    ranks,
    samples,
    steps,
    trust,
    whole_run,
    workers,
)
from profilerkit.report.sections.fixes import first_of
from profilerkit.report.trial_document import document_of_trial

SECTIONS: tuple[Callable[[Report], Section | None], ...] = (
    fixes.section,
    steps.timeline,
    steps.section,
    samples.logs,
    fixes.other_causes,
    ranks.section,
    kernels.section,
    communication.section,
    memory.section,
    workers.section,
    whole_run.section,
    whole_run.lost_time,
    samples.section,
    trust.section,
    trust.this_run,
)


def document(record: Report | Diff | Trial) -> Document:
    """The record as a page; a section that has nothing to show is left out."""
    if isinstance(record, Diff):
        return document_of_diff(record)
    return document_of_trial(record) if isinstance(record, Trial) else _document_of_report(record)


def _document_of_report(report: Report) -> Document:
    made = (section(report) for section in SECTIONS)
    return Document(
        title=f"{report.verdict.bound}: {inert(report.run.name) or 'run'}",
        first=first_of(report, findings_of(report)),
        sections=tuple(section for section in made if section is not None),
    )
