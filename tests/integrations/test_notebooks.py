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
#: The same in a block, whose report is shown where it is asked for.
BLOCK = """
import profilerkit
with profilerkit.profile("block", nvml=False, host=False) as prof:
    for batch in torch.utils.data.DataLoader(torch.ones(80, 4)):
        (weight * batch).sum().backward()
        optimizer.step()
print(prof.report.verdict.bound)
"""
PROGRAMS = {
    "nbconvert": ["nbconvert", "--execute", "--to", "notebook", "in.ipynb", "--output", "out.ipynb"],
    "papermill": ["papermill", "in.ipynb", "out.ipynb"],
}

pytestmark = pytest.mark.torch


def notebook(path, *sources):
    """Write a notebook with these cells."""
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [{**cell, "id": f"c{number}", "source": source} for number, source in enumerate(sources)]
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    written = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}
    path.write_text(json.dumps(written), encoding="utf-8")


def executed(tmp_path, *words):
    """Run a command, for its standard error and the outputs of the notebook's cells."""
    variables = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "out.ipynb").read_text(encoding="utf-8"))["cells"]
    return done.stderr, [["".join(output["text"]) for output in cell["outputs"]] for cell in cells]


@pytest.fixture(params=PROGRAMS)
def program(request):
    for module in ("torch", "ipykernel", request.param):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return PROGRAMS[request.param]


def test_a_notebook_leaves_a_report_and_its_cells_are_its_own(tmp_path, program):
    notebook(tmp_path / "in.ipynb", CELL)
    errors, cells = executed(tmp_path, "profilerkit", "run", "-m", *program)
    assert cells == [["trained\n"]]
    (rank,) = read_run(tmp_path / "runs" / "notebook").ranks
    assert (rank.end.exception, rank.end.steps > 50) == (None, True)
    assert (tmp_path / "runs" / "notebook" / "report.html").is_file()
    (said,) = (line for line in errors.splitlines() if line.startswith("profilerkit: "))
    assert said.endswith("(runs/notebook/report.html)")


@pytest.mark.parametrize("program", ["nbconvert"], indirect=True)  # whoever executes a cell, the kernel is the same
def test_a_block_in_a_cell_says_what_the_cell_asks_for(tmp_path, program):
    notebook(tmp_path / "in.ipynb", CELL, BLOCK)
    _, cells = executed(tmp_path, *program)
    (said,) = cells[1]
    assert said.strip() in ("balanced", "inconclusive") or said.strip().endswith("-bound")
