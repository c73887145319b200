import logging

import pytest


@pytest.fixture(autouse=True)
def no_columns_from_outside(monkeypatch):
    """The width of the terminal in which the tests run is not what they are about."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def logs_as_before():
    """What ``--debug`` says of the logs holds for a process, here for a test."""
    logger = logging.getLogger("profilerkit")
    level = logger.level
    yield
    logger.setLevel(level)
