"""README: short, code soon, and everything it points at is there."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TEXTS = {path.name: path.read_text("utf-8") for path in ROOT.glob("*.md")}


def words(text):
    return len(re.findall(r"\S*\w\S*", text))


def test_it_is_short_and_comes_to_the_code():
    assert words(README) <= 900
    before = README[: README.index("```python")]
    assert words(re.sub(r"```.*?```|!\[.*?\)", "", before, flags=re.DOTALL)) <= 80


def test_it_begins_with_what_it_is_for_and_says_how_to_try_it():
    first_screen = README[: README.index("## ")]
    assert all(piece in first_screen for piece in ("what bounds", "reports/first_screen.png", "profilerkit run"))
    assert len(re.findall(r"!\[", README)) == 1
    assert all(f"\n{script} " in README for script in ("scripts/demo", "scripts/test"))


def test_it_compares_with_other_tools():
    (header,) = re.findall(r"^\| \| profilerkit .*\|$", README, re.MULTILINE)
    assert all(tool in header for tool in ("TraceML", "HTA", "Nsight Systems", "PyTorch profiler"))


def test_nothing_is_said_to_be_on_an_index():
    package = [path.read_text("utf-8") for path in (ROOT / "profilerkit").rglob("*") if path.suffix in {".py", ".md"}]
    assert all("pip install 'profilerkit" not in text and "pip install profilerkit" not in text for text in package)
    assert "pip install ." in README


@pytest.mark.parametrize(
    "name", sorted({name for text in TEXTS.values() for name in re.findall(r"(?<![\w/.])scripts/\w+", text)})
)
def test_every_script_can_be_called(name):
    assert os.access(ROOT / name, os.X_OK)


@pytest.mark.parametrize("name", TEXTS)
def test_every_link_and_picture_leads_to_a_file(name):
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXTS[name]) if "://" not in target]
    assert all((ROOT / target).exists() for target in targets)
