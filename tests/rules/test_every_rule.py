"""No rule without cases: each file of tests names its own, and together they name all."""

import pytest

from profilerkit.rules import RULES
from tests.rules import (
    test_comm_rules,
    test_compute_rules,
    test_input_rules,
    test_memory_rules,
    test_overhead_rules,
    test_rules,
    test_run_rules,
)


def codes(cases):
    """The rules of a table by code, or of a list of code and facts."""
    return {entry if isinstance(entry, str) else entry[0] for entry in cases}


@pytest.mark.parametrize("kind", ["fires", "passes"])
def test_every_rule_fires_on_some_facts_and_passes_on_others(kind):
    by_file = [test_comm_rules, test_compute_rules, test_memory_rules, test_rules, test_run_rules]
    tried = [codes(getattr(module, kind.upper())) for module in by_file]
    tried += [codes(getattr(module.CASES, kind)) for module in (test_input_rules, test_overhead_rules)]
    assert set().union(*tried) == {rule.code for rule in RULES}
