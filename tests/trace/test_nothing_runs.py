"""Pickles into which calls were put at any place: what they would have done is not done."""

import pickle
import pickletools
import random
import shlex
import struct

import pytest
from damage import refused
from flight_recipes import as_pickle, stepping
from log_recipes import grown, pickled
from mutations import in_time, nothing_runs

from profilerkit.api import analyze
from profilerkit.formats.registry import files_of, read_files

SEEDS = 500
ANALYZED_EACH = 25


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def calls(target):
    """Instructions that make a file, by what they are, each leaving nothing on the stack."""
    shell = f"touch {shlex.quote(str(target))}"
    python = f"open({str(target)!r}, 'w').close()"
    run = text(shell)
    return {
        "a global and REDUCE": b"cos\nsystem\n" + run + b"\x85R0",
        "exec": b"cbuiltins\nexec\n" + text(python) + b"\x85R0",
        "eval": b"cbuiltins\neval\n" + text(python) + b"\x85R0",
        "mkdir": b"cos\nmkdir\n" + text(str(target)) + b"\x85R0",
        "a global of the stack": text("os") + text("system") + b"\x93" + run + b"\x85R0",
        "INST": b"(" + run + b"ios\nsystem\n0",
        "OBJ": b"(cos\nsystem\n" + run + b"o0",
        "NEWOBJ": b"csubprocess\nPopen\n" + text("touch") + text(str(target)) + b"\x86\x85\x81",
        "a process": b"csubprocess\ncheck_call\n" + b"](" + text("touch") + text(str(target)) + b"e\x85R0",
        "BUILD": b"ctypes\nSimpleNamespace\n)R}" + text("a") + b"cos\nsystem\n" + run + b"\x85Rsb0",
    }


#: Objects of these classes are made, not called: nothing starts.
NOT_RUNNING = {"NEWOBJ"}


@pytest.mark.parametrize("name", calls("x"))
def test_the_calls_would_make_the_file(tmp_path, name):
    target = tmp_path / "made"
    pickle.loads(b"\x80\x04" + calls(target)[name] + b"N.")
    assert target.exists() == (name not in NOT_RUNNING)


def with_call(data, rng, target):
    """The pickle with one of the calls, whole or as it may have been damaged, between two of its instructions."""
    places = [at for _, _, at in pickletools.genops(data)]
    call = rng.choice(list(calls(target).values()))
    if rng.random() < 0.2:
        start = rng.randrange(len(call))
        call = call[start:] if rng.random() < 0.5 else call[:start]
    at = rng.choice([*places[1:], places[1], len(data)])
    return data[:at] + call + data[at:]


PICKLES = {
    **{f"snapshot {protocol}": pickled(grown(oom=True), protocol=protocol) for protocol in (2, 4)},
    **{f"dump {protocol}": as_pickle(stepping(steps=4), protocol=protocol) for protocol in (2, 4)},
}


@pytest.mark.parametrize("name", PICKLES)
def test_nothing_is_run_wherever_it_stands(tmp_path, name):
    target, path = tmp_path / "made", tmp_path / "fr_rank_0"
    for seed in range(SEEDS):
        path.write_bytes(with_call(PICKLES[name], random.Random(seed), target))
        with in_time(), nothing_runs(), refused():
            if not seed % ANALYZED_EACH:
                analyze(path)
            read_files(files_of([path], "log"), strict=False)
            read_files(files_of([path], "dump"), strict=False)
        assert [file.name for file in tmp_path.iterdir()] == [path.name], f"seed {seed}"
