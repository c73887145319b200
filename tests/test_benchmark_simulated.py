"""``scripts/benchmark_simulated``: a small run of the whole script, and its page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "benchmark_simulated"


#: Two of the classes and kinds; all of them are drawn by the tests of the simulator.
ONLY = ("G26", "H01")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The committed report as if of one draw, in which the script has replaced two entries."""
    out = tmp_path_factory.mktemp("simulated")
    document = json.loads((ROOT / "reports" / "simulated.json").read_text("utf-8"))
    (out / "simulated.json").write_text(json.dumps({**document, "draws": 1}), "utf-8")
    command = [sys.executable, SCRIPT, "--draws", "1", "--only", ",".join(ONLY), "--update", "--processes", "1"]
    done = subprocess.run([*command, "--out", out], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode in (0, 1), done.stderr
    return out


def test_the_script_writes_both_reports(reports):
    document = json.loads((reports / "simulated.json").read_text("utf-8"))
    assert (document["schema_version"], document["draws"]) == (1, 1)
    assert len(document["classes"]) == 28
    made = {entry["code"]: entry for entry in (*document["classes"], *document["healthy"])}
    assert {code for code, entry in made.items() if entry["draws"] == 1} == set(ONLY)
    assert all(len(made[code]["flags"]) == 1 for code in ONLY)


@pytest.mark.parametrize("made", [True, False], ids=["just made", "committed"])
def test_the_page_loads_nothing_and_names_no_machine(request, made):
    directory = request.getfixturevalue("reports") if made else ROOT / "reports"
    page = (directory / "simulated.html").read_text("utf-8")
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|https?://""", page)
    for text in (page, (directory / "simulated.json").read_text("utf-8")):
        assert str(ROOT) not in text
        assert str(Path.home()) not in text


def test_the_committed_page_shows_the_committed_figures():
    document = json.loads((ROOT / "reports" / "simulated.json").read_text("utf-8"))
    page = (ROOT / "reports" / "simulated.html").read_text("utf-8")
    for entry in (*document["classes"], *document["healthy"]):
        assert f"<td>{entry['code']}</td>" in page
    kept = sum(entry["holds"] for entry in document["classes"])
    assert f"{kept} of 28 classes of faults are seen right" in page


def test_one_draw_can_be_looked_at():
    done = subprocess.run(
        [sys.executable, SCRIPT, "--show", "G09/150"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "input.h2d" in done.stdout
    assert "the fault takes" in done.stdout


def test_only_some_classes_write_no_report(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--draws", "2", "--only", "G26", "--out", tmp_path],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("G26  empty GPU")
    assert not list(tmp_path.iterdir())


def test_the_committed_page_of_what_ifs_shows_the_committed_figures():
    document = json.loads((ROOT / "reports" / "whatifs.json").read_text("utf-8"))
    page = (ROOT / "reports" / "whatifs.html").read_text("utf-8")
    assert f"{document['close']} of {document['open']} what-ifs are foretold within 2 points" in page
    assert all(f"<td>{row['code']}</td>" in page for row in document["rows"])
    assert document["holds"]
    assert document["close_ratio"] >= document["goals"]["least_close"]
    for text in (page, (ROOT / "reports" / "whatifs.json").read_text("utf-8")):
        assert str(ROOT) not in text
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(|https?://|<script""", page)


def test_what_ifs_of_some_rows_write_no_report(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--what-ifs", "--draws", "2", "--only", "W07,W12", "--out", tmp_path],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("W07  kernels twice as fast")
    assert "2 of 2 with an open gate" in done.stdout
    assert not list(tmp_path.iterdir())
