"""What holds for every test."""

import gc
import logging

import pytest


def pytest_collection_finish():
    """Leave what was imported and collected out of the garbage collector: it goes through a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs_as_before():
    """What ``--verbose`` and ``--debug`` say of the logs holds for a process, here for a test."""
    logger = logging.getLogger("profilerkit")
    level = logger.level
    yield
    logger.setLevel(level)
