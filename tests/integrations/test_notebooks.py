"""Notebooks below ``profilerkit run``: nothing of ours in the cells, a kernel that ends by itself, and a report."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import profilerkit
from profilerkit.rundir.reader import read_run

HOME = Path(profilerkit.__file__).parents[1]
#: Trains past a window, so that a trace is compressed beside it.
CELL = """
import torch
weight = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for batch in torch.utils.data.DataLoader(torch.ones(80, 4)):
    (weight * batch).sum().backward()
    optimizer.step()
print("trained")
"""
PROGRAMS = {
    "nbconvert": ["nbconvert", "--execute", "--to", "notebook", "in.ipynb", "--output", "out.ipynb"],
    "papermill": ["papermill", "in.ipynb", "out.ipynb"],
}

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_notebook_leaves_a_report_and_its_cells_are_its_own(tmp_path, program):
    for module in ("torch", "ipykernel", program):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    cell = {"cell_type": "code", "id": "c0", "metadata": {}, "execution_count": None, "outputs": [], "source": CELL}
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": [cell]}
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "profilerkit", "run", "-m", *PROGRAMS[program]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (ran,) = json.loads((tmp_path / "out.ipynb").read_text(encoding="utf-8"))["cells"]
    assert ["".join(output["text"]) for output in ran["outputs"]] == ["trained\n"]
    (rank,) = read_run(tmp_path / "runs" / "notebook").ranks
    assert (rank.end.exception, rank.end.steps > 50) == (None, True)
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("profilerkit: "))
    assert said.endswith("(runs/notebook/report.html)")
