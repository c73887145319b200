"""No rule without cases: each file of tests names its own, and together they name all."""

import pytest

from profilerkit.rules import RULES
from tests.rules.tables import tables


def codes(cases):
    """The rules of a table by code, or of a list of code and facts."""
    return {entry if isinstance(entry, str) else entry[0] for entry in cases}


@pytest.mark.parametrize("kind", ["fires", "passes"])
def test_every_rule_fires_on_some_facts_and_passes_on_others(kind):
    tried = [codes(table) for table in tables(kind)]
    assert set().union(*tried) == {rule.code for rule in RULES}
