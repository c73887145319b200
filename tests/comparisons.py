"""Reports with steps of a known length, to be compared."""

import random

from msgspec.structs import replace

from profilerkit.compare import compare
from profilerkit.model.finding import Outcome
from profilerkit.model.run import Loader, Series
from profilerkit.model.step import PARTS, Part, StepRow, Steps, StepTimes
from profilerkit.results import as_report
from tests.report.samples import input_bound

MS = 1_000_000
STEP_MS = 30.0


def times_of(mean_ms=STEP_MS, *, count=240, seed=0, jitter=0.05):
    """Steps in ns that jitter around a mean, each with a bit of the one before."""
    rng, left = random.Random(seed), 0.0
    out = []
    for _ in range(count):
        left = 0.5 * left + rng.gauss(0.0, jitter)
        out.append(round(mean_ms * MS * (1 + left)))
    return out


def report_of(times=None, *, queued=0.0, parts=None, findings=None, state="steady", **run):
    """A report of these steps; ``queued`` is a ratio of each, or ``None`` where it was not recorded."""
    times = times_of() if times is None else times
    rows = tuple(
        StepRow(
            index=number,
            start_ns=number * 10**9,
            time_ns=time_ns,
            state=state,
            queued_ns=None if queued is None else round(queued * time_ns),
        )
        for number, time_ns in enumerate(times)
    )
    ordered = sorted(times)
    steps = Steps(
        count=len(rows),
        steady=len(rows),
        dropped={},
        found_by="wrapped loader",
        inferred=False,
        time_ns=StepTimes(
            median=ordered[len(ordered) // 2],
            mean=round(sum(times) / len(times)),
            p10=ordered[len(ordered) // 10],
            p90=ordered[-1 - len(ordered) // 10],
        ),
        rows=rows,
    )
    base = input_bound()
    known = {
        "name": "run",
        "kind": "run",
        "devices": (),
        "processors": ("AMD EPYC",),
        "usable_cores": 2.0,
        "world_size": 1,
        "batch_size": 32,
        "batches_per_step": 1.0,
        "loader": Loader(kind="DataLoader", num_workers=0, batch_size=32),
        "settings": {},
        "samples": (),
    }
    return as_report(
        replace(
            base,
            steps=steps,
            run=replace(base.run, **{**known, **run}),
            trust=replace(base.trust, mode="cpu"),
            breakdown=parts_of(parts or {"compute.math": 0.8, "input.prep": 0.2}, steps.time_ns.mean),
            outcomes=outcomes_of(findings or {}),
            ranks=(),
        )
    )


def parts_of(shares, mean_ns):
    return tuple(
        Part(part=name, family=PARTS[name][0], time_ns=round(share * mean_ns), share=share, source="measured")
        for name, share in shares.items()
    )


def outcomes_of(findings):
    """``{"IN001": (finding, …)}``; a rule with a status instead of findings ended so."""
    return tuple(
        Outcome(
            rule=rule,
            name="state",
            summary="The state.",
            status=found if isinstance(found, str) else "fired",
            reason="No such signal." if isinstance(found, str) else None,
            findings=() if isinstance(found, str) else found,
        )
        for rule, found in findings.items()
    )


def host_samples(**means):
    """Sampled signals with these means: ``cpu=0.9`` is ``host.cpu``."""
    return tuple(
        Series(name=f"host.{name}", unit="ratio", n=9, mean=mean, p10=mean, p90=mean, maximum=mean)
        for name, mean in means.items()
    )


def verdict_of(before, after, **options):
    return compare(before, after, **options).verdict
