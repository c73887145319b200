"""Two causes in one run."""

from functools import partial

from accuracy_benchmark.scenario import Build, Fix, Scenario, changed
from accuracy_benchmark.training import Net, loader, nothing, slept, spin, train

_COMPUTE_S = 0.020


def _both(workers: int, python_s: float) -> Build:
    return lambda job: train(
        loader(job, slept(0.010), workers),
        Net(_COMPUTE_S),
        after=(lambda: spin(python_s)) if python_s else nothing,
    )


SCENARIOS = (
    Scenario(
        "C35", "10 ms of fetching and 8 ms of Python", "mixed", ("input-bound", "overhead-bound"), _both(0, 0.008), (),
        ("IN001", "IN002"),
        (
            changed("num_workers", 0, 2, ("IN002",), partial(_both, python_s=0.008)),
            Fix("no Python", ("OV001", "OV005"), _both(0, 0.0)),
            changed("num_workers", 0, 2, (), partial(_both, python_s=0.0), "{} {} → {}, no Python"),
        ),
    ),
)  # fmt: skip
