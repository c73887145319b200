"""``scripts/record_ranks`` and ``scripts/check_ranks``: the truth they measure, what is a miss, and a real run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import programs
from tests.once import made_once

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"


@pytest.fixture(scope="module")
def parts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from rank_recordings import comparison, kinds, recording, truth

        yield SimpleNamespace(comparison=comparison, kinds=kinds, recording=recording, truth=truth)
    finally:
        sys.path.remove(str(SCRIPTS))


def steps(*, fetch=1, compute=20, arrive, left, end, count=10):
    """The marks of equal steps; times in ms from the step's start, ``arrive`` one per step or one for all."""
    arrivals = arrive if isinstance(arrive, list) else [arrive] * count
    return [
        {
            name: int(1e6 * (100 * number + at))
            for name, at in (
                ("start", 0), ("fetched", fetch), ("computed", fetch + compute), ("arrived", at), ("left", left),
                ("end", end),
            )
        }
        for number, at in enumerate(arrivals)
    ]  # fmt: skip


def truth_of(parts, first, second):
    return parts.truth.truth_of([steps(**first), steps(**second)])


def test_a_rank_waits_until_the_last_one_arrives_and_both_transfer_from_then_on(parts):
    truth = truth_of(parts, {"arrive": 21, "left": 46, "end": 47}, {"fetch": 23, "arrive": 43, "left": 45, "end": 47})
    first, second = truth.ranks
    assert (first.wait_ms, second.wait_ms, truth.wait_ms) == (22.0, 0.0, 22.0)
    assert (first.transfer_ms, second.transfer_ms) == (2.0, 2.0)
    assert (first.last_ratio, second.last_ratio) == (0.0, 1.0)
    assert (first.step_ms, first.input_ms, second.input_ms, first.compute_ms) == (47.0, 1.0, 23.0, 20.0)


LATE_BY_INPUT = {"arrive": 21, "left": 45, "end": 46}, {"fetch": 23, "arrive": 43, "left": 45, "end": 46}
LATE_BY_COMPUTE = {"arrive": 21, "left": 45, "end": 46}, {"compute": 42, "arrive": 43, "left": 45, "end": 46}
TOGETHER = {"arrive": 41, "left": 42, "end": 43}, {"arrive": 41, "left": 42, "end": 43}
TRANSFER = ({"arrive": [10, 11] * 5, "left": 30, "end": 32}, {"arrive": [11, 10] * 5, "left": 30, "end": 32})
IN_TURNS = ({"arrive": [20, 28] * 5, "left": 29, "end": 30}, {"arrive": [28, 20] * 5, "left": 29, "end": 30})
SHAPES = {
    "healthy": TOGETHER,
    "comm": TRANSFER,
    "late_input": LATE_BY_INPUT,
    "late_compute": LATE_BY_COMPUTE,
    "jitter": IN_TURNS,
}


@pytest.mark.parametrize("wanted", SHAPES)
@pytest.mark.parametrize("found", SHAPES)
def test_a_loop_is_valid_only_as_what_was_injected(parts, wanted, found):
    why = parts.truth.invalid(parts.kinds.KINDS[wanted], truth_of(parts, *SHAPES[found]))
    assert (why == "") == (wanted == found), why


def test_uneven_steps_show_nothing_else(parts):
    ranks = [steps(**side) for side in TRANSFER]
    for marks in (marks for rank in ranks for marks in rank[:4]):
        marks["end"] += 100_000_000
    assert "slow steps" in parts.truth.invalid(parts.kinds.KINDS["comm"], parts.truth.truth_of(ranks))


def test_every_kind_has_a_shape_here(parts):
    assert set(SHAPES) == set(parts.kinds.KINDS)


def test_loops_of_different_length_are_no_truth(parts):
    with pytest.raises(ValueError, match="zip"):
        parts.truth.truth_of([steps(**TOGETHER[0]), steps(**TOGETHER[1], count=9)])


def report(bound, rank, *, late=None, cause="", waited_ms=22.0, matched=30, shift=0):
    ranks = [] if late is None else [SimpleNamespace(rank=late, cause=cause, waited_ns=waited_ms * 1e6)]
    return SimpleNamespace(
        verdict=SimpleNamespace(bound=bound, rank=rank, headline="…"),
        communication=SimpleNamespace(matched=matched, most_shift=shift, late=ranks),
    )


@pytest.mark.parametrize(
    ("kind", "said", "missed"),
    [
        ("late_input", report("input-bound", 1, late=1, cause="input.wait"), 0),
        ("late_input", report("input-bound", 0, late=0, cause="input.wait"), 2),
        ("late_input", report("input-bound", None, late=1, cause="input.wait"), 1),
        ("late_input", report("input-bound", 1, late=1, cause="compute.math"), 1),
        ("late_input", report("input-bound", 1, late=1, cause=None), 1),
        ("late_input", report("input-bound", 1, late=1, cause="input.wait", waited_ms=16.0), 1),
        ("late_input", report("comm-bound", None), 3),
        ("late_compute", report("compute-bound", 1, late=1, cause="compute.other"), 0),
        ("late_compute", report("balanced", 1, late=1, cause="compute.other"), 1),
        ("comm", report("comm-bound", None), 0),
        ("comm", report("comm-bound", 1), 1),
        ("comm", report("comm-bound", None, matched=0), 1),
        ("comm", report("comm-bound", None, shift=5), 1),
        ("jitter", report("overhead-bound", None), 0),
        ("jitter", report("overhead-bound", None, late=0, cause="over.python"), 1),
        ("jitter", report("comm-bound", None), 1),
        ("healthy", report("inconclusive", None), 1),
    ],
)
def test_verdict_late_rank_cause_and_waiting_must_all_be_right(parts, kind, said, missed):
    assert len(parts.comparison.misses(parts.kinds.KINDS[kind], 22.0, said)) == missed


def test_ranks_that_cannot_be_compared_are_a_miss(parts):
    alone = SimpleNamespace(verdict=SimpleNamespace(bound="comm-bound", rank=None, headline="…"), communication=None)
    assert parts.comparison.misses(parts.kinds.KINDS["comm"], 1.0, alone) == ["no collective was matched"]


def test_no_two_kinds_with_a_cause_share_an_answer(parts):
    answers = [
        (bound, kind.rank)
        for name, kind in parts.kinds.KINDS.items()
        if name not in ("healthy", "jitter")
        for bound in kind.bounds
    ]
    assert len(set(answers)) == len(answers)
    quiet = {(bound, kind.rank) for name, kind in parts.kinds.KINDS.items() for bound in kind.bounds} - set(answers)
    assert not quiet & set(answers)


def run_script(name, *arguments):
    command = [sys.executable, SCRIPTS / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory, parts):
    """A real recording; whether it is valid depends on what else the machine does."""
    pytest.importorskip("torch")

    def make(directory):
        with pytest.MonkeyPatch.context() as patch:
            programs.warm(patch, parts.recording)
            found = parts.recording.record("late_input", "ddp", directory / "late_input" / "1", "seed")
        assert not any("exit code" in why for why in found.values()), found

    return made_once(tmp_path_factory, "ranks", make)


@pytest.mark.torch
def test_a_recording_holds_traces_a_run_and_the_truth(recording):
    path = recording / "late_input" / "1"
    assert sorted(file.name for file in (path / "trace").iterdir()) == ["rank0.json", "rank1.json"]
    assert (path / "run" / "run.json").is_file()
    truth = json.loads((path / "truth.json").read_text("utf-8"))
    for source in ("trace", "run"):
        slept_ms = [rank["input_ms"] for rank in truth[source]["ranks"]]
        assert slept_ms[1] - slept_ms[0] > 11


@pytest.mark.torch
def test_the_check_tells_a_miss_by_line_and_exit_code(recording, tmp_path):
    (tmp_path / "comm").mkdir()
    (tmp_path / "comm" / "1").symlink_to(recording / "late_input" / "1")
    done = run_script("check_ranks", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "MISSED" in done.stdout
    assert "0 of 1" in done.stdout


def test_a_recording_that_failed_counts_as_missed(tmp_path):
    (tmp_path / "jitter" / "1" / "trace").mkdir(parents=True)
    done = run_script("check_ranks", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "there is no truth.json" in done.stdout
    assert "0 of 1" in done.stdout


def test_the_check_of_nothing_is_no_success(tmp_path):
    assert run_script("check_ranks", tmp_path).returncode == 1


def test_an_unknown_kind_is_refused_before_anything_is_recorded(tmp_path):
    done = run_script("record_ranks", "latte", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "there is no kind latte" in done.stderr
    assert not (tmp_path / "out").exists()
