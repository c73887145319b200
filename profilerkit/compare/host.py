"""How much of the waiting for a processor is the doing of other programs, and not of the run's own."""

from profilerkit.model.report import Report


def judged_rank(report: Report) -> int | None:
    """The global rank that the report's steps and parts are about; ``None`` when it is not named."""
    told = [entry.rank for entry in report.ranks if entry.breakdown == report.breakdown]
    ranks = told or [entry.rank for entry in report.ranks]
    return ranks[0] if ranks else None


def sampled_mean(report: Report, name: str) -> float | None:
    """Mean of a signal sampled beside the judged rank, in its unit; ``None`` where it was not sampled."""
    ranks = (judged_rank(report), None)
    own = (series for series in report.run.samples if series.name == name and series.device is None)
    return next((series.mean for series in own if series.rank in ranks), None)


def foreign_ratio(report: Report) -> float | None:
    """Share of the waiting that is blamed on other programs, 0 to 1: by who used the processors meanwhile.

    The training thread competes with the other threads, the workers and the other ranks of its own run, and with
    everything else on the host. A run that fills the processors by itself waits for itself, and that is its own time.
    Where the host's use was not sampled everything is blamed on others: one rank without workers seldom waits for
    itself. ``None`` for a job of several ranks that were not all sampled: they may be what was waited for.

    A thread that used half a core, in a run that used 1.5 of 2 busy cores: of its 1.5 rivals 1 was its own.
    """
    busy, process = sampled_mean(report, "host.cpu"), sampled_mean(report, "host.process_cores")
    cores, siblings = report.run.usable_cores, sampled_mean(report, "host.sibling_cores")
    is_alone = (report.run.world_size or 1) == 1
    if busy is None or process is None or cores is None or (siblings is None and not is_alone):
        return 1.0 if is_alone else None
    queued = sampled_mean(report, "host.thread_queue") or 0.0
    own = process + (sampled_mean(report, "host.worker_cores") or 0.0) + (siblings or 0.0)
    # The training thread can have used no more than one core while it did not wait.
    rivals = max(own - min(process, 1.0 - queued), 0.0)
    others = max(busy * cores * (report.run.host_ranks or 1) - own, 0.0)
    return others / (others + rivals) if others + rivals > 0 else 1.0
