import re
import sys

import pytest

from profilerkit.cli import demo, main
from profilerkit.cli.console import Console
from profilerkit.cli.demos.trained import Proposal, Trained, Workload
from profilerkit.model.finding import Saving


def test_the_kinds_are_listed(capsys):
    assert main(["demo", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(demo.KINDS)


def test_without_torch_the_way_to_get_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["demo"]) == 2
    assert "hint:  pip install 'profilerkit[torch]'" in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_not_used(tmp_path, capsys):
    pytest.importorskip("torch")
    (tmp_path / "file").touch()
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_default_directory_is_a_fresh_one(tmp_path):
    first = demo._fresh_directory(None, tmp_path / "runs" / "demo-input")
    second = demo._fresh_directory(None, tmp_path / "runs" / "demo-input")
    assert (first.name, second.name) == ("demo-input", "demo-input-2")


def test_prediction_and_measurement_stand_side_by_side():
    before = Trained(workload=Workload(40.0), report=None, step_ns=100_000_000, compute_ns=40, steps=40)
    after = Trained(workload=Workload(40.0), report=None, step_ns=48_000_000, compute_ns=40_000_000, steps=40)
    saving = Saving(low=0.40, expected=0.55, high=0.60, method="analytic")
    text = demo._comparison(before, after, Proposal({"num_workers": 2}, "num_workers 0 → 2", saving, "IN002"))
    assert re.search(r"step +100 ms +45\.0 ms +48\.0 ms", text)
    assert re.search(r"saving +55 % \(40–60 %\) +52 %", text)
    assert "3.0 points between prediction and measurement; inside the predicted range" in text


def test_no_prediction_is_said_and_not_made_up():
    trained = Trained(workload=Workload(40.0), report=None, step_ns=100, compute_ns=40, steps=40)
    text = demo._comparison(trained, trained, Proposal({}, "x", None, None))
    assert "predicted no saving" in text


@pytest.mark.parametrize(("compute_ns", "attempts"), [([40], 1), ([47], 1), ([70, 41], 2), ([70, 70, 70], 3)])
def test_a_run_on_a_busy_machine_is_repeated_and_in_the_end_said(tmp_path, capsys, compute_ns, attempts):
    left = list(compute_ns)

    def train():
        (tmp_path / "run").mkdir(exist_ok=False)
        return Trained(workload=Workload(40.0), report=None, step_ns=100, compute_ns=left.pop(0), steps=40)

    trained = demo._undisturbed(train, tmp_path / "run", Console())
    shown = capsys.readouterr().err
    assert trained.compute_ns == compute_ns[-1]
    assert len(compute_ns) - len(left) == attempts
    assert shown.count("training again") == attempts - 1
    assert ("compare with care" in shown) == (compute_ns[-1] == 70)


@pytest.mark.torch
def test_the_demo_predicts_what_it_then_measures(tmp_path, capsys):
    pytest.importorskip("torch")
    assert main(["demo", "input", "-o", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr()
    assert "input-bound" in shown.out.lower()
    points = re.search(r"([\d.]+) points between prediction and measurement", shown.out)
    assert points, shown.out
    assert float(points[1]) <= 15
    assert (tmp_path / "demo" / "before" / "report.html").is_file()
    assert not list((tmp_path / "demo").glob("*/rank_*"))
