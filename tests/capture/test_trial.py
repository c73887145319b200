"""Changes that are made in a running program, and the ending of a trial: each setting is seen where torch uses it."""

import ast
import contextlib
import dataclasses
import gc
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import profilerkit  # noqa: E402
from profilerkit.capture.changes import SETTINGS, known_settings  # noqa: E402
from profilerkit.capture.changes.models import called  # noqa: E402
from profilerkit.capture.settings import RunOptions  # noqa: E402
from profilerkit.capture.trial import Order, changed  # noqa: E402
from profilerkit.cli import run  # noqa: E402
from tests import programs  # noqa: E402

pytestmark = pytest.mark.torch
Loader, Tensors = torch.utils.data.DataLoader, torch.utils.data.TensorDataset


def train(
    *,
    epochs=8,
    loader=None,
    optimizer=torch.optim.SGD,
    model=None,
    see=lambda **_: None,
    **how,
):
    """A small training loop; ``see`` is given what it uses at the end of each step."""
    torch.manual_seed(5)
    loader = {"batch_size": 4, **(loader or {})}
    batches = Loader(Tensors(torch.randn(40, 8), torch.randn(40, 1)), **loader)
    model = model or torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    stepper = optimizer(model.parameters(), lr=0.01, **how)
    for _epoch in range(epochs):
        for inputs, targets in batches:
            stepper.zero_grad(set_to_none=False)
            outputs = model(inputs)
            loss = torch.nn.functional.mse_loss(outputs, targets)
            loss.backward()
            stepper.step()
            see(loader=batches, optimizer=stepper, model=model, inputs=inputs, outputs=outputs)


def tried(*changes, steps=5, **how):
    """What came of these changes, and what the loop used in its last step."""
    seen = []
    with changed(Order(changes=changes, steps=steps)) as trial:
        train(see=lambda **used: seen.append(SimpleNamespace(**used)), **how)
    return trial, seen[-1] if seen else None


def test_losses_without_changes_are_those_of_the_program():
    losses = []
    original = torch.autograd._engine_run_backward
    first, _ = tried()
    second, _ = tried(("nonsense", 1))
    assert first.losses == second.losses != losses
    assert (first.steps, first.ended, len(first.losses)) == (5, "steps", 5)
    assert second.document()["refused"] == {"nonsense": "no setting of this name can be applied"}
    assert torch.autograd._engine_run_backward is original


def test_a_program_that_ends_first_says_so():
    trial, _ = tried(steps=1000)
    assert (trial.ended, trial.steps) == ("program", 80)


def test_time_ends_a_program():
    with changed(Order(steps=10**9, seconds=0.0)) as trial:
        train(epochs=10**9)
    assert (trial.ended, trial.steps) == ("time", 1)  # counted from the first step on


def test_settings_of_a_loader_are_those_it_loads_with():
    changes = (("num_workers", 1), ("persistent_workers", True), ("prefetch_factor", 3), ("pin_memory", True))
    trial, used = tried(*changes)
    assert (used.loader.num_workers, used.loader.persistent_workers, used.loader.prefetch_factor) == (1, True, 3)
    document = trial.document()
    assert document["refused"] == {"pin_memory": "there is no device to copy to"}
    file, line, function, package = document["applied"]["num_workers"][0]
    assert (file, function, package) == (__file__, "train", "")
    assert "Loader(" in Path(file).read_text().splitlines()[line - 1]
    assert trial.losses == tried()[0].losses


def test_workers_are_taken_away_with_what_they_need():
    trial, used = tried(("num_workers", 0), loader={"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True})
    assert (used.loader.num_workers, used.loader.prefetch_factor) == (0, None)
    assert not trial.document()["refused"]


def test_what_a_loader_cannot_do_is_refused_and_training_goes_on():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.zeros(3, 8))

    with changed(Order(changes=[("num_workers", 2), ("prefetch_factor", 4)], steps=99)) as trial:
        assert len(list(Loader(Stream()))) == 3
    refused = trial.document()["refused"]
    assert "IterableDataset" in refused["num_workers"]
    assert refused["prefetch_factor"] == "the loader has no workers"


def test_a_dataset_on_the_device_keeps_its_loader():
    with changed(Order(changes=[("num_workers", 2)], steps=99)) as trial:
        assert Loader(Tensors(torch.zeros(3, device="meta"))).num_workers == 0
    assert "tensors of the device" in trial.document()["refused"]["num_workers"]


def test_the_first_batch_again_and_again_as_often_as_there_are_batches():
    seen = []
    for workers in (0, 1):
        with changed(Order(changes=[("ceiling", "input")], steps=99)) as trial:
            loader = Loader(Tensors(torch.arange(6)), batch_size=2, num_workers=workers)
            batches = [[batch for (batch,) in loader] for _epoch in range(2)]
        assert [[batch.tolist() for batch in epoch] for epoch in batches] == [[[0, 1]] * 3] * 2
        seen.append(trial.document()["applied"])
    assert all("ceiling" in applied for applied in seen)


def test_only_copies_to_a_device_do_not_block(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **how: seen.append(how) or tensor, raising=False)
    with changed(Order(changes=[("non_blocking", True)], steps=9)) as trial:
        for target in ("meta", torch.float64, "cpu"):
            torch.ones(1).to(target)
        torch.ones(1).to(device="meta", non_blocking=False)
        torch.ones(1, device="meta").to("cpu")
    torch.ones(1).to("meta")
    assert seen == [{"non_blocking": True}, {}, {}, {"device": "meta", "non_blocking": True}, {}, {}]
    assert trial.document()["applied"].keys() == {"non_blocking"}


@pytest.mark.parametrize("name", ["fused", "foreach"])
def test_an_optimizer_steps_as_proposed(name):
    trial, used = tried((name, True), optimizer=torch.optim.AdamW)
    assert used.optimizer.param_groups[0][name] is True
    assert used.optimizer.defaults[name] is True
    ((file, line, *_),) = trial.document()["applied"][name]
    assert "optimizer(" in Path(file).read_text().splitlines()[line - 1]


def test_fused_takes_the_place_of_foreach():
    _, used = tried(("fused", True), foreach=True)
    assert (used.optimizer.param_groups[0]["fused"], used.optimizer.param_groups[0]["foreach"]) == (True, None)


def test_an_optimizer_that_knows_no_such_setting_is_left_alone():
    trial, _ = tried(("fused", True), optimizer=torch.optim.RMSprop)
    assert trial.document()["refused"] == {"fused": "RMSprop takes no fused"}
    assert trial.steps == 5


def test_an_optimizer_that_raises_is_made_as_the_user_wrote_it():
    with changed(Order(changes=[("fused", True)], steps=9)) as trial:
        stepper = torch.optim.AdamW(torch.nn.Linear(1, 1).parameters(), differentiable=True)
    assert "RuntimeError" in trial.document()["refused"]["fused"]
    assert not stepper.param_groups[0]["fused"]
    assert len(stepper.param_groups[0]["params"]) == 2


def test_gradients_are_set_to_none_instead_of_filled():
    seen = []

    def zeroed(steps):
        model = torch.nn.Linear(2, 1)
        stepper = torch.optim.SGD(model.parameters())
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            stepper.step()
            stepper.zero_grad(set_to_none=False)
            seen.append(model.weight.grad)

    with changed(Order(changes=[("set_to_none", True)], steps=9)):
        zeroed(2)
    zeroed(1)
    assert seen[:2] == [None, None]
    assert seen[2] is not None


def test_settings_of_the_process_hold_against_the_program_and_are_undone():
    before = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.backends.cudnn.benchmark
    seen = []
    changes = [("matmul_precision", "high"), ("threads", before[1] + 1), ("cudnn_benchmark", True)]
    with changed(Order(changes=changes, steps=2)) as trial:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False
        now = lambda **_: seen.append((torch.get_float32_matmul_precision(), torch.get_num_threads()))  # noqa: E731
        train(see=lambda **_: (now(), seen.append(torch.backends.cudnn.benchmark)))
    assert seen[:2] == [("high", before[1] + 1), True]
    assert trial.document()["applied"] == {name: [] for name, _ in changes}
    assert before == (torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.backends.cudnn.benchmark)


def test_a_value_that_torch_refuses_leaves_other_settings_of_the_process_alone():
    trial, _ = tried(("threads", 10**20), ("matmul_precision", "high"))
    assert list(trial.document()["applied"]) == ["matmul_precision"]
    assert list(trial.document()["refused"]) == ["threads"]


def test_a_value_that_the_program_has_already_is_no_change():
    trial, _ = tried(("matmul_precision", "highest"), ("num_workers", 0), ("fused", False), fused=False)
    assert trial.document()["refused"] == {
        "matmul_precision": "matmul_precision is highest already",
        "num_workers": "num_workers is 0 already",
        "fused": "fused is False already",
    }


@pytest.fixture
def thawed():
    """Nothing is frozen, as in a program's start."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_objects_are_frozen_after_some_steps():
    seen = []
    with changed(Order(changes=[("gc_freeze", True)], steps=6)) as trial:
        train(see=lambda **_: seen.append((gc.get_freeze_count() > 0, gc.isenabled())))
    assert (seen[1], seen[4]) == ((False, True), (True, False))
    assert trial.document()["applied"] == {"gc_freeze": []}
    assert (gc.get_freeze_count(), gc.isenabled()) == (0, True)


def test_anomaly_detection_stays_off():
    seen = []

    def slow():
        with torch.autograd.detect_anomaly():
            train(see=lambda **_: seen.append(torch.is_anomaly_enabled()))

    with changed(Order(changes=[("anomaly", False)], steps=2)) as trial, pytest.warns(UserWarning, match="Anomaly"):
        slow()
    assert seen == [False]
    assert trial.document()["applied"]["anomaly"]


def test_a_model_computes_in_half_precision_and_returns_single():
    kinds = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 1)

        def forward(self, inputs):
            outputs = self.inner(inputs)
            kinds.append(outputs.dtype)
            return outputs

    trial, used = tried(("autocast", "bf16"), model=Model())
    assert set(kinds) == {torch.bfloat16}
    assert used.outputs.dtype == torch.float32
    assert "forward" not in vars(used.model)
    assert trial.document()["applied"]["autocast"]
    assert max(abs(a - b) for a, b in zip(trial.losses, tried(model=Model())[0].losses, strict=True)) > 0


# torch 2.15 warns of the option.
@pytest.mark.filterwarnings("ignore:with_modules is deprecated:FutureWarning")
def test_a_profiler_of_the_program_that_takes_stacks_sees_its_models_and_optimizers():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, with_modules=True):
        trial, _ = tried(("autocast", "bf16"))
    assert (trial.ended, trial.steps) == ("steps", 5)
    assert trial.document()["applied"]["autocast"]


def test_a_copy_of_a_changed_model_computes_with_its_own_weights():
    import copy

    with changed(Order(changes=[("autocast", "bf16")], steps=9)):
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2))
        twin = copy.deepcopy(model)
        torch.nn.init.constant_(twin.weight, 7.0)
        torch.nn.init.constant_(twin.bias, 0.0)
        assert twin(torch.ones(1, 2)).item() == 14.0


def test_images_are_given_channels_last():
    seen = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Conv2d(2, 3, 3)

        def forward(self, images):
            formats = (self.inner.weight, images)
            seen.append(all(one.is_contiguous(memory_format=torch.channels_last) for one in formats))
            return self.inner(images)

    with changed(Order(changes=[("channels_last", True)], steps=9)) as trial:
        model = Model()
        model(torch.randn(2, 2, 8, 8))
    assert seen == [True]
    assert trial.document()["applied"]["channels_last"]
    model(torch.randn(2, 2, 8, 8))
    assert seen == [True, False]
    flat, _ = tried(("channels_last", True))
    assert "no 4-D parameters" in flat.document()["refused"]["channels_last"]


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_gradients_are_reduced_once_per_step_and_in_half_precision():
    synced, weights = [], []
    for changes in ([], [("no_sync", True), ("comm_hook", "fp16"), ("static_graph", True)]):
        torch.manual_seed(1)
        with changed(Order(changes=changes, steps=99)) as trial:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
            stepper = torch.optim.SGD(model.parameters(), lr=0.1)
            for batches in (3, 3, 3, 2, 4):
                for number in range(batches):
                    model(torch.full((1, 2), 1.0 + number)).sum().backward()
                    synced.append(model.require_backward_grad_sync)
                stepper.step()
                stepper.zero_grad()
        weights.append(model.module.weight.detach().clone())
    assert synced[:15] == [True] * 15
    assert synced[15:] == [True] * 6 + [False, False, True] + [False, False] + [False, False, True, True]
    assert len(model._comm_hooks) == 1
    assert torch.allclose(*weights)
    assert trial.document()["refused"] == {}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("own", "why"), [(True, "the program uses no_sync already"), (False, "a step has 1 forward and 1 backward passes")]
)
def test_a_step_that_reduces_once_is_left_alone(own, why):
    with changed(Order(changes=[("no_sync", True)], steps=99)) as trial:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        stepper = torch.optim.SGD(model.parameters())
        for _ in range(8):
            with model.no_sync() if own else contextlib.nullcontext():
                model(torch.ones(1, 2)).sum().backward()
            stepper.step()
    assert trial.document()["refused"] == {"no_sync": why}
    assert model.require_backward_grad_sync


# torch 2.4 warns of its own checkpoints.
@pytest.mark.filterwarnings("ignore:.*cpu.amp.autocast:FutureWarning")
def test_recomputing_is_left_out():
    calls = []

    def block(inputs):
        calls.append(1)
        return inputs.sin()

    for changes, expected in (((), 2), ((("checkpointing", False),), 1)):
        calls.clear()
        with changed(Order(changes=changes, steps=9)):
            from torch.utils import checkpoint

            inputs = torch.ones(2, requires_grad=True)
            checkpoint.checkpoint(block, inputs, use_reentrant=False).sum().backward()
        assert len(calls) == expected


@pytest.mark.parametrize("graphs", [1, 0])
def test_a_model_is_compiled_in_its_place_where_anything_of_it_can_be(monkeypatch, graphs):
    asked = []

    def compile_(call, **how):
        def compiled(*args):
            torch._dynamo.utils.counters["stats"]["unique_graphs"] += graphs
            return call(*args)

        asked.append(how)
        return compiled

    monkeypatch.setattr(torch, "compile", compile_)
    trial, _ = tried(("compile", "reduce-overhead"))
    assert asked == [{"mode": "reduce-overhead"}]
    if graphs:
        assert trial.document()["applied"]["compile"]
    else:
        assert trial.document()["refused"]["compile"] == "torch.compile compiled nothing of the model"


def test_a_model_of_torchs_own_class_is_compiled_by_the_call_of_ours():
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    torch.compile(called(model), backend="eager")(torch.ones(1, 2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


def test_a_model_that_cannot_be_compiled_runs_as_it_is(monkeypatch):
    def fails(_call, **_how):
        def raises(*_args):
            raise RuntimeError("no compiler")

        return raises

    monkeypatch.setattr(torch, "compile", fails)
    trial, _ = tried(("compile", "default"))
    assert trial.document()["refused"]["compile"] == "RuntimeError: no compiler"
    assert trial.losses == tried()[0].losses


def test_shapes_are_dynamic_in_what_the_program_compiles(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, *, dynamic=None, **how: asked.append((dynamic, how)) or model)
    with changed(Order(changes=[("compile_dynamic", True)], steps=9)):
        torch.compile(torch.nn.Linear(1, 1), mode="default")
    assert asked == [(True, {"mode": "default"})]


def test_a_framework_that_is_imported_later_is_given_its_intervals(tmp_path, monkeypatch):
    package = tmp_path / "pytorch_lightning" / "trainer"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "trainer.py").write_text(
        "class Trainer:\n    def __init__(self, *, max_steps=-1, log_every_n_steps=None):\n"
        "        self.got = max_steps, log_every_n_steps\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    finders = list(sys.meta_path)
    with changed(Order(changes=[("log_every_n_steps", 50), ("eval_steps", 7)], steps=9)) as trial:
        from pytorch_lightning.trainer.trainer import Trainer

        assert Trainer(max_steps=3).got == (3, 50)
    assert Trainer(max_steps=3).got == (3, None)
    assert sys.meta_path == finders
    assert trial.document()["applied"].keys() == {"log_every_n_steps"}
    assert trial.document()["refused"] == {"eval_steps": "no TrainingArguments of transformers were made"}


@pytest.mark.parametrize("is_wrong", [False, True])
def test_arguments_that_inherit_are_given_their_intervals_too(tmp_path, monkeypatch, is_wrong):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "training_args.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass TrainingArguments:\n    eval_steps: float = 100\n"
        "    checked: int = 0\n    def __post_init__(self):\n        self.checked += 1\n"
        f"        if {is_wrong} and self.eval_steps < 1:\n            raise ValueError('no share')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    real = [name for name in sys.modules if name.partition(".")[0] == "transformers"]
    for name in {*real, "transformers", "transformers.training_args"}:
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported here goes afterwards
        del sys.modules[name]
    with changed(Order(changes=[("eval_steps", 0.5)], steps=9)) as trial:
        from transformers.training_args import TrainingArguments

        @dataclasses.dataclass
        class Inheriting(TrainingArguments):
            more: int = 1

        made = Inheriting()
    assert (made.eval_steps, made.checked) == (100 if is_wrong else 0.5, 1)
    assert trial.document()["refused"] == ({"eval_steps": "ValueError: no share"} if is_wrong else {})
    assert list(trial.document()["applied"]) == ([] if is_wrong else ["eval_steps"])
    assert Inheriting().eval_steps == 100


def test_random_states_of_the_caller_are_put_back():
    numpy = pytest.importorskip("numpy")
    draws = (lambda: torch.rand(1).item(), random.random, numpy.random.rand)
    for draw in draws:
        torch.manual_seed(11), random.seed(11), numpy.random.seed(11)
        expected = [draw(), draw()]
        torch.manual_seed(11), random.seed(11), numpy.random.seed(11)
        first = draw()
        tried()
        assert [first, draw()] == expected


def test_settings_of_other_packages_are_found_by_name(monkeypatch):
    def queue_depth(changes, value):
        changes.in_calls(Queue, {"queue_depth": value})

    class Queue:
        def __init__(self, queue_depth=1):
            self.depth = queue_depth

    entries = [
        SimpleNamespace(name="queue_depth", load=lambda: queue_depth),
        SimpleNamespace(name="broken", load=lambda: 1 / 0),
    ]
    monkeypatch.setattr("profilerkit.capture.changes.entry_points", lambda group: entries)
    with changed(Order(changes=[("queue_depth", 3), ("broken", 1)], steps=9)) as trial:
        assert Queue().depth == 3
    assert trial.document()["applied"].keys() == {"queue_depth"}
    assert trial.document()["refused"] == {"broken": "ZeroDivisionError: division by zero"}
    assert Queue().depth == 1
    assert known_settings().keys() == {*SETTINGS, "queue_depth", "broken"}


def test_every_setting_that_a_rule_proposes_can_be_made():
    rules = Path(run.__file__).parents[1] / "rules"
    calls = [
        node
        for file in rules.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SettingChange"
    ]
    names = {name.value if isinstance(name := call.args[0], ast.Constant) else name.values[0].value for call in calls}
    assert len(names) > 15
    assert {name for name in names if not name.startswith("env:")} <= SETTINGS.keys()


def test_a_value_that_means_nothing_is_refused():
    trial, _ = tried(("anomaly", True), ("autocast", "bf8"), ("matmul_precision", "low"))
    refused = trial.document()["refused"]
    assert refused["anomaly"] == "anomaly is False"
    assert refused["autocast"] == "autocast is bf16 or fp16"
    assert refused["matmul_precision"] == "matmul_precision is highest or high or medium"


def test_every_setting_names_its_place_in_the_source_or_nothing():
    for name, setting in SETTINGS.items():
        assert not (setting.call and setting.statement), name
        assert not setting.statement or compile(setting.statement.format("x"), name, "exec")


class Nested(torch.utils.data.Dataset):
    """A dataset that reads another one in a loader of its own."""

    def __init__(self, trial):
        self.trial = trial

    def __len__(self):
        return 2

    def __getitem__(self, index):
        list(Loader(Tensors(torch.zeros(2))))
        return self.trial._pid == os.getpid()


def test_a_loader_in_a_worker_ends_nothing():
    with changed(Order(steps=9)) as trial:
        assert [flag.item() for flag in Loader(Nested(trial), num_workers=1)] == [False, False]


def test_a_rank_that_is_forked_before_training_ends_as_its_parent_would():
    with changed(Order(steps=3)) as trial:
        pid = os.fork()
        if not pid:
            try:
                train()
            finally:
                os._exit(trial.steps)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert trial.steps == 0


def test_nothing_is_tried_once_the_recording_of_the_program_is_over(tmp_path):
    light = {"deep": False, "nvml": False, "host": False, "analyze": False}
    reached = []
    with changed(Order(steps=10**6)) as trial:
        with profilerkit.profile(tmp_path / "run", **light):
            train(epochs=1)
        train(see=lambda **_: reached.append(1))
    assert (trial.ended, trial.steps, reached) == ("program", 10, [])


PROGRAM = textwrap.dedent("""
    import atexit
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    atexit.register(print, "the program ended", flush=True)

    def main():
        data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
        model = torch.nn.Linear(8, 1)
        stepper = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data, batch_size=4)
        try:
            for _ in range(100):
                for inputs, targets in loader:
                    stepper.zero_grad()
                    torch.nn.functional.mse_loss(model(inputs), targets).backward()
                    stepper.step()
                with torch.no_grad():
                    for inputs, _ in loader:
                        model(inputs)
        finally:
            print(loader.num_workers, stepper.param_groups[0]["fused"])

    if __name__ == "__main__":
        main()
""")
RANKS = textwrap.dedent("""
    import torch

    def main():
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
        stepper = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.randn(3, 4, 8)  # other ones on each rank
        for _ in range(1000):
            stepper.zero_grad()
            for batch in inputs:
                model(batch).square().mean().backward()
            stepper.step()
            gathered = [torch.zeros(1, 8) for _ in range(2)]
            torch.distributed.all_gather(gathered, model.module.weight.data)
            assert torch.equal(*gathered)
            if torch.distributed.get_rank() == 0:  # the others have no loader, by which steps would be counted
                list(torch.utils.data.DataLoader(range(3)))

    if __name__ == "__main__":
        main()
""")


def ordered(path, program, changes, start=programs.run, **order):
    """What a program printed that was started with an order, and the documents of its ranks."""
    (path / "train.py").write_text(program, encoding="utf-8")
    out = path / "out"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    RunOptions(
        pid=1,
        start_directory=str(Path(run.__file__).with_name("start")),
        directory=str(path),
        path=str(out / "run"),
        choices={"deep": False, "nvml": False, "host": False, "analyze": False},
        quiet=True,
        trial={"changes": changes, "steps": 20, "seconds": 60.0, "seed": 3, "out": str(out), **order},
    ).put(environment)
    done = start("train.py", cwd=path, env=environment, check=True)
    for process in done if isinstance(done, list) else [done]:
        assert "Traceback" not in process.stderr
    return done, [json.loads(file.read_text()) for file in sorted(out.glob("rank_*.json"))]


def test_a_program_below_run_is_changed_and_ends_as_any_program_does(tmp_path):
    done, (document,) = ordered(tmp_path, PROGRAM, [["num_workers", 1], ["fused", True], ["static_graph", True]])
    assert done.stdout == "1 True\nthe program ended\n"
    script = str(tmp_path / "train.py")
    assert document["applied"] == {"fused": [[script, 11, "main", ""]], "num_workers": [[script, 12, "main", ""]]}
    assert document["refused"] == {"static_graph": "no DistributedDataParallel was made"}
    assert (document["ended"], document["steps"], len(document["losses"])) == ("steps", 20, 20)


def launched(*words, cwd, env, check):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words]
    return subprocess.run(command, cwd=cwd, env=env, check=check, capture_output=True, text=True)


# The first starts each rank as a program of its own, as a user does.
@pytest.mark.parametrize("start", [launched, programs.ranks])
def test_ranks_end_at_the_same_step_when_time_is_up(tmp_path, start):
    changes = [["no_sync", True], ["comm_hook", "fp16"], ["bucket_cap_mb", 7], ["gradient_as_bucket_view", True]]
    _, documents = ordered(tmp_path, RANKS, changes, start, seconds=0.5, steps=10**6)
    assert len(documents) == 2
    assert {document["ended"] for document in documents} == {"time"}
    assert len({len(document["losses"]) for document in documents}) == 1
    assert len(documents[0]["losses"]) > 12
    assert documents[0]["losses"] != documents[1]["losses"]
    for document in documents:
        assert document["applied"].keys() == {name for name, _ in changes}, document["refused"]
