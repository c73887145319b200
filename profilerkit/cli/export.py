"""``profilerkit export``: a recorded run for another viewer."""

import argparse
import os
from pathlib import Path

from profilerkit.cli.arguments import add_allow_rules, add_no_redact, one_of, project_settings
from profilerkit.cli.console import DONE, Console
from profilerkit.cli.outputs import name_of, unwritten
from profilerkit.cli.places import REMOTE_HELP, Progress, at_hand, place
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.units import format_bytes

_FORMATS = ("perfetto",)
_ENDING = ".perfetto.json.gz"
_EPILOG = (
    """\
examples:
  profilerkit export runs/resnet50 -f perfetto
  profilerkit export rank0.json.gz rank1.json.gz -f perfetto -o job.json.gz

Open the file at https://ui.perfetto.dev, which reads it in your browser. Each
rank is a process. Extra tracks show steps, their parts, and why the device was
idle; findings are marks. The file is written beside its input, as
.perfetto.json.gz.

"""
    + REMOTE_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``export``."""
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="RUN", type=place, help="run directory, or traces of one job")
    parser.add_argument(
        "-f",
        "--format",
        metavar="|".join(_FORMATS),
        type=one_of("--format", _FORMATS),
        default=_FORMATS[0],
        help="export for this viewer (default: perfetto)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, always as gzip")
    add_allow_rules(parser)
    add_no_redact(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Analyze the run and write it; return the exit code."""
    from profilerkit import api
    from profilerkit.formats.inputs import require_existing
    from profilerkit.report import perfetto
    from profilerkit.report.redaction import masking
    from profilerkit.rundir.places import identity_of

    with at_hand(arguments.paths, console) as copies:
        paths = copies.paths
        require_existing(paths)
        path = arguments.output or _beside(paths[0], copies.beside())
        if any(given.exists() and path.exists() and path.samefile(given) for given in paths):
            raise UsageError(f"{path} would be overwritten", cause="it is the input", hint="name another file with -o")
        with Progress(console) as progress:
            made = api.analysis(paths, project_settings(arguments, console))
            if not any(entry.trace or entry.unseen for entry in made.ranks):
                raise UnreadableInputError(
                    f"{paths[0]} holds no trace",
                    cause="only traced steps have events",
                    hint="record with a deep window",
                )
            progress.begin("writing the events")
            beside = path.with_name(f".{path.name}.{os.getpid()}.part")
            try:
                mask = str if arguments.no_redact else masking(identity_of(paths))
                count = perfetto.write(beside, made.report, made.ranks, mask)
                beside.replace(path)
            except OSError as error:
                beside.unlink(missing_ok=True)
                raise unwritten(path, error, "name another place with -o FILE") from error
    size = format_bytes(path.stat().st_size)
    console.note(f"wrote {path} ({size}, {count:,} events); next: open it in https://ui.perfetto.dev")
    return DONE


def _beside(first: Path, elsewhere: Path | None) -> Path:
    """Where the file goes without ``-o``: into a directory that was named, else beside the trace."""
    if first.is_dir():
        return (elsewhere or first) / f"trace{_ENDING}"
    return (elsewhere or first.parent) / f"{name_of(first)}{_ENDING}"
