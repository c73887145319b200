"""Absolute paths in a text, cut to what helps to find a file and tells nothing of whose it is."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_PART = r"[^\s/\\\"'`,;:()<>|*?\[\]{}]+"
#: Where a path may begin; not inside a relative one, after what was cut before, or in ``https://``.
_BEGINS = r"(?:(?<=file://)|(?<![\w./\\~…>*)\]}-])|(?<=\s-[A-Za-z]))"
_POSIX = re.compile(rf"(?!(?<=:)//){_BEGINS}(?:/+{_PART})+/*")
#: In quotes a part may hold blanks.
_QUOTED = re.compile(r"(?<=[\"'])(?:/[^\"'\n]*|[A-Za-z]:[/\\][^\"'\n]*)(?=[\"'])")
#: A share of another machine.
_SHARE = re.compile(rf"(?<![\w\\])\\\\(?:{_PART}\\)+{_PART}")
_WINDOWS = re.compile(rf"(?<![\w/\\])[A-Za-z]:[/\\](?:{_PART}[/\\])*(?:{_PART})?")
#: What the kernel provides is the same on every machine, and advice names it.
_KERNEL = frozenset(("dev", "proc", "sys"))
#: Directories of home directories: the first, as ``/home`` and ``C:\Users``, to the third part of a path.
_HOMES = frozenset(("home", "homes", "users"))
_HOMES_DEPTH = 3


def short_paths(text: str) -> str:
    r"""``text`` with ``~`` for home directories and the last two parts of other absolute paths.

    >>> short_paths("open('/data/team/imagenet/a.jpg') in /nfs/home/jo/net/train.py:12")
    "open('…/imagenet/a.jpg') in ~/net/train.py:12"
    >>> short_paths("C:\\Users\\jo\\x.py, /dev/shm/a/b, src/net/train.py")
    '~/x.py, /dev/shm/a/b, src/net/train.py'
    """
    for pattern in (_QUOTED, _SHARE, _POSIX, _WINDOWS):
        text = pattern.sub(_short, text)
    return text


def without_homes(text: str, homes: Iterable[str]) -> str:
    """``text`` with ``~`` for these directories, wherever they lie and whatever is in their names."""
    pattern = _homes_pattern(frozenset(homes))
    return text if pattern is None else pattern.sub("~", text)


@lru_cache(maxsize=8)
def _homes_pattern(homes: frozenset[str]) -> re.Pattern[str] | None:
    known = sorted((re.escape(home) for home in (home.rstrip("/\\") for home in homes) if home), key=lambda h: -len(h))
    return re.compile(rf"{_BEGINS}(?:{'|'.join(known)})(?![\w.-])") if known else None


def _short(match: re.Match[str]) -> str:
    parts = [part for part in re.split(r"[/\\]", match[0]) if part]
    if not parts or parts[0] in _KERNEL:
        return match[0]
    owned = 0 if parts[0] == "root" else _owner(parts)
    if owned is not None:
        return "/".join(("~", *parts[owned + 1 :]))
    return match[0] if len(parts) < 3 else "/".join(("…", *parts[-2:]))


def _owner(parts: Sequence[str]) -> int | None:
    """Which part names the owner of the home directory that the path lies in; ``None`` where it lies in none."""
    named = (index + 1 for index, part in enumerate(parts[:_HOMES_DEPTH]) if part.lower() in _HOMES)
    return next((index for index in named if index < len(parts)), None)
