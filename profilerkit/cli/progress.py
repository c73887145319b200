"""What a long analysis is at, as one line on a terminal: nothing in the first second, nothing at the end."""

import logging
import threading
from types import TracebackType

from profilerkit.cli.console import Console

#: Who logs, at the level INFO, what an analysis or a reduction begins.
_TELLERS = (
    *("profilerkit.formats.remote", "profilerkit.formats.jobs"),
    *("profilerkit.summaries.reduction", "profilerkit.api"),
)
#: What takes less is done before anybody asks (clig.dev).
_QUIET_SECONDS = 1.0
_PERIOD_SECONDS = 0.2


class Progress(logging.Handler):
    """Shows the latest phase until the block ends. Where phases are logged for the user anyway it shows nothing."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._phase = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="profilerkit-progress", daemon=True)
        self._levels: dict[logging.Logger, int] = {}

    def __enter__(self) -> "Progress":
        """Listen, and begin to show."""
        for logger in map(logging.getLogger, _TELLERS):
            if not logger.isEnabledFor(logging.INFO):
                self._levels[logger] = logger.level
                logger.setLevel(logging.INFO)
                logger.addHandler(self)
        if self._levels:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line away."""
        self._over.set()
        if self._levels:
            self._thread.join()
        for logger, level in self._levels.items():
            logger.removeHandler(self)
            logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the phase."""
        self.begin(record.getMessage())

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self._phase = phase

    def _show(self) -> None:
        shown = ""
        wait_s = _QUIET_SECONDS
        while not self._over.wait(wait_s):
            wait_s = _PERIOD_SECONDS
            if self._phase != shown:
                shown = self._phase
                self._console.status(shown)
        if shown:
            self._console.status("")
