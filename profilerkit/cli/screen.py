"""A page on a terminal that is drawn over itself."""

from shutil import get_terminal_size

from profilerkit.cli.console import Console

_UP, _CLEAR_BELOW, _CLEAR_ALL = "\x1b[{}A\r", "\x1b[J", "\x1b[H\x1b[2J"


class Screen:
    """Where the last page stands. Only for a console that is ``live``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines = 0
        self._size = get_terminal_size()

    def show(self, page: str, *, whole: bool = False) -> None:
        """Draw ``page`` where the last one stands; what does not fit is left out unless it is the last, ``whole``."""
        size = get_terminal_size()
        lines = page.splitlines()
        room = max(size.lines - 1, 2)
        if len(lines) > room and not whole:
            lines = [*lines[: room - 1], f"{len(lines) - room + 1} more lines: make the window taller"]
        # Where the terminal has wrapped lines, after a change of width or in too few columns, there are more of them.
        back = _UP.format(self._lines) if self._lines else ""
        is_known = size == self._size and size.columns >= self._console.width
        start = back + _CLEAR_BELOW if is_known else _CLEAR_ALL
        self._console.raw(start + "\n".join(lines) + "\n")
        self._lines, self._size = len(lines), size
