"""Select the numbers of a report for experiment trackers."""

from profilerkit.model.report import Report


def scalars(report: Report) -> dict[str, float]:
    """Return numbers to compare runs by; what was not measured is omitted.

    ``profilerkit/step_time_median_ms`` and ``_p90_ms`` are of the steady steps. ``profilerkit/share/PART`` is a share
    of the steady step, 0 to 1. ``profilerkit/expected_saving`` is a share of the step time.
    """
    times, saving = report.steps.time_ns, report.verdict.saving
    steps_ns = {"median": times.median, "p90": times.p90} if times else {}
    found = {f"step_time_{name}_ms": time_ns / 1e6 for name, time_ns in steps_ns.items() if time_ns is not None}
    found |= {f"share/{part.part}": part.share for part in report.breakdown}
    found |= {"expected_saving": saving.expected} if saving else {}
    return {f"profilerkit/{name}": float(value) for name, value in found.items()}
