"""Remember which rules of a project you allowed: they are code, so a changed file has to be allowed again."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from profilerkit.errors import UsageError
from profilerkit.rundir.files import read_regular, write_whole

#: A rule is a page of text. A larger file is none, and is neither read nor run.
_MOST_BYTES = 1 << 20


def rule_files(path: Path) -> dict[Path, bytes | None]:
    """Return the Python files of a file or directory of rules, with their content.

    In a directory, files whose names begin with ``_`` or ``test_`` hold no rules. The content is ``None`` for what
    cannot be read, is no regular file, or is larger than 1 MiB.
    """
    named = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return {file: _content(file) for file in named if not (path.is_dir() and file.name.startswith(("_", "test_")))}


def _content(file: Path) -> bytes | None:
    try:
        return read_regular(file, _MOST_BYTES, named=True)
    except OSError:
        return None


def is_allowed(path: Path, files: Mapping[Path, bytes | None]) -> bool:
    """Return whether you allowed exactly these files of that path."""
    return _allowed().get(os.path.realpath(path)) == _digest(files)


def allow(path: Path) -> Path:
    """Allow the rules of a path as they are now, and return the file that says so, which only you can read.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        record = _record()
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {**_allowed(), os.path.realpath(path): _digest(rule_files(path))}
        write_whole(record, json.dumps(known, indent=2).encode(), mode=0o600)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise UsageError(
            "the rules cannot be recorded as allowed",
            cause=str(error),
            hint="set XDG_CONFIG_HOME to a directory of yours, or name the rules with PROFILERKIT_RULES_PATH",
        ) from error
    return record


def _record() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "profilerkit" / "allowed_rules.json"


def _allowed() -> dict[str, str]:
    """Path to digest. A record that another user owns or may write counts as none."""
    try:
        record = _record()
        found = record.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return {}
        known = json.loads(record.read_text("utf-8"))
    except (OSError, RuntimeError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(files: Mapping[Path, bytes | None]) -> str:
    """The SHA-256 of names and contents."""
    told = hashlib.sha256()
    for file, content in files.items():
        told.update(repr((file.name, content)).encode("utf-8", "surrogateescape"))
    return told.hexdigest()
