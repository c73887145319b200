"""Where threads are found: the user's lines, by place, at a cost that has a bound."""

import functools
import os
import sys
import threading
import time
from pathlib import Path
from types import FunctionType

import pytest

from profilerkit.analysis.host.lines import hot_line
from profilerkit.capture import stacks
from profilerkit.capture.stacks import PERIOD_SECONDS, StackSource
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import StackSample


def found_in(tmp_path, work):
    """What one look finds of a thread that stands still in the middle of ``work``."""
    barrier = threading.Barrier(2)
    thread = threading.Thread(target=work, args=(barrier.wait,))
    thread.start()
    while not barrier.n_waiting:
        assert thread.is_alive()
    try:
        return look(tmp_path, thread.ident)
    finally:
        barrier.wait()
        thread.join()


def look(tmp_path, thread):
    source = StackSource(tmp_path / "stacks.jsonl", lambda: thread)
    return source._look(thread)


def in_file_of(module, function):
    """The same function, as if that module had it."""
    code = function.__code__.replace(co_filename=module.__file__)
    return FunctionType(code, function.__globals__, function.__name__, closure=function.__closure__)


def called(wait):
    wait()


def functions(found):
    return [line.partition("): ")[2] for line in found.lines]


def test_code_with_constants_that_cannot_be_hashed_is_looked_at(tmp_path):
    def prepare(wait):
        wait()

    code = prepare.__code__
    prepare.__code__ = code.replace(co_consts=(*code.co_consts, {}))  # as dynamo makes it
    assert functions(found_in(tmp_path, prepare)) == ["prepare"]


def test_a_line_in_a_comprehension_is_told_under_the_function_around_it(tmp_path):
    def prepare(wait):
        return [wait() for _ in range(1)]

    found = found_in(tmp_path, prepare)
    line = f"capture/test_capture_stacks.py({prepare.__code__.co_firstlineno + 1}): prepare"
    assert (found.place, found.lines, found.in_torch) == ("step", (line,), False)


def test_a_hook_is_told_from_the_backward_pass_that_calls_it(tmp_path, toy):
    def train(wait):
        def histogram(_gradient):
            wait()

        weight = toy.torch.ones(3, requires_grad=True)
        weight.register_hook(histogram)
        weight.sum().backward()

    found = found_in(tmp_path, train)
    assert (found.place, functions(found)) == ("hook", ["histogram"])


def test_a_hook_that_a_module_calls_is_told_from_its_forward_pass(tmp_path, toy):
    class Model(toy.torch.nn.Module):
        def forward(self, x):
            if not self._forward_hooks:
                self.wait()
            return x

    def train(wait, *, hooked):
        def activations(_module, _inputs, _output):
            wait()

        model = Model()
        model.wait = wait
        if hooked:
            model.register_forward_hook(activations)
        model(toy.torch.ones(3))

    hook, plain = (found_in(tmp_path, functools.partial(train, hooked=hooked)) for hooked in (True, False))
    assert (hook.place, functions(hook)) == ("forward_hook", ["activations"])
    assert (plain.place, functions(plain)) == ("step", ["train", "forward"])


def test_a_forward_pass_of_another_name_is_no_hook(tmp_path, toy):
    def train(wait):
        model = toy.torch.nn.Module()
        model.forward = lambda x: wait() or x
        model(toy.torch.ones(3))

    assert found_in(tmp_path, train).place == "step"


def test_torchs_own_python_is_under_the_line_that_called_it(tmp_path, toy):
    def train(wait):
        in_file_of(toy.torch, called)(wait)

    found = found_in(tmp_path, train)
    assert (found.place, functions(found), found.in_torch) == ("step", ["train"], True)


def one_batch(toy, dataset):
    next(iter(toy.torch.utils.data.DataLoader(dataset)))


def test_what_the_loader_calls_is_input_and_ends_where_the_loader_begins(tmp_path, toy):
    class Pictures:
        def __init__(self, wait):
            self.wait = wait

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.decode()
            return index

        def decode(self):
            self.wait()

    found = found_in(tmp_path, lambda wait: one_batch(toy, Pictures(wait)))
    assert (found.place, functions(found)) == ("input", ["__getitem__", "decode"])


def test_torchs_own_data_set_is_named_where_the_user_has_none(tmp_path, toy):
    class Pictures:
        def __init__(self, wait):
            self.wait = wait

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.wait()
            return index

    Pictures.__getitem__ = in_file_of(sys.modules["torch.utils.data.dataset"], Pictures.__getitem__)
    found = found_in(tmp_path, lambda wait: one_batch(toy, Pictures(wait)))
    assert (found.place, functions(found), found.in_torch) == ("input", ["__getitem__"], True)
    assert found.lines[0].startswith("data/dataset.py(")


def test_captures_own_work_is_no_line_of_anybodys(tmp_path):
    from profilerkit.capture import background, deep

    for module in (deep, background):
        assert found_in(tmp_path, in_file_of(module, called)) is None
    passed_on = in_file_of(background, lambda wait: called(wait))  # noqa: PLW0108  it is a frame that this is about
    assert functions(found_in(tmp_path, passed_on)) == ["called"]


def test_a_thread_that_has_ended_is_no_sample(tmp_path):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert look(tmp_path, thread.ident) is None


def test_looks_become_rarer_with_their_number_and_meet_no_loop_in_step(tmp_path):
    source = StackSource(tmp_path / "stacks.jsonl", threading.get_ident)
    source.open()

    def pauses(first):
        return [source.pause(PERIOD_SECONDS) for source._looks in range(first, first + 200)]

    few, many = pauses(0), pauses(8_000)
    assert sum(few) / 200 == pytest.approx(PERIOD_SECONDS * 1.05, rel=0.02)
    assert max(few) > 2.5 * min(few)
    assert sum(many) / 200 == pytest.approx(5 * PERIOD_SECONDS, rel=0.02)


def test_looks_take_at_most_three_in_a_thousand_of_the_time(tmp_path):
    source = StackSource(tmp_path / "stacks.jsonl", threading.get_ident)
    source.open()
    source._began = (0, 0, -1)
    wall_ns = cpu_ns = 0
    for source._looks in range(1_000):
        source._last = (wall_ns, cpu_ns, -1)
        wall_ns += int(source.pause(PERIOD_SECONDS) * 1e9)
        cpu_ns += 1_000_000
    assert cpu_ns <= 0.003 * wall_ns + 5_000_000


def looks_at(tmp_path, work, count=20):
    """What so many looks find of a thread that does ``work`` again and again."""
    done = threading.Event()

    def run():
        while not done.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    source = StackSource(tmp_path / "stacks.jsonl", lambda: thread.ident)
    source.open()
    source._written_ns = 1 << 62  # the looks are read here
    for _ in range(count):
        time.sleep(0.02)
        source.read()
    done.set()
    thread.join()
    return source._samples


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def rest(seconds):
    time.sleep(seconds)


def test_python_that_never_reaches_the_switch_interval_is_found(tmp_path):
    def work():
        compute(0.003)
        rest(0.0003)

    found = looks_at(tmp_path, work, 40)
    inside = [sample for sample in found if functions(sample)[-1:] == ["compute"]]
    # Most of 40, where neither thread waits for a processor: on a busy host one is looked at while it waits to go on.
    assert sum(sample.held_ns > 500_000 for sample in inside) >= 3
    assert not any(sample.waits for sample in inside)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="states of threads are Linux's")
def test_a_call_that_sleeps_is_known_to_wait(tmp_path):
    found = looks_at(tmp_path, functools.partial(rest, 0.01))
    inside = [sample for sample in found if functions(sample)[-1:] == ["rest"]]
    assert sum(sample.waits for sample in inside) > len(inside) / 2


def test_the_switch_interval_is_as_it_was_after_a_look_and_in_a_child_forked_amid_it(monkeypatch):
    usual = sys.getswitchinterval()
    stacks._pause_sharply(0.001)
    assert sys.getswitchinterval() == usual

    def fork(_seconds):
        assert sys.getswitchinterval() < usual
        child = os.fork()
        if not child:
            os._exit(0 if sys.getswitchinterval() == usual else 1)
        seen.append(os.waitpid(child, 0)[1])

    seen = []
    monkeypatch.setattr(stacks.time, "sleep", fork)
    stacks._pause_sharply(0.001)
    assert seen == [0]
    assert sys.getswitchinterval() == usual


def test_a_switch_interval_that_the_program_sets_amid_a_look_stays(monkeypatch):
    usual = sys.getswitchinterval()
    monkeypatch.setattr(stacks.time, "sleep", lambda _: sys.setswitchinterval(0.02))
    try:
        stacks._pause_sharply(0.001)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(usual)


def test_the_training_threads_lines_are_recorded_and_its_sampler_ends(toy, light):
    def prepare(_):
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
        return toy.data[0]

    with light() as prof:
        loader = toy.torch.utils.data.DataLoader(range(60), batch_size=1, collate_fn=prepare)
        for batch in prof.wrap(loader):
            toy.train([part[None] for part in batch])
    samples = read_run(prof.directory).ranks[0].stacks
    inside = [sample for sample in samples if sample.place == "input"]
    assert inside  # a busy host leaves few
    line = hot_line(inside)
    assert line is None or line.frames[-1].endswith("prepare")  # a busy host may leave too few that are sure
    assert not any(thread.name == "profilerkit-stacks" for thread in threading.enumerate())


def test_workers_tell_where_they_collate(toy, light):
    def join(samples):
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
        return toy.torch.tensor(samples)

    with light() as prof:
        for _ in prof.wrap(toy.torch.utils.data.DataLoader(range(120), batch_size=1, collate_fn=join, num_workers=1)):
            pass
    (worker,) = read_run(prof.directory).ranks[0].workers
    inside = [sample for sample in worker.stacks if sample.place == "collate"]
    assert len(inside) >= 5
    assert all(sample.lines[-1].endswith("): join") for sample in inside if sample.lines[0].startswith("capture/"))


def test_damaged_stacks_cost_only_themselves(light):
    with light() as prof:
        pass
    path = prof.directory / "rank_00000" / "stacks.jsonl"
    good = b'[1,"hook",0,0,["a.py(1): f"]]\n'
    path.write_bytes(good + b'["x"]\n[1,"elsewhere"]\n\xff\n[4611686018427387904]\n' + good[:9])
    rank = read_run(prof.directory).ranks[0]
    assert rank.stacks == (StackSample(t_ns=1, place="hook", lines=("a.py(1): f",)),)
    assert any("stacks.jsonl: 4 of 5 lines are damaged" in note for note in rank.notes)
