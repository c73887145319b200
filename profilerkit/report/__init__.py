"""Report to html, markdown, terminal and json. Renderers see only ``Report``."""

from pathlib import Path


def save(text: str, path: str | Path | None) -> str:
    """Write ``text`` to ``path`` if there is one, and return it."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
