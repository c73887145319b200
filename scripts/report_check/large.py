"""The report of a large run: eight simulated ranks, a million events, one rank late in every step."""

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from simulator.job import US, Job, Late
from simulator.kineto import text_of
from simulator.model import device_ns
from simulator.parallel import simulate
from simulator.sample import added, averaging, plain

from report_check.checks import READY
from report_check.chromium import Mode, Page

RANKS, EVENTS = 8, 1_000_000
#: What drawing such a report may take, from opening the file to the drawn figure.
MOST_SECONDS = 3.0
_LATE_RANK, _LATE_SHARE = 3, 0.2
_TRIED_STEPS = 4
_TIMES = 5


def make(directory: Path) -> tuple[Path, int]:
    """Record the run and write its report into the directory; gives the report's file and the number of events."""
    job = _job(_TRIED_STEPS)
    per_step = sum(text_of(job, rank).count('"ph": "X"') for rank in simulate(job)) / _TRIED_STEPS
    job = _job(round(1.05 * EVENTS / per_step))
    traces = directory / "traces"
    traces.mkdir()
    events = 0
    for rank in simulate(job):
        text = text_of(job, rank)
        events += text.count('"ph": "X"')
        (traces / f"rank{rank.index}.json").write_text(text, "utf-8")
    report = directory / "large.html"
    subprocess.run(
        [sys.executable, "-m", "profilerkit", "analyze", traces, "-o", report], check=True, stdout=subprocess.DEVNULL
    )
    return report, events


def _job(steps: int) -> Job:
    rng = random.Random(0)
    job = averaging(rng, plain(rng, readback=True), ranks=(RANKS,), hidden_ratio=0.15)
    late = Late(_LATE_RANK, produce_us=added(job, _LATE_SHARE) + device_ns(job) / US)
    return replace(job, data=replace(job.data, workers=1), before=5, steps=steps, late=late)


def seconds_to_draw(page: Page, report: Path, mode: Mode) -> float:
    """The shortest of a few times from opening the report until its figure is drawn: what the page itself needs."""
    found = []
    for _ in range(_TIMES):
        start_s = time.perf_counter()
        page.open(report, mode)
        page.evaluate(READY)
        found.append(time.perf_counter() - start_s)
    return min(found)
