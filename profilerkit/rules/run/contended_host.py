"""RU005: other work on the host takes processor time."""

from profilerkit.analysis.workers.capacity import OWN_CORES, cores_in_use, own_cores
from profilerkit.rules.api import Evidence, Facts, Fix, MissingData, Passed, Result, Rule, fired, sampled_evidence
from profilerkit.rules.evidence import ORIGIN as RUN_QUEUE
from profilerkit.rules.evidence import POOL, SIGNAL, over_all_samples, queued_evidence
from profilerkit.rules.input.loader import cores_evidence
from profilerkit.units import format_count, format_ratio

#: What is looked at: how a report calls it, and where it comes from.
_SIGNALS = {
    "host.steal": ("Processor time taken by other guests", "/proc/stat"),
    "host.cpu_throttled": ("Time held by a quota", "cpu.stat of the control group"),
    SIGNAL: ("The training thread waits for a processor", RUN_QUEUE),
    POOL: ("Threads of operators wait for a processor", "run queues of the process's threads"),
    "host.cpu_pressure": ("Some task waits for a processor", "/proc/pressure/cpu"),
}


class ContendedHost(Rule, frozen=True):
    """Find steal above {steal_ratio}, pressure above {pressure_ratio}, or throttling above {throttled_ratio}.

    Why it costs: The training thread is ready but gets no core. The same program may take a different time tomorrow.

    Example:
        $ docker run --cpus 2 trainer python train.py
    Use instead:
        $ docker run --cpus 8 trainer python train.py
    How it is measured: /proc/stat, PSI and the control group are sampled {fewest_samples} times or more. The training
        thread's wait, and that of operators' threads, count from {queue_ratio}. PSI and these waits count only while
        the run uses less than {own_ratio} of the cores in use. No saving is given: the program is not the cause.
    When it is wrong: A run that fills its cores waits for itself. Its workers and threads have rules.
    Sources: https://docs.kernel.org/accounting/psi.html
    """

    code = "RU005"
    summary = "Other work on the host, or a quota, takes processor time from the run"

    steal_ratio: float = 0.02
    pressure_ratio: float = 0.20
    throttled_ratio: float = 0.01  #: below 10 ms of each second it is no more than the quota's rounding (a choice)
    #: A high run-queue delay of the training thread, or of the busiest thread of operators (a choice).
    queue_ratio: float = 0.10
    own_ratio: float = OWN_CORES
    fewest_samples: int = 5  #: seconds of samples (a choice)

    def check(self, facts: Facts) -> Result:
        known = [series for name in _SIGNALS if (series := facts.series(name)) is not None]
        most = max((series.n for series in known), default=0)
        if most < self.fewest_samples and facts.taken <= self.queue_ratio:
            few = f"{most} samples are too few" if known else "the host's processors were not sampled"
            return MissingData(few, "let the run go on for some seconds on Linux: profilerkit.profile(..., host=True)")
        taken = self._above(facts, "host.steal", self.steal_ratio)
        taken += self._above(facts, "host.cpu_throttled", self.throttled_ratio)
        # Threads of the run that wait for each other raise these as well.
        waited = self._above(facts, SIGNAL, self.queue_ratio)
        waited += self._above(facts, POOL, self.queue_ratio)
        waited += self._above(facts, "host.cpu_pressure", self.pressure_ratio)
        own, cores = own_cores(facts), cores_in_use(facts)
        if own is not None and cores and own < self.own_ratio * cores:
            taken = [*waited, *taken]
        if taken:
            return self._finding(facts, taken, own)
        if not waited:
            return Passed("nothing else takes much processor time")
        if own is None or not cores:
            return MissingData(
                "something waits for a processor; how many cores the run itself uses was not sampled",
                "profilerkit.profile(..., host=True)",
            )
        return Passed(f"the run itself uses {format_count(own)} of the {format_count(cores)} cores in use")

    def _above(self, facts: Facts, name: str, limit: float) -> list[Evidence]:
        series = facts.series(name)
        # The kernel counts the queue of each nanosecond: what is taken of the steps needs no more samples.
        is_known = name == SIGNAL and facts.taken > self.queue_ratio
        if series is None or (series.n < self.fewest_samples and not is_known):
            return []
        label, origin = _SIGNALS[name]
        found = queued_evidence(facts, label) if name == SIGNAL else sampled_evidence(facts, series, label, origin)
        return [found] if found is not None and (found.value or 0.0) > limit else []

    def _finding(self, facts: Facts, told: list[Evidence], own: float | None) -> Result:
        worst = max(told, key=lambda entry: entry.value or 0.0) if not facts.taken else told[0]
        now = f" of {format_count(facts.usable_cores)} cores" if facts.usable_cores else ""
        uses, cores = "", list[Evidence]()
        if own and facts.usable_cores:
            uses = f"The run itself uses {format_count(own)} of its {format_count(facts.usable_cores)} cores. "
            used = Evidence("Cores that the run itself uses", own, "count", "measured", "CPU time")
            cores = [used, cores_evidence(facts)]
        signals = {name for entry in told for name in entry.behind}
        texts = [f"Raise the quota{now}."] if "host.cpu_throttled" in signals else []
        if "host.steal" in signals:
            texts.append("Move the run to a host whose processors are not lent to other guests.")
        if signals & {"host.cpu_pressure", SIGNAL, POOL}:
            texts.append("Stop or move what else runs on this host.")
        return fired(
            facts,
            bound=None,
            title=f"{worst.label}: {format_ratio(worst.value or 0.0)} of the time",
            why=f"{over_all_samples(facts, worst)}{uses}The CPU's work takes longer beside this, and its time "
            "differs from run to run.",
            evidence=(*told, *cores),
            at_most="high",
            fix=Fix(text=" ".join(texts)),
            confirm="Steal, pressure and throttling must stay low in the next run.",
        )
