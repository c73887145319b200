"""Every scenario, sorted by code."""

from accuracy_benchmark import adversarial, communication, healthy, input_bound, memory, mixed, overhead

_MODULES = (healthy, input_bound, overhead, memory, communication, mixed, adversarial)
SCENARIOS = tuple(sorted((entry for module in _MODULES for entry in module.SCENARIOS), key=lambda entry: entry.code))
BY_CODE = {entry.code: entry for entry in SCENARIOS}
#: One of each family and of what is healthy: what ``--quick`` runs.
QUICK = ("C01", "C03", "C05", "C15", "C20", "C24", "C25", "C31", "C35")
