"""Make what several tests read once for all workers of a run: a module's tests may be divided between them."""

import fcntl
import os


def made_once(tmp_path_factory, name, make):
    """Return the directory that ``make`` has filled, in this worker or another; ``name`` is its own in a run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            place.mkdir()
            make(place)
            done.touch()
    return place
