"""Recordings as small archives for tests, without names of machines, cards and people."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from profilerkit.report.inert import short_paths
from profilerkit.rundir.places import identity_of

#: Runs whose traces are kept as well; of all others what the light tier wrote.
_TRACED = ("window_*", "graphs_*", "healthy_*_traced", "launch_bound_*", "sync_each_*", "pageable_copy_*")
#: Not needed to analyse a run again.
_LEFT_OUT = ("launch.json", "report.json", "report.html")
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)


class Cleaner:
    """Replaces host names, UUIDs and the places of files, in values as JSON has them. A UUID stays one and the same.

    >>> Cleaner()("GPU-6a1b2c3d-0000-4000-8000-0123456789ab on /nfs/home/jo/net/train.py")
    'GPU-00000000-0000-0000-0000-000000000001 on ~/net/train.py'
    """

    def __init__(self, runs: Iterable[Path] = ()) -> None:
        identity = identity_of(runs)
        names = {name for host in identity.hosts for name in (host, host.partition(".")[0]) if name}
        self._hosts = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names, reverse=True)))})(?![\w-])")
        self._uuids: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        """The value with all its texts cleaned, those of keys as well."""
        if isinstance(value, str):
            text = self._hosts.sub("host", short_paths(value))
            return _UUID.sub(lambda found: self._numbered(found[0].lower()), text)
        if isinstance(value, dict):
            return {self(key): self(held) for key, held in value.items()}
        return [self(held) for held in value] if isinstance(value, (list, tuple)) else value

    def _numbered(self, uuid: str) -> str:
        return self._uuids.setdefault(uuid, f"00000000-0000-0000-0000-{len(self._uuids) + 1:012d}")


def write(runs: Path, target: Path) -> list[Path]:
    """Write ``light.tar.gz`` of all run directories and ``traced.tar.gz`` of some of them; returns both."""
    target.mkdir(parents=True, exist_ok=True)
    every = sorted(path for path in runs.iterdir() if path.is_dir())
    traced = [path for path in every if any(path.match(pattern) for pattern in _TRACED)]
    clean = Cleaner(every)
    return [
        _archive(every, target / "light.tar.gz", clean, traces=False),
        _archive(traced, target / "traced.tar.gz", clean, traces=True),
    ]


def _archive(runs: list[Path], target: Path, clean: Cleaner, *, traces: bool) -> Path:
    """The files of these runs in an archive whose bytes depend on them alone."""
    with gzip.GzipFile(target, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for run in runs:
            for path in sorted(run.rglob("*")):
                is_left_out = path.name in _LEFT_OUT or (path.name.startswith("trace.json") and not traces)
                if path.is_file() and not is_left_out:
                    content = _cleaned(path, clean)
                    entry = tarfile.TarInfo(f"{run.name}/{path.relative_to(run)}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    return target


def _cleaned(path: Path, clean: Cleaner) -> bytes:
    """The content of a file; of JSON with its texts cleaned."""
    content = path.read_bytes()
    if path.name.endswith(".json.gz"):
        return gzip.compress(json.dumps(clean(json.loads(gzip.decompress(content)))).encode(), mtime=0)
    if path.suffix == ".json":
        return json.dumps(clean(json.loads(content))).encode()
    if path.suffix == ".jsonl":
        return b"".join(json.dumps(clean(json.loads(line))).encode() + b"\n" for line in content.splitlines())
    return content
