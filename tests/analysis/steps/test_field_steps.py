"""Real recordings of hosts that run ahead: a step is what the device takes for it."""

import json
from functools import cache
from pathlib import Path

import pytest

from profilerkit.api import analyze, diff

FIELD = Path(__file__).resolve().parents[4] / "shared" / "field"
pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not FIELD.exists(), reason="the recordings lie beside the repository"),
]

#: Sets with the largest error of the mean step. Those of amd_replay last 0.3 or 4 ms, and their number is not whole.
SETS = {"tinylm_04": 0.03, "tinylm_05": 0.03, "tinylm_06": 0.03, "amd_replay": 0.05, "ng1211": 0.03}


@cache
def known():
    return json.loads((FIELD / "MANIFEST.json").read_text("utf-8"))["sets"]


def paths(name):
    return [FIELD / "traces" / file["file"] for file in known()[name]["files"]]


@cache
def report_of(name):
    return analyze(*paths(name))


@pytest.mark.parametrize(("name", "error"), SETS.items(), ids=SETS)
def test_the_step_is_the_device_s(name, error):
    report, truth = report_of(name), known()[name]
    assert report.steps.time_ns.mean / 1e6 == pytest.approx(truth["device_step_ms"], rel=error)
    assert truth["verdict_one_of"] is None or report.verdict.bound in truth["verdict_one_of"]
    assert report.verdict.bound not in truth["verdict_never"]
    assert report.verdict.rank == truth.get("late_rank")


def test_a_quicker_host_alone_is_no_change():
    assert diff(paths("tinylm_04")[0], paths("tinylm_05")[0]).verdict == "no real change"


def test_eight_times_the_batch_is_slower():
    assert diff(paths("tinylm_05")[0], paths("tinylm_06")[0]).verdict == "slower"
