"""``scripts/benchmark_scale``: its page."""

import json
from pathlib import Path

import pytest
from scale_benchmark.page import render

REPORTS = Path(__file__).resolve().parents[1] / "reports"


def test_the_committed_page_is_what_its_figures_give_today():
    committed = REPORTS / "scale.html"
    if not committed.exists():
        pytest.skip("the report is measured on a quiet machine and has not been committed")
    document = json.loads(committed.with_suffix(".json").read_text("utf-8"))
    assert render(document) == committed.read_text("utf-8")
