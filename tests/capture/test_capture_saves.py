"""Checkpoints that are written inside a block."""

import pickle
import sys
import types

import pytest

from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.timed_calls import SaveWatch
from profilerkit.rundir.layout import EventFlag, EventKind

pytestmark = pytest.mark.torch


def saves(run):
    return [run.rank.names[event.name] for event in run.of(EventKind.SAVE)]


def test_a_save_is_recorded_with_its_function_and_its_time(toy, light, recorded, tmp_path):
    with light() as prof:
        for number, batch in enumerate(prof.wrap(toy.loader())):
            toy.train(batch)
            if number == 3:
                toy.torch.save(toy.model.state_dict(), tmp_path / "model.pt")
    run = recorded(prof.directory)
    (save,) = run.of(EventKind.SAVE)
    assert saves(run) == ["torch.save"]
    assert run.steps[3].start_ns < save.start_ns
    assert save.start_ns + save.dur_ns < run.steps[3].start_ns + run.steps[3].dur_ns
    assert save.dur_ns > 0
    assert save.flags == 0
    assert run.rank.meta.features["saves"].on
    assert sorted(toy.torch.load(tmp_path / "model.pt", weights_only=True)) == sorted(toy.model.state_dict())


# torch 2.4 warns of its own storages.
@pytest.mark.filterwarnings("ignore:TypedStorage is:UserWarning", "ignore:torch.distributed is:UserWarning")
def test_a_distributed_checkpoint_is_one_save_and_its_background_another(toy, light, recorded, tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    state = {"model": toy.model.state_dict()}
    with light() as prof:
        checkpoint.save(state, checkpoint_id=tmp_path / "a")
        checkpoint.async_save(state, checkpoint_id=tmp_path / "b").result()
    run = recorded(prof.directory)
    here = [event for event in run.of(EventKind.SAVE) if not event.flags & EventFlag.OTHER_THREAD]
    names = [run.rank.names[event.name].rpartition(".")[2] for event in here]
    assert names == ["save", "async_save"]


def test_an_exception_of_a_save_passes_and_is_recorded(toy, light, recorded):
    with light() as prof, pytest.raises(RuntimeError, match="directory"):
        toy.torch.save({}, "/nowhere/at/all.pt")
    assert saves(recorded(prof.directory)) == ["torch.save"]


def test_without_a_save_the_reason_says_what_cannot_be_seen(toy, light, recorded):
    with light() as prof:
        toy.train(toy.batch())
    assert "imported by name" in recorded(prof.directory).rank.meta.features["saves"].reason


def test_the_function_is_pickled_by_its_name_and_put_back(toy, light):
    before = toy.torch.save
    with light():
        assert toy.torch.save is not before
        assert pickle.loads(pickle.dumps(toy.torch.save)) is toy.torch.save
        assert (toy.torch.save.__module__, toy.torch.save.__qualname__) == ("torch.serialization", "save")
    assert toy.torch.save is before
    assert toy.torch.serialization.save is before


def test_a_save_by_a_name_imported_before_the_block_is_seen_one_call_below(monkeypatch):
    """As safetensors does: frameworks have imported ``save_file`` long before."""
    module = types.ModuleType("safetensors.torch")
    exec("def serialize_file(): pass\ndef save_file(): serialize_file()", module.__dict__)
    early = module.save_file
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    records, names, patches = [], {}, Patches()
    watch = SaveWatch(records.append, StepTracker(records.append), lambda name: names.setdefault(name, len(names) + 1))
    patches.apply(watch.install)
    early()
    module.save_file()
    patches.remove()
    module.save_file()
    assert [record[2] for record in records] == 2 * [names["safetensors.torch.save_file"]]


def test_a_module_that_is_imported_later_is_watched_from_the_next_beat(monkeypatch):
    records, patches = [], Patches()
    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)
    watch = SaveWatch(records.append, StepTracker(records.append), lambda _name: 1)
    patches.apply(watch.install)
    module = types.ModuleType("safetensors.torch")
    module.save_file = lambda: None
    monkeypatch.setitem(sys.modules, "safetensors.torch", module)
    watch.beat()
    module.save_file()
    patches.remove()
    assert len(records) == 1
