"""Names of report files for a directory that several recordings share: they sort by time, and none hides another."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import MANIFEST, RunManifest

# Read of each end of a file; a trace can have gigabytes.
_END_BYTES = 1 << 16


def shared_stem(recording: Path) -> str:
    """``<run>.<yyyymmdd-hhmm>.<8 hex>``: what was recorded, when, and which of several of that minute.

    The time is in UTC: when a run was started, or that of the newest trace. The digits are of the contents: of a run
    directory ``run.json`` alone, which is written once, else the ends of the files.
    """
    files = sorted(_files(recording))
    known = hashlib.sha256()
    for file in files:
        known.update(file.name.encode("utf-8", "surrogateescape") + _ends(file))
    when = datetime.fromtimestamp(_seconds(recording, files), UTC).strftime("%Y%m%d-%H%M")
    return f"{name_of(recording.resolve())}.{when}.{known.hexdigest()[:8]}"


def made_stem(kind: str, places: Iterable[object]) -> str:
    """``<kind>.<yyyymmdd-hhmmss>.<8 hex>``: what is made of the places, when, and which of several of that second.

    The time is in UTC; the digits are of where the places are, for one on another machine is not read yet.
    """
    whole = "\0".join(str(place.resolve()) if isinstance(place, Path) else str(place) for place in places)
    digits = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{kind}.{datetime.now(UTC):%Y%m%d-%H%M%S}.{digits}"


def name_of(recording: Path) -> str:
    """What its reports are named by; those of a summary by its trace."""
    from profilerkit.summaries.files import name_of_trace

    if recording.is_dir():
        return recording.name
    return name_of_trace(recording.name).removesuffix(".gz").removesuffix(".json")


def _seconds(recording: Path, files: Sequence[Path]) -> float:
    with suppress(OSError, ValueError):
        return read_document(recording / MANIFEST, RunManifest).created_unix_ns / 1e9
    return max((file.stat().st_mtime for file in files), default=0.0)


def _files(recording: Path) -> Iterable[Path]:
    if not recording.is_dir():
        return [recording]
    manifest = recording / MANIFEST
    return [manifest] if manifest.is_file() else (file for file in recording.iterdir() if file.is_file())


def _ends(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        first = opened.read(_END_BYTES)
        opened.seek(max(size - _END_BYTES, 0))
        return size.to_bytes(8, "little") + first + opened.read(_END_BYTES)
