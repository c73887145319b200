import pytest


@pytest.fixture(autouse=True)
def no_columns_from_outside(monkeypatch):
    """The width of the terminal in which the tests run is not what they are about."""
    monkeypatch.delenv("COLUMNS", raising=False)
