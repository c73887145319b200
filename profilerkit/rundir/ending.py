"""How a run ended: which rank failed first, and which left no word of its end."""

from collections.abc import Sequence

import msgspec

from profilerkit.rundir.layout import EVENT
from profilerkit.rundir.reader import RankRecord, RunRecord, named_ranks
from profilerkit.units import format_ns

#: Records at the end of a rank's log among which its last sign of life is looked for: nested ones are not in order.
_LAST_RECORDS = 64


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        word: in short: ``finished``, ``killed, or still running``, ``switched_off``, or the first failure's exception.
        failure: who failed first and who left no word, in whole sentences; ``None`` when every rank came to its end.
    """

    word: str
    failure: str | None = None


class _Last(msgspec.Struct, frozen=True):
    """When a rank was heard last, ns since the epoch, ``None`` where its clock is not known, and what it said.

    ``steps`` is ``None`` for a rank without an end, ``exception`` for one that did not fail.
    """

    rank: int
    unix_ns: int | None
    steps: int | None
    exception: str | None


def ending_of(run: RunRecord) -> Ending | None:
    """How the run ended by what its ranks left; ``None`` when none left anything.

    The earliest failure counts: when a rank dies, the others fail a moment later with errors of their own about it.
    """
    last = sorted(map(_last, run.ranks), key=lambda entry: (entry.unix_ns is None, entry.unix_ns or 0))
    failed = [entry for entry in last if entry.exception is not None]
    silent = [entry for entry in last if entry.steps is None]
    said = " ".join([*_silence(silent, last), *_failure(failed, last)]) or None
    if failed:
        which = f" (rank {failed[0].rank})" if len(last) > 1 else ""
        return Ending(word=f"{failed[0].exception}{which}", failure=said)
    if silent:
        return Ending(word="killed, or still running", failure=said)
    return next((Ending(word=entry.end.reason) for entry in run.ranks if entry.end is not None), None)


def _last(entry: RankRecord) -> _Last:
    """A rank's last sign of life: its end, or without one its last record or sample."""
    end, meta = entry.end, entry.meta
    at_ns = _last_record_ns(entry) if end is None else end.end_perf_ns
    unix_ns = None if meta is None or at_ns is None else at_ns - meta.anchor_perf_ns + meta.anchor_unix_ns
    return _Last(entry.rank, unix_ns, end.steps if end else None, end.exception if end else None)


def _last_record_ns(entry: RankRecord) -> int | None:
    """When the last of a rank's events and samples ended, on its own clock; ``None`` without any."""
    tail = entry.events[-_LAST_RECORDS * EVENT.size :]
    ends = [start + duration for _, _, _, start, duration, _ in EVENT.iter_unpack(tail)]
    return max([*ends, *(sample.t_ns for sample in entry.samples[-1:])], default=None)


def _failure(failed: Sequence[_Last], last: Sequence[_Last]) -> list[str]:
    """Who failed first, when, and with what; nothing when no rank failed."""
    if not failed:
        return []
    first, *others = failed
    steps = (
        f"after {first.steps} step{'' if first.steps == 1 else 's'}" if first.steps else "before its first step ended"
    )
    if len(last) == 1:
        return [f"The run failed {steps}: {first.exception}"]
    if not others or others[0].unix_ns is None or first.unix_ns is None:
        return [f"Rank {first.rank} failed {steps}: {first.exception}"]
    earlier = f"{format_ns(others[0].unix_ns - first.unix_ns)} before rank {others[0].rank}"
    return [f"Rank {first.rank} failed first, {steps} and {earlier}: {first.exception}"]


def _silence(silent: Sequence[_Last], last: Sequence[_Last]) -> list[str]:
    """Who left no word of its end, and whose records ended first; nothing when all ranks did."""
    if not silent:
        return []
    if len(last) == 1:
        return ["The run left no word of its end: it was killed, or still runs."]
    names = named_ranks([entry.rank for entry in silent])
    text = f"{names} left no word of {'its' if len(silent) == 1 else 'their'} end: killed, or still running."
    first, second = last[:2]
    if first.steps is not None or first.unix_ns is None or second.unix_ns is None:
        return [text]
    earlier = f"{format_ns(second.unix_ns - first.unix_ns)} before those of rank {second.rank}"
    return [text, f"The records of rank {first.rank} end first, {earlier}."]
