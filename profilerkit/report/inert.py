"""Text from traces and programs made harmless: escaped, clipped, and paths cut to what helps to find a file."""

import re
import unicodedata

#: Longest name and longest sentence a renderer prints; the JSON keeps the full text.
NAME_LIMIT = 120
SENTENCE_LIMIT = 600
CODE_LIMIT = 4_000

_ASCII = {
    "▲": "^",
    "▼": "v",
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
#: A directory may have a blank in its name.
_POSIX = re.compile(rf"(?!(?<=:)//){_BEGINS}(?:/+{_PART}(?: {_PART}(?=/))?)+/*")
_OWNED = re.compile(r"(?<![\w~.])~[A-Za-z][\w.-]*(?=/)")
_QUOTED = re.compile(r"(?<=[\"'])(?:/[^\"'\n]*|[A-Za-z]:[/\\][^\"'\n]*)(?=[\"'])")  #: in quotes a part may hold blanks
#: A share of another machine.
_SHARE = re.compile(rf"(?<![\w\\])\\\\(?:{_PART}\\)+{_PART}")
_WINDOWS = re.compile(rf"(?<![\w/\\])[A-Za-z]:[/\\](?:{_PART}[/\\])*(?:{_PART})?")
#: What the kernel provides is the same on every machine, and advice names it.
_KERNEL = frozenset(("dev", "proc", "sys"))
#: Directories of home directories: the first, as ``/home`` and ``C:\Users``, to the third part of a path.
_HOMES = frozenset(("home", "homes", "users"))
_HOMES_DEPTH = 3


def short_paths(text: str) -> str:
    r"""``text`` with at most the last two parts of absolute paths, and ``~`` for home directories.

    The first two directories often name their owner: nothing of them stays.

    >>> short_paths("open('/data/team/imagenet/a.jpg') in /nfs/home/jo/net/train.py:12")
    "open('…/imagenet/a.jpg') in ~/net/train.py:12"
    >>> short_paths("C:\\Users\\jo\\x.py, /scratch/jo/x.py, ~jo/a/b, /dev/shm/a/b, src/net/train.py")
    '~/x.py, …/x.py, ~/a/b, /dev/shm/a/b, src/net/train.py'
    """
    for pattern in (_QUOTED, _SHARE, _POSIX, _WINDOWS):
        text = pattern.sub(_short, text)
    return _OWNED.sub("~", text)


def _short(match: re.Match[str]) -> str:
    parts = [part for part in re.split(r"[/\\]", match[0]) if part and not part.endswith(":")]
    if len(parts) < 2 or parts[0] in _KERNEL:
        return match[0]
    homes = [at + 2 for at, part in enumerate(parts[:_HOMES_DEPTH]) if part.lower() in _HOMES] or [1] * (
        parts[0] == "root"
    )
    kept = parts[homes[0] if homes else 2 :] or [part for part in parts[1:] if "." in part]
    return "/".join(("~" if homes and len(kept) < 3 else "…", *kept[-2:]))
