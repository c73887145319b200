# ruff: noqa: PT012  a block under test is a with statement with several lines
"""Real ranks, launched or made by their script, without a trace: what torch recorded names the late one."""

import gc
import sys
import time
import weakref

import pytest

import profilerkit
from profilerkit.capture import distributed
from profilerkit.capture.distributed import dump
from profilerkit.model.finding import in_order
from profilerkit.rundir.reader import read_run
from tests import programs
from tests.capture.test_capture_distributed import clean

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
needs_recorder = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"), reason="this torch records no collectives of gloo"
)

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
import profilerkit

STEPS, LATE_S = 40, 0.03

class Data(torch.utils.data.Dataset):
    def __init__(self, rank, late_by):
        self.sleeps = rank == 1 and late_by == "input"
    def __len__(self):
        return STEPS
    def __getitem__(self, index):
        if self.sleeps:
            time.sleep(LATE_S)
        return torch.randn(64)

def train(rank, directory, late_by):
    torch.set_num_threads(1)
    with profilerkit.profile(directory, deep=False, nvml=False, host=False, analyze=False) as prof:
        layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        model = torch.nn.parallel.DistributedDataParallel(layers)
        del layers
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for batch in prof.wrap(torch.utils.data.DataLoader(Data(rank, late_by))):
            if rank == 1 and late_by == "work":
                time.sleep(LATE_S)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if late_by == "work":
            del model, optimizer
            dist.destroy_process_group()

def forked(rank, directory, late_by, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    if late_by == "nobody knows":
        with profilerkit.profile(directory, deep=False, nvml=False, host=False, analyze=False) as prof:
            dist.init_process_group("gloo", rank=rank, world_size=2)
            for _ in prof.wrap(range(10)):
                dist.all_reduce(torch.ones(4))
        return
    dist.init_process_group("gloo", rank=rank, world_size=2)
    train(rank, directory, late_by)

if __name__ == "__main__":
    how, directory, late_by, port = sys.argv[1:]
    if how == "launched":
        dist.init_process_group("gloo")
        train(dist.get_rank(), directory, late_by)
    else:
        mp.start_processes(forked, (directory, late_by, port), nprocs=2, start_method="fork")
    os._exit(0)  # torch 2.13 may abort at exit once a gloo group was destroyed
"""


def trained(tmp_path, how, late_by):
    """The run directory of two ranks: launched as torchrun does, or made by the script itself."""
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAINING)
    start = programs.ranks if how == "launched" else programs.run
    start(script, how, run, late_by, programs.free_port(), env=clean(), check=True)
    return run


@needs_recorder
@pytest.mark.parametrize("how", ["launched", "forked"])
def test_flight_recorders_name_the_rank_that_works_longer(tmp_path, how):
    run = trained(tmp_path, how, "work")
    report = profilerkit.analyze(run)
    found = report.communication
    assert found.matched_in == "flight recorders"
    assert [late.rank for late in found.late] == [1]
    late = found.late[0]
    assert late.share > 0.8
    assert late.cause is None
    assert report.verdict.rank == 1
    ((outcome, finding),) = [pair for pair in in_order(report.outcomes) if pair[0].rule == "CO003"]
    assert outcome.status == "fired"
    assert "rank 1" in finding.title
    assert finding.saving.expected > 0.1
    rows = {(row.name, row.dtype): row for row in found.flight.collectives}
    reduced = rows["gloo:all_reduce", "Float"]
    assert reduced.count == 40
    assert reduced.bytes == 40 * (64 * 64 + 64 + 64 * 8 + 8) * 4
    assert reduced.skew_ns > 0.5 * late.waited_ns
    (model,) = found.ddp
    assert (model.world_size, model.module, model.bucket_bytes) == (2, "Sequential", (reduced.bytes // 40,))
    assert 0 <= model.overlap_ratio <= 1
    first = read_run(run).ranks[0].ddp.models[0]
    assert first.comm_ns > model.comm_ns


@needs_recorder
def test_timers_tell_why_the_rank_is_late_that_flight_recorders_name(tmp_path):
    report = profilerkit.analyze(trained(tmp_path, "launched", "input"))
    (late,) = report.communication.late
    assert late.rank == 1
    assert late.cause.startswith("input.")
    assert late.coverage > 0.6
    assert report.verdict.bound == "input-bound"
    assert report.verdict.rank == 1


def test_ranks_that_learn_their_place_too_late_say_so(tmp_path):
    run = trained(tmp_path, "forked", "nobody knows")
    said = [" ".join(read_run(path).ranks[0].notes) for path in (run, run.with_name("run-2"))]
    assert "became rank 0 of 2 only after" in " ".join(said)
    assert "became rank 1 of 2 only after" in " ".join(said)
    assert "Open the block after init_process_group" in "\n".join(profilerkit.analyze(run).trust.notes)


@pytest.fixture
def alone():
    """A process group of one rank in this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.nn.parallel.DistributedDataParallel
    torch.distributed.destroy_process_group()


def test_models_of_before_the_block_and_models_that_die_in_it_are_asked(light, recorded, toy, alone):
    class Wrapped(alone):
        pass

    original = alone.__init__
    before = Wrapped(toy.model)
    with light() as prof:
        passing = alone(toy.torch.nn.Linear(16, 4))
        for batch in prof.wrap(toy.loader(batches=4)):
            passing(batch[0]).sum().backward()
            before(batch[0]).sum().backward()
        died = weakref.ref(passing)
        del passing
        gc.collect()
        assert died() is None
        later = alone(toy.torch.nn.Bilinear(2, 2, 2))
    assert alone.__init__ is original
    models = recorded(prof.directory).rank.ddp.models
    assert [model.module for model in models] == ["Sequential", "Linear", "Bilinear"]
    assert [model.parameter_bytes for model in models] == [4 * (16 * 32 + 32 + 32 * 4 + 4), 4 * (16 * 4 + 4), 4 * 10]
    assert {model.world_size for model in models} == {1}
    assert models[1].comm_ns > 0
    assert models[2].comm_ns is None
    gone = weakref.ref(before)
    del before, later
    gc.collect()
    assert gone() is None


@needs_recorder
def test_collectives_of_before_the_block_are_not_the_blocks(light, recorded, alone):
    torch.distributed.all_reduce(torch.ones(3))
    with light() as prof:
        for _ in prof.wrap(range(5)):
            torch.distributed.all_reduce(torch.ones(2))
    (held,) = recorded(prof.directory).rank.flights
    assert [entry.input_elements for entry in held.entries] == [2] * 5
    assert held.made >= 6


@needs_recorder
def test_an_exception_and_a_full_disk_cost_neither_the_recorder_nor_the_loop(light, recorded, alone, monkeypatch):
    with pytest.raises(KeyError), light() as prof:
        torch.distributed.all_reduce(torch.ones(2))
        raise KeyError("mine")
    assert len(recorded(prof.directory).rank.flights[0].entries) == 1

    def full(_path, _document):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(distributed, "write_document", full)
    with light() as prof:
        torch.distributed.all_reduce(torch.ones(2))
    rank = recorded(prof.directory).rank
    assert rank.meta.features["flight"].reason == "flight.json cannot be written: No space left on device"
    assert rank.end.reason == "finished"


@needs_recorder
def test_torch_of_another_form_switches_the_recorder_off_and_nothing_else(light, recorded, alone, monkeypatch):
    bindings = sys.modules["torch._C._distributed_c10d"]
    monkeypatch.setattr(bindings, "_dump_fr_trace_json", lambda: b'{"entries": 3}')
    with pytest.warns(RuntimeWarning, match="watch on flight switched itself off"), light() as prof:
        torch.distributed.all_reduce(torch.ones(2))
    assert recorded(prof.directory).rank.end.reason == "finished"
    for name in distributed._DUMPS:  # a build for CUDA has both
        monkeypatch.delattr(bindings, name, raising=False)
    with light() as prof:
        torch.distributed.all_reduce(torch.ones(2))
    assert "no flight recorder" in recorded(prof.directory).rank.meta.features["flight"].reason


@needs_recorder
def test_without_a_process_group_there_is_nothing_to_dump(light, recorded, toy):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    rank = recorded(prof.directory).rank
    assert not rank.meta.features["flight"].on
    assert "no collective was recorded" in rank.meta.features["flight"].reason
    assert rank.meta.features["ddp"].reason == "no DistributedDataParallel was seen"
    assert rank.meta.joined is None
    assert (rank.flights, rank.ddp) == ((), None)
    assert dump(prof.directory / "flight.json", time.time_ns()).startswith("no collective was recorded")
