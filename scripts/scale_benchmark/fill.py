"""One process that writes the summaries of some ranks: ``fill.py RANKS FIRST LAST DIRECTORY``."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from simulator.job import Job as Simulated
from simulator.kineto import text_of
from simulator.parallel import simulate

from profilerkit.analysis.trace_facts import TraceFacts, trace_facts
from profilerkit.formats.registry import read_trace
from scale_benchmark.job import job_of, write_ranks


def template() -> TraceFacts:
    """The facts of one simulated rank: its kernels, names and device are those of every rank."""
    job = replace(Simulated(seed=1), steps=4)
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "rank0.json"
        trace.write_text(text_of(job, simulate(job)[0]), "utf-8")
        return trace_facts(read_trace(trace))


def main() -> None:
    ranks, first, last = (int(word) for word in sys.argv[1:4])
    write_ranks(job_of(ranks), template(), Path(sys.argv[4]), range(first, last))


if __name__ == "__main__":
    main()
