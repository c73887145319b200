"""Trains a healthy program under ``profilerkit.profile``: ``train.py NAME DIRECTORY``."""

import sys
from pathlib import Path
from typing import Any

import torch
from accuracy_benchmark.training import Job, Net, loader, slept, train

import profilerkit

_COMPUTE_S = 0.040
#: Seconds that a batch takes to load beside what collating it takes, and how the run is recorded.
RUNS: dict[str, tuple[float, dict[str, Any]]] = {
    "balanced": (0.0022, {}),
    "inconclusive": (0.0, {"deep": False}),
}
_STEPS = 60


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    fetch_s, settings = RUNS[name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = train(loader(Job(directory.parent, _STEPS), slept(fetch_s)), Net(_COMPUTE_S))
    with profilerkit.profile(directory, **settings) as prof:
        for batch in prof.wrap(training.loader):
            training.step(batch)


if __name__ == "__main__":
    main()
