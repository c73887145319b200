import doctest

from profilerkit import units


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(units).failed == 0
