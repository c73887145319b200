"""``profilerkit watch``: what a running job does, from the files that it writes."""

import argparse
import os
import time
from contextlib import suppress
from pathlib import Path
from shlex import join
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import add_allow_rules, add_no_redact, project_settings, seconds, shown_report
from profilerkit.cli.console import DONE, INTERRUPTED, Console
from profilerkit.errors import UnreadableInputError, UsageError

if TYPE_CHECKING:
    from profilerkit.analysis.live import Live
    from profilerkit.config import Settings
    from profilerkit.model.report import Report
    from profilerkit.rundir.follow import RankState


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


_EPILOG = """\
examples:
  profilerkit watch runs/resnet50
  profilerkit watch runs/resnet50 --wait 60
  ssh node3 profilerkit watch /shared/runs/resnet50 --once

watch is read-only. It judges timers and samples; profilerkit analyze reads the
traces too. It runs at low priority and uses at most 7 % of one core. Without a
terminal, each refresh is one line.

watch ends with the run, or at Ctrl-C. It warns when a job on another host has
written nothing for 2 minutes, and ends after 5 minutes. A running job writes
once a minute."""

#: The job writes its records half as often (``rundir.layout.FLUSH_SECONDS``): more looks would show nothing newer.
_LEAST_SECONDS = 0.25
_MOST_SECONDS = 86_400.0
#: What this may take of one core beside the job that trains there (choices): its looks, and its verdicts.
_LOOKING_SHARE, _JUDGING_SHARE = 0.05, 0.02
_REFRESHES = 5  #: refreshes from one verdict to the next, at least; until there is one, the next refresh may bring it
#: Of the scale up to 19: where the training wants all cores, a process at 10 gets a tenth of one (Linux: weight 110).
_NICENESS = 10
_STRAGGLERS_SECONDS = 10.0  #: a rank that has left nothing yet may still come, for so long after the others are over
#: A job makes its report within so long of its last record: it waits 10 s for its ranks, and 120 s for the report.
_REPORTING_SECONDS = 180.0
#: What is listened for at least before a job is held to be gone: the file system's clock may be another one.
_LISTENING_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``watch``."""
    parser.epilog = _EPILOG
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory of a job that runs or has ended")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=seconds("--every", _LEAST_SECONDS, _MOST_SECONDS),
        default=2.0,
        help="time between two refreshes, 0.25 or more (default: 2)",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds("--wait", 0.0, _MOST_SECONDS),
        default=0.0,
        help="wait for a run directory that does not exist yet (default: 0)",
    )
    parser.add_argument("--once", action="store_true", help="print one page and exit")
    add_allow_rules(parser)
    add_no_redact(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Show the run until it is over; return the exit code."""
    place: Path = arguments.run
    try:
        _wait_for(place, arguments.wait, console)
        watched = _Watched(place, project_settings(arguments, console), arguments)
        if arguments.once:
            live, report = watched.look(judge=True)
            console.out(watched.page(live, report, console))
            ended = _ending(live, report) if live.is_over or _is_gone(live) else ""
        else:
            ended = _follow(watched, console)
    except KeyboardInterrupt:
        return INTERRUPTED
    if ended:
        console.note(f"{ended}; {watched.report_words()}")
    from profilerkit.rundir.reader import left_out

    for said in left_out(place):
        console.note(said)
    if (later := _later_run(place)) is not None:
        console.note(f"a later run is in {later}")
    return DONE


def _wait_for(place: Path, most_s: float, console: Console) -> None:
    """Return when ``place`` is a run directory. Raises when it is none after the wait."""
    from profilerkit.rundir.reader import is_run_directory

    if place.is_file():
        raise UsageError(
            f"{place} is a file", cause="watch needs a run directory", hint="profilerkit analyze reads files"
        )
    deadline = time.monotonic() + most_s
    if most_s and not is_run_directory(place):
        console.note(f"waiting for {place}, {most_s:g} s at most")
    while not is_run_directory(place) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 2 * _LEAST_SECONDS))
    if not place.exists():
        waited = f" after {most_s:g} s" if most_s else ""
        raise UnreadableInputError(
            f"{place} does not exist{waited}",
            cause="the job has not started to record, or records somewhere else",
            hint=f"check the path; --wait {max(2 * most_s, 60):g} waits longer" if most_s else "--wait 60 waits for it",
        )
    if not is_run_directory(place):
        from profilerkit.formats.directories import several_runs

        raise several_runs(place, "watch") or UnreadableInputError(
            f"not a run directory: {place}",
            cause="no job has started to record there",
            hint="name the directory of profilerkit.profile() or run -o"
            + ("" if most_s else "; --wait 60 waits for it"),
        )


def _later_run(place: Path) -> Path | None:
    """The last of the runs that found ``place`` taken and got a number of their own; ``None`` without any."""
    from profilerkit.rundir.reader import is_run_directory

    numbered = {}
    for beside in place.absolute().parent.iterdir():
        number = beside.name.removeprefix(f"{place.name}-")
        if number != beside.name and number.isdecimal() and is_run_directory(beside):
            numbered[int(number)] = place.with_name(beside.name)
    return numbered[max(numbered)] if numbered else None


def _is_gone(live: "Live") -> bool:
    """Whether a job that cannot be asked has written nothing for so long that it is taken to be gone."""
    from profilerkit.report.live import GONE_NS

    return live.silent_ns is not None and live.silent_ns >= GONE_NS


def _ending(live: "Live", report: "Report | None") -> str:
    from profilerkit.units import format_long_ns

    if live.is_over:
        return f"the run is over: {(report.run.ended if report is not None else None) or 'left no word of its end'}"
    return f"no record for {format_long_ns(live.silent_ns or 0)}; the run may have stopped"


def _follow(watched: "_Watched", console: Console) -> str:
    from profilerkit.report import live as words

    screen = Screen(console) if console.live else None
    over_since: float | None = None
    began = time.monotonic()
    is_first = True
    while True:
        began_s = time.process_time()
        live, report = watched.look()
        is_done = _is_gone(live) and time.monotonic() - began >= _LISTENING_SECONDS
        if live.is_over:
            over_since = over_since or time.monotonic()
            late_s = time.monotonic() - over_since
            is_done = len(live.ranks) >= (live.world_size or 0) or late_s > _STRAGGLERS_SECONDS
        if is_done:
            # Whatever was written between the last look and the end is there now.
            live, report = watched.look(judge=True)
            if live.is_over or _is_gone(live):
                break
        if screen is not None:
            console.fit()
            screen.show(watched.page(live, report, console))
        else:
            console.out(words.line(live, report, ascii_only=console.ascii_only))
        looking_s = time.process_time() - began_s - watched.judging_s
        # The first look brings the modules, which no later one does.
        time.sleep(watched.every_s if is_first else max(watched.every_s, looking_s / _LOOKING_SHARE))
        if is_first:
            is_first = False
            # Let the training go first, but not before the first page: on a busy host that would take its time.
            with suppress(OSError):  # it has a lower priority already
                os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    page = watched.page(live, report, console)
    if screen is not None:
        screen.show(page, whole=True)
    else:
        console.out(page)
    return _ending(live, report)


class _Watched:
    def __init__(self, place: Path, settings: "Settings", arguments: argparse.Namespace) -> None:
        from profilerkit.rundir.follow import FollowedRun

        self.every_s: float = arguments.every
        self._place = place
        self._settings = settings
        self._arguments = arguments
        self._run = FollowedRun(place)
        self._report: Report | None = None
        self._judged_ns = 0
        self._steps: dict[int, int] = {}
        self._is_reporting = False
        self.judging_s = 0.0
        self._next_verdict_s = 0.0

    def look(self, *, judge: bool = False) -> "tuple[Live, Report | None]":
        """What the job does now, and the latest report on its records; a new one where it is time, or asked for."""
        from profilerkit import api
        from profilerkit.analysis.live import live_of
        from profilerkit.report.live import FEWEST_JUDGED
        from profilerkit.rundir.follow import is_reporting, state_of

        run = self._run.look()
        is_due = time.monotonic() >= self._next_verdict_s
        self.judging_s = 0.0
        if run.ranks and (judge or is_due):
            began_s, is_first = time.process_time(), self._report is None
            told = shown_report(api.so_far(run, self._settings), [self._place], self._arguments, is_local=True)
            self.judging_s = time.process_time() - began_s
            self._take(told)
            refreshes = _REFRESHES if told.steps.steady >= FEWEST_JUDGED else 1
            rest_s = 0.0 if is_first else self.judging_s / _JUDGING_SHARE
            self._next_verdict_s = time.monotonic() + max(refreshes * self.every_s, rest_s)
        states = {rank.rank: state_of(rank) for rank in run.ranks}
        self._is_reporting = is_reporting(run)
        live = live_of(run, states, self._report, time.time_ns())
        return self._completed(live, set(states.values())), self._report

    def _take(self, told: "Report") -> None:
        """Keep a new report, unless the last one rests on enough steps and it does not.

        Of a long run the latest records are kept: those of an evaluation may be all of them, and know no step.
        """
        from profilerkit.model import revise
        from profilerkit.report.live import FEWEST_JUDGED

        if self._report is not None and told.steps.steady < FEWEST_JUDGED <= self._report.steps.steady:
            self._report = revise(self._report, run=told.run)
        else:
            self._report, self._judged_ns = told, time.monotonic_ns()

    def _completed(self, live: "Live", states: "set[RankState]") -> "Live":
        """What the job does now, with what one look alone does not know: ages, and steps that were seen before."""
        from profilerkit.model import revise
        from profilerkit.rundir.places import last_written_ns

        self._steps |= {rank.rank: max(rank.steps, self._steps.get(rank.rank, 0)) for rank in live.ranks}
        cannot_ask = "unknown" in states and "running" not in states
        written_ns = last_written_ns(self._place) if cannot_ask else None
        return revise(
            live,
            ranks=tuple(revise(rank, steps=self._steps[rank.rank]) for rank in live.ranks),
            silent_ns=None if written_ns is None else max(time.time_ns() - written_ns, 0),
            verdict_age_ns=None if self._report is None else time.monotonic_ns() - self._judged_ns,
        )

    def report_words(self) -> str:
        """Where the report of a run that is over is, or how to make it."""
        from profilerkit.rundir.layout import REPORT_HTML
        from profilerkit.rundir.places import last_written_ns

        page, written_ns = self._place / REPORT_HTML, last_written_ns(self._place) or 0
        with suppress(OSError):
            if page.stat().st_mtime_ns >= written_ns:
                return f"its report: {page}"
        if self._is_reporting and time.time_ns() - written_ns < _REPORTING_SECONDS * 10**9:
            return f"its report is being written to {page}"
        return f"next: {join(['profilerkit', 'analyze', str(self._place)])}"

    def page(self, live: "Live", report: "Report | None", console: Console) -> str:
        from profilerkit.report import live as words

        return words.page(
            str(self._place), live, report, width=console.width, colour=console.colour, ascii_only=console.ascii_only
        )
