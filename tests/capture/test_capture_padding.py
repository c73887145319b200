"""Padding that is counted in the batches of a loop, and what is no padding."""

import doctest
from collections import UserDict, namedtuple

import numpy as np
import pytest

from profilerkit.capture import loader_info
from profilerkit.capture.loader_info import PaddingLooks, filled_up
from profilerkit.rundir.layout import EventKind

LENGTHS = (12, 30, 7, 20)


def sequences(lengths=LENGTHS, to=40, filling=0):
    """Rows of tokens that are filled up."""
    draw = np.random.default_rng(0)
    rows = np.full((len(lengths), to), filling)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = draw.integers(100, 30_000, length)
    return rows


def looked(batch):
    """What one look at a batch records: tokens, padding, tokens beyond the longest row."""
    records = []
    PaddingLooks(records.append).look(batch)
    return [(kind, value >> 32, value & 0xFFFFFFFF, name) for kind, _, name, _, _, value in records]


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(loader_info).failed == 0


@pytest.mark.torch
@pytest.mark.parametrize("turn", [lambda rows: rows, lambda rows: rows[:, ::-1].copy(), lambda rows: rows.T.copy()])
@pytest.mark.parametrize(
    "batch",
    [
        lambda ids, mask: ids,
        lambda ids, mask: {"input_ids": ids, "attention_mask": mask},
        lambda ids, mask: UserDict(input_ids=ids),
        lambda ids, mask: [namedtuple("Batch", "text label")(ids, mask)],
    ],
)
def test_padding_behind_or_before_is_counted_whatever_holds_the_batch(batch, turn):
    import torch

    ids = torch.from_numpy(turn(sequences()))
    expected = (EventKind.PADDING, 160, 160 - sum(LENGTHS), 40)
    assert looked(batch(ids, (ids > 0).long())) == [expected]


def test_what_has_no_common_end_is_no_padding():
    draw = np.random.default_rng(1)
    texts = draw.integers(0, 30_000, (16, 64))
    assert filled_up(texts) is None
    assert filled_up(draw.integers(0, 2, (16, 64))) is None  # a mask
    assert filled_up(np.where(draw.random((16, 64)) < 0.9, 0, texts)) is None  # counts of words
    assert filled_up(sequences(to=7, lengths=(2, 3))) is None


@pytest.mark.torch
def test_images_floats_and_lists_of_the_users_own_are_not_looked_into():
    import torch

    class Lazy(list):
        def __getitem__(self, _index):
            raise AssertionError("it was read")

    for batch in (torch.rand(4, 40), torch.zeros(4, 40, dtype=torch.uint8), Lazy([1]), None, torch.ones(4, 3, 8, 8)):
        assert looked(batch) == []


def test_looks_come_so_seldom_that_they_take_a_thousandth(monkeypatch):
    clock = [0]

    def slow(_batch):
        clock[0] += 1_000_000
        return

    monkeypatch.setattr(loader_info, "perf_counter_ns", lambda: clock[0])
    seen = []
    monkeypatch.setattr(loader_info, "_padding", lambda batch: seen.append(batch) or slow(batch))
    looks = PaddingLooks([].append)
    for number in range(100):
        clock[0] = number * 100_000_000
        looks.look(number)
    assert seen == list(range(0, 100, 10))


@pytest.mark.torch
def test_a_batch_without_padding_counts_too():
    import torch

    texts = torch.from_numpy(np.random.default_rng(1).integers(0, 30_000, (16, 64)))
    mask = torch.ones(16, 64).long()
    assert looked({"input_ids": texts, "attention_mask": mask}) == [(EventKind.PADDING, 1024, 0, 0)]
    assert looked(mask) == []


@pytest.mark.torch
def test_labels_that_nothing_is_asked_of_are_no_padding():
    import torch

    texts = torch.from_numpy(np.random.default_rng(1).integers(0, 30_000, (16, 64)))
    labels = texts.clone()
    labels[:, :48] = -100
    assert looked([labels, texts]) == [(EventKind.PADDING, 1024, 0, 0)]


@pytest.mark.torch
def test_a_batch_stays_as_it_was_and_a_long_table_is_not_read():
    import torch

    ids = torch.tensor(sequences())
    looked(ids)
    assert ids.resize_(8, 40).shape == (8, 40)
    edges = torch.arange(2).repeat_interleave(1 << 18).reshape(2, -1)
    assert looked(edges) == []
