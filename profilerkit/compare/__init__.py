"""Two reports to a Diff: what changed, whether it is real, and whether the predictions held."""

from collections.abc import Sequence
from datetime import UTC, datetime

from profilerkit.compare.findings import applied_fixes, finding_changes
from profilerkit.compare.gates import judge_change, parse_limit
from profilerkit.compare.parts import kernel_changes, memory_change, memory_headline, memory_judgement, part_changes
from profilerkit.compare.sides import differences, few_steps, obstacles, side_of
from profilerkit.compare.steps import step_change, timed_steps
from profilerkit.compare.verdict import headline, judgement, notes, span_changes
from profilerkit.model import revise
from profilerkit.model.diff import Diff
from profilerkit.model.report import Report


def compare(
    before: Report,
    after: Report,
    fail_if: Sequence[str] = (),
    *,
    also_before: Sequence[Report] = (),
    also_after: Sequence[Report] = (),
) -> Diff:
    """What changed from one run to another.

    Args:
        before: the run to compare with.
        after: the run to judge.
        fail_if: limits on changes, for example ``step_time:+5%``.
        also_before: more recordings of the program before; of them only the step times are used.
        also_after: more recordings of the program after.

    Raises:
        UsageError: a limit cannot be read.
    """
    limits = [parse_limit(text) for text in fail_if]
    first = [timed_steps(report) for report in (before, *also_before)]
    second = [timed_steps(report) for report in (after, *also_after)]
    told = [timed for timed in first if timed], [timed for timed in second if timed]
    timed = step_change(*told) if all(told) else None
    others = [obstacles(before, report) for report in (*also_before, after, *also_after)]
    hindered = tuple(dict.fromkeys(reason for reasons in others for reason in reasons))
    # Times of different work or hardware have no ratio that means anything.
    step = None if hindered else timed
    only_few = hindered and set(hindered) <= set(few_steps(before, after))
    spans = tuple(span_changes(before, after)) if only_few else ()
    memory = memory_change(before, after)
    verdict = judgement(step, hindered, spans)
    # Snapshots have no steps to compare; of the memory they say all.
    only_memory = memory if {before.trust.mode, after.trust.mode} == {"logs"} else None
    if only_memory is not None:
        verdict, hindered = memory_judgement(only_memory), ()
    sides = side_of(before, *first), side_of(after, *second)
    findings = finding_changes(before, after, verdict)
    parts = part_changes(before, after, step)
    diff = Diff(
        verdict=verdict,
        headline=memory_headline(only_memory) if only_memory else headline(verdict, step, hindered, sides, spans),
        before=sides[0],
        after=sides[1],
        obstacles=hindered,
        step=step,
        spans=spans,
        differences=differences(before, after),
        memory=memory,
        parts=parts,
        kernels=kernel_changes(before, after, step),
        findings=findings,
        fixes=applied_fixes(before, after, findings, parts, step),
        notes=() if only_memory else tuple(notes(before, after, sides, step, spans)),
        profilerkit_version=after.run.profilerkit_version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return revise(diff, gates=tuple(judge_change(limit, before, after, diff) for limit in limits))
