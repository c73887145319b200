"""Markdown that nothing in a recording breaks out of: text, tables, bars, and how much of them fits."""

import re
from collections.abc import Sequence

from profilerkit.report.inert import clip, code_spans

#: What a comment may take.
LIMIT_BYTES = 6_000
_BAR_CELLS = 20

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b"}
_ESCAPED = re.compile(r"[\\`*_\[\]~#$]")


def plain(text: str) -> str:
    """Text that Markdown, HTML, tables, mentions and automatic links leave alone."""
    text = "".join(_ENTITIES.get(char, char) for char in text)
    # Entities contain "#": escape what Markdown reads only where no entity stands.
    pieces = re.split(r"(&#?\w+;)", text)
    escaped = "".join(piece if index % 2 else _ESCAPED.sub(r"\\\g<0>", piece) for index, piece in enumerate(pieces))
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(text: str) -> str:
    """A code span; a pipe would end a table cell even inside one, so such text is written plain."""
    if not text.strip() or "|" in text or "`" in text:
        return plain(text)
    return f"`{text}`"


def prose(text: str, limit: int) -> str:
    """Text of at most ``limit`` characters, in which paired backticks stay code."""
    return "".join(_code(piece) if is_code else plain(piece) for is_code, piece in code_spans(clip(text, limit)))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]) -> list[str]:
    """Lines of a table; the columns named in ``numbers`` stand right."""
    rule = ["--:" if name in numbers else ":--" for name in header]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def text_bar(ratio: float) -> str:
    """A bar of twenty characters, so much of it full."""
    filled = round(ratio * _BAR_CELLS)
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def size(lines: Sequence[str]) -> int:
    """Bytes of the lines and their ends."""
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def fitted(lines: list[str], least: int, room: int) -> list[str]:
    """As many whole lines as fit, and how many are missing; nothing when fewer than ``least`` fit."""
    kept: list[str] = []
    for line in lines:
        if size([*kept, line]) > room:
            break
        kept.append(line)
    if len(kept) == len(lines):
        return kept
    if len(kept) < least:
        return []
    return [*kept, "", f"{len(lines) - len(kept)} more, left out for want of room."]
