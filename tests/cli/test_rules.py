import json

import pytest

from profilerkit.cli import main
from profilerkit.rules import RULES


def test_every_rule_is_listed_within_80_columns(capsys):
    assert main(["rules"]) == 0
    shown = capsys.readouterr().out
    codes = [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")]
    assert codes == [rule.code for rule in RULES]
    assert max(map(len, shown.splitlines())) <= 80


def test_a_prefix_lists_its_rules(capsys):
    assert main(["rules", "in"]) == 0
    codes = [line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert codes == [rule.code for rule in RULES if rule.code.startswith("IN")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_is_explained_by_code_and_by_name(capsys, rule):
    assert main(["rules", rule.code.lower()]) == 0
    page = capsys.readouterr().out
    assert rule.code in page
    assert main(["rules", rule.name]) == 0
    assert capsys.readouterr().out == page


def test_json_holds_options_and_page(capsys):
    assert main(["rules", RULES[0].code, "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["code"] == RULES[0].code
    assert {"name", "family", "summary", "options", "page"} <= set(record)
    assert main(["rules", "--format", "json"]) == 0
    whole = capsys.readouterr().out
    assert len(json.loads(whole)) == len(RULES)
    assert main(["rules", "--json"]) == 0
    assert capsys.readouterr().out == whole


def test_an_unknown_rule_is_answered_with_the_closest(capsys):
    assert main(["rules", "IN0002"]) == 2
    assert "did you mean IN002?" in capsys.readouterr().err


def test_the_schema_is_the_reports(capsys):
    from profilerkit.model.report import json_schema

    assert main(["rules", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))
