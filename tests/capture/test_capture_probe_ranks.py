"""Probes on two ranks that differ: none waits for the other for long, and the training ends as without probes."""

import json
import threading

import pytest

from profilerkit.capture.probes import agreement
from profilerkit.capture.probes.agreement import Agreement, LostError
from tests import programs

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TRAINING = '''
import hashlib, json, os, sys
import torch, torch.distributed as dist
import profilerkit
from profilerkit.capture.probes import agreement, kinds
from profilerkit.capture.session import active

# Short where a rank never replies, long where a slow machine must not matter.
STEPS, SHORT_S, LONG_S = 90, 2.0, 20.0
PROBES = {
    "unasked": [("input",), ()],
    "others": [("input",), ("bf16",)],
    "evaluating": [("input",), ("input",)],
    "failing": [("bf16", "input"), ("bf16", "input")],
    "leaving": [("input",), ("input",)],
    "leaving together": [("input",), ("input",)],
}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS
    def __getitem__(self, index):
        return torch.full((8,), float(index))

class Loop:
    """Gives as many steps as are the run's own; once it starts over, inside of a probe or before a step of its own."""

    def __init__(self, probes, mode, leave_at):
        self.probed, self.leave_at = bool(probes), leave_at
        self.leaves = mode == "leaving together" or (mode == "leaving" and rank == 1)
        self.own, self.inserted, self.left_at = 0, 0, None

    def is_inside(self):
        return self.probed and active()._probing.is_inside

    def stepped(self):
        if self.is_inside():
            self.inserted += 1
        else:
            self.own += 1

    def batches(self):
        while self.own < STEPS:
            for batch in torch.utils.data.DataLoader(Data(), 4):
                if self.leaves and self.left_at is None and (self.inserted == 5 or self.own == self.leave_at):
                    self.left_at = self.own
                    break
                yield batch
                if self.own == STEPS:
                    return

def fail(probe):
    raise RuntimeError

def train(directory, probes, mode, leave_at=None):
    torch.manual_seed(rank)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    light = dict(deep=False, nvml=False, host=False, analyze=False, warmup_steps=1)
    loop = Loop(probes, mode, leave_at)
    with profilerkit.profile(directory, **light, probes=probes):
        for batch in loop.batches():
            model(batch + rank).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.stepped()
            if mode == "evaluating" and rank == 0 and loop.is_inside():
                sum(1 for _ in torch.utils.data.DataLoader(Data(), 200))
    held = [value.flatten().double() for value in layers.state_dict().values()]
    return hashlib.sha256(torch.cat(held).numpy().tobytes()).hexdigest(), loop.left_at

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
plain, _ = train(sys.argv[1] + "-plain", (), "")
same = {}
for mode, probes in PROBES.items():
    agreement.PATIENCE_S = SHORT_S if mode in ("unasked", "leaving") else LONG_S
    apply = kinds.Bf16Probe.apply
    if mode == "failing" and rank == 1:
        kinds.Bf16Probe.apply = fail
    probed, left_at = train(sys.argv[1] + "-" + mode, probes[rank], mode)
    kinds.Bf16Probe.apply = apply
    is_left = [None, None]
    dist.all_gather_object(is_left, left_at)
    if any(is_left):
        same[mode] = probed == train(sys.argv[1] + "-plain-" + mode, (), mode, max(filter(None, is_left)))[0]
    else:
        same[mode] = probed == plain and not mode.startswith("leaving")
with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
    json.dump(same, file)
os._exit(0)  # torch 2.13 may abort at exit once it had a gloo group
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where the two ranks trained, and per rank which trainings ended as the one without probes."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "train.py"
    script.write_text(TRAINING)
    run = folder / "run"
    programs.ranks(script, run, timeout=300, check=True)
    return run, [json.loads(run.with_name(f"{run.name}-{rank}.json").read_text()) for rank in range(2)]


def ranks(trained, mode):
    """Per rank its probes: name, reason, first and last step."""
    found = []
    for rank in range(2):
        path = trained[0].with_name(f"{trained[0].name}-{mode}") / f"rank_0000{rank}" / "probes.json"
        runs = json.loads(path.read_text())["probes"] if path.is_file() else []
        found.append([(one["name"], one["reason"], one["first_step"], one["last_step"]) for one in runs])
    return found


@pytest.mark.parametrize("mode", ["unasked", "others", "evaluating", "failing", "leaving", "leaving together"])
def test_ranks_that_differ_end_as_without_probes(trained, mode):
    assert [same[mode] for same in trained[1]] == [True, True]


def test_rank_that_was_asked_for_no_probe_is_not_waited_for(trained):
    first, second = ranks(trained, "unasked")
    assert first == [("input", "1 of 2 ranks did not reply within 2 s", None, None)]
    assert second == []


def test_ranks_that_were_asked_for_other_probes_make_none(trained):
    reason = "the ranks are not at the same step of the same probes"
    assert ranks(trained, "others") == [[("input", reason, None, None)], [("bf16", reason, None, None)]]


def test_rank_that_evaluates_alone_stays_in_the_probe(trained):
    first, second = ranks(trained, "evaluating")
    assert first == second
    assert first[0][1] == ""
    assert first[0][2] is not None


def test_what_fails_on_one_rank_leaves_the_number_of_steps_as_it_is(trained):
    first, second = ranks(trained, "failing")
    assert [(one[0], one[2], one[3]) for one in first] == [(one[0], one[2], one[3]) for one in second]
    assert [one[1] for one in first] == ["", "another rank cannot: it failed on this rank"]
    assert [one[1] for one in second] == ["", "it failed on this rank"]


def test_rank_that_leaves_its_loader_alone_stays_to_the_end_of_the_probe(trained):
    first, second = ranks(trained, "leaving")
    reason = "the loop left its loader in the middle of it"
    assert [first[0][1], second[0][1]] == [f"another rank cannot: {reason}", reason]
    assert first[0][2:] == second[0][2:]
    assert first[0][3] - first[0][2] > 20


def test_ranks_that_leave_their_loaders_together_break_off_at_once(trained):
    first, second = ranks(trained, "leaving together")
    assert first == second
    assert first[0][1] == "the loop ended before it was over"
    assert first[0][3] - first[0][2] < 10


# The answers themselves


def answers(*replies, patience_s=5.0, monkeypatch):
    """What each of two ranks hears of ``replies``: answer and question, or ``None`` for a rank that says nothing."""
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(agreement, "PATIENCE_S", patience_s)
    store, heard = distributed.HashStore(), {}

    def ask(rank, answer, about):
        try:
            heard[rank] = Agreement(store, len(replies), "block").ask(answer, about)
        except LostError as error:
            heard[rank] = error

    threads = [threading.Thread(target=ask, args=(rank, *said)) for rank, said in enumerate(replies) if said]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [str(heard.get(rank)) for rank in range(len(replies))]


def test_one_rank_that_cannot_speaks_for_all(monkeypatch):
    assert answers(("", "same"), ("", "same"), monkeypatch=monkeypatch) == ["", ""]
    assert answers(("", "same"), ("no memory", "same"), monkeypatch=monkeypatch) == ["no memory", "no memory"]


def test_silent_or_mistaken_rank_makes_the_others_lost(monkeypatch):
    silent = answers(("", "same"), None, patience_s=0.05, monkeypatch=monkeypatch)
    assert silent[0] == "1 of 2 ranks did not reply within 0.05 s"
    differing = answers(("", "one"), ("", "two"), monkeypatch=monkeypatch)
    assert differing == ["the ranks are not at the same step of the same probes"] * 2


class Wrapped:
    """A store that ``change`` is made to, beside what it does."""

    def __init__(self, store, **change):
        self.store, self.change = store, change

    def __getattr__(self, name):
        change = self.change.get(name)
        work = getattr(self.store, name)
        return work if change is None else lambda *args: change(work, *args)


def test_error_after_the_answer_is_set_does_not_part_the_ranks():
    store = pytest.importorskip("torch.distributed").HashStore()

    def set_and_fail(work, *args):
        held = work(*args)
        if args[0].endswith("decided"):
            raise RuntimeError("the connection was lost")
        return held

    assert Agreement(Wrapped(store, compare_set=set_and_fail), 1, "block").ask("no memory", "same") == "no memory"


def test_reply_at_the_last_moment_counts(monkeypatch):
    store = pytest.importorskip("torch.distributed").HashStore()
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.0)

    def add_late(work, key, count):
        if not count:  # the other rank has replied, and has not said yet what all did
            work(key, 1)
        return work(key, count)

    assert Agreement(Wrapped(store, add=add_late), 2, "block").ask("no memory", "same") == "no memory"


def test_rank_that_comes_late_hears_what_the_others_decided(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.05)
    store = distributed.HashStore()
    early, late = Agreement(store, 2, "block"), Agreement(store, 2, "block")
    with pytest.raises(LostError, match="1 of 2 ranks did not reply"):
        early.ask("", "same")
    with pytest.raises(LostError, match="1 of 2 ranks did not reply"):
        late.ask("", "same")
    for one in (early, late):
        with pytest.raises(LostError):
            one.ask("", "anything")
