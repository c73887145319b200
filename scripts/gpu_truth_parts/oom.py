"""Runs that run out of memory: do the kinds add up, and is the named batch an upper bound?"""

from collections.abc import Iterator
from pathlib import Path

from gpu_truth_parts.checks import Check, near
from gpu_truth_parts.device import Device
from gpu_truth_parts.program import run
from profilerkit.rundir.reader import read_run

#: A batch so much larger than the named one must not train.
_LARGER = 1.05


def checks(_device: Device, place: Path) -> Iterator[Check]:
    """At the first step and at a later one: the dossier, its sums, and the named batch really run."""
    for name, later in (("first step", 0), ("later step", 1)):
        path = place / "runs" / f"oom_{'later' if later else 'first'}"
        done = run("out_of_memory", path, later, 0)
        dossier = read_run(path).ranks[0].oom if path.exists() else None
        if dossier is None:
            yield Check(name=f"{name}: dossier", passed=False, why=done.stderr[-500:])
            continue
        gib = {kind.kind: round(kind.bytes / 2**30, 2) for kind in dossier.live}
        yield Check(name=f"{name}: dossier, GiB", value=gib, passed=done.returncode != 0)
        if dossier.allocated_bytes:
            sums = sum(kind.bytes for kind in dossier.live) / dossier.allocated_bytes
            yield near(f"{name}: sum of the kinds / allocated", sums, 1.0, 0.02)
        fits = dossier.fitting_batch_size
        if fits is None:
            yield Check(name=f"{name}: at most this batch trains", value="none is named")
            continue
        # The report says "at most": what the rest of the step takes for a while is not counted.
        trains = [
            size
            for size in (fits, round(_LARGER * fits))
            if not run("out_of_memory", f"{path}_again", 0, size).returncode
        ]
        yield Check(
            name=f"{name}: at most this batch trains",
            value={"named": fits, "asked for": dossier.batch_size, "trained": trains},
            reference=f"{_LARGER} × the named batch does not train",
            passed=False if len(trains) == 2 else None,
        )
