"""The sections of a report by subject, found in this folder: a new one is a file with its place on the page."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from profilerkit.model.diff import Diff
from profilerkit.model.report import Report
from profilerkit.model.trial import Trial
from profilerkit.report.blocks import Document, Section
from profilerkit.report.findings import findings_of
from profilerkit.report.inert import inert
from profilerkit.report.sections.fixes import first_of

MakeSection = Callable[[Report], Section | None]


def in_order() -> tuple[MakeSection, ...]:
    """Return the sections that each module of this folder names in its ``SECTIONS``, by their places on the page."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    placed: list[tuple[int, MakeSection]] = [pair for module in modules for pair in module.SECTIONS.items()]
    return tuple(make for _, make in sorted(placed, key=lambda pair: pair[0]))


SECTIONS = in_order()


def document(record: Report | Diff | Trial, *, whole: bool = True) -> Document:
    """The record as a page; a section that has nothing to show is left out, of a report all unless it is ``whole``."""
    if isinstance(record, Diff):
        from profilerkit.report.diff_document import document_of_diff

        return document_of_diff(record)
    if isinstance(record, Trial):
        from profilerkit.report.trial_document import document_of_trial

        return document_of_trial(record)
    made = (section(record) for section in SECTIONS if whole)
    return Document(
        title=f"{record.verdict.bound}: {inert(record.run.name) or 'run'}",
        first=first_of(record, findings_of(record)),
        sections=tuple(section for section in made if section is not None),
    )
