"""A job that still runs to text: a page that is drawn again and again, or one line for a log."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from shlex import quote
from textwrap import wrap

from profilerkit.analysis.live import Late, Live, Recent
from profilerkit.model.report import Report
from profilerkit.report import wording
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.terminal import NARROW, STYLES, Page, bar
from profilerkit.units import format_count, format_long_ns, format_ns, format_ratio, format_value

#: Judged steps from which a verdict is told: what every report asks for, "at least 10 steps after the first 5".
FEWEST_JUDGED = 10
#: A step that lasts so many usual ones, and no less than so long, is worth a word (a choice: 10 × the median).
_QUIET_STEPS, _QUIET_NS = 10, 5_000_000_000
#: Without a record for so long a job that cannot be asked may be gone, and is watched no longer (choices): each rank
#: writes its clock once a minute, whatever else is off.
SILENT_NS, GONE_NS = 120_000_000_000, 300_000_000_000
_LEAST_AGE_NS = 1_000_000_000  #: a verdict younger than this is of now
#: Ranks and parts named one by one.
_MOST_LATE = 8
_MOST_PARTS = 6
_LABEL = 12
_NOT_MEASURED = "not measured"
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.,-=+*#"
#: The sparkline reaches at least this share of the median up and down, so that noise does not look like a trend.
_SPARK_SPREAD = 0.25


def page(
    name: str, live: Live, report: Report | None, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The job as a page that looks as ``terminal.render`` has it; ``name`` is its run directory as a command names it.

    The report is on its records so far; ``None`` where there is none yet.
    """
    out = Page(width, colour, ascii_only)
    _state(out, name, live, report)
    _verdict(out, name, live, report)
    out.blank()
    _numbers(out, live)
    if report is not None:
        _parts(out, report)
    _late(out, live)
    return out.text()


def line(live: Live, report: Report | None, *, ascii_only: bool = False) -> str:
    """The job as one line: where it is, how fast, what bounds it."""
    recent = live.recent
    pieces = [f"step {format_count(live.steps)}"]
    if recent is None:
        pieces = pieces if live.steps else ["no step recorded yet"]
    elif recent.rate_per_s is not None:
        pieces += [format_value(recent.rate_per_s, "per_s").replace("/s", " steps/s")]
        pieces += [f"{format_ns(recent.median_ns)} median"]
    pieces += [f"input {_span(_waits(live), format_ratio)}"] if _waits(live) else []
    busy = [rank.device.utilization_ratio for rank in live.ranks if rank.device]
    known = [ratio for ratio in busy if ratio is not None]
    pieces += [f"GPU {_span(known, format_ratio)}"] if known else []
    quiet = _quiet(live)
    pieces += [quiet] if quiet else []
    if recent is not None:
        known_of = _judged(report)
        so_far = f"so far{_age(live, ', judged')}"
        said = f"{known_of.verdict.bound} ({known_of.verdict.confidence}) {so_far}" if known_of else "no verdict yet"
        pieces.append(said)
    return Page(80, False, ascii_only).clean(" · ".join(pieces))


# The state and the verdict


def _state(out: Page, name: str, live: Live, report: Report | None) -> None:
    world = live.world_size or len(live.ranks)
    ranks = (
        wording.plural(world, "rank")
        if len(live.ranks) >= world
        else f"{len(live.ranks)} of {wording.plural(world, 'rank')}"
    )
    silent_ns = live.silent_ns or 0 if _is_silent(live) else 0
    long = "" if live.running_ns is None else f" for {_long(max(live.running_ns - silent_ns, 0))}"
    ended = inert(report.run.ended or "") if report is not None else ""
    state = f"ended: {ended or 'no end record'}, ran{long}" if live.is_over else f"running{long}"
    if silent_ns:
        state = f"silent, after running{long}"
    out.line((inert(name) or "run", "bold"), (f" · {state} · {ranks}" if live.ranks else " · no rank yet", ""))
    quiet = _quiet(live)
    if quiet:
        out.line((f"{quiet[0].upper()}{quiet[1:]}.", "yellow"))
    if live.is_over and report is not None and report.run.failure:
        out.line((inert(report.run.failure, SENTENCE_LIMIT), "yellow"))


def _quiet(live: Live) -> str:
    """That no record came, or no step ended, for long; empty where all is as usual."""
    if _is_silent(live):
        return f"no record for {_long(live.silent_ns or 0)}; the run may have stopped"
    if live.quiet_ns is None or live.recent is None:
        return ""
    if live.quiet_ns < max(_QUIET_NS, _QUIET_STEPS * live.recent.median_ns):
        return ""
    return f"no step for {_long(live.quiet_ns)}"


def _is_silent(live: Live) -> bool:
    return live.silent_ns is not None and live.silent_ns >= SILENT_NS


def _age(live: Live, before: str) -> str:
    if live.verdict_age_ns is None or live.verdict_age_ns < _LEAST_AGE_NS:
        return ""
    return f"{before} {_long(live.verdict_age_ns)} ago"


def _long(time_ns: int) -> str:
    return format_long_ns(time_ns) if time_ns >= 10**9 else format_ns(time_ns)


def _judged(report: Report | None) -> Report | None:
    return report if report is not None and report.steps.steady >= FEWEST_JUDGED else None


def _sure(report: Report) -> str:
    verdict = report.verdict
    rank = "" if verdict.rank is None else f"rank {verdict.rank}"
    detail = " on ".join(piece for piece in (wording.kind_words(verdict.detail), rank) if piece)
    return "".join(f" · {piece}" for piece in (detail, f"confidence {verdict.confidence}") if piece)


def _verdict(out: Page, name: str, live: Live, report: Report | None) -> None:
    if report is None or _judged(report) is None:
        judged = report.steps.steady if report is not None else 0
        word = "◇ NO VERDICT" if live.is_over else "◇ NO VERDICT YET"
        out.line((word, STYLES["info"]), (f" · {judged} of the {FEWEST_JUDGED} steps it needs", ""))
        return
    tone = wording.verdict_tone(report)
    out.line(
        (f"{wording.SHAPES[tone]} {report.verdict.bound.upper()}", STYLES[tone]),
        (_sure(report) + ("" if live.is_over else " · so far"), ""),
    )
    out.line((inert(report.verdict.headline, 200).replace("`", ""), "bold"))
    rest = f"the latest {format_count(report.steps.steady)} judged{_age(live, '')}"
    after = f"After {wording.plural(live.steps, 'step')}, {rest},"
    if report.verdict.bound == "inconclusive":
        out.line((f"{after} by the timers alone. {_more(name, live)}", "dim"))
    else:
        more = inert(report.verdict.consequence, SENTENCE_LIMIT).replace("`", "")
        out.line((f"{after} by the timers alone. {more}", "dim"))


def _more(name: str, live: Live) -> str:
    if live.window is None:
        return (
            f"Timers show waits and pauses; a trace shows the rest, and there is none{'' if live.is_over else ' yet'}."
        )
    first, last = live.window
    steps = f"{format_count(first)} to {format_count(last)}"
    # Of a run that is over the last line says where its report is, or how to make it.
    how = "." if live.is_over else f": profilerkit analyze {quote(inert(name))}"
    return f"The trace of steps {steps} shows more{how}"


# The numbers


def _numbers(out: Page, live: Live) -> None:
    recent = live.recent
    if recent is None:
        known = [format_count(live.steps), "no step time in the latest records"]
        _row(out, "Step", known if live.steps else ["none recorded yet"])
    else:
        rate = "" if recent.rate_per_s is None else format_value(recent.rate_per_s, "per_s").replace("/s", " steps/s")
        _row(out, "Step", [format_count(live.steps), *([rate] if rate else [])])
        _row(out, "Step time", _step_time(recent))
        _row(out, "Trend", [_spark(recent, out.ascii_only), f"last {wording.plural(recent.trend_steps, 'step')}"])
        _row(out, "Input wait", _input_wait(live))
    devices = [rank.device for rank in live.ranks if rank.device is not None]
    hosted = [(rank.host, rank.hosted) for rank in live.ranks if rank.hosted is not None]
    device = [*_readings(_DEVICE, (), devices)]
    host = [*_readings(_HOST, [one for _, one in hosted], [*dict(hosted).values()])]
    _row(out, "Device", device or [_missing([rank.no_device for rank in live.ranks])])
    _row(out, "Host", host or [_missing([rank.no_host for rank in live.ranks])])


def _row(out: Page, label: str, pieces: Iterable[str]) -> None:
    """A label, and pieces beside it that wrap below each other, whole where they fit."""
    room = out.width - _LABEL
    lines = [""]
    for piece in pieces:
        joined = f"{lines[-1]} · {piece}" if lines[-1] else piece
        if len(joined) <= room:
            lines[-1] = joined
        else:
            lines += wrap(piece, room)
    first, *rest = [text for text in lines if text] or [""]
    out.line((f"{label:<{_LABEL}}", "dim"), (first, ""))
    for text in rest:
        out.line((text, ""), indent=_LABEL)


def _step_time(recent: Recent) -> Iterator[str]:
    yield f"{format_ns(recent.median_ns)} median"
    if recent.p10_ns is not None and recent.p90_ns is not None:
        yield f"p10–p90 {_span([recent.p10_ns, recent.p90_ns], format_ns)}"
    yield f"last {wording.plural(recent.steps, 'step')}"


def _spark(recent: Recent, ascii_only: bool) -> str:
    """The trend in one character per group; the middle is the median of the groups."""
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    middle = sorted(recent.trend)[len(recent.trend) // 2]
    spread = _SPARK_SPREAD * abs(middle)
    low, high = min(*recent.trend, middle - spread), max(*recent.trend, middle + spread)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((value - low) * scale)] for value in recent.trend)


def _waits(live: Live) -> list[float]:
    return [rank.wait_ratio for rank in live.ranks if rank.wait_ratio is not None]


def _input_wait(live: Live) -> Iterator[str]:
    """The mean wait of a recent step; of several ranks the least and the most, and whose that is."""
    waiting = [(rank.wait_ns, rank.rank) for rank in live.ranks if rank.wait_ns is not None]
    if not waiting:
        yield f"{_NOT_MEASURED}: no loader was seen"
        return
    yield f"{_span([wait for wait, _ in waiting], format_ns)} of each step"
    yield _span(_waits(live), format_ratio)
    if len(waiting) > 1 and max(waiting)[0] > min(waiting)[0]:
        yield f"most on rank {max(waiting)[1]}"


#: Words, field, the field of its limit, and unit of each reading.
_DEVICE = (
    ("busy {}", "utilization_ratio", "", "ratio"),
    ("{}", "power_mw", "power_limit_mw", "mW"),
    ("{}", "sm_clock_mhz", "sm_clock_max_mhz", "MHz"),
    ("{}", "temperature_c", "", "°C"),
    ("{}", "memory_used_bytes", "memory_total_bytes", "bytes"),
)
_HOST = (
    ("CPU {}", "cpu_ratio", "", "ratio"),
    ("{} threads run or wait", "running_tasks", "", "count"),
    ("training thread waits {} for a core", "thread_queue_ratio", "", "ratio"),
    ("{}", "memory_used_bytes", "memory_total_bytes", "bytes"),
    ("process {}", "process_rss_bytes", "", "bytes"),
)
#: What is of each rank on a host; the rest is the same for all of them.
_OF_RANKS = ("thread_queue_ratio", "process_rss_bytes")


def _readings(
    table: Sequence[tuple[str, str, str, str]], of_ranks: Sequence[object], others: Sequence[object]
) -> Iterator[str]:
    """The latest readings, of several the least and the most, with the limit that they share: ``312 of 400 W``."""
    for words, name, limit, unit in table:
        of = of_ranks if name in _OF_RANKS else others
        values = [value for one in of if (value := getattr(one, name)) is not None]
        limits = {value for one in of if limit and (value := getattr(one, limit)) is not None}
        if values:
            text = _span(values, partial(format_value, unit=unit))
            if len(limits) == 1:
                most = format_value(limits.pop(), unit)
                same = f" {most.rpartition(' ')[2]}"
                text = f"{text.removesuffix(same)} of {most}"
            yield words.format(text)


def _missing(reasons: Sequence[str]) -> str:
    said = list(dict.fromkeys(inert(reason) for reason in reasons if reason))
    return f"{_NOT_MEASURED}: {said[0]}" if said else _NOT_MEASURED


def _span(values: Sequence[float], told: Callable[[float], str]) -> str:
    """One value, or the least and the most; the unit once where both have it."""
    low, high = told(min(values)), told(max(values))
    if low == high:
        return high
    unit = f" {high.rpartition(' ')[2]}" if " " in high else ""
    return f"{low.removesuffix(unit) if unit else low}–{high}"


# The parts and the ranks


def _parts(out: Page, report: Report) -> None:
    segments = wording.bar_of(report.breakdown).segments
    if not segments:
        return
    out.blank()
    out.line(
        ("Where the step goes", "bold"),
        (f" · {wording.bar_caption(report)[:1].lower()}{wording.bar_caption(report)[1:]}", "dim"),
    )
    bar(out, segments)
    fills = out.fills
    rows = [part for own in wording.families_of(report.breakdown).values() for part in own]
    shown = rows[:_MOST_PARTS]
    shares = [wording.own_share(p, report.breakdown) for p in shown]
    told = [
        (
            f"{fills[p.family]} {wording.part_label(p.part)}",
            format_ns(p.time_ns),
            "left out" if share is None else wording.share_text(share),
        )
        for p, share in zip(shown, shares, strict=True)
    ]
    if out.width < NARROW:
        for label, time, share in told:
            out.line((f"{label} ", ""), (f"{time} · {share}", "dim"))
    else:
        columns = (("Part", False), ("Time", True), ("Share", True), ("Source", False))
        pairs = zip(shown, told, strict=True)
        out.table(columns, [[*((cell, "") for cell in cells), (part.source, "dim")] for part, cells in pairs])
    if len(rows) > len(shown):
        out.line((f"{len(rows) - len(shown)} more.", "dim"))


def _late(out: Page, live: Live) -> None:
    if len(live.ranks) < 2:
        return
    out.blank()
    if not live.late:
        out.line(("Ranks: ", "bold"), ("none stands out by its timers, and none lags.", ""))
        return
    out.line(("Ranks that stand out", "bold"))
    for late in live.late[:_MOST_LATE]:
        out.line((f"Rank {late.rank}: {_late_text(late)}", "yellow"))
    if len(live.late) > _MOST_LATE:
        out.line((f"{len(live.late) - _MOST_LATE} more.", "dim"))


def _late_text(late: Late) -> str:
    steps = wording.plural(late.steps or 0, "step")
    match late.kind:
        case "timers":
            more = format_ns(late.excess_ns or 0)
            return f"{more} more per step than the median rank in waits for data and pauses."
        case "behind":
            return f"lags by {steps}."
        case "ended":
            return f"ended after {steps}, while others continue."
        case "killed":
            return f"stopped without an end record after {steps}, while others continue."
