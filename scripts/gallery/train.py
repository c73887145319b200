"""Trains a program without a fault worth naming under ``profilerkit.profile``: ``train.py NAME DIRECTORY``."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from accuracy_benchmark.training import Job, Net, loader, sample, train

import profilerkit

#: How each run is recorded.
SETTINGS: dict[str, dict[str, Any]] = {"balanced": {}, "inconclusive": {"deep": False}}
_STEPS, _COMPUTE_S = 80, 0.040
#: Half of it is 6 to 8 % of the step: a bound is named from 10 %, a contender from 5 %.
_EVERY, _EVALUATION_S = 10, 0.072


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = train(loader(Job(directory.parent, _STEPS), sample), Net(_COMPUTE_S))
    with profilerkit.profile(directory, **SETTINGS[name]) as prof:
        for number, batch in enumerate(prof.wrap(training.loader), start=1):
            training.step(batch)
            if number % _EVERY == 0 and name == "balanced":
                with prof.phase("evaluation"):
                    time.sleep(_EVALUATION_S)


if __name__ == "__main__":
    main()
