"""What is measured: training loops of three step lengths, alone and as two ranks, with and without loader workers.

Of one the steps are mostly waiting, as those of a host are whose device trains.
"""

from dataclasses import asdict, dataclass
from typing import Any

OFF = "off, beside off"
LIGHT = "light tier"
UNEDITED = "light tier, loop unedited"
SAMPLERS = "light tier and samplers"
#: Of a device whose calls cost nothing: what profilerkit itself takes to mark it and to read the marks.
CLOCKED = "light tier and the device's clock"
SIMPLE = "Lightning SimpleProfiler"
ADVANCED = "Lightning AdvancedProfiler"
WAITING = "torch.profiler, waiting"
ACTIVE = "torch.profiler, recording"
TRACEML = "TraceML"
OURS = (OFF, LIGHT, UNEDITED, SAMPLERS, CLOCKED)
PEERS = (SIMPLE, ADVANCED, WAITING, ACTIVE)

#: Turns per figure of ours, by the step's length in ms: what gives an interval of some tenths of a percent on a machine
#: that others use too; at 50 ms one or two, for there the time in hooks tells what no number of turns would. Rows with
#: samplers, the ends of the table, get more.
TURNS = {0.0: 6_000, 1.0: 1_500, 5.0: 1_200, 50.0: 30}
TURNS_SAMPLED = {**TURNS, 5.0: 2_500, 50.0: 60}
#: Of a 50 ms step what the host waits, as for a device, and computes nothing: such steps differ so little that turns,
#: so many of them, tell a tenth of a percent.
WAIT_MS, TURNS_WAITING = 49.0, 400
#: Programs, one after another, that share the turns of the rows whose budgets are closest, by ranks: by where a process
#: has its code and data in memory, what a hook costs differs by more between two processes than turns of one tell.
#: Steps of 5 ms differ by about 0.35 % so: twenty processes tell 0.16 %. Two ranks take longer, and are fewer.
PROCESSES = {1: 20, 2: 10}
#: Pairs of blocks per figure of the others, and seconds per block by the step's length in ms.
PEER_PAIRS = 15
BLOCK_S = {1.0: 0.06, 5.0: 0.1, 50.0: 0.2}


@dataclass(frozen=True, slots=True)
class Case:
    """One program with its pairs.

    Attributes:
        key: names it on the command line and in the JSON.
        step_ms: what a step is calibrated to; 0 for one that is as short as torch allows.
        ranks: processes that train one model together.
        workers: of the loader.
        variants: what is compared with the bare loop.
        pairs: of blocks, or turns of steps, of each variant.
        deep: trace windows are measured, too.
        traceml: this is the program of that peer.
        wait_ms: of a step in which the host sleeps, as it does while a device works.
        processes: that share the pairs, one after another.
    """

    key: str
    step_ms: float
    ranks: int
    workers: int
    variants: tuple[str, ...]
    pairs: int
    deep: bool = False
    traceml: bool = False
    wait_ms: float = 0.0
    processes: int = 1

    def as_json(self) -> dict[str, Any]:
        """For the program, and the report."""
        return asdict(self)


def _cases() -> tuple[Case, ...]:
    found = [Case("empty", 0.0, 1, 0, (OFF, LIGHT, UNEDITED, CLOCKED), TURNS[0.0])]
    for step_ms in (1.0, 5.0, 50.0):
        for ranks in (1, 2):
            for workers in (0, 2):
                alone = ranks == 1 and not workers
                sampled = alone or (step_ms == 5.0 and ranks == 2 and workers > 0)
                variants = (OFF, LIGHT) + ((SAMPLERS,) if sampled else ()) + ((CLOCKED,) if alone else ())
                key = f"{step_ms:g}ms{'' if ranks == 1 else '.2ranks'}{'.2workers' if workers else ''}"
                turns = (TURNS_SAMPLED if sampled else TURNS)[step_ms]
                processes = PROCESSES[ranks] if step_ms == 5.0 else 1
                found.append(Case(key, step_ms, ranks, workers, variants, turns, deep=alone, processes=processes))
        found.append(Case(f"{step_ms:g}ms.peers", step_ms, 1, 0, (OFF, *PEERS), PEER_PAIRS))
        found.append(Case(f"{step_ms:g}ms.traceml", step_ms, 1, 0, (OFF, TRACEML), PEER_PAIRS, traceml=True))
    waiting = Case("50ms.waiting", 50.0, 1, 0, (OFF, LIGHT, SAMPLERS), TURNS_WAITING, wait_ms=WAIT_MS)
    return (*found, waiting)


CASES = _cases()
