"""Trial to a page: predicted beside measured for each change, what to keep, and what to look at first."""

from collections.abc import Iterator

from profilerkit.model.finding import Saving
from profilerkit.model.trial import Attempt, Numbers, Trial
from profilerkit.report.blocks import Block, Code, Document, First, Section, Table, Text, Tone
from profilerkit.report.findings import where
from profilerkit.report.inert import SENTENCE_LIMIT, inert, inert_code
from profilerkit.report.wording import listed, plural
from profilerkit.units import format_change, format_long_ns, format_ns, format_ratio, format_ratio_range, is_open

_LOSSES: dict[Numbers, str] = {
    "same": "same losses",
    "rounding": "same losses within rounding",
    "differs": "losses differ: look",
    "unknown": "losses not compared",
}
_CHANGE = 120  #: characters of a change
#: A saving that nobody has excluded, and how far means may lie from a saving, shares of the step (choices): as a
#: verdict names contenders from 5 %, and as savings are held to 3 points.
_OPEN, _AGREES = 0.05, 0.03
_PERCENT = 0.01  #: a smaller difference of losses is written as a power of ten


def document_of_trial(trial: Trial) -> Document:
    """The trial as a page."""
    name = inert(trial.name) or "program"
    kept = [one for one in (trial.together, *trial.attempts) if one and one.kept and one.saving]
    best = kept[0] if kept else None
    changed = [_change(one) for one in trial.attempts if one.kept and one.numbers == "differs"]
    tone: Tone = "good" if best else "low" if trial.step_ns is None else "info"
    shape, word, headline = _answer(trial, best)
    steps = f" of {plural(trial.steps, 'step')}" if trial.steps else ""
    runs = f"baseline: {plural(trial.runs, 'run')}{steps} · {format_long_ns(trial.seconds * 1e9)} in all"
    first = First(
        about=f"{name} · {runs}" if trial.runs else name,
        made=inert(trial.created, 40)[:10],
        tone=tone,
        shape=shape,
        word=word,
        headline=headline,
        confidence="",
        lines=(f"Look at the losses before you keep {listed(changed)}.",) if changed else (),
    )
    return Document(f"{word.lower()}: {name}", first, tuple(_sections(trial)))


def _doubtful(trial: Trial) -> tuple[Attempt, ...]:
    """What is faster with other losses and not advised: the user is to judge."""
    return tuple(one for one in trial.attempts if one.outcome == "faster" and one.numbers == "differs" and not one.kept)


def _answer(trial: Trial, best: Attempt | None) -> tuple[str, str, str]:
    """Shape, word and headline."""
    if trial.step_ns is None:
        return "?", "NOT MEASURED", "Too little was measured to say what helps"
    if best is not None and best.saving is not None:
        what = f"{len(best.changes)} changes together make" if best is trial.together else f"{_change(best)} makes"
        # The saving also leaves out what drifts, and what the caches of other programs cost.
        agrees = best.step_ns is not None and abs(1 - best.step_ns / trial.step_ns - best.saving.expected) <= _AGREES
        steps = f": {format_ns(trial.step_ns)} → {format_ns(best.step_ns)}" if agrees and best.step_ns else ""
        return "▼", "FASTER", f"{what} the step {format_ratio(best.saving.expected)} shorter{steps}"
    # A change may still save what is worth having.
    is_open = any(one.outcome == "no_change" and one.saving and one.saving.high > _OPEN for one in trial.attempts)
    shape, word = ("?", "NOT SETTLED") if is_open else ("=", "NO FASTER")
    if doubtful := _doubtful(trial):
        return shape, word, f"Nothing here helps without changing the losses: look at {_change(doubtful[0])}"
    if is_open:
        return shape, word, "The runs differ too much to say what helps"
    tried = sum(one.tried for one in trial.attempts)
    if left := len(trial.attempts) - tried:
        helps = f"of {plural(tried, 'change')} tried none helps" if tried else "no change was tried"
        return "?", "NOT SETTLED" if tried else "NOT MEASURED", f"Time ran out: {helps}, {left} left"
    if tried and all(one.outcome == "failed" for one in trial.attempts):
        failed = "The change" if tried == 1 else f"Each of {tried} changes"
        return "?", "NOT MEASURED", f"{failed} failed: nothing was measured"
    return shape, word, f"Nothing here helps: {plural(tried, 'change')} tried" if tried else "There was nothing to try"


def _sections(trial: Trial) -> Iterator[Section]:
    reasons = [f"{_change(one)}: {one.reason}" for one in trial.attempts if one.reason]
    notes = tuple(Text.of(inert(note, SENTENCE_LIMIT), style="note") for note in (*reasons, *trial.notes))
    if trial.attempts or trial.step_ns is not None:
        yield Section("tried", "What was tried", "", (_table(trial), *notes), open=True)
    elif notes:
        yield Section("notes", "Notes", "", notes, open=True)
    kept = [block for one in trial.attempts if one.kept for block in _to_keep(one)]
    if kept:
        yield Section("keep", "To keep", "", tuple(kept), open=True)
    if doubtful := [block for one in _doubtful(trial) for block in _to_keep(one)]:
        yield Section(
            "look", "Faster, with other losses", "keep these only if training still converges", tuple(doubtful)
        )
    if trial.patch:
        yield Section("patch", "Patch", "--write FILE writes it for git apply", (Code(inert_code(trial.patch)),))


def _to_keep(one: Attempt) -> Iterator[Block]:
    places = listed([where(line) for line in one.lines])
    yield Text.of(f"{_change(one)}{f', at {places}' if places else ''}")
    if one.code:
        yield Code(inert_code(one.code))


def _table(trial: Trial) -> Table:
    spread = f" ± {format_ratio(trial.spread)}" if trial.spread is not None else ""
    baseline = "not measured" if trial.step_ns is None else f"{format_ns(trial.step_ns)}{spread}"
    rows = [
        ("baseline", "", baseline, ""),
        *(_row(_change(one), one) for one in trial.attempts),
        *(_row("together", one) for one in (trial.together,) if one),
    ]
    caption = "Measured: the mean step without the time of other programs, how much shorter it got, the 99 % interval."
    return Table(caption, ("Change", "Predicted", "Measured", "Losses"), tuple(rows), text_columns=4)


def _row(name: str, one: Attempt) -> tuple[str, ...]:
    return (name, _predicted(one.predicted), measured_words(one), _losses(one) if one.saving else "")


def _change(one: Attempt) -> str:
    return inert(one.text, _CHANGE)


def _predicted(saving: Saving | None) -> str:
    if saving is None:
        return "not predicted"
    if is_open(saving.low, saving.high, saving.method):
        return f"up to −{format_ratio(saving.high)}"
    return f"−{format_ratio(saving.expected)} ({_ends(saving.low, saving.high)})"


def _ends(low: float, high: float) -> str:
    if low < 0:
        return f"{format_ratio(low)} to {format_ratio(high)}".replace("-", "−")
    return format_ratio_range(low, high).removesuffix(" %")


def measured_words(one: Attempt) -> str:
    """Return what a change saved: ``−31 % (29–33)``, ``11 % slower (9.0–13)``, or that it failed.

    >>> from profilerkit.model.diff import Range
    >>> saving = Range(low=-0.13, expected=-0.11, high=-0.09)
    >>> measured_words(Attempt(changes=(), outcome="slower", saving=saving))
    '11 % slower (9.0–13)'
    """
    saving = one.saving
    if one.outcome == "failed" or saving is None:
        return "failed" if one.outcome == "failed" and one.tried else "not tried"
    if one.outcome == "faster":
        return f"−{format_ratio(saving.expected)} ({_ends(saving.low, saving.high)})"
    if one.outcome == "slower":
        return f"{format_ratio(-saving.expected)} slower ({_ends(-saving.high, -saving.low)})"
    if one.has_too_few_runs:
        return "no clear change (too few runs)"
    return f"no clear change ({format_change(-saving.high)} to {format_change(-saving.low)})"


def _losses(one: Attempt) -> str:
    words = _LOSSES[one.numbers]
    if one.numbers != "differs" or one.apart is None or one.apart == float("inf"):
        return words
    apart = format_ratio(one.apart) if one.apart >= _PERCENT else f"{one.apart:.0e}".replace("e-0", "e-")
    return words.replace("differ", f"differ {apart}")
