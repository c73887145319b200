"""Log a report to MLflow: ``log_report(prof.report, client, run_id)``."""

from typing import Any

from profilerkit.integrations import scalars
from profilerkit.model.report import Report
from profilerkit.report.redaction import told
from profilerkit.results import as_report


def log_report(report: Report, client: Any, run_id: str, *, redact: bool = True) -> None:
    """Add the report's numbers as metrics, and its page, Markdown and JSON as artifacts below ``profilerkit/``.

    Args:
        report: what ``profilerkit.analyze()`` or ``prof.report`` gave.
        client: an ``mlflow.MlflowClient``.
        run_id: of the run, for example ``mlflow.active_run().info.run_id``.
        redact: leave out values of the command line, messages, names of users and hosts, and absolute paths.
    """
    shown = as_report(told(report, redact=redact))
    for name, value in scalars(shown).items():
        client.log_metric(run_id, name, value)
    client.log_text(run_id, shown.to_html(redact=False), "profilerkit/report.html")
    client.log_text(run_id, shown.to_markdown(redact=False), "profilerkit/report.md")
    client.log_text(run_id, shown.to_json(redact=False), "profilerkit/report.json")
