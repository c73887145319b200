"""``--no-redact``, and whose names a report is not to tell without it."""

import argparse
import getpass
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profilerkit.model.report import Report
    from profilerkit.report.redaction import Identity


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--no-redact``."""
    parser.add_argument(
        "--no-redact",
        action="store_true",
        help="keep names of users and hosts, absolute paths, variables and what looks like a secret",
    )


def shown(reports: "Sequence[Report]", paths: Sequence[Path], arguments: argparse.Namespace) -> "list[Report]":
    """The reports as they are told: redacted unless ``--no-redact``, and all alike.

    A saved report that was redacted cannot be undone; what it is compared with then loses its names too, or every path
    would count as a difference.
    """
    if arguments.no_redact and not any(report.run.redacted for report in reports):
        return list(reports)
    from profilerkit.report.redaction import redacted

    names = _identity(paths)
    return [redacted(report, names) for report in reports]


def _identity(paths: Sequence[Path]) -> "Identity":
    """Names of this machine and its user, and of the machines that recorded ``paths``."""
    from profilerkit.report.redaction import Identity

    return Identity(
        users=frozenset(_users()),
        hosts=frozenset((socket.gethostname(), *(host for path in paths for host in _recorded_hosts(path)))),
        homes=frozenset(_homes()),
    )


def _users() -> Iterator[str]:
    try:
        yield getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry; Python 3.13 made it an OSError
        return


def _homes() -> Iterator[str]:
    try:
        yield str(Path.home())
    except RuntimeError:
        return


def _recorded_hosts(run: Path) -> Iterator[str]:
    """The hosts of a run directory's ranks, as far as it says."""
    from profilerkit.rundir.files import read_document
    from profilerkit.rundir.layout import META, RankMeta

    for place in run.glob(f"rank_*/{META}"):
        try:
            yield read_document(place, RankMeta).host
        except (OSError, ValueError):
            continue
