"""How busy the machine is with other things: Linux pressure stall information, and the load average."""

import os
import time
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")


def waited_us() -> int | None:
    """Time in which some process of the host waited for a core, since it started; ``None`` where it is not told."""
    try:
        some = _PRESSURE.read_text("ascii").splitlines()[0]
        return int(some.rpartition("total=")[2])
    except (OSError, ValueError, IndexError):
        return None


class Pressure:
    """The share of time in which processes waited for a core, between its making and a look at it."""

    def __init__(self) -> None:
        self._start_us, self._start_s = waited_us(), time.monotonic()

    def ratio(self) -> float | None:
        """From 0 to 1; ``None`` where the host does not tell."""
        now_us, span_s = waited_us(), time.monotonic() - self._start_s
        if now_us is None or self._start_us is None or not span_s:
            return None
        return min((now_us - self._start_us) / (1e6 * span_s), 1.0)


def quiet_pressure(seconds: float = 0.5) -> float | None:
    """The pressure while this benchmark does nothing."""
    pressure = Pressure()
    time.sleep(seconds)
    return pressure.ratio()


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]
