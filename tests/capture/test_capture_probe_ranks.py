"""Probes on two ranks that differ: none waits for the other for long, and the training ends as without probes."""

import json
import subprocess
import sys
import threading

import pytest

from profilerkit.capture.probes import agreement
from profilerkit.capture.probes.agreement import Agreement, LostError
from tests.capture.test_capture_distributed import clean
from tests.capture.test_capture_distributed_torch import ABORTS, TRIES

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TRAINING = """
import hashlib, json, sys
import torch, torch.distributed as dist
import profilerkit
from profilerkit.capture.probes import agreement, kinds
from profilerkit.capture.session import active
from profilerkit.rundir.reader import read_run

agreement.PATIENCE_S = 2.0
PROBES = {
    "unasked": [("input",), ()],
    "others": [("input",), ("bf16",)],
    "evaluating": [("input",), ("input",)],
    "failing": [("bf16", "input"), ("bf16", "input")],
}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        return torch.full((8,), float(index))

def fail(probe):
    raise RuntimeError

def train(directory, probes, mode):
    torch.manual_seed(rank)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    light = dict(deep=False, nvml=False, host=False, analyze=False, warmup_steps=1)
    with profilerkit.profile(directory, **light, probes=probes):
        for batch in torch.utils.data.DataLoader(Data(), 4):
            model(batch + rank).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            inside = bool(probes) and active()._probing.is_inside
            if mode == "evaluating" and rank == 0 and inside:
                sum(1 for _ in torch.utils.data.DataLoader(Data(), 200))
    held = [value.flatten().double() for value in layers.state_dict().values()]
    return hashlib.sha256(torch.cat(held).numpy().tobytes()).hexdigest()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
plain = train(sys.argv[1] + "-plain", (), "")
same = {}
for mode, probes in PROBES.items():
    apply = kinds.Bf16Probe.apply
    if mode == "failing" and rank == 1:
        kinds.Bf16Probe.apply = fail
    same[mode] = train(sys.argv[1] + "-" + mode, probes[rank], mode) == plain
    kinds.Bf16Probe.apply = apply
with open(f"{sys.argv[1]}-{rank}.json", "w") as file:
    json.dump(same, file)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where the two ranks trained, and per rank which trainings ended as the one without probes."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "train.py"
    script.write_text(TRAINING)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for number in range(TRIES):
        run = folder / f"try-{number}"
        done = subprocess.run(
            [sys.executable, *launcher, str(script), str(run)],
            env=clean(OMP_NUM_THREADS=1),
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode == 0:
            return run, [json.loads((folder / f"{run.name}-{rank}.json").read_text()) for rank in range(2)]
        assert any(sign in done.stderr for sign in ABORTS), done.stderr[-3000:]
    pytest.skip("torch aborted at exit each time")


def ranks(trained, mode):
    """Per rank its probes: name, reason, first and last step."""
    found = []
    for rank in range(2):
        path = trained[0].with_name(f"{trained[0].name}-{mode}") / f"rank_0000{rank}" / "probes.json"
        runs = json.loads(path.read_text())["probes"] if path.is_file() else []
        found.append([(one["name"], one["reason"], one["first_step"], one["last_step"]) for one in runs])
    return found


@pytest.mark.parametrize("mode", ["unasked", "others", "evaluating", "failing"])
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
