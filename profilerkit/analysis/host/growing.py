"""The sampled stacks to the line of the user's in which steps that get longer spend what they take more."""

import numpy as np

from profilerkit.analysis.host.host_facts import HotLine
from profilerkit.analysis.host.lines import hot_line, interval
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.growth import FEWEST_TO_GROW
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import LEAST_COVERAGE
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import StackSample


def growing_line(record: RankRecord, log: StepLog) -> HotLine | None:
    """Return the line that holds most of what the last third of the judged steps takes more than the first.

    ``None`` where none does, chance in so many looks aside, or where steps do not get longer.
    """
    rows = np.flatnonzero(log.steady)
    if len(rows) < FEWEST_TO_GROW:
        return None
    early, _, late = np.array_split(rows, 3)
    before, now = (float(log.time[third].mean()) for third in (early, late))
    first, last = (_looks(record, log, third) for third in (early, late))
    line = hot_line(last, of_loop=True)
    if line is None or not first or now <= before:
        return None
    seen = sum(line.frames[-1] in sample.lines for sample in first)
    more = now * line.share - before * seen / len(first)
    is_more = now * line.low > before * interval(seen, len(first))[1]
    return line if is_more and more >= LEAST_COVERAGE * (now - before) else None


def _looks(record: RankRecord, log: StepLog, rows: I64) -> list[StackSample]:
    low, high = int(log.start[rows[0]]), int(log.stop[rows[-1]])
    return [sample for sample in record.stacks if low <= sample.t_ns < high]
