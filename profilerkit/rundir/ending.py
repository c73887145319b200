"""How a run ended: which rank failed first, and which left no word of its end."""

from collections.abc import Sequence

import msgspec

from profilerkit.rundir.layout import EVENT, FLUSH_SECONDS, SAMPLE_SECONDS, EventKind
from profilerkit.rundir.reader import RankRecord, RunRecord, named_ranks
from profilerkit.units import format_ns

#: Records at the end of a rank's log among which its last sign of life is looked for: nested ones are not in order.
_LAST_RECORDS = 64
#: How far the clocks of two hosts may lie apart: NTP holds them within tens of ms over the Internet.
CLOCK_ERROR_NS = 100_000_000
#: Hosts whose failures are told where nobody knows which was first.
_TOLD_HOSTS = 3


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        word: in short: ``finished``, ``killed, or still running``, ``switched_off``, or the first failure's exception.
        failure: who failed first and who left no word, in whole sentences; ``None`` when every rank came to its end.
        raised: whether an exception ended a rank; without one the run may still be under way.
    """

    word: str
    failure: str | None = None
    raised: bool = False


class _Last(msgspec.Struct, frozen=True):
    """What a rank left last.

    Times are ns since the epoch, ``None`` where its clock is not known: ``ended_ns`` is its end's and ``heard_ns`` that
    of its last record or sample, which may lie ``unheard_ns`` before its last sign of life. ``steps`` is ``None`` for a
    rank without an end, ``exception`` for one that did not fail.
    """

    rank: int
    host: str | None
    ended_ns: int | None
    heard_ns: int | None
    unheard_ns: int
    steps: int | None
    exception: str | None


def ending_of(run: RunRecord) -> Ending | None:
    """How the run ended by what its ranks left; ``None`` when none left anything.

    The earliest failure counts: when a rank dies, the others fail a moment later with errors of their own about it. Of
    hosts whose clocks may be wrong by more than that, each one's earliest is told.
    """
    last = list(map(_last, run.ranks))
    failed = sorted(
        (entry for entry in last if entry.exception is not None),
        key=lambda entry: (entry.ended_ns is None, entry.ended_ns or 0),
    )
    silent = [entry for entry in last if entry.steps is None]
    said = " ".join([*_silence(silent, last), *_failure(failed, last)]) or None
    if failed:
        told = _perhaps_first(failed)[:_TOLD_HOSTS]
        words = [f"{entry.exception} (rank {entry.rank})" if len(last) > 1 else f"{entry.exception}" for entry in told]
        return Ending(word="; ".join(words), failure=said, raised=True)
    if silent:
        return Ending(word="killed, or still running", failure=said)
    return next((Ending(word=entry.end.reason) for entry in run.ranks if entry.end is not None), None)


def _last(entry: RankRecord) -> _Last:
    """A rank's end, and its last record or sample."""
    end, meta = entry.end, entry.meta
    tail = list(EVENT.iter_unpack(entry.events[-_LAST_RECORDS * EVENT.size :]))
    heard = [start + duration for _, _, _, start, duration, _ in tail] + [sample.t_ns for sample in entry.samples[-1:]]
    step = max((duration for kind, _, _, _, duration, _ in tail if kind == EventKind.STEP), default=0)
    period_s = FLUSH_SECONDS + (SAMPLE_SECONDS if entry.samples else 0.0)

    def unix(at_ns: int | None) -> int | None:
        return None if entry.clock is None or at_ns is None else entry.clock.unix_ns(at_ns)

    return _Last(
        entry.rank,
        host=meta.host if meta else None,
        ended_ns=unix(end.end_perf_ns) if end else None,
        heard_ns=unix(max(heard, default=None)),
        unheard_ns=step + round(period_s * 1e9),
        steps=end.steps if end else None,
        exception=end.exception if end else None,
    )


def _perhaps_first(failed: Sequence[_Last]) -> list[_Last]:
    """The first failure of each host that may have been the first of all, by rank; ``failed`` is by time."""
    first = failed[0]
    out: dict[str | None, _Last] = {}
    for entry in failed:
        if first.ended_ns is None or entry.ended_ns is None or entry.ended_ns - first.ended_ns > CLOCK_ERROR_NS:
            break
        out.setdefault(entry.host, entry)
    return sorted(out.values(), key=lambda entry: entry.rank) or [first]


def _failure(failed: Sequence[_Last], last: Sequence[_Last]) -> list[str]:
    """Who failed first, when, and with what; nothing when no rank failed."""
    if not failed:
        return []
    first, *others = failed
    steps = _after(first)
    if len(last) == 1:
        return [f"The run failed {steps}: {first.exception}"]
    if not others or others[0].ended_ns is None or first.ended_ns is None:
        return [f"Rank {first.rank} failed {steps}: {first.exception}"]
    several = _perhaps_first(failed)
    if len(several) > 1:
        told = [f"rank {entry.rank} {_after(entry)}: {entry.exception}" for entry in several[:_TOLD_HOSTS]]
        within = format_ns(CLOCK_ERROR_NS)
        return [
            f"{len(several)} hosts' ranks failed within {within} of each other, too close to tell which was first by "
            f"the hosts' clocks: {'; '.join(told)}"
        ]
    earlier = f"{format_ns(others[0].ended_ns - first.ended_ns)} before rank {others[0].rank}"
    return [f"Rank {first.rank} failed first, {steps} and {earlier}: {first.exception}"]


def _after(entry: _Last) -> str:
    """How many steps a rank that failed had made."""
    if not entry.steps:
        return "before its first step ended"
    return f"after {entry.steps} step{'' if entry.steps == 1 else 's'}"


def _silence(silent: Sequence[_Last], last: Sequence[_Last]) -> list[str]:
    """Who left no word of its end, and whose records ended first; nothing when all ranks left one.

    A rank that stands still has no newer record than one that died in the same step, and a launcher kills those that
    wait for a rank with an exception: records end first only where they do so by more than a rank leaves unwritten, and
    no exception lies that close.
    """
    if not silent:
        return []
    if len(last) == 1:
        return ["The run left no word of its end: it was killed, or still runs."]
    names = named_ranks([entry.rank for entry in silent])
    text = f"{names} left no word of {'its' if len(silent) == 1 else 'their'} end: killed, or still running."
    first, *others = sorted(last, key=lambda entry: (entry.heard_ns is None, entry.heard_ns or 0))
    second = others[0]
    if first.steps is not None or first.heard_ns is None or second.heard_ns is None:
        return [text]
    hosts = {entry.host for entry in last}
    margin_ns = max(entry.unheard_ns for entry in last) + (CLOCK_ERROR_NS if len(hosts) > 1 else 0)
    failures = [entry.ended_ns for entry in last if entry.exception is not None]
    if second.heard_ns - first.heard_ns <= margin_ns:
        return [text]
    if any(at_ns is None or at_ns - first.heard_ns <= margin_ns for at_ns in failures):
        return [text]
    earlier = f"{format_ns(second.heard_ns - first.heard_ns)} before those of rank {second.rank}"
    return [text, f"The records of rank {first.rank} end first, {earlier}."]
