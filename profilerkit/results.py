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


# Without slots: the events of its timeline are kept beside the fields, and so out of its JSON.
class Report(analysed.Report, frozen=True, kw_only=True, dict=True):
    """Hold the result of an analysis. ``None`` anywhere below means not measured, never zero."""

    def to_json(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the report as JSON text, and write it to ``path`` when given.

        Values of the command line, messages of exceptions, variables, names of users and hosts, and absolute paths
        are left out unless ``redact`` is false. Hosts that recorded the run are known by address alone; ``profilerkit
        analyze`` also knows the names a run has kept.
        """
        from profilerkit.report.json import render
        from profilerkit.report.redaction import told

        return _saved(render(told(self, redact=redact)), path)

    def to_html(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the report as one offline HTML document, and write it to ``path`` when given; see ``to_json``."""
        from profilerkit.report.html import render
        from profilerkit.report.redaction import redacted_step_events, told
        from profilerkit.rundir.places import identity_of

        events = events_of(self)
        shown = redacted_step_events(events, identity_of()) if redact else events
        return _saved(render(told(self, redact=redact), shown), path)

    def to_markdown(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the report as Markdown of at most 6 kB, and write it to ``path`` when given; see ``to_json``."""
        from profilerkit.report.markdown import render
        from profilerkit.report.redaction import told

        return _saved(render(told(self, redact=redact)), path)

    def _repr_html_(self) -> str:
        """Return the verdict for a notebook cell; names and paths are left out, as notebooks are shared."""
        from profilerkit.report.html import render_verdict
        from profilerkit.report.redaction import told

        return render_verdict(told(self, redact=True))


class Diff(compared.Diff, frozen=True, kw_only=True):
    """Hold a comparison of two runs."""

    def to_json(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the comparison as JSON text, and write it to ``path`` when given; redacted as a report is."""
        from profilerkit.report.json import render
        from profilerkit.report.redaction import told_diff

        return _saved(render(told_diff(self, redact=redact)), path)

    def to_html(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the comparison as one offline HTML document, and write it to ``path`` when given."""
        from profilerkit.report.html import render_diff
        from profilerkit.report.redaction import told_diff

        return _saved(render_diff(told_diff(self, redact=redact)), path)

    def to_markdown(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the comparison as Markdown of at most 6 kB, and write it to ``path`` when given."""
        from profilerkit.report.markdown import render_diff
        from profilerkit.report.redaction import told_diff

        return _saved(render_diff(told_diff(self, redact=redact)), path)

    def _repr_html_(self) -> str:
        """Return the verdict of the comparison for a notebook cell; names and paths are left out."""
        from profilerkit.report.html import render_diff_verdict
        from profilerkit.report.redaction import told_diff

        return render_diff_verdict(told_diff(self, redact=True))


class Trial(tried.Trial, frozen=True, kw_only=True):
    """Hold what changes to a program saved. ``None`` anywhere below means not measured, never zero."""

    def to_json(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the trial as JSON text, and write it to ``path`` when given; redacted as a report is.

        The command and the patch, which holds lines of your files, are left out too.
        """
        from profilerkit.report.json import render
        from profilerkit.report.redaction import told_trial

        return _saved(render(told_trial(self, redact=redact)), path)

    def to_html(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the trial as one offline HTML document, and write it to ``path`` when given; see ``to_json``."""
        from profilerkit.report.html import render_trial
        from profilerkit.report.redaction import told_trial

        return _saved(render_trial(told_trial(self, redact=redact)), path)

    def to_markdown(self, path: str | Path | None = None, *, redact: bool = True) -> str:
        """Return the trial as Markdown of at most 6 kB, and write it to ``path`` when given; see ``to_json``."""
        from profilerkit.report.markdown import render_trial
        from profilerkit.report.redaction import told_trial

        return _saved(render_trial(told_trial(self, redact=redact)), path)

    def _repr_html_(self) -> str:
        """Return the answer for a notebook cell; names and paths are left out."""
        from profilerkit.report.html import render_trial_verdict
        from profilerkit.report.redaction import told_trial

        return render_trial_verdict(told_trial(self, redact=True))


def as_report(record: analysed.Report, events: Sequence[StepEvents] = ()) -> Report:
    """Return the record with its documents; ``events`` of two steps are for the timeline of the HTML."""
    made = record if isinstance(record, Report) else Report(**_fields(record))
    if events:
        made.__dict__["step_events"] = events
    return made


def events_of(report: analysed.Report) -> Sequence[StepEvents]:
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
