"""Give users the report, the comparison and the trial: the records with their documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from profilerkit.model import diff as compared
from profilerkit.model import report as analysed
from profilerkit.model import trial as tried
from profilerkit.model.events import StepEvents
from profilerkit.rundir.files import write_whole

__all__ = ["Diff", "Report", "Trial", "as_diff", "as_report", "as_trial"]


def _saved(text: str, path: str | Path | None) -> str:
    if path is not None:
        write_whole(Path(path), text.encode("utf-8"))
    return text


class _Documents:
    """Give a record its documents: redacted unless ``redact`` is false, and written to ``path`` when given.

    Values of the command line, messages of exceptions, variables, names of users and hosts, and absolute paths are
    left out; of a trial also its command and the patch, which holds lines of your files. Hosts that recorded a run are
    known by address alone; ``profilerkit analyze`` also knows the names a run has kept.
    """

    __slots__ = ()

    def to_json(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the record as JSON text; ``profilerkit rules --schema`` prints the schema of a report."""
        from profilerkit.report import json

        return _saved(json.render(_shown(self, redact)), path)

    def to_html(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the record as one offline HTML document."""
        from profilerkit.report.html import render
        from profilerkit.report.redaction import redacted_step_events
        from profilerkit.rundir.places import identity_of

        events = events_of(self)
        shown = redacted_step_events(events, identity_of()) if redact and events else events
        return _saved(render(_shown(self, redact), shown), path)

    def to_markdown(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the record as Markdown of at most 6 kB."""
        from profilerkit.report import markdown

        return _saved(markdown.render(_shown(self, redact)), path)

    def _repr_html_(self) -> str:
        """Return the answer for a notebook cell; names and paths are left out, as notebooks are shared."""
        from profilerkit.report import html

        return html.render_verdict(_shown(self, redact=True))


def _shown(record: _Documents, redact: bool) -> analysed.Report | compared.Diff | tried.Trial:
    from profilerkit.report.redaction import told

    assert isinstance(record, analysed.Report | compared.Diff | tried.Trial)
    return told(record, redact=redact)


# Without slots: the events of its timeline are kept beside the fields, and so out of its JSON.
class Report(analysed.Report, _Documents, frozen=True, kw_only=True, dict=True):
    """Hold the result of an analysis. ``None`` anywhere below means not measured, never zero."""


class Diff(compared.Diff, _Documents, frozen=True, kw_only=True):
    """Hold a comparison of two runs."""


class Trial(tried.Trial, _Documents, frozen=True, kw_only=True):
    """Hold what changes to a program saved. ``None`` anywhere below means not measured, never zero."""


def as_report(record: analysed.Report, events: Sequence[StepEvents] = ()) -> Report:
    """Return the record with its documents; ``events`` of two steps are for the timeline of the HTML."""
    made = record if isinstance(record, Report) else Report(**_fields(record))
    if events:
        made.__dict__["step_events"] = events
    return made


def events_of(report: object) -> Sequence[StepEvents]:
    """Return the events of the median and the slowest step; empty where the report was not made just now."""
    events: Sequence[StepEvents] = getattr(report, "__dict__", {}).get("step_events", ())
    return events


def as_diff(record: compared.Diff) -> Diff:
    """Return the record with its documents."""
    return record if isinstance(record, Diff) else Diff(**_fields(record))


def as_trial(record: tried.Trial) -> Trial:
    """Return the record with its documents."""
    return record if isinstance(record, Trial) else Trial(**_fields(record))


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
