"""The measured process: takes a case as JSON, measures it, and writes what it found into a file.

    program.py CASE OUT PLACE

``PLACE`` is a directory for run directories, the same for all ranks. Rank 0 writes ``OUT``.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from overhead_benchmark import pairs, turns
from overhead_benchmark.cases import OFF, OURS, TRACEML, Case
from overhead_benchmark.variants import Variant, Variants
from overhead_benchmark.workload import Workload

_SEED = 5
_WINDOW_ROUNDS = 5


def main() -> None:
    given = json.loads(sys.argv[1])
    out, place = Path(sys.argv[2]), Path(sys.argv[3])
    warnings.simplefilter("ignore")
    if "growth_steps" in given:
        from overhead_benchmark import growth  # noqa: PLC0415 - the peers' environments do not have profilerkit

        steps = given["growth_steps"]
        found = {
            "memory": growth.memory(place, steps),
            "disk": [growth.disk(place, workers, min(growth.DISK_STEPS, steps // 20)) for workers in (0, 2)],
        }
        out.write_text(json.dumps(found), "utf-8")
        return
    case = Case(**{**given, "variants": tuple(given["variants"])})
    found = measure(case, place)
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(found), "utf-8")
    if case.ranks > 1:
        torch.distributed.barrier()
        os._exit(0)  # torch 2.13 aborts some two-rank gloo programs while it tears them down


def measure(case: Case, place: Path) -> dict[str, Any]:
    """Everything about one case."""
    if TRACEML in case.variants:
        import traceml_ai  # noqa: PLC0415 - a peer that may be missing

        if traceml_ai.init(mode="auto").disabled:
            return {"reasons": {TRACEML: "it found nobody to send to, and switched itself off"}}
    work = Workload(case.step_ms, case.workers, case.wait_ms)
    if case.ranks > 1:
        together(work)
    every = Variants(work, place)
    variants: dict[str, Variant] = {}
    reasons: dict[str, str] = {}
    for name in case.variants:
        try:
            variants[name] = every.make(name)
        except ImportError as error:
            reasons[name] = f"not installed: {error}"
    measured: Mapping[str, pairs.Pairs | turns.Turns]
    if set(case.variants) <= set(OURS):
        measured = in_turns(case, work, variants)
    else:  # others' tools cannot be taken out between two steps
        measured = pairs.measure(case, work.step_s, every.make(OFF), variants, _SEED)
    found = {
        "layers": work.layers,
        "step_s": work.step_s,
        "variants": {name: figures.as_json() for name, figures in measured.items()},
        "reasons": reasons,
    }
    if case.deep:
        from overhead_benchmark import windows  # noqa: PLC0415 - needs profilerkit

        found["windows"] = windows.measure(every, work.step_s, min(_WINDOW_ROUNDS, case.pairs))
    return found


def in_turns(case: Case, work: Workload, variants: dict[str, Variant]) -> dict[str, turns.Turns]:
    """Ours, and the control beside the first of it."""
    found: dict[str, turns.Turns] = {}
    for name in (name for name in variants if name != OFF):
        ours, control = turns.measure(variants[name], work.step_s, case.pairs, _SEED)
        found.setdefault(OFF, control)
        found[name] = ours
    return found


def together(work: Workload) -> None:
    """The ranks train one model: as deep as rank 0 made it, with gradients summed over gloo."""
    torch.distributed.init_process_group("gloo")
    about = [work.layers, work.step_s]
    torch.distributed.broadcast_object_list(about, src=0)
    work.layers, work.step_s = int(about[0]), float(about[1])
    work.build()
    work.model = torch.nn.parallel.DistributedDataParallel(work.model)
    work.optimize_with()
    # Every rank counts steps by the same time, so that they make the same number of them.
    for _ in range(5):
        work.step(work.batches)


if __name__ == "__main__":
    main()
