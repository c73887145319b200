"""The cases of all rules, from the tests of each family."""

from tests.rules import (
    test_comm_rules,
    test_compute_rules,
    test_dense_embedding,
    test_input_rules,
    test_memory_rules,
    test_overhead_rules,
    test_rules,
    test_run_rules,
)

_BY_FILE = (test_comm_rules, test_compute_rules, test_dense_embedding, test_memory_rules, test_rules, test_run_rules)
_BY_CASES = (test_input_rules, test_overhead_rules)


def tables(kind):
    """Each table of cases that are of this kind, ``fires`` or ``passes``: facts by code, or pairs of the two."""
    return [
        *(getattr(module, kind.upper()) for module in _BY_FILE),
        *(getattr(module.CASES, kind) for module in _BY_CASES),
    ]
