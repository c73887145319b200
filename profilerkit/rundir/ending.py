"""How a run ended: which rank failed first, and which left no word of its end."""

import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from profilerkit.model.memory import OutOfMemory
from profilerkit.model.run import EndKind
from profilerkit.rundir.layout import EVENT, FLUSH_SECONDS, SAMPLE_SECONDS, EventKind, RankEnd
from profilerkit.rundir.process import oom_kills_since, still_runs
from profilerkit.rundir.reader import REFUSED, RankRecord, RunRecord, named_ranks
from profilerkit.units import format_ns, format_ratio

#: Records at the end of a rank's log among which its last sign of life is looked for: nested ones are not in order.
_LAST_RECORDS = 64
#: How far the clocks of two hosts may lie apart: NTP holds them within tens of ms over the Internet.
CLOCK_ERROR_NS = 100_000_000
_FULL_RATIO = 0.95  #: a host, or a device, that is as full as this in its last second may run out of memory in the next
#: A kill is counted within so long of the last sign of life (a choice: long enough to start an analysis by hand).
_SOON_NS = 60_000_000_000
_LAST_NS = 10_000_000_000  #: samples older than this against the last record say nothing of the end
_LATEST_NS = 4_102_444_800_000_000_000  #: the year 2100: a time beyond it is damage
#: What torch raises for an exception elsewhere: its class and place, then the traceback from there (torch 2.11).
#: The class of one that was made in a function is ``f.<locals>.MyError`` before the colon.
_ELSEWHERE = re.compile(r"[\w.<>]+: Caught (\w+) (.+?)\.\nOriginal (Traceback .*)", re.DOTALL)
_TOLD_HOSTS = 3  #: hosts whose failures are told where nobody knows which was first


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    #: In short, such as ``finished``, ``killed``, ``still running``, ``not recorded`` where the disk took none,
    #: ``switched_off``, ``sys.exit(0)``, or the first failure.
    word: str
    kind: EndKind
    #: Who failed first, who left no word, and who recorded less than there was, in whole sentences; ``None`` when every
    #: rank came to its end as planned.
    failure: str | None = None
    messages: tuple[str, ...] = ()  #: what those two quote of the programs' own words, whole

    @property
    def raised(self) -> bool:
        """Whether a failure ended a rank that recorded it; without one the run may still be under way."""
        return self.kind in ("failed", "interrupted")

    @property
    def refused(self) -> bool:
        """Whether no rank recorded anything, because the disk took nothing: it was full, or the host went down."""
        return self.kind == "refused"


#: What each kind of end is called that left no end record.
_SILENT_WORDS: dict[EndKind, str] = {
    "killed": "killed",
    "running": "still running",
    "unknown": "killed, or still running",
}


class _Last(msgspec.Struct, frozen=True):
    """What a rank left last.

    Times are ns since the epoch, ``None`` where its clock is not known: ``ended_ns`` is its end's and ``heard_ns`` that
    of its last record or sample, which may lie ``unheard_ns`` before its last sign of life. ``told`` is whether it left
    an end, ``steps`` what that counts or its records do, ``failure`` is ``None`` for one that did not fail,
    ``raised`` says whether that was an exception and ``interrupted`` whether it was Ctrl-C. ``runs`` is whether it
    still runs, ``None`` where nobody can tell, ``likely`` what may have killed it. ``refused`` is whether the disk took
    nothing from the start.
    """

    rank: int
    host: str | None
    ended_ns: int | None
    heard_ns: int | None
    unheard_ns: int
    told: bool
    steps: int
    failure: str | None
    raised: bool
    interrupted: bool
    runs: bool | None
    likely: str
    refused: bool


def ending_of(run: RunRecord) -> Ending | None:
    """How the run ended by what its ranks left; ``None`` when none left anything.

    The earliest failure counts: the others fail a moment later with errors about it. Of hosts whose clocks may be wrong
    by more than that, each one's earliest is told.
    """
    last = list(map(_last, run.ranks))
    failed = sorted(
        (entry for entry in last if entry.failure is not None),
        key=lambda entry: (entry.ended_ns is None, entry.ended_ns or 0),
    )
    silent = [entry for entry in last if not entry.told]
    said = " ".join([*_silence(silent, last), *_failure(failed, last), *_stopped(run.ranks)]) or None
    if failed:
        told = _perhaps_first(failed)[:_TOLD_HOSTS]
        words = [f"{entry.failure} (rank {entry.rank})" if len(last) > 1 else f"{entry.failure}" for entry in told]
        killed = [entry.rank for entry in silent if entry.runs is False]
        words += [f"{named_ranks(killed).lower()} killed"] if killed else []
        messages = tuple(dict.fromkeys(f"{entry.failure}" for entry in told))
        failed_as: EndKind = "interrupted" if failed[0].interrupted else "failed"
        return Ending(word="; ".join(words), kind=failed_as, failure=said, messages=messages)
    if silent:
        states = {entry.runs for entry in silent if not entry.refused}
        kind: EndKind = "killed" if False in states else "running" if states == {True} else "unknown"
        word = _SILENT_WORDS[kind] if states else "not recorded"
        return Ending(word=word, kind="refused" if all(entry.refused for entry in last) else kind, failure=said)
    left_by = next((entry.end.left_by or entry.end.reason for entry in run.ranks if entry.end is not None), None)
    return None if left_by is None else Ending(word=left_by, kind="finished", failure=said)


def dossier_of(run: RunRecord) -> OutOfMemory | None:
    """What the first rank that ran out of memory held, with its number; ``None`` when none did."""
    ended = [(_last(entry).ended_ns or 0, entry.rank, entry.oom) for entry in run.ranks if entry.oom]
    first = min(ended, key=lambda entry: entry[:2], default=None)
    return None if first is None else msgspec.structs.replace(first[2], rank=first[1])


def _last(entry: RankRecord) -> _Last:
    end, meta = entry.end, entry.meta
    tail = list(EVENT.iter_unpack(entry.events[-_LAST_RECORDS * EVENT.size :]))
    heard = [start + duration for _, _, _, start, duration, _ in tail] + [sample.t_ns for sample in entry.samples[-1:]]
    step = max((duration for kind, _, _, _, duration, _ in tail if kind == EventKind.STEP), default=0)
    period_s = FLUSH_SECONDS + (SAMPLE_SECONDS if entry.samples else 0.0)
    heard_ns = max(heard, default=None)

    def unix(at_ns: int | None) -> int | None:
        return None if entry.clock is None or at_ns is None else entry.clock.unix_ns(at_ns)

    runs = still_runs(meta) if meta is not None and end is None else None
    return _Last(
        entry.rank,
        host=meta.host if meta else None,
        ended_ns=unix(end.end_perf_ns) if end else None,
        heard_ns=unix(heard_ns),
        unheard_ns=step + round(period_s * 1e9),
        told=end is not None,
        steps=end.steps if end else _steps(entry.events),
        failure=_failed_by(end) if end else None,
        raised=end is not None and end.exception is not None and end.reason != "interrupted",
        interrupted=end is not None and end.reason == "interrupted",
        runs=runs,
        likely="" if end is not None or runs else _likely(entry, heard_ns),
        refused=end is None and entry.refused,
    )


def _failed_by(end: RankEnd) -> str | None:
    if end.reason == "interrupted":
        return "interrupted (Ctrl-C)"
    return _without_traceback(end.exception) if end.exception else end.left_by if end.exit_code else None


def _without_traceback(exception: str) -> str:
    r"""What an exception says; of one from another process or thread its place and what it said there.

    >>> _without_traceback("KeyError: Caught KeyError in worker 0.\nOriginal Traceback (x):\n  File\nKeyError: 'a'")
    "KeyError in worker 0: KeyError: 'a'"
    """
    found = _ELSEWHERE.fullmatch(exception)
    if found is None:
        return exception
    kind, place, trace = found.groups()
    # What was said begins at the margin behind the last frame; a text that was cut has no such line. Further lines of a
    # message, and notes, may look like anything.
    said = re.search(r"\n(\S.*)", trace.rpartition('\n  File "')[2])
    return ": ".join([f"{kind} {place}", *(said.groups() if said else ())])


def _steps(events: bytes) -> int:
    """Steps among the records; the last one is at their end, or near it."""
    for end in range(len(events), 0, -_LAST_RECORDS * EVENT.size):
        tail = EVENT.iter_unpack(events[max(0, end - _LAST_RECORDS * EVENT.size) : end])
        found: list[int] = [value for kind, _, _, _, _, value in tail if kind == EventKind.STEP]
        if found:
            return max(found) + 1
    return 0


def _likely(entry: RankRecord, heard_ns: int | None) -> str:
    """What may have ended a rank that left no word: a fault, or what is known of its memory; empty without a sign."""
    if entry.fault:
        return f"Python's last word was: {entry.fault}."
    kills = oom_kills_since(entry.meta) if entry.meta is not None else None
    # What was killed long after the last sign of life was another process.
    if kills and kills > 0 and heard_ns is not None and time.perf_counter_ns() - heard_ns < _SOON_NS:
        times = "a process" if kills == 1 else f"{kills} processes"
        return (
            f"The kernel has killed {times} in its control group for want of memory since the recording began: likely "
            "this one."
        )
    host = next((sample for sample in reversed(entry.samples) if sample.host is not None), None)
    if host is None or host.host is None or heard_ns is None or heard_ns - host.t_ns > _LAST_NS:
        return ""
    used, total = host.host.memory_used_bytes, host.host.memory_total_bytes
    if not used or not total or used < _FULL_RATIO * total:
        return ""
    return (
        f"The host's memory was {format_ratio(used / total)} full in its last sample: likely the out-of-memory killer."
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
    verb = "failed" if first.raised else "ended"
    if len(last) == 1:
        return [f"The run {verb} {steps}: {first.failure}"]
    if not others or others[0].ended_ns is None or first.ended_ns is None:
        return [f"Rank {first.rank} {verb} {steps}: {first.failure}"]
    several = _perhaps_first(failed)
    if len(several) > 1:
        told = [f"rank {entry.rank} {_after(entry)}: {entry.failure}" for entry in several[:_TOLD_HOSTS]]
        within = format_ns(CLOCK_ERROR_NS)
        return [
            f"{len(several)} hosts' ranks failed within {within} of each other, too close to tell which was first by "
            f"the hosts' clocks: {'; '.join(told)}"
        ]
    earlier = f"{format_ns(others[0].ended_ns - first.ended_ns)} before rank {others[0].rank}"
    return [f"Rank {first.rank} {verb} first, {steps} and {earlier}: {first.failure}"]


def _after(entry: _Last) -> str:
    if not entry.steps:
        return "before its first step ended"
    return f"after {entry.steps} step{'' if entry.steps == 1 else 's'}"


def _silence(silent: Sequence[_Last], last: Sequence[_Last]) -> list[str]:
    """Who left no word of its end, and whose records ended first; nothing when all ranks left one.

    A rank that stands still has no newer record than one that died in the same step: records end first only where they
    do so by more than a rank leaves unwritten, and no exception lies that close.
    """
    if not silent:
        return []
    likely = dict.fromkeys(entry.likely for entry in silent if entry.likely)
    if len(last) == 1:
        alone = silent[0]
        fate = f"The run recorded nothing: {REFUSED}." if alone.refused else _ALONE[alone.runs]
        return [fate, *_sign(alone), *likely]
    text = [*_states(silent), *likely]
    first, *others = sorted(last, key=lambda entry: (entry.heard_ns is None, entry.heard_ns or 0))
    second = others[0]
    if first.told or first.heard_ns is None or second.heard_ns is None:
        return text
    hosts = {entry.host for entry in last}
    margin_ns = max(entry.unheard_ns for entry in last) + (CLOCK_ERROR_NS if len(hosts) > 1 else 0)
    failures = [entry.ended_ns for entry in last if entry.failure is not None]
    if second.heard_ns - first.heard_ns <= margin_ns:
        return text
    if any(at_ns is None or at_ns - first.heard_ns <= margin_ns for at_ns in failures):
        return text
    earlier = f"{format_ns(second.heard_ns - first.heard_ns)} before those of rank {second.rank}"
    return [*text, f"The records of rank {first.rank} end first, {earlier}."]


#: What became of the only rank, by whether it still runs.
_ALONE = {
    True: "The run still runs: this is what it has recorded until now.",
    False: "The run was killed: it left no word of its end.",
    None: "The run left no word of its end: it was killed, or still runs.",
}


def _states(silent: Sequence[_Last]) -> Iterator[str]:
    if refused := [entry.rank for entry in silent if entry.refused]:
        yield f"{named_ranks(refused)} recorded nothing: {REFUSED}."
    for state, words in ((False, "killed"), (None, "killed, or still running"), (True, "")):
        of = [entry.rank for entry in silent if entry.runs is state and not entry.refused]
        if of and words:
            yield f"{named_ranks(of)} left no word of {'its' if len(of) == 1 else 'their'} end: {words}."
        elif of:
            yield f"{named_ranks(of)} still run{'s' if len(of) == 1 else ''}."


def _sign(entry: _Last) -> Iterator[str]:
    if entry.heard_ns is not None and 0 <= entry.heard_ns < _LATEST_NS and entry.steps and not entry.runs:
        at = datetime.fromtimestamp(entry.heard_ns // 1_000_000_000, UTC)
        yield f"Its last record is of {at:%Y-%m-%d %H:%M:%S} UTC, {_after(entry)}."


def _stopped(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Whose recording stopped before its end because the disk took no more; each reason once."""
    of: dict[str, list[RankRecord]] = {}
    for entry in ranks:
        if entry.end is not None and entry.end.stopped_because:
            of.setdefault(entry.end.stopped_because, []).append(entry)
    for reason, entries in of.items():
        whose = "The recording" if len(ranks) == 1 else f"The recording of {named_ranks([e.rank for e in entries])}"
        lost = sum(entry.end.dropped_records for entry in entries if entry.end)
        how_many = f"stopped before its end, {lost:,} records are lost" if lost else "is not whole"
        yield f"{whose} {how_many}: {reason}."
