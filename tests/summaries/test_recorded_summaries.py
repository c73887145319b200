"""A rank summarises its own traces, outside the training process; the raw ones may then stay where they are."""

import json

import pytest

import profilerkit
from profilerkit.summaries.files import SUFFIX, open_summary
from tests import programs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = """
import os, sys, torch, torch.distributed as dist, profilerkit
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with profilerkit.profile(sys.argv[1], trace_steps=4, warmup_steps=1, summaries=True, analyze=False) as prof:
    for batch in prof.wrap([torch.randn(8, 64)] * 12):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
os._exit(0)  # torch 2.13 may abort at exit once a gloo group was destroyed
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("recorded")
    (place / "train.py").write_text(SCRIPT)
    programs.ranks("train.py", "run", cwd=place, check=True)
    return place / "run"


def test_each_rank_has_its_summary_beside_its_trace(run):
    found = sorted(run.rglob(f"*{SUFFIX}"))
    assert [path.parents[2].name for path in found] == ["rank_00000", "rank_00001"]
    status = json.loads((found[0].parent / "status.json").read_text())
    steps = open_summary(found[0]).details().steps
    steady = [number for number, state in zip(steps.index.tolist(), steps.state, strict=True) if state == "steady"]
    assert set(steady) <= set(range(status["first_step"], status["last_step"] + 1))


def test_a_summary_says_what_the_host_did_and_nothing_of_a_device_that_is_not_there(run):
    for path in run.rglob(f"*{SUFFIX}"):
        condition = open_summary(path).header.condition
        assert condition.running_tasks >= 1
        assert condition.sm_clock_mhz is condition.temperature_c is condition.slowed_ratio is None


def test_summaries_alone_make_the_report(run, tmp_path):
    for path in run.rglob(f"*{SUFFIX}"):
        (tmp_path / f"{path.parents[2].name}{SUFFIX}").write_bytes(path.read_bytes())
    report = profilerkit.reduce(tmp_path)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert report.communication.of  # on a busy machine the ends of gloo's collectives may not match


def test_without_being_asked_few_ranks_write_none(tmp_path):
    with profilerkit.profile(tmp_path / "run", trace_steps=2, warmup_steps=1, analyze=False) as prof:
        for _ in prof.wrap(range(8)):
            torch.ones(64).sum()
    assert list((tmp_path / "run").rglob("trace.json*"))
    assert not list((tmp_path / "run").rglob(f"*{SUFFIX}"))
