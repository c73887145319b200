"""The page of every rule, and the table of rules."""

import re
import sys

import pytest

from profilerkit.rules import RULES
from profilerkit.rules.docs import render_text, sections, table_of, thresholds
from profilerkit.rules.rule import HEADINGS

FAMILIES = {"CO": "comm", "CP": "compute", "IN": "input", "ME": "memory", "OV": "overhead", "RU": "run"}


def each(rules):
    return pytest.mark.parametrize("rule", rules, ids=lambda rule: rule.code)


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_rules_are_sorted_by_family():
    prefixes = [rule.code[:2] for rule in RULES]
    assert prefixes == sorted(prefixes)


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
def test_a_docstring_has_every_heading_once_in_order_with_text(rule):
    page = sections(rule)
    assert tuple(page) == HEADINGS
    assert all(page.values())


@each(RULES)
def test_a_page_fits_eighty_columns_and_names_every_option(rule):
    page = render_text(rule)
    assert max(len(line) for line in page.splitlines()) <= 80
    assert page.startswith(f"{rule.code} {rule.name}\n{rule.summary}\n")
    for option, value in thresholds(rule).items():
        assert f"  {option} = {value}" in page
    assert page.endswith("\n")
    assert not page.endswith("\n\n")


@each(RULES)
def test_a_summary_is_one_line_and_no_sentence_with_a_full_stop(rule):
    assert "\n" not in rule.summary
    assert not rule.summary.endswith(".")


@each(RULES)
def test_the_page_states_the_threshold_that_the_rule_applies(rule):
    text = sections(rule)["Threshold"]
    share = thresholds(rule).get("smallest_share")
    if share is not None:
        assert f"{100 * share:.0f} %" in text


@each(RULES)
def test_a_page_ends_with_the_table_that_sets_its_options(rule):
    assert (table_of(rule) in render_text(rule)) == bool(thresholds(rule))


@each(RULES)
def test_a_module_names_the_rules_of_the_catalogue_that_it_is(rule):
    assert numbers(rule)


def test_every_rule_of_the_catalogue_has_a_page():
    assert sorted({number for rule in RULES for number in numbers(rule)}) == list(range(1, 61))


def numbers(rule):
    """The numbers of the catalogue in the first line of the rule's module: ``IN002 (R02)``, ``OV001 (R46, R50)``."""
    first = sys.modules[type(rule).__module__].__doc__.splitlines()[0]
    named = re.match(rf"{rule.code} \((R\d\d(?:, R\d\d)*)\): ", first)
    return [int(number[1:]) for number in named[1].split(", ")] if named else []
