"""The examples in the docstrings of the kernel analysis hold."""

import doctest
import importlib

import pytest

MODULES = (
    "costs.arguments",
    "costs.convolution",
    "costs.matmul",
    "costs.traffic",
    "device.host_copies",
    "intervals",
    "device.roofline",
    "enclosing",
    "waste.grids",
    "steps.queued",
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_hold(module):
    result = doctest.testmod(importlib.import_module(f"profilerkit.analysis.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
