"""The wait for the first sign of training, beside whatever else is patched."""

import pytest

from profilerkit.cli.launch import Watch

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def watched(torch, monkeypatch):
    """What is patched, put back after the test; and how often recording began."""
    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", torch.utils.data.DataLoader.__iter__)
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(base, "__init__", base.__init__)
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    began = []
    Watch(lambda: began.append(1)).install()
    return began


def loop(torch):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for batch in torch.utils.data.DataLoader([1.0, 2.0]):
        (weight * batch).sum().backward()
        optimizer.step()
    return weight.item()


def sign(torch, kind):
    weight = torch.ones(1, requires_grad=True)
    if kind == "own iterators":
        torch.utils.data.dataloader._SingleProcessDataLoaderIter(torch.utils.data.DataLoader([1.0]))
    elif kind == "loader":
        list(torch.utils.data.DataLoader([1.0]))
    elif kind == "backward":
        weight.sum().backward()
    else:
        torch.optim.SGD([weight], 0.1).step()


@pytest.mark.parametrize("kind", ["loader", "own iterators", "backward", "optimizer"])
def test_the_first_sign_begins_once_and_leaves_torch_as_it_was(torch, watched, kind):
    sign(torch, kind)
    assert watched == [1]
    assert "first" not in torch.utils.data.DataLoader.__iter__.__qualname__
    assert "first" not in torch.autograd._engine_run_backward.__qualname__
    loop(torch)
    assert watched == [1]


def test_computing_alone_is_no_sign(torch, watched):
    torch.ones(3).sum()
    assert watched == []


def test_a_patch_on_top_goes_on_working(torch, watched, monkeypatch):
    below, calls = torch.utils.data.DataLoader.__iter__, []

    def on_top(self):
        calls.append(1)
        return below(self)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", on_top)
    before = loop(torch)
    assert loop(torch) == before == pytest.approx(0.6)
    assert (watched, calls) == ([1], [1, 1])
