"""``--no-redact``: reports are told without names, paths and secrets unless it is given."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profilerkit.model.events import RawEvents, StepEvents
    from profilerkit.model.report import Report


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--no-redact``."""
    parser.add_argument(
        "--no-redact",
        action="store_true",
        help="do not redact user names, host names, paths, variables or secrets",
    )


def shown(reports: "Sequence[Report]", paths: Sequence[Path], arguments: argparse.Namespace) -> "list[Report]":
    """The reports as they are told: redacted unless ``--no-redact``, and all alike.

    A saved report that was redacted cannot be undone; what it is compared with then loses its names too, or every path
    would count as a difference.
    """
    if arguments.no_redact and not any(report.run.redacted for report in reports):
        return list(reports)
    from profilerkit.report.redaction import redacted
    from profilerkit.rundir.places import identity_of

    names = identity_of(paths)
    return [redacted(report, names) for report in reports]


def shown_events(
    tables: "Sequence[RawEvents]", paths: Sequence[Path], arguments: argparse.Namespace
) -> "Sequence[RawEvents]":
    """Raw events as they are told: redacted unless ``--no-redact``."""
    if arguments.no_redact:
        return tables
    from profilerkit.report.redaction import redacted_events
    from profilerkit.rundir.places import identity_of

    return redacted_events(tables, identity_of(paths))


def shown_step_events(
    events: "Sequence[StepEvents]", paths: Sequence[Path], arguments: argparse.Namespace
) -> "Sequence[StepEvents]":
    """Return the events of steps as they are shown: redacted unless ``--no-redact``."""
    if arguments.no_redact or not events:
        return events
    from profilerkit.report.redaction import redacted_step_events
    from profilerkit.rundir.places import identity_of

    return redacted_step_events(events, identity_of(paths))


def mask(paths: Sequence[Path], arguments: argparse.Namespace) -> "Callable[[str], str]":
    """Return what is done to each text that is shown: nothing with ``--no-redact``."""
    if arguments.no_redact:
        return str
    from profilerkit.report.redaction import masking
    from profilerkit.rundir.places import identity_of

    return masking(identity_of(paths))
