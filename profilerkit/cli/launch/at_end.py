"""Says at the end of a command of ``profilerkit run`` what its notebooks found, or that nothing was recorded."""

import os
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from profilerkit.capture import handoff
from profilerkit.capture.environment import NOTEBOOK
from profilerkit.capture.settings import RunOptions, read_options
from profilerkit.cli.console import Console
from profilerkit.rundir.claim import candidates
from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import END, LAUNCH, MANIFEST, REPORT_HTML, RunManifest, rank_directory

#: Importing torch alone takes twice this; a command whose children used less did not train in one of them.
_CHILDREN_SECONDS = 0.5
#: The report of a small run takes 2 s of a processor. One that is not there by then is made here.
_REPORT_SECONDS = 30.0


def tell() -> None:
    """Say it at the end of the command's own process, whose order is left, unless a child may have recorded."""
    order = read_options(os.environ)
    if order is None or os.environ.get("RANK", "0") != "0":
        return
    console = Console(quiet=order.quiet)
    for run in _notebooks(order):
        _tell_of(run, console)
    times = os.times()
    if times.children_user + times.children_system > _CHILDREN_SECONDS:
        return
    seen = "torch was not imported"
    if "torch" in sys.modules:
        seen = "no DataLoader was iterated, and there was no backward pass and no optimizer step"
    console.note(f"profilerkit: nothing was recorded: {seen}")


def _notebooks(order: RunOptions) -> Iterator[Path]:
    """The runs that kernels below the command recorded, to be analysed at the kernel's end."""
    for run in takewhile(lambda path: (path / LAUNCH).exists(), candidates(order.run_directory(NOTEBOOK))):
        try:
            manifest = read_document(run / MANIFEST, RunManifest)
        except (OSError, ValueError):
            continue
        is_ours = manifest.created_unix_ns >= order.began_unix_ns and manifest.settings.get("analyze") == str(True)
        if is_ours and Path(manifest.argv[0]).stem.startswith("ipykernel"):
            yield run


def _tell_of(run: Path, console: Console) -> None:
    """Say in one line what the report says; make it where the kernel was killed before it could have it made."""
    left = (rank_directory(run, 0) / END).is_file()
    report = handoff.wait_for_report(run, _REPORT_SECONDS) if left else None
    if report is None:
        handoff.analyze(run, _REPORT_SECONDS, quiet=console.quiet)
        return
    from profilerkit.cli.analyze import brief

    console.note(f"{brief(report, ())} ({os.path.relpath(run / REPORT_HTML)})")
