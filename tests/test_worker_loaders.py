"""Six real loaders, each slow for one reason: the right part owns the time of their batches, and the right rule fires.

The machine may be busy with other things: what batches wait for a core is left out where that is not the reason, and a
recording that others disturbed is made again.
"""

import sys
from pathlib import Path

import pytest

import profilerkit

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ATTEMPTS = 3

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def loaders():
    pytest.importorskip("torch")
    sys.path.insert(0, str(SCRIPTS))
    try:
        import worker_loaders

        yield worker_loaders
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def recorded(loaders, tmp_path_factory):
    """The report of a loader with two workers."""

    def record(name, *, steps=24):
        directory, _ = loaders.train(loaders.KINDS[name], 2, tmp_path_factory.mktemp(name) / "run", steps=steps)
        return profilerkit.analyze(directory)

    return record


def owned(report, parts):
    """The share of the work on a batch that ``parts`` own, of what is not waiting for a core unless that is asked."""
    core = 0.0 if "core" in parts else report.workers.share("core")
    return report.workers.share(*parts) / max(1.0 - core, 1e-9)


@pytest.mark.parametrize("name", ["sleeping", "spinning", "decoding", "collating", "locked", "starved"])
def test_the_right_part_owns_the_time_of_a_batch(loaders, recorded, name):
    shares = []
    for _ in range(ATTEMPTS):
        report = recorded(name)
        shares.append(owned(report, loaders.KINDS[name].parts))
        if shares[-1] >= 0.8:
            break
    assert max(shares) >= 0.8
    assert report.workers.count == 2
    assert 0.0 <= report.workers.busy_ratio <= 1.0


def test_workers_that_wait_for_each_other_are_seen_at_their_lock(recorded):
    for _ in range(ATTEMPTS):
        report = recorded("locked", steps=150)
        outcomes = {outcome.rule: outcome for outcome in report.outcomes}
        if "lock" in (outcomes["IN003"].reason or ""):
            break
    assert report.workers.locked_ratio > 1 / 3
    assert "waited for a lock" in outcomes["IN003"].reason
    assert "lock" in outcomes["IN006"].findings[0].title


def test_no_worker_is_asked_for_where_there_is_no_core(recorded):
    report = recorded("starved")
    outcomes = {outcome.rule: outcome for outcome in report.outcomes}
    assert outcomes["IN003"].status == "passed"
    assert "num_workers 2 →" not in str(report.outcomes)
