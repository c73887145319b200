"""What a recording of real loaders tells of their epochs and their queue."""

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts

pytestmark = pytest.mark.torch


def facts_of(run):
    return Facts([rank_facts("rank_00000", None, run.rank)])


@pytest.mark.parametrize("kept", [False, True])
def test_workers_of_every_epoch_are_told_apart(toy, light, recorded, kept):
    loader = toy.loader(num_workers=2, persistent_workers=kept, multiprocessing_context="fork")
    with light() as prof:
        for _ in range(3):
            for batch in prof.wrap(loader):
                toy.train(batch)
    found = facts_of(recorded(prof.directory)).loading.epochs
    assert (found.count, found.steps, found.renewed) == (3, 8.0, not kept)
    assert 0 <= found.restart_ns <= found.boundary_ns
    assert 0 <= found.opening_ns <= found.boundary_ns


def test_the_queue_of_a_real_loader_is_replayed(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(
            toy.loader(batches=64, num_workers=2, prefetch_factor=4, multiprocessing_context="fork")
        ):
            toy.train(batch)
    found = facts_of(recorded(prof.directory)).loading
    assert found.items == 1.0
    assert 16 <= found.queue.batches < 64
    assert list(found.queue.by_prefetch) == [8]
    assert list(found.queue.by_workers) == list(range(3, 17))


def test_a_loader_without_workers_has_epochs_and_no_queue(toy, light, recorded):
    with light() as prof:
        for _ in range(2):
            for batch in prof.wrap(toy.loader()):
                toy.train(batch)
    found = facts_of(recorded(prof.directory)).loading
    assert (found.epochs.count, found.epochs.renewed, found.queue, found.items) == (2, None, None, None)
