"""Log a report to TensorBoard: ``log_report(prof.report, writer)``."""

from typing import Any

from profilerkit.integrations import scalars
from profilerkit.model.report import Report
from profilerkit.report.redaction import told
from profilerkit.results import as_report


def log_report(report: Report, writer: Any, step: int = 0, *, redact: bool = True) -> None:
    """Add the report's numbers as scalars and its Markdown as text.

    Args:
        report: what ``profilerkit.analyze()`` or ``prof.report`` gave.
        writer: a ``SummaryWriter`` of ``torch.utils.tensorboard`` or tensorboardX; it stays open.
        step: the global step at which they are shown.
        redact: leave out values of the command line, messages, names of users and hosts, and absolute paths.
    """
    shown = as_report(told(report, redact=redact))
    for name, value in scalars(shown).items():
        writer.add_scalar(name, value, step)
    writer.add_text("profilerkit/report", shown.to_markdown(redact=False), step)
