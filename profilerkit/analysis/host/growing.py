"""The sampled stacks to the line of the user's in which steps that get longer spend what they take more."""

import numpy as np

from profilerkit.analysis.host.host_facts import HotLine
from profilerkit.analysis.host.lines import function_of, hot_line, interval
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
    function = function_of(line.frames[-1])
    seen, still = (sum(function in map(function_of, sample.lines) for sample in looks) for looks in (first, last))
    more = now * still / len(last) - before * seen / len(first)
    # A line that holds as much of the step as before is the loop itself.
    is_more = interval(still, len(last))[0] > seen / len(first)
    return line if is_more and more >= LEAST_COVERAGE * (now - before) else None


def _looks(record: RankRecord, log: StepLog, rows: I64) -> list[StackSample]:
    low, high = int(log.start[rows[0]]), int(log.stop[rows[-1]])
    return [sample for sample in record.stacks if low <= sample.t_ns < high]
