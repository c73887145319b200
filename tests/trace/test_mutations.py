"""Five hundred damaged files of every format: read or refused, in time, and nothing in them is looked up or run."""

import pickle
import subprocess
import time

import pytest
from damage import Hostile
from mutations import FORMATS, Format, HangError, hold

SEEDS = 500
#: The same reader reads these, from a list without a document around it.
FEWER = {"legacy": 100}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    found, path = FORMATS[name], tmp_path / "files" / "trace.json"
    path.parent.mkdir()
    originals = found.originals(path)
    for seed in range(FEWER.get(name, SEEDS)):
        if path.is_file():
            path.unlink()  # ext4 writes out at once what is truncated and written again: 3 ms
        try:
            hold(found, originals, seed, path)
        except (Exception, HangError) as error:
            raise AssertionError(f"seed {seed}; scripts/fuzz_reader --format {name} --seed {seed} --seeds 1") from error


def test_what_runs_or_hangs_is_noticed(tmp_path, monkeypatch):
    """The watch itself can fail: it is shown readers that do what they must not."""

    def read_by(function):
        return Format(lambda path: None, lambda _originals, _seed, _path: function())

    hostile = pickle.dumps(Hostile(tmp_path / "made"))
    for function in (lambda: pickle.loads(hostile), lambda: subprocess.run(["true"], check=True)):
        with pytest.raises(AssertionError, match=r"find_class|Popen"):
            hold(read_by(function), None, 0, tmp_path)
    monkeypatch.setattr("mutations.HANGS_AFTER_S", 0.05)
    with pytest.raises(HangError):
        hold(read_by(lambda: time.sleep(60)), None, 0, tmp_path)
