"""The page of every rule, and the table of rules."""

import functools
import inspect
import re
import shlex
from pathlib import Path

import pytest

from profilerkit.model import revise
from profilerkit.rules import RULES
from profilerkit.rules.api import HEADINGS
from profilerkit.rules.docs import CODE, SOURCES, render_text, sections, spoken, thresholds
from tests.plain_english import Text, faults, strings_of

PACKAGE = Path(__file__).parents[2] / "profilerkit"
FAMILIES = {"CO": "comm", "CP": "compute", "IN": "input", "ME": "memory", "OV": "overhead", "RU": "run"}
#: Words of an example that needs a GPU or other ranks, or changes the process for good: it is compiled and not run.
NEEDS = re.compile(r"cuda|cudnn|distributed|\bddp\b|dist\.|torch\.compile|set_num_threads|gc\.|set_detect|DataParallel")
#: Names of a product or an option that a page mentions, and that need a source.
OUTSIDE = re.compile(r"\bNCCL\b|\bMIG\b|\bZeRO\b|\bGPipe\b|\bNVML\b|\bPSI\b|since PyTorch|PyTorch's tuning guide")


def each(rules):
    return pytest.mark.parametrize("rule", rules, ids=lambda rule: rule.code)


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_rules_are_sorted_by_code():
    assert [rule.code for rule in RULES] == sorted(rule.code for rule in RULES)


@each(RULES)
def test_a_code_is_its_familys_letters_and_three_digits(rule):
    assert re.fullmatch(r"[A-Z]{2}\d{3}", rule.code)
    assert FAMILIES[rule.code[:2]] == rule.family


@each(RULES)
def test_a_rule_lives_in_its_familys_folder_under_its_name(rule):
    assert type(rule).__module__ == f"profilerkit.rules.{rule.family}.{rule.name}"


@each(RULES)
def test_a_page_has_every_heading_once_in_order_with_text(rule):
    page = sections(rule)
    assert tuple(page) in (HEADINGS, HEADINGS[:-1])
    assert all(page.values())


@each(RULES)
def test_a_page_fits_eighty_columns_and_names_every_setting(rule):
    page = render_text(rule)
    assert max(len(line) for line in page.splitlines() if "://" not in line) <= 80
    assert page.startswith(f"{rule.code} {rule.name}\n{rule.summary}\n")
    for name, value in thresholds(rule).items():
        assert f"  {name} = {value}" in page
    assert page.endswith("\n")
    assert not page.endswith("\n\n")


@each(RULES)
def test_a_summary_is_one_line_and_says_other_words_than_the_page_begins_with(rule):
    assert "\n" not in rule.summary
    assert not rule.summary.endswith(".")
    assert rule.summary.lower() not in sections(rule)[HEADINGS[0]].lower()


@each(RULES)
def test_a_page_is_plain_english_and_names_nothing_that_a_reader_cannot_find(rule):
    page = sections(rule)
    prose = {heading: text for heading, text in page.items() if heading not in (*CODE, SOURCES)}
    assert [fault for heading, text in prose.items() for fault in faults(Text(heading, text))] == []
    assert re.match(r"Find ", page[HEADINGS[0]])
    assert not re.search(r"§|\bR\d\d\b|\bC\d\d\b", type(rule).__doc__)


@each(RULES)
def test_a_page_takes_its_numbers_from_the_settings(rule):
    written = re.split(rf"\n(?={'|'.join(HEADINGS)})", inspect.cleandoc(type(rule).__doc__))
    page = sections(rule)
    for heading in set(page) - {*CODE, SOURCES}:
        assert not re.search(r"\{\w*\}", page[heading]), "no such setting"
    about = " ".join(part for part in written if part is written[0] or part.startswith("How it is measured"))
    for name, value in thresholds(rule).items():
        said = spoken(name, value)
        assert not re.search(r"\d\d|[%a-z]", said) or not re.search(rf"(?<![\w.]){re.escape(said)}(?!\w)", about), name


@each(RULES)
def test_another_value_of_a_setting_is_another_page(rule):
    """One line changes a threshold: the sentence that names it and the table of settings follow."""
    for name, value in thresholds(rule).items():
        other = revise(rule, **{name: 3 * value})
        assert f"  {name} = {3 * value}" in render_text(other)
        assert (sections(other) != sections(rule)) == (f"{{{name}}}" in type(rule).__doc__), name


@each(RULES)
def test_a_page_ends_with_the_table_that_sets_its_settings(rule):
    assert (f"[tool.profilerkit.rules.{rule.code}]" in render_text(rule)) == bool(thresholds(rule))


@each(RULES)
def test_a_page_that_claims_an_outside_fact_links_to_it(rule):
    page = sections(rule)
    prose = " ".join(text for heading, text in page.items() if heading not in (*CODE, SOURCES))
    links = page.get(SOURCES, "").split()
    assert links or not OUTSIDE.search(prose)
    assert all(re.fullmatch(r"https://[\w.-]+/\S*", link) for link in links)


@functools.cache
def prelude():
    """The names that examples take as given, small enough for a CPU."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.randn(8, 4), torch.randn(8, 4))
    model = nn.Linear(4, 4)
    return {
        "torch": torch,
        "nn": nn,
        "F": nn.functional,
        "DataLoader": DataLoader,
        "Dataset": torch.utils.data.Dataset,
        "IterableDataset": torch.utils.data.IterableDataset,
        "dataset": dataset,
        "loader": DataLoader(dataset, batch_size=4),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": nn.functional.mse_loss,
        "device": "cpu",
        "train_step": lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        "evaluate": lambda: None,
    }


@each(RULES)
@pytest.mark.parametrize("heading", CODE)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_an_example_runs(rule, heading, tmp_path, monkeypatch):
    code = sections(rule)[heading]
    shell = [line for line in code.splitlines() if line.startswith("$ ")]
    assert all(shlex.split(line[2:]) for line in shell)
    python = "\n".join(line for line in code.splitlines() if not line.startswith("$ "))
    compiled = compile(python, f"{rule.code} {heading}", "exec")
    if python and not NEEDS.search(python):
        pytest.importorskip("torch")
        monkeypatch.chdir(tmp_path)
        exec(compiled, {**prelude(), "__name__": "example"})


TEXTS = [path for folder in ("rules", "diagnosis") for path in sorted((PACKAGE / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_what_a_rule_or_the_verdict_says_is_plain_english(path):
    assert [fault for text in strings_of(path) for fault in faults(text)] == []
