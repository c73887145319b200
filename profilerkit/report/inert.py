"""Text from traces and programs made harmless: escaped, clipped, and paths cut to what helps to find a file."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

#: Longest name and longest sentence a renderer prints; the JSON keeps the full text.
NAME_LIMIT = 120
SENTENCE_LIMIT = 600
CODE_LIMIT = 4_000

_ASCII = {
    "▲": "^",
    "■": "#",
    "●": "o",
    "◇": "?",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "→": "->",
    "…": "...",
    "µ": "u",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "\u00a0": " ",
    "°": "",
}
_TO_ASCII = str.maketrans(_ASCII)


def _visible(char: str) -> str:
    """The character itself, or its escape where printing it would do something."""
    if char in "\t\n\r\v\f\u2028\u2029":
        return " "
    if char == "\u00a0" or unicodedata.category(char)[0] != "C":
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clip(text: str, limit: int) -> str:
    """``text`` with its middle left out when it is longer than ``limit`` characters.

    The end stays because kernel names differ there.

    >>> clip("void elementwise_kernel<float>", 16)
    'void eleme…loat>'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :] if tail else ''}"


def inert(text: str, limit: int = NAME_LIMIT) -> str:
    r"""One line in which control, format and surrogate characters stand as escapes.

    >>> inert("a\x1b[31mb\nc")
    'a\\x1b[31mb c'
    """
    # Clipping before and after bounds the work on a 10 MB name and the length of its escapes.
    visible = clip(text, 2 * limit)
    if not visible.isprintable():
        visible = "".join(map(_visible, visible))
    return clip(" ".join(visible.split(" ")).strip(), limit)


def inert_code(text: str, limit: int = CODE_LIMIT) -> str:
    """Like ``inert`` for code to paste: line ends and indentation stay."""
    lines = text[:limit].replace("\t", "    ").splitlines()
    return "\n".join("".join(_visible(char) for char in line).rstrip() for line in lines).strip("\n")


def to_ascii(text: str) -> str:
    """Plain ASCII of the same meaning where there is one, ``?`` elsewhere.

    >>> to_ascii("▲ 18–20 % of 9 µs")
    '^ 18-20 % of 9 us'
    """
    return text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")


def code_spans(text: str) -> list[tuple[bool, str]]:
    """The text in pieces ``(is_code, piece)``, cut at paired backticks; an unpaired backtick is text.

    >>> code_spans("raise `n` to 6")
    [(False, 'raise '), (True, 'n'), (False, ' to 6')]
    """
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        pieces[-2:] = ["`".join(pieces[-2:])]
    return [(index % 2 == 1, piece) for index, piece in enumerate(pieces) if piece]


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
