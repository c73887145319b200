"""When is an analysis right? Checks of one report against the simulator's log; each gives why not, or nothing.

They are about the method's definitions and were written before any analysis was tried on them. A leaf's share may be
off by two points or 15 % of itself, whichever is more: the first is about what a table shows, the second what a reader
would call the same number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profilerkit.model.finding import in_order
from profilerkit.model.report import Report
from simulator.job import Job
from simulator.kernels import Kernel
from simulator.machine import Rank
from simulator.model import kernels_of
from simulator.truth import shares

POINTS, RELATIVE = 0.02, 0.15
#: A saving worth naming (§1.8): a healthy run must not be promised one.
ALARM_SAVING = 0.05
_HEALTHY = ("compute-bound", "balanced")
#: From this share on a cause must be seen as the largest beside the kernels.
SEEN_FROM = 0.10


@dataclass(frozen=True)
class Case:
    """A simulated job with its truth: leaf shares by rank."""

    job: Job
    ranks: list[Rank]
    truth: tuple[Mapping[str, float], ...]

    @classmethod
    def of(cls, job: Job, ranks: list[Rank]) -> "Case":
        """Take the truth from the log."""
        return cls(job, ranks, tuple(shares(job, rank) for rank in ranks))

    def share(self, *leaves: str, rank: int = 0) -> float:
        """True share of the leaves; a name ending in a dot takes its group."""
        return total(self.truth[rank], *leaves)

    def mean_share(self, *leaves: str) -> float:
        """The same over all ranks."""
        return sum(self.share(*leaves, rank=rank) for rank in range(len(self.truth))) / len(self.truth)


Check = Callable[[Case, Report], str]
Severity = Callable[[Case], float]


def total(shares_of: Mapping[str, float], *leaves: str) -> float:
    """Sum over leaves and groups of leaves."""
    return sum(
        v for k, v in shares_of.items() if k in leaves or any(n.endswith(".") and k.startswith(n) for n in leaves)
    )


def measured(report: Report) -> list[dict[str, float]]:
    """Part to share for every rank of a report, in the order of rank numbers."""
    ordered = sorted(report.ranks, key=lambda rank: rank.rank or 0)
    return [{part.part: part.share for part in rank.breakdown} for rank in ordered]


def leaf(*leaves: str) -> Severity:
    """How bad a draw is: the share of these leaves, in the mean over the ranks."""
    return lambda case: case.mean_share(*leaves)


def by_rank(share: Callable[[Job, Rank], float]) -> Severity:
    """How bad a draw is by a share that the log tells of each rank."""
    return lambda case: sum(share(case.job, rank) for rank in case.ranks) / len(case.ranks)


def waiting(case: Case) -> float:
    """How bad a late rank is: the share of the step that the median other rank waits for it."""
    waits = sorted(case.share("comm.skew", rank=rank) for rank in range(len(case.truth)) if rank != case.job.late.rank)
    return waits[len(waits) // 2]


def share_of(*leaves: str) -> Check:
    """On every rank the leaves own what they own in truth."""

    def check(case: Case, report: Report) -> str:
        found = measured(report)
        if len(found) != len(case.truth):
            return f"{len(found)} ranks in the report, {len(case.truth)} in truth"
        for rank, (ours, truth) in enumerate(zip(found, case.truth, strict=True)):
            seen, true = total(ours, *leaves), total(truth, *leaves)
            if abs(seen - true) > _tolerance(true):
                return f"{' + '.join(leaves)} {seen:.1%}, in truth {true:.1%}" + (f" on rank {rank}" if rank else "")
        return ""

    return check


def _tolerance(true: float) -> float:
    """What a share may be off."""
    return max(POINTS, RELATIVE * true)


def leads(*leaves: str) -> Check:
    """From ``SEEN_FROM`` on, where it is so in truth, no other leaf outside ``compute.math`` owns more.

    Leaves less than ``POINTS`` apart are not told apart, in truth nor in the report.
    """

    def check(case: Case, report: Report) -> str:
        for rank, (ours, truth) in enumerate(zip(measured(report), case.truth, strict=False)):
            others = {leaf for leaf in {*ours, *truth} if leaf not in leaves and leaf != "compute.math"}
            own = total(truth, *leaves)
            if own < SEEN_FROM or any(truth.get(leaf, 0.0) > own - POINTS for leaf in others):
                continue
            larger = max(others, key=lambda leaf: ours.get(leaf, 0.0), default="")
            if larger and ours.get(larger, 0.0) > total(ours, *leaves):
                return (
                    f"{larger} {ours[larger]:.1%} before {' + '.join(leaves)} {total(ours, *leaves):.1%} on rank {rank}"
                )
        return ""

    return check


def owns(*leaves: str) -> Check:
    """``share_of`` and ``leads``."""

    def check(case: Case, report: Report) -> str:
        return share_of(*leaves)(case, report) or leads(*leaves)(case, report)

    return check


def no_alarm(case: Case, report: Report) -> str:
    """A run with nothing wrong is called compute-bound or balanced, and no fix is promised 5 % or more."""
    if report.verdict.bound not in _HEALTHY:
        return f"called {report.verdict.bound}: {report.verdict.headline}"
    for outcome, finding in in_order(report.outcomes):
        if finding.saving and finding.saving.expected >= ALARM_SAVING:
            return f"{outcome.rule} promises {finding.saving.expected:.1%}"
    return ""


def finds(rule: str, detail: str = "") -> Check:
    """The rule fires, with that detail; what it may leave alone are draws below ``SEEN_FROM``, which do not count."""

    def check(case: Case, report: Report) -> str:
        for outcome, finding in in_order(report.outcomes):
            if outcome.rule == rule and (not detail or finding.detail == detail):
                return ""
        outcome_of = {outcome.rule: outcome for outcome in report.outcomes}
        found = [finding.detail for finding in outcome_of[rule].findings] if rule in outcome_of else []
        why = f"fired as {found[0]}" if found else f"silent: {getattr(outcome_of.get(rule), 'reason', 'no such rule')}"
        return f"{rule} {why}"

    return check


def never(*bounds: str) -> Check:
    """The verdict is none of these."""

    def check(case: Case, report: Report) -> str:
        verdict = report.verdict
        name = f"{verdict.bound} ({verdict.detail})"
        return f"called {name}" if verdict.bound in bounds or name in bounds else ""

    return check


def names_late_rank(case: Case, report: Report) -> str:
    """From 5 % of waiting on (R36) the verdict is about the late rank."""
    late = case.job.late.rank
    if waiting(case) < 0.05 or report.verdict.rank == late:
        return ""
    return f"the verdict is about rank {report.verdict.rank}, late is rank {late}"


def names_cause(leaf: str) -> Check:
    """From 5 % of waiting on the report says what makes the late rank late."""

    def check(case: Case, report: Report) -> str:
        if waiting(case) < 0.05:
            return ""
        told = getattr(report, "communication", None)
        causes = {entry.rank: entry.cause for entry in told.late} if told else {}
        cause = causes.get(case.job.late.rank)
        return "" if cause and cause.startswith(leaf) else f"the late rank's cause is {cause}, in truth {leaf}"

    return check


def is_a_pipeline(case: Case, report: Report) -> str:
    """What a bubble is judged by (R44): its share, and what stages and micro-batches leave of the step."""
    told = getattr(report, "communication", None)
    found = next((entry for entry in told.parallelism if entry.name == "pipeline"), None) if told else None
    if found is None:
        return "not seen as a pipeline"
    stages, batches = case.job.comm.ranks, case.job.comm.microbatches
    if (found.size, found.micro_batches) != (stages, batches):
        return f"{found.size} stages with {found.micro_batches} batches, in truth {stages} with {batches}"
    judged = next(n for n, rank in enumerate(report.ranks) if rank.breakdown == report.breakdown)
    true, seen = case.share("comm.", rank=judged), found.bubble_share
    return (
        ""
        if seen is not None and abs(seen - true) <= max(POINTS, RELATIVE * true)
        else f"bubble {seen}, in truth {true:.3f}"
    )


def efficiency_of_misaligned(case: Case, report: Report) -> str:
    """The table of kernels says how far from the roof the misaligned ones stay, within 15 %."""
    kernel = next(kernel for kernel in kernels_of(case.job) if _is_misaligned(kernel))
    entry = next((entry for entry in report.kernels if entry.name == kernel.name), None)
    if entry is None:
        return "the misaligned kernel is not in the table"
    seen = getattr(entry, "efficiency", None)
    if seen is None:
        return "no efficiency in the table of kernels"
    true = kernel.best_ns / kernel.ns
    return "" if abs(seen - true) <= _tolerance(true) else f"efficiency {seen:.2f}, in truth {true:.2f}"


def _is_misaligned(kernel: Kernel) -> bool:
    return "align1" in kernel.name and any(isinstance(d, list) and any(n % 8 for n in d) for d in kernel.dims)


def compile_is_apart(case: Case, report: Report) -> str:
    """Compiling in some steps: they are not judged, and one says why; in all of them: the leaf owns its share."""
    steps = case.job.odd.compile_steps
    if len(steps) >= case.job.steps:
        return owns("warm.compile")(case, report)
    inside = {step for step in steps if max(case.job.warmup, 1) <= step < case.job.steps - 1}
    state = {row.index - case.job.before: row.state for row in report.steps.rows}
    if any(state[step] == "steady" for step in inside) or (inside and "compile" not in state.values()):
        return f"compiling steps {sorted(inside)} are {', '.join(state[step] for step in sorted(inside))}"
    return share_of("compute.math")(case, report) or share_of("warm.compile")(case, report)


def gathers_twice_the_scatters(case: Case, report: Report) -> str:
    """What over-sharding is judged by (R39): gathers move twice what scatters do, and memory is free."""
    moved = {"gather": 0, "scatter": 0}
    for entry in report.collectives:
        for way in moved:
            if way in entry.name.lower().replace("_reduce_scatter", "scatter") and entry.bytes:
                moved[way] += entry.bytes
    if not moved["scatter"] or abs(moved["gather"] / moved["scatter"] / 2.0 - 1.0) > RELATIVE:
        return f"gathered {moved['gather']:,} bytes, scattered {moved['scatter']:,}"
    peak, capacity = report.memory.peak_reserved_bytes, report.memory.capacity_bytes
    if peak is None or capacity is None:
        return "peak and capacity of memory are not told"
    true = case.job.memory.reserved_bytes / case.job.chip.memory_bytes
    return "" if abs(peak / capacity - true) <= POINTS else f"memory {peak / capacity:.1%} full, in truth {true:.1%}"


def nothing_ran(case: Case, report: Report) -> str:
    """Without a device event no bound is claimed for the device: launches without kernels are said to lack them."""
    if case.job.recording.has_launches:
        return "" if report.verdict.bound == "inconclusive" else f"called {report.verdict.bound}"
    return "" if report.trust.mode == "cpu" else f"mode {report.trust.mode}"


def sums_to_one(case: Case, report: Report) -> str:
    """The parts are those of one device, not of several."""
    found = sum(part.share for part in report.breakdown)
    return "" if abs(found - 1.0) < 1e-6 else f"the parts sum to {found:.1%}"
