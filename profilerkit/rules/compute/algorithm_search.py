"""CP010: the search for the fastest algorithm repeats in the steady state."""

from profilerkit.analysis.device.shape_losses import Searches
from profilerkit.model.finding import Evidence, Fix, SettingChange
from profilerkit.rules.api import Facts, MissingData, Passed, Result, Rule, at_most, fired, no_device
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio


class AlgorithmSearch(Rule, frozen=True):
    """Find convolution algorithm searches in {fewest_steps} or more judged steps.

    Why it costs: With cudnn.benchmark each new shape times all algorithms. Changing shapes keep the search going.

    Example:
        torch.backends.cudnn.benchmark = True
    Use instead:
        torch.backends.cudnn.benchmark = False
    How it is measured: Operators that wait for events between their own kernels are searches. The saving is the time of
        all but one algorithm in each search.
    When it is wrong: Without the search a heuristic chooses, which can be slower for shapes that recur.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "CP010"
    summary = "The search for the fastest algorithm repeats"

    fewest_steps: int = 2

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return no_device(facts, "no device events: nothing is searched for")
        found = facts.kernel_losses.searches
        if not facts.kernel_losses.has_operators:
            return MissingData("the trace holds no operators, within which algorithms are searched", "torch.profiler")
        if found is None:
            return Passed("no operator of the steady steps times its own kernels")
        if found.steps < self.fewest_steps:
            return Passed(f"{found.steps} of {facts.steps.steady} steady steps searches for an algorithm")
        expected = found.share * (1.0 - 1.0 / found.trials)
        if not self.worth_saying(facts, expected):
            return Passed(f"searches for algorithms take {format_ratio(found.share)} of the step")
        shapes = "" if found.shapes is None else f", for {found.shapes} different inputs"
        trials, n = "Algorithms timed in each", round(found.per_step * facts.steps.steady)
        return fired(
            facts,
            bound="compute-bound",
            title=f"Searches for the fastest algorithm take {format_ratio(found.share)} of the step",
            why=f"`{found.operator}` tries {found.trials:.1f} algorithms at a time and waits for each, in "
            f"{found.steps} of the judged steps{shapes}.",
            evidence=(
                kernel_share("Searches", found.share, found.operator, n),
                Evidence(trials, found.trials, "count", "derived", "waits inside the operator", n=n),
            ),
            at_most="medium",
            detail="autotune",
            saving=at_most(found.share, expected),
            fix=_fix(found),
            confirm="The waits inside these operators must be gone.",
        )


def _fix(found: Searches) -> Fix:
    bucket = "Where shapes recur, pad them to a few buckets instead."
    if "conv" in found.operator:
        return Fix(
            text=f"cudnn.benchmark True → False, because inputs change. {bucket}",
            code="torch.backends.cudnn.benchmark = False",
            changes=(SettingChange("cudnn_benchmark", True, False),),
        )
    return Fix(
        text=f"TunableOp tuning on → off; tune ahead of the run. {bucket}",
        code="torch.cuda.tunable.tuning_enable(False)",
    )
