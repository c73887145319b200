"""IN001: the step waits for the data loader."""

from functools import partial

from profilerkit.analysis.host.names import is_feeding_phase
from profilerkit.analysis.whatif import LoaderFix, hidden_share, loader_fix, made_in_line, waited_share, workers_now
from profilerkit.analysis.workers.capacity import opening_share
from profilerkit.model.finding import Confidence, Evidence, Fix
from profilerkit.rules.api import WAITS, Facts, MissingData, Passed, Result, Rule, fired, revise, saving, unsure
from profilerkit.rules.evidence import PLACE, code_line, frame_text, in_line, line_evidence, placed, told_line
from profilerkit.rules.input.costly_handover import CostlyHandover
from profilerkit.rules.input.costly_samples import CostlySamples
from profilerkit.rules.input.loader import cheaper_input, limits, made_elsewhere, more_at_a_time, worker_fix
from profilerkit.rules.input.slow_storage import SlowStorage
from profilerkit.units import format_ns, format_ratio

#: A hidden wait below this share of the step is not worth a line (the share below which no finding is named).
SMALLEST_HIDDEN = 0.01
MOST_OF_THE_WAIT = 0.5  #: share of the wait from which a function is named in the title


class StarvedDevice(Rule, frozen=True):
    """Find steps that wait for their next batch for {smallest_share} of their time or more.

    Why it costs: The GPU has no work until the batch is there. On a run without a GPU the training thread waits.

    Example:
        loader = DataLoader(dataset, batch_size=4)
        for batch in loader:
            train_step(batch)
    Use instead:
        loader = DataLoader(dataset, batch_size=4, num_workers=2)
        if __name__ == "__main__":
            for batch in loader:
                train_step(batch)
    How it is measured: Timers around the loader, or its event in a trace, give the wait that no device work overlaps.
        Without either, the start of a step counts if operators or frames make a batch there. The saving models the
        loader after the fix: max(compute, producer / workers, CPU / cores). Without a model it is half of the wait.
        Handing a batch to another process takes 1.6 ms.
    When it is wrong: Batches that depend on training, such as a replay buffer with priorities, cannot be made in
        advance. The first batch of new workers and the last fetch of an epoch are left out. Time that a thread waits
        for a core is left out too. Confidence is low where only Python before a copy shows the wait.
    Sources:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
        https://docs.pytorch.org/docs/stable/data.html
    """

    code = "IN001"
    summary = "The step waits for the data loader"

    smallest_share: float = 0.05

    def check(self, facts: Facts) -> Result:
        if facts.input is None:
            hint = "wrap the loader: prof.wrap(loader); without one: prof.phase('data'), or with_stack=True"
            return MissingData("no loader was seen", hint)
        share = facts.share(*WAITS)
        if share < self.smallest_share:
            return Passed(f"the step waits {format_ratio(share)} of its time for data")
        if waited_share(facts) < self.smallest_share:
            return Passed(_not_for_data(facts, share))
        fix = loader_fix(facts)
        cheaper = cheaper_input(facts)
        by_workers = fix is not None and fix.expected >= cheaper
        expected = fix.expected if fix is not None and by_workers else cheaper
        if not self.worth_saying(facts, expected):
            return unsure(f"the step waits {format_ratio(share)} of its time for data", expected)
        wait, step = facts.time_ns(*WAITS), facts.mean_step_ns or 0.0
        proposal: Fix | None = None if _told_by_workers(facts) else _cheaper_fix(facts)
        if fix is not None and by_workers:
            proposal = _by_workers(facts, fix)
        return fired(
            facts,
            bound="input-bound",
            title=f"The step waits {format_ns(wait)} of {format_ns(step)} for data{in_function(facts)}",
            why=f"{_why(facts)}{told_line(facts.lines.get('workers'), 'the time of workers')}",
            evidence=_evidence(facts, wait),
            at_most=_surest(facts),
            detail=max(WAITS, key=facts.share).removeprefix("input."),
            saving=saving(expected, share),
            fix=proposal,
            confirm="Record again after the change: the input share must fall and the step with it. "
            "A batch cached in memory shows the floor.",
        )


def _not_for_data(facts: Facts, share: float) -> str:
    queued = facts.input.queue_ratio or 0.0 if facts.input is not None else 0.0
    hidden, opening = hidden_share(facts), opening_share(facts)
    if hidden > max(queued * share, opening):
        return f"the step waits for data for {format_ratio(hidden)} of its time while collectives run that it needs"
    if opening > queued * share:
        return f"of the wait of {format_ratio(share)} {format_ratio(opening)} are the openings of epochs"
    return f"of the wait of {format_ratio(share)} {format_ratio(queued)} is waiting for a processor, not for data"


def _surest(facts: Facts) -> Confidence:
    assert facts.input is not None
    if facts.input.gap == "before the copy" and not facts.input.frames and _most(facts) == "input.wait":
        return "low"
    seen = facts.workers is not None or not workers_now(facts)
    return "high" if facts.input.source == "measured" and seen else "medium"


def _by_workers(facts: Facts, fix: LoaderFix) -> Fix | None:
    """Workers for the loading; without some IN002 proposes them, with recorded ones IN003: nothing is listed twice."""
    if made_in_line(facts):
        assert facts.input is not None
        what = _maker(facts.input.frames) or "what makes them"
        return Fix(
            text=f"Make batches ahead of the step, if they need nothing that training changes. Put {what} into the "
            f"__iter__ of an IterableDataset, read by a DataLoader with num_workers={fix.workers}. Give each "
            "worker its own part or random generator, by get_worker_info(): else all may give the same "
            f"batches.{limits(facts, fix)}",
            code=f"DataLoader(dataset, batch_size=None, num_workers={fix.workers}, persistent_workers=True)",
        )
    return worker_fix(facts, fix) if fix.current and facts.workers is None else None


def _told_by_workers(facts: Facts) -> bool:
    """Return whether a rule about the workers' own time proposes the cheaper batch (IN006, IN007, IN008)."""
    workers = facts.workers
    return workers is not None and (
        workers.share("fetch") >= SlowStorage().blocked_share
        or workers.share("prep") >= CostlySamples().computing_share
        or workers.share("collate", "handover") >= CostlyHandover().smallest_share
    )


#: What makes a wait shorter that is mostly this part.
_CHEAPER = {
    "input.fetch": "Spend less time blocked on reading{}: larger files read in sequence, a local copy, or a cache.",
    "input.prep": "Prepare batches with less work{}: decode and resize ahead, or transform on the device.",
    "input.ipc": "Hand batches over with less work{}: collate into one tensor, send uint8, cast on the device.",
    None: "Make batches sooner{}: in parallel, ahead of the step, or with less work.",
}


def _cheaper_fix(facts: Facts) -> Fix:
    assert facts.input is not None
    if made_elsewhere(facts):
        return more_at_a_time(facts)
    place = f" in {_holder(facts.input.frames)}" if in_function(facts) else in_line(facts.lines.get("workers"))
    text = _CHEAPER.get(_most(facts), _CHEAPER[None]).format(place)
    maker = _maker(facts.input.frames)
    elsewhere = workers_now(facts) is None and not made_in_line(facts)  # of those it is known that workers win less
    if elsewhere and in_function(facts) and maker:
        text += f" Or make batches ahead of the step: {maker} in the workers of a DataLoader."
    return Fix(text=text)


_BETWEEN_STEPS = (
    "The device waits between the range of a step and the next one, where a loop gets its batch; nothing recorded "
    "names it."
)
_BEFORE_THE_COPY = (
    "The device waits from the start of the step for its first work, the copy of a batch. Nothing recorded names what "
    "makes it meanwhile; part of that may be something else."
)


def _why(facts: Facts) -> str:
    assert facts.input is not None
    most, slow = _most(facts), facts.steps.slow
    if facts.input.frames:
        held = format_ratio(facts.input.frames_ratio or 0.0)
        return f"{held} of the wait is spent in {_holder(facts.input.frames)}."
    if most == "input.prep":
        return "The thread that loads the batch computes meanwhile: samples are prepared during the step."
    if most == "input.fetch":
        return "The thread that loads the batch is blocked, not computing: it reads from storage, network or a lock."
    if most == "input.ipc":
        return "Most of the wait joins samples to a batch or takes it over from another process."
    if facts.input.gap == "between steps":
        if slow is None or slow.period is None or slow.part not in WAITS:
            return _BETWEEN_STEPS
        late = f"so do batches come from {slow.period} workers that all are late"
        return f"{_BETWEEN_STEPS} It waits every {slow.period} steps: {late}."
    if facts.input.gap == "before the copy":
        return _BEFORE_THE_COPY
    if facts.mode == "gpu":
        return "The device has nothing to run while the loop is inside the loader."
    return "The training thread is inside the loader and does nothing else."


def _most(facts: Facts) -> str | None:
    """Return the part with more than half of the wait, ``None`` without one."""
    total = facts.share(*WAITS)
    return next((part for part in WAITS if facts.share(part) > total / 2), None)


def in_function(facts: Facts) -> str:
    """Return where most of the wait is spent, as the end of a title; empty where no Python stack tells."""
    if facts.input is None or not facts.input.frames or (facts.input.frames_ratio or 0.0) < MOST_OF_THE_WAIT:
        return ""
    return f", most of it in {_holder(facts.input.frames)}"


def _holder(frames: tuple[str, ...]) -> str:
    """Return the innermost function that is in a file, else the innermost."""
    return frame_text(placed(frames))


def _maker(frames: tuple[str, ...]) -> str:
    """Return the innermost frame that makes batches by its name, which may call others for it; empty without one."""
    placed = ((frame, PLACE.match(frame)) for frame in reversed(frames))
    made = next((frame for frame, place in placed if place and is_feeding_phase(place["function"])), None)
    return frame_text(made) if made else ""


def frames_evidence(facts: Facts) -> tuple[Evidence, ...]:
    """Return the function that holds most of the wait, where stacks were sampled or recorded."""
    if facts.input is None or not facts.input.frames:
        return ()
    sampled = facts.lines.get("input")
    if sampled is not None and sampled.frames == facts.input.frames:
        return line_evidence(facts, "Input wait", sampled)
    label, calls = f"Input wait in {_holder(facts.input.frames)}", " → ".join(map(frame_text, facts.input.frames))
    row = facts.evidence(label, facts.input.frames_ratio, "ratio", calls, n=facts.input.fetches)
    return (revise(row, line=code_line(placed(facts.input.frames))),)


def _evidence(facts: Facts, wait: float) -> tuple[Evidence, ...]:
    assert facts.input is not None
    found, waits, hidden = facts.input, facts.present(*WAITS), facts.hidden_share(*WAITS)
    per_fetch = partial(facts.evidence, n=found.fetches)
    step = per_fetch("Input wait per step", wait, "ns", found.origin, found.source, behind=waits)
    in_loader = found.held_ratio if facts.mode == "gpu" else None
    held = "Time in the loader, overlapped or not, share of the step"
    # What a faster input shows only once transfers are hidden as well.
    further = "Further wait overlapped with communication and copies, share of the step"
    overlapped = facts.evidence(further, hidden, "ratio", "launch, transfer and kernel times", "derived")
    cpu = "CPU time of the loading thread during the wait"
    queue = "Time of the wait in which the loading thread was ready and got no processor"
    return (
        revise(step, steps=facts.judged_steps, range_ns=found.longest_ns),
        facts.share_evidence("Input wait, share of the step", *WAITS),
        per_fetch(held, in_loader, "ratio", found.origin, "derived" if found.gap else "measured"),
        *frames_evidence(facts),
        *line_evidence(facts, "Workers' time", facts.lines.get("workers")),
        *([overlapped] if hidden >= SMALLEST_HIDDEN else []),
        per_fetch(cpu, found.cpu_ratio, "ratio", "thread CPU clock", behind=waits),
        per_fetch(queue, found.queue_ratio, "ratio", "the kernel's scheduler statistics", behind=waits),
    )
