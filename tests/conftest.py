"""What holds for every test."""

import gc
import logging

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Leave what is imported and collected out of the garbage collector, and have it run less often.

    It goes through a million objects, and takes a sixth of what a test of the analysis takes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.fixture(autouse=True)
def logs_as_before():
    """What ``--verbose`` and ``--debug`` say of the logs holds for a process, here for a test."""
    logger = logging.getLogger("profilerkit")
    level = logger.level
    yield
    logger.setLevel(level)
