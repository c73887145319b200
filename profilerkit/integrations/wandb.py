"""Log a report to Weights & Biases: ``log_report(prof.report, run)``."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from profilerkit.integrations import scalars
from profilerkit.model.report import Report
from profilerkit.report.redaction import told
from profilerkit.results import as_report


def log_report(report: Report, run: Any, *, redact: bool = True) -> None:
    """Put the report's numbers into the summary, and its page, Markdown and JSON into one artifact.

    The summary holds one value per run, which is what a report is; no step of the run's own charts is used up.

    Args:
        report: what ``profilerkit.analyze()`` or ``prof.report`` gave.
        run: what ``wandb.init()`` gave; it stays open.
        redact: leave out values of the command line, messages, names of users and hosts, and absolute paths.
    """
    shown = as_report(told(report, redact=redact))
    run.summary.update(scalars(shown))
    with TemporaryDirectory(prefix="profilerkit-") as directory:
        place = Path(directory)
        shown.to_html(place / "report.html", redact=False)
        shown.to_markdown(place / "report.md", redact=False)
        shown.to_json(place / "report.json", redact=False)
        # The library copies what it is given before it returns (wandb 0.31), so the directory may go.
        run.log_artifact(directory, name=f"profilerkit-{run.id}", type="profilerkit-report")
