"""What the callbacks do at the edges: exceptions, blocks around them, frameworks that are not there."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

import profilerkit
from profilerkit.errors import UsageError
from profilerkit.integrations.accelerate import attach
from profilerkit.integrations.huggingface import TrainerHooks
from profilerkit.integrations.lightning import LightningHooks
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run


@pytest.fixture
def prof(tmp_path):
    return profilerkit.profile(tmp_path / "run", deep=False, nvml=False, host=False, analyze=False)


class Trainer(SimpleNamespace):
    """What the callback sees of Lightning's Trainer."""

    def __init__(self):
        super().__init__(global_step=0)

    def save_checkpoint(self, path):
        return f"saved {path}"


def fit(hooks, trainer, optimizer_steps):
    hooks.setup(trainer, None, "fit")
    for step in optimizer_steps:
        trainer.global_step = step
        hooks.on_train_batch_end(trainer, None, None, None, 0)


def phases(rank):
    return [rank.names[fields[2]] for fields in EVENT.iter_unpack(rank.events) if fields[0] == EventKind.PHASE]


def ended(prof):
    return read_run(prof.directory).ranks[0].end


def test_a_lightning_step_is_an_optimizer_step_or_several(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    fit(hooks, trainer, [0, 1, 1, 3, 3, 5])
    hooks.teardown(trainer, None, "fit")
    assert ended(prof).steps == 3


def test_a_lightning_exception_ends_the_recording_with_it(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    fit(hooks, trainer, [1, 2])
    hooks.on_validation_start(trainer, None)
    hooks.on_exception(trainer, None, ValueError("lost"))
    assert ended(prof).exception == "ValueError: lost"
    assert phases(read_run(prof.directory).ranks[0]) == ["evaluation"]
    hooks.teardown(trainer, None, "fit")


def test_lightning_saves_as_before_and_its_trainer_gets_its_method_back(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    fit(hooks, trainer, [1])
    assert trainer.save_checkpoint("x") == "saved x"
    hooks.teardown(trainer, None, "fit")
    assert "save_checkpoint" not in vars(trainer)
    assert phases(read_run(prof.directory).ranks[0]) == ["checkpoint"]


def test_a_method_that_was_set_on_the_trainer_is_there_again_after_the_fit(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    own = trainer.save_checkpoint = lambda path: f"saved {path} myself"
    fit(hooks, trainer, [1])
    assert trainer.save_checkpoint("x") == "saved x myself"
    hooks.teardown(trainer, None, "fit")
    assert vars(trainer)["save_checkpoint"] is own
    assert phases(read_run(prof.directory).ranks[0]) == ["checkpoint"]


def test_two_callbacks_leave_nothing_on_the_trainer_and_name_a_checkpoint_once(prof, tmp_path):
    both, trainer = (LightningHooks(prof), LightningHooks(profilerkit.profile(tmp_path / "other"))), Trainer()
    for hooks in both:
        fit(hooks, trainer, [1])
    assert trainer.save_checkpoint("x") == "saved x"
    for hooks in both:
        hooks.teardown(trainer, None, "fit")
    assert "save_checkpoint" not in vars(trainer)
    assert phases(read_run(prof.directory).ranks[0]) == ["checkpoint"]


def test_what_somebody_put_on_top_of_ours_stays_and_saves(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    fit(hooks, trainer, [1])
    below = trainer.save_checkpoint
    top = trainer.save_checkpoint = lambda path: f"{below(path)} twice"
    hooks.teardown(trainer, None, "fit")
    assert vars(trainer)["save_checkpoint"] is top
    assert trainer.save_checkpoint("x") == "saved x twice"
    trainer.save_checkpoint = below  # as a tool does that puts back what it found
    fit(hooks, trainer, [2])
    hooks.teardown(trainer, None, "fit")
    assert "save_checkpoint" not in vars(trainer)


def test_validation_alone_records_nothing(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    hooks.setup(trainer, None, "validate")
    hooks.teardown(trainer, None, "validate")
    assert prof.directory is None


def test_a_block_around_the_fit_goes_on_after_it(prof):
    hooks, trainer = LightningHooks(prof), Trainer()
    with prof:
        fit(hooks, trainer, [1])
        hooks.teardown(trainer, None, "fit")
        prof.step()
    assert ended(prof).steps == 2


def test_a_second_recording_inside_a_block_joins_it(prof, tmp_path):
    hooks, trainer = LightningHooks(profilerkit.profile(tmp_path / "other")), Trainer()
    with prof:
        fit(hooks, trainer, [1, 2])
        hooks.teardown(trainer, None, "fit")
        prof.step()
    assert ended(prof).steps == 3
    assert not (tmp_path / "other").exists()


def huggingface_control(**wanted):
    return SimpleNamespace(**{"should_evaluate": False, "should_save": False, **wanted})


def test_huggingface_names_what_follows_a_step(prof):
    hooks = TrainerHooks(prof)
    hooks.on_train_begin(None, None, None)
    hooks.on_step_end(None, None, huggingface_control())
    both = huggingface_control(should_evaluate=True, should_save=True)
    hooks.on_step_end(None, None, both)
    hooks.on_evaluate(None, None, both)
    hooks.on_save(None, None, both)
    hooks.on_epoch_end(None, None, huggingface_control(should_save=True))
    hooks.on_step_begin(None, None, huggingface_control())
    hooks.on_train_end(None, None, None)
    assert ended(prof).steps == 2
    assert phases(read_run(prof.directory).ranks[0]) == ["evaluation", "checkpoint", "checkpoint"]


def test_huggingface_training_after_one_that_failed_is_recorded_anew(prof):
    hooks = TrainerHooks(prof)
    hooks.on_train_begin(None, None, None)
    first = prof.directory
    hooks.on_train_begin(None, None, None)
    hooks.on_train_end(None, None, None)
    assert ended(prof).reason == "finished"
    assert first != prof.directory
    assert read_run(first).ranks[0].end is not None


class Accelerator:
    """What ``attach`` uses of Accelerate's."""

    def __init__(self):
        self.sync_gradients = False

    @contextlib.contextmanager
    def accumulate(self, *_models):
        self.sync_gradients = not self.sync_gradients
        yield

    def save_state(self, path):
        return path


def test_an_accumulation_that_synchronises_ends_a_step_and_a_failing_one_does_not(prof):
    accelerator = Accelerator()
    with prof:
        attach(prof, accelerator)
        for _ in range(4):
            with accelerator.accumulate("model"):
                pass
        with pytest.raises(KeyError), accelerator.accumulate("model"):
            raise KeyError
        assert accelerator.save_state("here") == "here"
    assert ended(prof).steps == 2
    assert phases(read_run(prof.directory).ranks[0]) == ["checkpoint"]


def test_an_accelerator_that_is_attached_again_counts_and_names_once(tmp_path):
    accelerator = Accelerator()
    for number in range(2):
        again = profilerkit.profile(tmp_path / str(number), deep=False, nvml=False, host=False, analyze=False)
        with again:
            attach(again, accelerator)
            attach(again, accelerator)
            for _ in range(4):
                with accelerator.accumulate("model"):
                    pass
            accelerator.save_state("here")
        assert ended(again).steps == 2
        assert phases(read_run(again.directory).ranks[0]) == ["checkpoint"]
    for name in ("accumulate", "save_state"):
        assert vars(accelerator)[name].inner == getattr(Accelerator, name).__get__(accelerator)


def test_what_is_no_accelerator_is_refused(prof):
    with pytest.raises(UsageError, match="not an Accelerator: dict"):
        attach(prof, {})


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("lightning.ProfilerkitCallback", ("lightning.pytorch", "pytorch_lightning")),
        ("lightning.ProfilerkitProfiler", ("lightning.pytorch.profilers", "pytorch_lightning.profilers")),
        ("huggingface.ProfilerkitCallback", ("transformers",)),
    ],
)
def test_a_missing_framework_is_a_usage_error(monkeypatch, name, packages):
    module, _, wanted = name.partition(".")
    integration = __import__(f"profilerkit.integrations.{module}", fromlist=["x"])
    monkeypatch.delitem(vars(integration), wanted, raising=False)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as caught:
        getattr(integration, wanted)
    assert "pip install" in caught.value.hint
    with pytest.raises(AttributeError):
        _ = integration.Callback
