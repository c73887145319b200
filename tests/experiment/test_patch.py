"""A patch of the user's source: applied as people apply it, run, and refused where it would be a guess."""

import os
import re
import shutil
import subprocess
import sys
from types import ModuleType
from typing import NamedTuple

import pytest

from profilerkit.capture.changes import SETTINGS as SHIPPED
from profilerkit.experiment.patch import patch_of
from profilerkit.model.finding import CodeLine, SettingChange
from profilerkit.model.trial import Attempt


class Place(NamedTuple):
    call: str = ""
    statement: str = ""


SETTINGS = {
    **dict.fromkeys(("num_workers", "persistent_workers", "pin_memory"), Place("DataLoader")),
    **dict.fromkeys(("fused", "foreach"), Place("optimizer")),
    "static_graph": Place("DistributedDataParallel"),
    "set_to_none": Place("zero_grad"),
    "matmul_precision": Place(statement="torch.set_float32_matmul_precision({!r})"),
    "cudnn_benchmark": Place(statement="torch.backends.cudnn.benchmark = {!r}"),
    "autocast": Place(),
}
PROGRAM = """\
import torch
from torch.utils.data import DataLoader

def main(data, model):
    loader = DataLoader(data, 32)
    optimizer = torch.optim.SGD(model, lr=0.1)
    return loader, optimizer

made = main("ä", "m")"""
LINES = {"DataLoader": 5, "optimizer": 6}


def kept(*changes, lines=(5,), file="train.py", code=""):
    made = tuple(SettingChange(name, "", value) for name, value in changes)
    places = tuple(CodeLine(file, line, "main") for line in lines)
    return Attempt(changes=made, outcome="faster", lines=places, code=code)


def written(directory, text, *attempts, name="train.py", script="train.py"):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    patch, notes = patch_of(attempts, SETTINGS, directory, script)
    assert path.read_bytes() == text.encode()
    return patch, notes


def applied(directory, patch, name="train.py", tool="patch"):
    (directory / "kept.diff").write_bytes(patch.encode())
    command = {"patch": ["patch", "-p1", "-s", "-i", "kept.diff"], "git": ["git", "apply", "kept.diff"]}[tool]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    variables = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env=variables)
    return (directory / name).read_bytes().decode()


@pytest.fixture
def run(monkeypatch):
    """Run a text with a torch whose calls return their arguments."""
    found = {name: ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data", "torch.optim")}
    torch, data, optim = found["torch"], found["torch.utils.data"], found["torch.optim"]
    torch.optim, torch.said = optim, []
    torch.set_float32_matmul_precision = torch.said.append
    data.DataLoader = optim.SGD = optim.AdamW = lambda *args, **keywords: (args, keywords)
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)

    def run(text):
        names = {"said": torch.said}
        exec(compile(text, "train.py", "exec"), names)
        return names

    return run


@pytest.mark.parametrize("tool", ["patch", "git"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_patch_applies_and_the_program_runs_with_the_changes(tmp_path, run, tool, end):
    attempts = (
        kept(("num_workers", 3), ("persistent_workers", True)),
        kept(("fused", True), lines=(6,)),
        kept(("matmul_precision", "high"), lines=()),
    )
    patch, notes = written(tmp_path, PROGRAM.replace("\n", end), *attempts)
    assert notes == ()
    text = applied(tmp_path, patch, tool=tool)
    assert text.count(end) == text.count("\n")
    found = run(text)
    loader, optimizer = found["made"]
    assert loader == (("ä", 32), {"num_workers": 3, "persistent_workers": True})
    assert optimizer == (("m",), {"lr": 0.1, "fused": True})
    assert found["said"] == ["high"]


CALLS = {
    "no argument": ("DataLoader()", "DataLoader(num_workers=3)"),
    "a value that is there": ("DataLoader(d, num_workers=args.n, **more)", "DataLoader(d, num_workers=3, **more)"),
    "brackets around a value": ("DataLoader(d, num_workers=(1 + 1))", "DataLoader(d, num_workers=(3))"),
    "brackets around the last": ("DataLoader(d, b=(1 + 1))", "DataLoader(d, b=(1 + 1), num_workers=3)"),
    "a comma at the end": ("DataLoader(d, 2,)", "DataLoader(d, 2, num_workers=3,)"),
    "wide letters before it": ('ä("ö"), DataLoader("ü")', 'ä("ö"), DataLoader("ü", num_workers=3)'),
    "a call in a call": ("list(DataLoader(d(1)))", "list(DataLoader(d(1), num_workers=3))"),
    "several lines": (
        "DataLoader(\n    d,  # (data,\n    b=2,  # batch)\n)",
        "DataLoader(\n    d,  # (data,\n    b=2, num_workers=3,  # batch)\n)",
    ),
    "a name of its own": ("from torch.utils.data import DataLoader as L; L(d)", None),
    "a path": ("torch.utils.data.DataLoader(d)", "torch.utils.data.DataLoader(d, num_workers=3)"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_keyword_is_added_or_its_value_replaced(name, tmp_path):
    before, after = CALLS[name]
    patch, notes = written(tmp_path, f"{before}\n", kept(("num_workers", 3), lines=(1,)))
    assert notes == ()
    assert applied(tmp_path, patch) == f"{after or before.replace('L(d)', 'L(d, num_workers=3)')}\n"


REFUSED = {
    "**keywords": ("DataLoader(d, **more)", "train.py:1 passes `*` or `**` arguments, which may hold it"),
    "*arguments": ("DataLoader(*all)", "train.py:1 passes `*` or `**` arguments, which may hold it"),
    "by position": ("DataLoader(d, 1, True, None, None, 0)", "train.py:1 passes it by position"),
    "a generator": ("DataLoader(x for x in y)", "train.py:1 passes a bare generator"),
    "two in a line": ("DataLoader(a), DataLoader(b)", "train.py:1 has no single call of DataLoader"),
    "another call": ("Loader(a)", "train.py:1 has no single call of DataLoader"),
    "another language": ("DataLoader(a", "train.py is not Python in UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_a_guess_is_refused_with_the_reason(name, tmp_path):
    text, reason = REFUSED[name]
    patch, notes = written(tmp_path, f"{text}\n", kept(("num_workers", 3), lines=(1,)))
    assert patch == ""
    assert notes == (f"Not in the patch: num_workers = 3. Reason: {reason}.",)


def test_a_change_is_refused_whole_where_one_of_its_lines_is(tmp_path):
    text = "DataLoader(d)\nDataLoader(d, **more)\n"
    assert written(tmp_path, text, kept(("num_workers", 3), lines=(1, 2)))[0] == ""


def test_an_attempt_has_the_lines_of_all_its_changes(tmp_path):
    patch, notes = written(tmp_path, PROGRAM, kept(("num_workers", 3), ("foreach", True), lines=(5, 6)))
    assert notes == ()
    assert "+    loader = DataLoader(data, 32, num_workers=3)\n" in patch
    assert "+    optimizer = torch.optim.SGD(model, lr=0.1, foreach=True)\n" in patch


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from torch import optim", "optim.AdamW(p)"),
        ("import torch.optim as o", "o.AdamW(p)"),
        ("from torch.optim import AdamW as A", "A(p)"),
    ],
)
def test_an_optimizer_is_known_by_its_module(imports, call, tmp_path):
    patch, _ = written(tmp_path, f"{imports}\n{call}\n", kept(("fused", True), lines=(2,)))
    assert f"+{call[:-1]}, fused=True)\n" in patch
    assert written(tmp_path, "from other import AdamW\nAdamW(p)\n", kept(("fused", True), lines=(2,)))[0] == ""


def test_a_line_comes_after_the_last_import_of_torch_with_what_it_needs(tmp_path):
    text = "import os\nfrom torch import nn\nfrom torch.utils.data import (\n    DataLoader,\n)\nimport sys\n"
    attempts = (kept(("cudnn_benchmark", True), lines=()), kept(("matmul_precision", "high"), lines=()))
    patch, notes = written(tmp_path, text, *attempts)
    assert notes == ()
    added = "import torch\ntorch.backends.cudnn.benchmark = True\ntorch.set_float32_matmul_precision('high')\n"
    assert applied(tmp_path, patch) == text.replace(")\n", f")\n{added}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f():\n    import torch\n", "train.py does not import torch at its top"),
        (
            "import torch\ntorch.set_float32_matmul_precision('highest')\n",
            "train.py:2 has `torch.set_float32_matmul_precision` already: change it there",
        ),
    ],
)
def test_a_line_without_a_place_is_refused(text, reason, tmp_path):
    patch, notes = written(tmp_path, text, kept(("matmul_precision", "high"), lines=()))
    assert patch == ""
    assert notes == (f"Not in the patch: matmul_precision = high. Reason: {reason}.",)


def test_settings_without_a_place_are_left_to_be_pasted_where_there_is_code(tmp_path):
    patch, notes = written(tmp_path, PROGRAM, kept(("autocast", "bf16"), code="with ..."), kept(("env:X", "1")))
    assert patch == ""
    assert [note.endswith("use the code to paste.") for note in notes] == [True, False]


def test_files_elsewhere_links_and_large_files_are_left_alone(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there.py"
    here.mkdir()
    there.write_text("DataLoader(d)\n")
    (here / "link.py").symlink_to(there)
    (here / "large.py").write_text("#" * (4 * 1024 * 1024) + "\nDataLoader(d)\n")
    os.mkfifo(here / "pipe.py")
    for name in ("../there.py", str(there), "link.py", "large.py", "pipe.py", "none.py", "", "a\0b", "<stdin>"):
        patch, notes = patch_of([kept(("num_workers", 3), lines=(1,), file=name)], SETTINGS, here)
        assert patch == ""
        assert len(notes) == 1
    assert "it is a link" in patch_of([kept(("num_workers", 3), lines=(1,), file="link.py")], SETTINGS, here)[1][0]


def test_files_below_and_with_blanks_are_named_from_the_working_directory(tmp_path):
    name = "my net/train it.py"
    for file in (name, str(tmp_path / name)):
        patch, _ = written(tmp_path, "DataLoader(d)\n", kept(("num_workers", 3), lines=(1,), file=file), name=name)
        assert applied(tmp_path, patch, name=name) == "DataLoader(d, num_workers=3)\n"


def test_every_setting_that_ships_is_a_keyword_or_a_line_of_python(tmp_path):
    places = {name: setting for name, setting in SHIPPED.items() if setting.call or setting.statement}
    assert {setting.call for setting in places.values()} >= {"DataLoader", "optimizer", "DistributedDataParallel"}
    for name, setting in places.items():
        call = "torch.optim.SGD" if setting.call == "optimizer" else setting.call
        (tmp_path / "train.py").write_text(f"import torch\n{call or 'print'}()\n", "utf-8")
        patch, notes = patch_of([kept((name, "x"), lines=(2,))], SHIPPED, tmp_path, "train.py")
        assert notes == ()
        assert re.search(rf"^\+.*({name}=)?'x'", patch, re.MULTILINE), name
