"""What ``torch.compile`` does inside a block."""

import pytest

from profilerkit.capture.patches import Patches
from profilerkit.capture.timed_calls import CompileWatch
from profilerkit.rundir.layout import EventFlag, EventKind

pytestmark = pytest.mark.torch


def test_compiling_and_compiling_again_is_recorded(toy, light, recorded):
    torch = toy.torch
    import torch._dynamo as dynamo

    dynamo.reset()
    with light() as prof:
        compiled = torch.compile(lambda x: x.sin() * 2, backend="eager", dynamic=False)
        for size in (4, 4, 5, 5):
            compiled(torch.ones(size))
    run = recorded(prof.directory)
    found = run.of(EventKind.COMPILE)
    first, again = (run.rank.names[event.name] for event in found)
    assert first == "0/0"
    assert again.startswith("0/1 tensor 'x' size mismatch at index 0")  # the guard that failed
    assert all(event.dur_ns > 0 and event.flags == 0 for event in found)
    assert found[0].start_ns + found[0].dur_ns <= found[1].start_ns
    assert run.rank.meta.features["compiles"].on
    assert dynamo.callback.callback_handler.start_callbacks == []
    assert dynamo.callback.callback_handler.end_callbacks == []


def test_callbacks_that_somebody_cleared_are_not_missed():
    import torch._dynamo.callback as callback

    patches = Patches()
    patches.apply(CompileWatch([].append, lambda _name: 1).install)
    assert len(callback.callback_handler.start_callbacks) == 1
    callback.callback_handler.clear()
    patches.remove()
    assert callback.callback_handler.start_callbacks == []


def test_a_compilation_whose_beginning_was_not_seen_is_marked():
    import torch._dynamo.callback as callback

    records, patches = [], Patches()
    handler = callback.callback_handler
    with handler.install_callbacks(callback.CallbackTrigger.DYNAMO, "3/0"):
        patches.apply(CompileWatch(records.append, lambda _name: 1).install)
    patches.remove()
    (record,) = records
    assert record[:2] == (EventKind.COMPILE, EventFlag.INFERRED)


@pytest.mark.usefixtures("uncollected")
# torch 2.13 warns of what it cannot trace: the options of dist.barrier().
@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_is_watched_breaks_no_graph(toy, light, backend, tmp_path):
    """Collectives, saves and a tensor's methods in compiled code: as many breaks, graphs and frames as without us."""
    torch = toy.torch
    import torch._dynamo as dynamo
    import torch.distributed as dist
    from torch._dynamo.utils import counters

    if not dist.is_available():
        pytest.skip("torch was built without distributed")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

    def reduces(x):
        y = x.sin()
        dist.all_reduce(y)
        return y * 2

    def gathers(x):
        y, out = x.sin(), torch.empty(4)
        dist.all_gather_single(out, y)
        dist.barrier()
        return out * 2

    def reads(x):
        return x.to(torch.float64).sin() * x.sum().item()

    def counted():
        out = []
        for function in (reduces, gathers, reads):
            dynamo.reset()
            counters.clear()
            compiled = torch.compile(function, backend=backend)
            result = [compiled(torch.ones(4)).tolist() for _ in range(2)]
            stats = counters["stats"]["unique_graphs"], counters["frames"]["total"]
            out.append((result, sum(counters["graph_break"].values()), *stats))
        return out

    try:
        bare = counted()
        with light():
            assert counted() == bare
    finally:
        dist.destroy_process_group()
        dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_step_is_not_compiled_again_when_the_hooks_settle(toy, light, recorded):
    """A graph breaks at ``backward``; torch would compile our frames, too, and anew when what they look at changes."""
    import torch._dynamo as dynamo

    dynamo.reset()
    step = toy.torch.compile(toy.train, backend="eager", dynamic=False)
    loader = toy.loader()
    with light() as prof:
        for _ in range(80):
            for batch in prof.wrap(loader):
                step(batch)
        assert prof._session._tracker.optimizer_seen
        assert not prof._session._hooks.meters[0].is_open
    run = recorded(prof.directory)
    compiled, early = run.of(EventKind.COMPILE), run.steps[100]
    assert compiled
    assert all(event.start_ns < early.start_ns for event in compiled)


def test_what_was_hung_in_before_dynamo_was_loaded_is_made_known_to_it(monkeypatch):
    import torch._dynamo.eval_frame as eval_frame

    from profilerkit.capture import timed_calls

    with monkeypatch.context() as patch:
        patch.setattr(timed_calls, "_DYNAMO", "not.loaded.yet")
        kept = timed_calls.not_compiled(lambda: None)
    skipped = []
    monkeypatch.setattr(eval_frame, "skip_code", skipped.append)
    watch, patches = CompileWatch([].append, lambda _name: 1), Patches()
    patches.apply(watch.install)
    patches.remove()
    assert kept.__code__ in skipped


def test_a_torch_that_calls_without_arguments_is_understood():
    records = []
    watch = CompileWatch(records.append, lambda _name: 1)
    watch._started()
    watch._ended()
    assert [record[:3] for record in records] == [(EventKind.COMPILE, 0, 0)]


def test_what_dynamo_forgets_at_its_reset_is_asked_again():
    import torch._dynamo.callback as callback

    patches, watch = Patches(), CompileWatch([].append, lambda _name: 1)
    patches.apply(watch.install)
    callback.callback_handler.clear()
    watch.beat()
    watch.beat()
    assert len(callback.callback_handler.start_callbacks) == 1
    patches.remove()
    watch.beat()
    assert callback.callback_handler.start_callbacks == callback.callback_handler.end_callbacks == []
