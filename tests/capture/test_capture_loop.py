"""Real torch loops under the light tier."""

import contextlib
import gc
import os
import threading
import time

import pytest

from profilerkit.analysis.events import with_evaluation
from profilerkit.rundir.layout import EVENT, EventFlag, EventKind
from tests.capture.conftest import Event

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("workers", [0, 2])
def test_wrapped_loader_gives_a_step_and_a_wait_per_batch(toy, light, recorded, workers):
    with light() as prof:
        loader = prof.wrap(toy.loader(num_workers=workers))
        for _ in range(2):
            for batch in loader:
                toy.train(batch)
    run = recorded(prof.directory)
    assert [step.value for step in run.steps] == list(range(16))
    assert {step.flags for step in run.steps} == {0}
    assert [wait.flags for wait in run.waits] == 2 * [EventFlag.FIRST, *[0] * 7, EventFlag.LAST]
    assert len(run.of(EventKind.BACKWARD)) == len(run.of(EventKind.OPTIMIZER)) == 16
    assert run.rank.meta.steps_found_by == "wrapped loader"
    assert run.rank.end.steps == 16


def test_each_wait_lies_inside_the_step_it_fed(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    for step, wait in zip(run.steps, run.waits, strict=False):
        assert step.start_ns <= wait.start_ns
        assert wait.start_ns + wait.dur_ns <= step.start_ns + step.dur_ns
    for step, after in zip(run.steps, run.steps[1:], strict=False):
        assert step.start_ns + step.dur_ns == after.start_ns


@pytest.mark.parametrize("workers", [0, 2])
def test_unedited_loop_is_understood(toy, light, recorded, workers):
    with light() as prof:
        for batch in toy.loader(num_workers=workers):
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert {step.flags for step in run.steps} == {EventFlag.INFERRED}
    assert len(run.waits) == 9
    assert all(wait.flags & EventFlag.INFERRED for wait in run.waits)
    assert run.rank.meta.steps_found_by == "optimizer step"
    assert run.rank.meta.loader.num_workers == workers
    assert run.rank.meta.loader.batch_size == 8
    assert run.rank.meta.loader.dataset_len == 64
    assert run.rank.meta.loader.is_iterable is False
    assert run.rank.meta.threads == toy.torch.get_num_threads()


@pytest.mark.parametrize("checks_first", [False, True])
def test_the_loader_of_an_evaluation_is_not_taken_for_the_one_that_feeds_the_steps(toy, light, recorded, checks_first):
    """As a callback of the first iteration, and as a check before training, do."""

    def evaluate():
        for batch in toy.loader(16):
            toy.model(batch[0])

    with light() as prof:
        if checks_first:
            evaluate()
        for number, batch in enumerate(toy.loader(8)):
            toy.train(batch)
            if number == 0 and not checks_first:
                evaluate()
    assert recorded(prof.directory).rank.meta.loader.batch_size == 8


def test_step_groups_accumulated_micro_batches(toy, light, recorded):
    with light() as prof:
        for number, batch in enumerate(prof.wrap(toy.loader()), 1):
            toy.backward(batch)
            if number % 4 == 0:
                toy.update()
                prof.step()
    run = recorded(prof.directory)
    assert len(run.steps) == 2
    assert len(run.of(EventKind.BACKWARD)) == 8
    assert run.rank.meta.steps_found_by == "step()"


def test_generator_loader_is_timed(toy, light, recorded):
    def batches():
        for _ in range(6):
            time.sleep(0.005)
            yield toy.batch()

    with light() as prof:
        for batch in prof.wrap(batches()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 6
    assert all(wait.dur_ns > 4_000_000 for wait in run.waits[:6])


def test_iterable_dataset_is_timed_without_asking_its_length(toy, light, recorded):
    torch = toy.torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(toy.data)

        def __len__(self):
            raise AssertionError("torch does not ask, and it may take long")

    with light() as prof:
        for batch in prof.wrap(torch.utils.data.DataLoader(Stream(), batch_size=8)):
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert run.rank.meta.loader.is_iterable is True


@pytest.mark.parametrize("wraps", [True, False])
def test_a_sampler_of_the_users_is_not_asked_how_long_it_is(toy, deep, wraps):
    class Drawing(toy.torch.utils.data.Sampler):
        def __iter__(self):
            return iter([list(range(at, at + 8)) for at in range(0, 64, 8)])

        def __len__(self):
            raise AssertionError("the answer may draw the batches, and change those that come")

    loader = toy.torch.utils.data.DataLoader(toy.data, batch_sampler=Drawing())
    with deep() as prof:
        for batch in prof.wrap(loader) if wraps else loader:
            toy.train(batch)


def test_a_loader_that_gives_a_generator_for_its_iterator_is_left_alone(toy, light):
    loader = toy.loader()
    loader._get_iterator = lambda: iter([1, 2, 3])
    with light() as prof:
        assert list(prof.wrap(loader)) == [1, 2, 3]


def test_optimizer_steps_that_nest_or_run_beside_another_threads_have_their_own_time(toy, light, recorded):
    torch = toy.torch

    class Sleeping(torch.optim.SGD):
        inner = None

        def step(self, closure=None):
            time.sleep(0.02)
            if self.inner is not None:
                self.inner.step()
                time.sleep(0.02)

    outer, inner, theirs = (Sleeping(torch.nn.Linear(2, 2).parameters()) for _ in range(3))
    outer.inner = inner
    done = threading.Event()

    def beside():
        while not done.wait(0.005):
            theirs.step()

    with light() as prof:
        for batch in toy.loader():
            toy.train(batch)
        other = threading.Thread(target=beside)
        other.start()
        for _ in range(3):
            outer.step()
        done.set()
        other.join()
    nested = [event.dur_ns / 1e6 for event in recorded(prof.directory).of(EventKind.OPTIMIZER)][8:]
    assert len(nested) == 6
    assert all(20 <= time_ms < 40 for time_ms in nested[::2])
    assert all(time_ms >= 60 for time_ms in nested[1::2])


def test_sleeping_fetch_and_computing_fetch_differ_in_cpu_time(toy, light, recorded):
    def sleeping():
        time.sleep(0.03)
        yield toy.batch()

    def computing():
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        yield toy.batch()

    with light() as prof:
        list(prof.wrap(sleeping()))
        list(prof.wrap(computing()))
    slept, _, computed, _ = recorded(prof.directory).waits
    assert slept.value < 10_000_000
    assert computed.value >= 30_000_000


def test_loop_without_loader_is_cut_by_optimizer_steps(toy, light, recorded):
    with light() as prof:
        for _ in range(6):
            toy.train(toy.batch())
    run = recorded(prof.directory)
    assert len(run.steps) == 6
    assert run.waits == []
    assert run.rank.meta.features["loader"].reason == "no loader was seen on the training thread"


def test_wrapped_loader_keeps_length_attributes_and_truth(toy, light):
    with light() as prof:
        loader = toy.loader()
        wrapped = prof.wrap(loader)
        assert len(wrapped) == 8
        assert wrapped.dataset is toy.data
        assert wrapped.batch_size == 8
        wrapped.extra = 1
        assert loader.extra == 1
        assert not prof.wrap([])
        assert prof.wrap(iter([]))
        with pytest.raises(AttributeError):
            _ = wrapped.nothing
        with pytest.raises(TypeError):
            len(prof.wrap(object()))
    assert sum(1 for _ in wrapped) == 8


def test_error_in_the_loader_passes_and_the_iterator_can_go_on(light):
    class Flaky:
        def __init__(self):
            self.number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number == 2:
                raise ValueError("bad sample")
            if self.number == 4:
                raise StopIteration
            return self.number

    with light() as prof:
        iterator = iter(prof.wrap(Flaky()))
        assert next(iterator) == 1
        with pytest.raises(ValueError, match="bad sample"):
            next(iterator)
        assert list(iterator) == [3]


def test_prefetch_thread_is_not_the_training_loop(toy, light, recorded):
    with light() as prof:
        batches = []
        thread = threading.Thread(target=lambda: batches.extend(toy.loader()))
        thread.start()
        thread.join()
        for batch in batches:
            toy.train(batch)
    run = recorded(prof.directory)
    assert all(wait.flags & EventFlag.OTHER_THREAD for wait in run.waits)
    assert len(run.steps) == 8


def test_training_on_another_thread_is_followed(toy, light, recorded):
    def train():
        for batch in toy.loader():
            toy.train(batch)

    with light() as prof:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert len(recorded(prof.directory).steps) >= 6


def test_worker_processes_record_nothing(toy, light, recorded):
    torch = toy.torch

    class Nosy(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            gc.collect(0)
            from profilerkit.capture import session

            return int(session._State.active is None), len(gc.callbacks), os.getpid()

    before = len(gc.callbacks)
    with light() as prof:
        rows = list(prof.wrap(torch.utils.data.DataLoader(Nosy(), num_workers=2)))
    assert all(int(inactive) and int(callbacks) == before for inactive, callbacks, _ in rows)
    assert os.getpid() not in {int(pid) for *_, pid in rows}
    assert len(recorded(prof.directory).waits) == 9


def test_everything_is_put_back_after_the_block(toy, light):
    torch = toy.torch
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    def state():
        return (
            dataloader._BaseDataLoaderIter.__dict__["__next__"],
            dataloader.DataLoader.__dict__["__iter__"],
            torch.autograd._engine_run_backward,
            dict(optimizer._global_optimizer_pre_hooks),
            dict(optimizer._global_optimizer_post_hooks),
            list(gc.callbacks),
        )

    before = state()
    with light() as prof:
        assert state() != before
        toy.train(toy.batch())
        assert prof.directory is not None
    assert state() == before
    with pytest.raises(KeyError), light():
        raise KeyError("x")
    assert state() == before


def test_patch_on_top_of_ours_stays(toy, light):
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    original = iterator.__next__
    try:
        with light():
            ours = iterator.__next__

            def theirs(self):
                return ours(self)

            iterator.__next__ = theirs
        assert iterator.__next__ is theirs
        assert len(list(toy.loader())) == 8
    finally:
        iterator.__next__ = original


def test_torch_imported_inside_the_block_is_hooked(tmp_path, recorded):
    import subprocess
    import sys

    pytest.importorskip("torch")
    code = f"""
import time, profilerkit
with profilerkit.profile({str(tmp_path / "run")!r}, deep=False, nvml=False, host=False, analyze=False) as prof:
    import torch
    time.sleep(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=4):
        model(x).sum().backward()
        optimizer.step()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(recorded(tmp_path / "run").steps) == 10


UNSEEN_NS = 1_500


def looks_ns(stacks):
    """What looks at the stack cost: on a busy machine a short loop lasts until the first one."""
    return stacks.taken * (stacks.meter.median_ns + UNSEEN_NS) if stacks is not None and stacks.taken else 0


def test_own_cost_is_that_of_the_calls_of_the_run(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
        timer, hooks, stacks = prof._session._timer, prof._session._hooks, prof._session._cost._stacks
    steps, own_ns = len(recorded(prof.directory).steps), recorded(prof.directory).rank.meta.self_ns_per_step
    seen_ns = [meter.median_ns for meter in (timer.meter, *hooks.meters)]
    assert all(200 < own_ns < 20_000_000 for own_ns in seen_ns), seen_ns
    calls = (timer.fetches, timer.tracker.backwards, steps)
    seen = sum((ns + UNSEEN_NS) * n for ns, n in zip(seen_ns, calls, strict=True))
    assert own_ns == pytest.approx((seen + looks_ns(stacks)) / steps)


def test_what_did_not_occur_costs_nothing(light, recorded):
    with light() as prof:
        list(prof.wrap(range(20)))
        timer, hooks, stacks = prof._session._timer, prof._session._hooks, prof._session._cost._stacks
    assert [meter.median_ns for meter in hooks.meters] == [None, None]
    own_ns = recorded(prof.directory).rank.meta.self_ns_per_step - looks_ns(stacks) / len(
        recorded(prof.directory).steps
    )
    assert timer.meter.median_ns < own_ns < 2 * timer.meter.median_ns + 3_000


def test_cpu_time_of_short_waits_is_read_for_some_and_of_long_ones_for_all(light, recorded):
    def slow():
        for number in range(10):
            time.sleep(0.002)
            yield number

    with light() as prof:
        list(prof.wrap(range(400)))
        list(prof.wrap(slow()))
    values = [wait.value for wait in recorded(prof.directory).waits]
    assert all(value >= 0 for value in values[:16])
    # One more is read of each that lasted because other programs had the processor.
    assert 384 // 16 <= sum(value >= 0 for value in values[16:400]) <= 384 // 8
    assert all(value >= 0 for value in values[402:])


def flagged(run, *flags):
    """Waits that carry all these flags."""
    return [wait for wait in run.waits if all(wait.flags & flag for flag in flags)]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_validation_loader_inside_the_loop_is_not_the_training_input(toy, light, recorded, wrapped, named):
    torch = toy.torch
    validation = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 16)), batch_size=4)
    with light() as prof:
        loader = toy.loader()
        for number, batch in enumerate(prof.wrap(loader) if wrapped else loader):
            toy.train(batch)
            if number % 4 == 3:
                with prof.phase("evaluation") if named else contextlib.nullcontext(), torch.no_grad():
                    for (inputs,) in validation:
                        toy.model(inputs)
    run = recorded(prof.directory)
    assert len(run.waits) == 9 + 2 * 4
    assert len(flagged(run, EventFlag.OTHER_LOADER, EventFlag.INFERRED)) == (8 if wrapped else 0)
    assert len(flagged(run, EventFlag.IN_PHASE)) == (8 if named else 0)
    assert len(run.steps) == 8


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_graphs_made_between_the_batches_of_an_evaluation_are_seen(toy, light, recorded, wrapped, gradients):
    torch = toy.torch
    validation = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 16)), batch_size=4)
    with light() as prof:
        loader = toy.loader()
        for number, batch in enumerate(prof.wrap(loader) if wrapped else loader):
            toy.train(batch)
            if number % 4 == 3:
                with torch.set_grad_enabled(gradients):
                    for (inputs,) in validation:
                        toy.model(inputs)
    # Two evaluations of three batches; the first of each follows a backward pass.
    assert len(flagged(recorded(prof.directory), EventFlag.GRAPHS)) == (6 if gradients else 0)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("name", ["data", "step", "epoch"])
def test_training_input_stays_the_training_input_whatever_phase_is_around_it(toy, light, recorded, wrapped, name):
    with light() as prof:
        loader = toy.loader()
        batches = iter(prof.wrap(loader) if wrapped else loader)
        with prof.phase("epoch") if name == "epoch" else contextlib.nullcontext():
            for _ in range(8):
                with prof.phase(name) if name != "epoch" else contextlib.nullcontext():
                    batch = next(batches)
                    if name == "step":
                        toy.train(batch)
                if name != "step":
                    toy.train(batch)
    # The first batch of a loader that was not wrapped comes before anything shows what it is for.
    assert len(flagged(recorded(prof.directory), EventFlag.IN_PHASE)) == (0 if wrapped else 1)


def test_counter_that_is_wrapped_leaves_the_input_to_the_loader_it_counts_for(toy, light, recorded):
    with light() as prof:
        batches = iter(toy.loader())
        for _ in prof.wrap(range(8)):
            toy.train(next(batches))
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert len(flagged(run, EventFlag.OTHER_LOADER)) == 1


def test_evaluation_in_a_phase_before_the_training_of_every_iteration_is_told_apart(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            with prof.phase("evaluation"):
                list(toy.loader(batches=2))
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(flagged(run, EventFlag.IN_PHASE, EventFlag.OTHER_LOADER)) == 8 * 3


def test_wrapped_loader_evaluated_in_a_phase_between_epochs_marks_no_steps(toy, light, recorded):
    with light() as prof:
        loader, validation = prof.wrap(toy.loader()), prof.wrap(toy.loader(batches=4))
        for _ in range(2):
            for batch in loader:
                toy.train(batch)
            with prof.phase("evaluation"):
                list(validation)
    run = recorded(prof.directory)
    assert len(run.steps) == 16
    assert len(flagged(run, EventFlag.IN_PHASE)) == 2 * 5


@pytest.mark.parametrize("workers", [0, 2])
def test_wrapped_loader_that_is_evaluated_without_a_phase_marks_no_steps(toy, light, recorded, workers):
    with light() as prof:
        for _ in range(3):
            for batch in prof.wrap(toy.loader(num_workers=workers)):
                toy.train(batch)
            for inputs, _ in prof.wrap(toy.loader(batches=4, num_workers=workers)):
                toy.model(inputs)
    run = recorded(prof.directory)
    assert [step.value for step in run.steps] == list(range(24))
    record = with_evaluation(run.rank)
    phases = [Event(*fields) for fields in EVENT.iter_unpack(record.events) if fields[0] == EventKind.PHASE]
    assert len(phases) == 3
    assert all(step.start_ns + step.dur_ns <= phases[0].start_ns for step in run.steps[:8])


def test_fetch_on_another_thread_inside_its_own_phase_says_both(toy, light, recorded):
    def evaluate():
        with prof.phase("evaluation"):
            list(toy.loader(batches=2))

    with light() as prof:
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(flagged(run, EventFlag.IN_PHASE, EventFlag.OTHER_THREAD)) == 3
    assert len(flagged(run, EventFlag.IN_PHASE)) == 3


def test_two_models_trained_in_turn_without_a_loader_make_one_step_per_iteration(toy, light, recorded):
    torch = toy.torch
    generator, critic = torch.nn.Linear(4, 16), toy.model
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (critic, generator)]
    with light() as prof:
        for _ in range(20):
            for optimizer in optimizers:
                critic(generator(torch.randn(8, 4))).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    run = recorded(prof.directory)
    assert len(run.steps) == 20
    assert run.rank.meta.steps_found_by == "optimizer step"


def test_wrapped_list_is_indexed_searched_and_reversed_like_the_list(light, recorded):
    with light() as prof:
        wrapped = prof.wrap([1, 2, 3])
        assert wrapped[1] == 2
        assert wrapped[:2] == [1, 2]
        assert 3 in wrapped
        assert 4 not in wrapped
        assert list(reversed(wrapped)) == [3, 2, 1]
        assert list(wrapped) == [1, 2, 3]
        with pytest.raises(TypeError, match="'set' object is not subscriptable"):
            prof.wrap({1})[0]
        with pytest.raises(TypeError, match="'set' object is not reversible"):
            reversed(prof.wrap({1}))
    assert len(recorded(prof.directory).steps) == 3


@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("training", ["train", None])
def test_a_loader_that_is_evaluated_too_makes_no_steps_there(toy, light, recorded, wraps, workers, training):
    loader = toy.loader(num_workers=workers, persistent_workers=workers > 0)
    with light() as prof:
        for _ in range(3):
            with prof.phase(training) if training else contextlib.nullcontext():
                for batch in prof.wrap(loader) if wraps else loader:
                    toy.train(batch)
            with prof.phase("evaluation"):
                for _ in loader:
                    pass
    run = recorded(prof.directory)
    assert len(run.steps) == 24
    phases = [phase for phase in run.of(EventKind.PHASE) if run.rank.names[phase.name] == "evaluation"]
    evaluated = [
        wait
        for wait in run.waits
        for phase in phases
        if phase.start_ns <= wait.start_ns <= phase.start_ns + phase.dur_ns
    ]
    assert len(evaluated) == 27
    assert all(wait.flags & EventFlag.IN_PHASE for wait in evaluated)


def test_a_loop_that_is_an_evaluation_by_its_name_has_steps(toy, light, recorded):
    loader = toy.loader()
    with light() as prof:
        for _ in range(2):
            with prof.phase("evaluation"):
                for batch in prof.wrap(loader):
                    toy.model(batch[0])
    assert len(recorded(prof.directory).steps) == 16
