"""Random damage to every format that is read: what is damaged, and what must hold while it is read.

Whatever the bytes are, they are read, in part or whole, or refused with an error of ours; in time; and nothing that
they name is looked up or run.
"""

import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import flight_recipes
import log_recipes
import nsys_mutations
import run_mutations
import trace_mutations
import xplane_mutations

#: Of one text; the slowest of any format takes half a second. It only ends what would never end.
HANGS_AFTER_S = 30
#: What Python tells its auditors before something is looked up for a pickle, run, loaded or sent.
RUNNING = frozenset(
    {
        *("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen"),
        *("ctypes.dlopen", "socket.connect", "code.__new__", "webbrowser.open"),
    }
)


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        originals: from a path that may be written to, what ``run_seed`` takes: small whole files.
        run_seed: damages one of them as the seed says, writes it to a path and reads it; raises where a promise broke.
    """

    originals: Callable
    run_seed: Callable


FORMATS = {
    "kineto": Format(trace_mutations.originals, trace_mutations.run_seed),
    "legacy": Format(trace_mutations.legacy_originals, trace_mutations.run_seed),
    "jax": Format(xplane_mutations.json_originals, xplane_mutations.run_seed),
    "xplane": Format(xplane_mutations.originals, xplane_mutations.run_seed),
    "nsys": Format(nsys_mutations.originals, nsys_mutations.run_seed),
    "smi": Format(log_recipes.smi_originals, log_recipes.run_seed),
    "dmon": Format(log_recipes.dmon_originals, log_recipes.run_seed),
    "snapshot": Format(log_recipes.snapshot_originals, log_recipes.run_seed),
    "flight-pickle": Format(lambda _path: flight_recipes.as_pickle, flight_recipes.run_seed),
    "flight-json": Format(lambda _path: flight_recipes.as_json, flight_recipes.run_seed),
    "run": Format(run_mutations.originals, run_mutations.run_seed),
    "summary": Format(run_mutations.summary_originals, run_mutations.run_summary_seed),
}


class HangError(BaseException):
    """A text took too long. No guard of the analysis catches it."""


class _Audit:
    """What was run while it watched; Python never lets go of an auditor, so there is one."""

    def __init__(self):
        self.watches, self.seen = False, []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.watches and event in RUNNING:
            self.seen.append(f"{event}{arguments!r:.200}")


_AUDIT = _Audit()


@contextmanager
def nothing_runs():
    """Raise AssertionError where something was looked up for a pickle, run, loaded or sent inside of the block."""
    _AUDIT.seen, _AUDIT.watches = [], True
    try:
        yield
    finally:
        _AUDIT.watches = False
    assert not _AUDIT.seen, _AUDIT.seen


@contextmanager
def in_time():
    """Raise ``HangError`` where the block takes longer than any file may."""

    def stop(_number, _frame):
        raise HangError(f"not done after {HANGS_AFTER_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def hold(found, originals, seed, path):
    """Read one damaged text of a format; raises what it broke, in time."""
    with in_time(), nothing_runs(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found.run_seed(originals, seed, path)
