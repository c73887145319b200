"""Connect training frameworks and trackers; each module imports its framework only when it is used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profilerkit.model.report import Report
    from profilerkit.profiling import Profile


def scalars(report: "Report") -> dict[str, float]:
    """Return numbers of a report to compare runs by; what was not measured is omitted.

    ``profilerkit/step_time_median_ms`` and ``_p90_ms`` are of the steady steps. ``profilerkit/share/PART`` is a share
    of the steady step, 0 to 1. ``profilerkit/expected_saving`` is a share of the step time.
    """
    times, saving = report.steps.time_ns, report.verdict.saving
    steps_ns = {"median": times.median, "p90": times.p90} if times else {}
    found = {f"step_time_{name}_ms": time_ns / 1e6 for name, time_ns in steps_ns.items() if time_ns is not None}
    found |= {f"share/{part.part}": part.share for part in report.breakdown}
    found |= {"expected_saving": saving.expected} if saving else {}
    return {f"profilerkit/{name}": float(value) for name, value in found.items()}


class Replaced:
    """Replace one method of one object while a recording runs; a subclass says what a call does.

    One of ours that is there already is replaced, not wrapped: its recording is over, or this one joins it.
    """

    def __init__(self, owner: Any, name: str, prof: "Profile") -> None:
        found = getattr(owner, name)
        is_ours = isinstance(found, Replaced)
        self.inner = found.inner if is_ours else found
        self._was_set: bool = found._was_set if is_ours else name in vars(owner)
        self._owner, self._name = owner, name
        self._prof = prof
        setattr(owner, name, self)

    def put_back(self) -> None:
        """Restore the method, unless somebody else has replaced it since."""
        if vars(self._owner).get(self._name) is not self:
            return
        if self._was_set:
            setattr(self._owner, self._name, self.inner)
        else:
            delattr(self._owner, self._name)


class TimedSave(Replaced):
    """Time a method that saves as a checkpoint."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns."""
        with self._prof.phase("checkpoint"):
            return self.inner(*args, **kwargs)
