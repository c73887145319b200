"""Which sample reports there are, what each one shows, and how it is recorded."""

from dataclasses import dataclass

from gallery.programs import Make, demo, healthy, scenario, simulated


@dataclass(frozen=True, slots=True)
class Sample:
    """One report.

    Attributes:
        name: of its files.
        group: the heading above it on the index page.
        shows: what the run does and what to look at, in a sentence or two.
        says: what a recording must say: the bound and its sub-cause, or the judgement of a comparison.
        make: how it is recorded.
        is_simulated: no device ran it; its report says so.
    """

    name: str
    group: str
    shows: str
    says: str
    make: Make
    is_simulated: bool = False


VERDICTS = "One for each verdict"
RANKS = "Several ranks"
PAIRS = "Before and after a fix"
SIMULATED = "On a GPU: simulated"
#: What stands under a group's heading; empty where nothing has to be said.
GROUPS = {
    VERDICTS: "Training runs of some seconds on a CPU, each with one known fault or none. Storage and heavy operators "
    "are slow because they sleep; everything else is as it was recorded. Where other programs had the processors "
    "meanwhile, that is said. One run is simulated, and its report says so.",
    RANKS: "Two processes that train one model over gloo on one host.",
    PAIRS: "Two runs of `profilerkit demo`: without and with the fix that its report proposes.",
    SIMULATED: "Not recorded: a CPU has no device events. The traces come from the simulator of "
    "`scripts/benchmark_simulated`, which writes what torch.profiler would; the analysis is the same.",
}

SAMPLES = (
    Sample(
        "input_bound", VERDICTS,
        "One DataLoader worker needs 60 ms for a batch and the step 20 ms. The queue of the workers is replayed: the "
        "report says how many would keep up.",
        "input-bound (fetch)", scenario("C04"),
    ),
    Sample(
        "memory_bound", VERDICTS,
        "Every step writes into a fresh tensor of 64 MiB: the kernel has to find its pages each time.",
        "memory-bound (capacity)", scenario("C26"),
    ),
    Sample(
        "comm_bound", VERDICTS,
        "Two ranks reduce their gradients after each of four micro-batches instead of once a step.",
        "comm-bound (bandwidth)", scenario("C34"),
    ),
    Sample(
        "compute_bound", VERDICTS,
        "Simulated: a CPU has no device events. Matrix products in FP32 leave the tensor cores of the device idle; its "
        "kernels are held against its peaks.",
        "compute-bound (precision)", simulated("G04/199"), is_simulated=True,
    ),
    Sample(
        "overhead_bound", VERDICTS,
        "3,000 operators on single numbers in every step: calling them takes longer than what they compute.",
        "overhead-bound (launch)", scenario("C17"),
    ),
    Sample(
        "balanced", VERDICTS,
        "An evaluation every 10 steps. Half as often would save 5 to 10 % of the step, too little to name a bound.",
        "balanced", healthy,
    ),
    Sample(
        "inconclusive", VERDICTS,
        "Recorded without a trace: the length of each step is known, but not what it is made of. The report says what "
        "to record.",
        "inconclusive", healthy,
    ),
    Sample(
        "straggler", RANKS,
        "Rank 1 fetches its data slowly and rank 0 waits for it in the reduction. The verdict is about the cause and "
        "names the rank.",
        "input-bound (fetch)", scenario("C30"),
    ),
    Sample(
        "diff", PAIRS,
        "A loader without workers, then with the number of workers that its report proposed: the saving that was "
        "predicted beside the one measured.",
        "faster", demo("input"),
    ),
    Sample(
        "simulated_ranks", SIMULATED,
        "Large buckets of gradients are sent when the backward pass is over, and hide behind nothing. Collectives are "
        "matched across the ranks.",
        "comm-bound (no-overlap)", simulated("G15/150"), is_simulated=True,
    ),
)  # fmt: skip
BY_NAME = {sample.name: sample for sample in SAMPLES}
