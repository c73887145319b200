"""One process of a scenario: ``program.py MODE SCENARIO OUT PLACE ROUNDS [VALUES]``; of two as torchrun starts them.

``record`` trains the program with the fault under ``profilerkit.profile`` and leaves ``PLACE/run``; ``plain`` trains
it and knows nothing of profilerkit, for ``profilerkit try``; ``truth`` measures blocks of it and of its fixes, with
nothing recorded; ``traceml`` trains it as TraceML asks for. Rank 0 writes ``OUT``.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from accuracy_benchmark import blocks
from accuracy_benchmark.catalogue import BY_CODE
from accuracy_benchmark.host import Pressure
from accuracy_benchmark.scenario import Scenario
from accuracy_benchmark.training import Job

#: More than a trial runs.
_MOST_STEPS = 4_000


def record(scenario: Scenario, place: Path, rank: int) -> dict[str, object]:
    """Train the program with the fault under profilerkit."""
    import profilerkit  # noqa: PLC0415 - the peers' environments do not have it

    with profilerkit.profile(place / "run") as prof:
        job = Job(_made(place / "bad"), scenario.steps, rank, scenario.ranks, prof.phase)
        training = scenario.bad(job)
        done = 0
        while done < scenario.steps:
            for batch in prof.wrap(training.loader):
                training.step(batch)
                done += 1
        training.close()
    return {}


def plain(scenario: Scenario, place: Path, rank: int) -> dict[str, object]:
    """Train the program with the fault."""
    training = scenario.bad(Job(_made(place / f"bad{rank}"), _MOST_STEPS, rank, scenario.ranks))
    source = blocks.batches(training)
    try:
        for _ in range(_MOST_STEPS):
            training.step(next(source))
    finally:
        training.close()
    return {}


def under_traceml(scenario: Scenario, place: Path) -> dict[str, object]:
    """Train the program with the fault as TraceML's documentation says."""
    import traceml_ai  # noqa: PLC0415 - a peer that may be missing

    if traceml_ai.init(mode="auto").disabled:
        return {"reason": "it found nobody to send to, and switched itself off"}
    training = scenario.bad(Job(_made(place / "bad"), scenario.steps))
    source = blocks.batches(training)
    for _ in range(scenario.steps):
        batch = next(source)
        with traceml_ai.trace_step(training.model):
            training.step(batch)
    training.close()
    return {}


def _made(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    return place


def main() -> None:
    mode, scenario, out, place = sys.argv[1], BY_CODE[sys.argv[2]], Path(sys.argv[3]), Path(sys.argv[4])
    rank = int(os.environ.get("RANK", "0"))
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if scenario.ranks > 1:
        dist.init_process_group("gloo")
    pressure = Pressure()
    found: dict[str, object]
    if mode == "record":
        found = record(scenario, place, rank)
    elif mode == "plain":
        found = plain(scenario, place, rank)
    elif mode == "traceml":
        found = under_traceml(scenario, place)
    else:
        least, most = (int(word) for word in sys.argv[5].split("-"))
        found = blocks.measure(scenario.as_proposed(json.loads(sys.argv[6])), place, rank, (least, most))
    found["pressure"] = pressure.ratio()
    if rank == 0:
        out.write_text(json.dumps(found), "utf-8")
    if scenario.ranks > 1:
        dist.barrier()
        os._exit(0)  # torch 2.13 aborts some two-rank gloo programs while it tears them down


if __name__ == "__main__":
    main()
